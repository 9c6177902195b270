//! From mosquitto.conf, and the files that it names, to fulmar.toml.
//!
//! Each file has a parser (`conf`, `passwords`, `acl`, `dynsec`), which knows nothing of Fulmar. `listeners`,
//! `access`, `bridges` and `settings` each translate a part, and add to the report what they cannot translate. `write`
//! puts the parts together; `store` turns the dynamic security file into users of the broker's store. The behaviour is that of mosquitto 2.0, compared with the real one in
//! tests/interop/test_import.py.

mod access;
pub mod acl;
mod bridges;
pub mod conf;
pub mod dynsec;
mod files;
mod listeners;
mod options;
pub mod passwords;
mod report;
mod settings;
mod store;
mod users;
mod write;

use std::path::Path;

use self::conf::Conf;
pub use self::files::{Disk, Files};
pub use self::report::{Error, Kind, Note, Report, SourceLine};
pub use self::store::{Filling, filling};

/// A file to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// File name, in the chosen folder.
    pub name: String,
    /// Contents of the file.
    pub contents: String,
    /// Whether only its owner may read it.
    pub secret: bool,
}

/// The result.
#[derive(Clone, Debug)]
pub struct Translation {
    /// `fulmar.toml` first, then the files with passwords.
    pub files: Vec<Output>,
    /// Options that were not translated, or work differently.
    pub report: Report,
}

/// Translates the configuration at `path`; `folder` is where the files will be.
///
/// # Errors
/// A file cannot be read, or mosquitto would refuse it; the error has its name and line.
pub fn translate(files: &dyn Files, path: &Path, folder: &Path) -> Result<Translation, Error> {
    let mut report = Report::default();
    let conf = Conf::read(files, path, &mut report)?;
    let listeners = listeners::translate(files, &conf, &mut report)?;
    let users = users::read(files, &conf, &listeners.security, &mut report)?;
    let rules = access::translate(files, &conf, &listeners.security, &users, &mut report)?;
    let bridges = bridges::translate(files, &conf, folder, &mut report)?;
    let settings = settings::translate(&conf, !bridges.is_empty(), &mut report)?;
    report.sort();
    let parts = write::Parts { path, folder, listeners, users, rules, bridges, settings };
    let files = parts.files(&report);
    Ok(Translation { files, report })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::files::tests::Memory;
    use super::*;

    fn run(files: &[(&str, &str)]) -> Translation {
        translate(&Memory::new(files), Path::new("m.conf"), Path::new("/out")).unwrap()
    }

    #[test]
    fn an_empty_configuration_is_mosquittos_local_mode() {
        let translation = run(&[("m.conf", "")]);
        let config: toml::Table = translation.files[0].contents.parse().unwrap();
        assert_eq!(config["listeners"]["mqtt"].to_string(), "[\"127.0.0.1:1883\"]");
        assert_eq!(config["auth"]["allow_anonymous"].as_str(), Some("loopback"));
        assert_eq!(config["acl"]["default_allow"].as_bool(), Some(true));
    }

    #[test]
    fn a_number_with_leading_zeros_is_the_number() {
        let text = "max_topic_alias 0941\nmax_queued_bytes 007\nmax_inflight_messages 08\nmax_queued_messages 09\n\
                    message_size_limit 0100\nmax_keepalive 011\nsys_interval 012\nmax_connections 013\n";
        let translation = run(&[("m.conf", text)]);
        let config: toml::Table = translation.files[0].contents.parse().unwrap();
        let limits = &config["limits"];
        assert_eq!(limits["topic_alias_maximum"].as_integer(), Some(941));
        assert_eq!(limits["max_queued_bytes"].as_integer(), Some(7));
        assert_eq!(limits["max_keep_alive_s"].as_integer(), Some(11));
        assert_eq!(config["sys"]["interval_s"].as_integer(), Some(12));
    }

    #[test]
    fn secrets_are_in_files_of_their_own() {
        let bridge = "connection b\naddress localhost\nremote_username u\nremote_password \"s#cret\ntopic #\n";
        let translation = run(&[("m.conf", &format!("listener 1 ::1\n{bridge}"))]);
        let names: Vec<_> = translation.files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["fulmar.toml", "passwords", "b.password"]);
        assert!(translation.files.iter().all(|file| file.secret));
        assert_eq!(translation.files[2].contents, "\"s#cret\n");
        assert!(!translation.files[0].contents.contains("s#cret"));
        assert!(!translation.report.to_string().contains("s#cret"));
    }

    proptest! {
        #[test]
        fn whatever_is_accepted_becomes_toml(
            conf in "(listener 1|user a|topic|connection b|address h|plugin x\n|acl_file acl\n|password_file pw\n|[ -~\t]{0,12}|\n| ){0,30}",
            acl in "(user|topic|pattern| read | deny |[ -~é\u{1b}]{0,6}|\n){0,20}",
        ) {
            let files = Memory::new(&[("m.conf", &conf), ("acl", &acl), ("pw", &acl)]);
            if let Ok(translation) = translate(&files, Path::new("m.conf"), Path::new("/o\"ut")) {
                let parsed: Result<toml::Table, _> = translation.files[0].contents.parse();
                prop_assert!(parsed.is_ok(), "{}", translation.files[0].contents);
            }
        }
    }
}
