//! What lets other users or machines read or change secrets, although it works: warned of at each start, too.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use fulmar_transport::is_loopback;

use super::finding::Finding;
use fulmar_config::{Config, set};

/// A warning for each.
pub(crate) fn check(config: &Config, data: &Path) -> Vec<Finding> {
    let mut warnings = Vec::new();
    if data.metadata().is_ok_and(|data| data.is_dir() && data.mode() & 0o002 != 0) {
        let text =
            format!("every user of this machine can write to the data folder {}", data.display());
        let next = format!("chmod 700 {}", data.display());
        warnings.push(Finding::warning("data folder", text, next));
    }
    let sent = [
        (&config.auth.http.url, "[auth.http] url", "names and passwords of clients", true),
        (&config.otlp.endpoint, "[otlp] endpoint", "headers_file", {
            set(&config.otlp.headers_file).is_some()
        }),
    ];
    for (url, key, what, is_secret) in sent {
        if is_secret && leaves_unencrypted(url) {
            let text =
                format!("{key} is another machine's over http://: the network can read {what}");
            let next = "use https://, or a proxy with TLS on this machine";
            warnings.push(Finding::warning("configuration", text, next));
        }
    }
    warnings
}

/// Whether requests go to another machine without TLS.
fn leaves_unencrypted(url: &str) -> bool {
    let Ok(url) = url.parse::<http::Uri>() else { return false };
    url.scheme_str() == Some("http") && !url.host().is_some_and(is_loopback)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt as _;

    fn warnings_for(toml: &str, data: &Path) -> Vec<String> {
        let found = check(&Config::from_toml(toml).unwrap(), data);
        found.into_iter().map(|finding| finding.text).collect()
    }

    #[test]
    fn secrets_to_other_machines_without_tls_are_warned_of() {
        let none = Path::new("/none");
        for quiet in [
            "",
            "[auth.http]\nurl = \"https://users.example\"\n",
            "[auth.http]\nurl = \"http://127.0.0.1:80/\"\n",
            "[auth.http]\nurl = \"http://[::1]/\"\n",
            "[auth.http]\nurl = \"http://localhost:8080/\"\n",
            "[otlp]\nendpoint = \"http://collector:4318\"\n",
        ] {
            assert_eq!(warnings_for(quiet, none), Vec::<String>::new(), "{quiet}");
        }
        for loud in [
            "[auth.http]\nurl = \"http://users.example\"\n",
            "[auth.http]\nurl = \"http://127.0.0.1.example/\"\n",
            "[otlp]\nendpoint = \"http://collector:4318\"\nheaders_file = \"x\"\n",
        ] {
            assert_eq!(warnings_for(loud, none).len(), 1, "{loud}");
        }
    }

    #[test]
    fn a_data_folder_that_everybody_can_write_to_is_warned_of() {
        let folder = tempfile::tempdir().unwrap();
        for (mode, warned) in
            [(0o700, false), (0o770, false), (0o755, false), (0o777, true), (0o1777, true)]
        {
            set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
            assert_eq!(warnings_for("", folder.path()).len(), usize::from(warned), "{mode:o}");
        }
    }
}
