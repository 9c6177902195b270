//! Fuzz targets of commands: whatever configuration of mosquitto is accepted becomes one that the server can read.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use fulmar_broker::auth::check_hash;
use fulmar_command_import::mosquitto::{Files, translate};
use fulmar_mqtt::topic::check_filter;

/// The names of the parts of an input.
const NAMES: [&str; 5] = ["m.conf", "acl", "pw", "dyn", "d/more.conf"];

/// Files without a disk.
struct Parts<'a>(Vec<&'a str>);

impl Files for Parts<'_> {
    fn read(&self, path: &Path) -> io::Result<String> {
        let at = NAMES.iter().position(|name| Path::new(name) == path);
        let found = at.and_then(|at| self.0.get(at));
        found.map(|text| (*text).to_owned()).ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let found = NAMES.iter().map(PathBuf::from).filter(|path| path.parent() == Some(folder));
        Ok(found.collect())
    }

    fn is_exposed(&self, path: &Path) -> bool {
        path.as_os_str().len().is_multiple_of(2)
    }

    fn resolve(&self, _: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok(vec![([192, 0, 2, 1], port).into()])
    }

    fn host_name(&self) -> String {
        "edge".to_owned()
    }

    fn has_ipv6(&self) -> bool {
        true
    }
}

/// `mosquitto.conf`, an ACL file, a password file, a dynamic security file and an included file, with U+0000 between.
pub fn import_mosquitto(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let parts = Parts(text.split('\0').collect());
    let Ok(translation) = translate(&parts, Path::new("m.conf"), Path::new("/out")) else { return };
    for line in translation.report.to_string().lines() {
        assert!(!line.contains(char::is_control), "{line:?}");
    }
    let config = &translation.files[0].contents;
    let config: toml::Table = config.parse().unwrap_or_else(|error| panic!("{error}: {config}"));
    for rule in config["acl"].get("rules").and_then(toml::Value::as_array).into_iter().flatten() {
        let topic = rule["topic"].as_str().unwrap_or_default();
        assert_eq!(check_filter(topic), Ok(()), "{topic:?}");
    }
    for listener in config["listeners"].as_table().into_iter().flatten() {
        let addresses = listener.1.as_array().into_iter().flatten();
        let all = addresses.map(|address| address.as_str().unwrap_or_default());
        assert!(all.into_iter().all(|address| address.parse::<SocketAddr>().is_ok()));
    }
    let passwords = translation.files.iter().find(|file| file.name == "passwords");
    for line in passwords.iter().flat_map(|file| file.contents.lines()) {
        // As `PasswordFile::load` reads it.
        let (user, hash) = line.trim().split_once(':').unwrap_or_default();
        assert!(!user.is_empty() && !user.starts_with('#') && check_hash(hash).is_ok(), "{line:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds/import-mosquitto");
        fulmar_mqtt_fuzz::replay(&folder, import_mosquitto);
    }
}
