//! `fulmar serve --check`: finds what a start would fail with, ends with the same exit code, and changes nothing.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use fulmar_tests::{TestBroker, default_listeners, fulmar, run, write_secret};
use tempfile::TempDir;

/// A folder with a configuration, on free ports unless the configuration says otherwise.
struct Site(TempDir);

impl Site {
    fn new(config: &str) -> Site {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("fulmar.toml"), config).unwrap();
        Site(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn serve(&self, more: &[&str]) -> Command {
        let mut command = fulmar();
        command.args(["serve", "--config"]).arg(self.path("fulmar.toml"));
        command.arg("--data").arg(self.path("data")).args(more).current_dir(self.0.path());
        for (name, _) in default_listeners() {
            let key = format!("FULMAR_LISTENERS__{}", name.to_uppercase());
            command.env(key, r#"["127.0.0.1:0"]"#);
        }
        command
    }
}

/// Exit code and output.
fn outcome(command: &mut Command) -> (i32, String) {
    let output = run(command);
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

/// Every file below a folder, with what would show a change.
fn files(folder: &Path) -> BTreeMap<PathBuf, (u32, u64, SystemTime)> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let about = path.metadata().unwrap();
        found.insert(path.clone(), (about.mode(), about.len(), about.modified().unwrap()));
        if path.is_dir() {
            found.extend(files(&path));
        }
    }
    found
}

#[test]
fn a_good_configuration_is_checked_without_a_trace() {
    let site = Site::new("");
    let before = files(site.0.path());
    let (code, text) = outcome(&mut site.serve(&["--check"]));
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("data will be created") && text.contains("0 problems"), "{text}");
    assert_eq!(files(site.0.path()), before);
}

#[test]
fn the_data_of_a_broker_that_runs_or_has_stopped_stay_as_they_are() {
    let mut broker = TestBroker::start();
    let check = |broker: &TestBroker| {
        let mut command = fulmar();
        command.args(["serve", "--check", "--config"]).arg(broker.config_file());
        command.arg("--data").arg(broker.data());
        for (name, address) in broker.bound() {
            command.env(
                format!("FULMAR_LISTENERS__{}", name.to_uppercase()),
                format!("[\"{address}\"]"),
            );
        }
        outcome(&mut command)
    };
    let (code, text) = check(&broker);
    assert_eq!(code, 0, "{text}");
    let id = format!("fulmar (process {})", broker.pid());
    assert!(text.contains(&format!("data is in use by {id}")), "{text}");
    let mqtt = format!("{} is in use by {id} until the restart", broker.address("mqtt"));
    assert!(text.contains(&mqtt), "{text}");
    assert!(broker.terminate().success());
    let before = files(&broker.data());
    let (code, text) = check(&broker);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("broker.db can be used"), "{text}");
    assert_eq!(files(&broker.data()), before);
}

#[test]
fn a_port_that_is_taken_is_found_with_the_program_that_has_it() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let site = Site::new("");
    let listeners = |command: &mut Command| {
        command.env("FULMAR_LISTENERS__MQTT", format!("[\"{address}\"]"));
        outcome(command)
    };
    let (code, text) = listeners(&mut site.serve(&["--check"]));
    let id = format!("(process {})", std::process::id());
    let found = text.lines().find(|line| line.starts_with("PROBLEM")).unwrap();
    assert!(found.contains(&format!("listener mqtt: {address} (TCP) is in use by")), "{text}");
    assert!(found.contains(&id), "{text}");
    assert!(text.contains("FULMAR_LISTENERS__MQTT"), "{text}");
    assert_eq!((code, listeners(&mut site.serve(&[])).0), (1, 1), "{text}");
}

/// What makes a site faulty, and a part of the finding.
type Fault<'a> = (&'a str, &'a dyn Fn(&Site), &'a str);

fn issue(site: &Site) {
    let mut command = fulmar();
    let certificate = run(command
        .args(["cert", "issue", "broker.example", "--out"])
        .arg(site.0.path())
        .arg("--dir")
        .arg(site.path("ca")));
    assert!(certificate.status.success(), "{certificate:?}");
}

#[test]
fn it_finds_what_a_start_fails_with_and_ends_with_the_same_code() {
    let pair = "[tls]\ncert = \"broker.example.pem\"\nkey = \"broker.example.key\"\n";
    let open = |site: &Site| {
        issue(site);
        let mode = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(site.path("broker.example.key"), mode).unwrap();
    };
    let other = |site: &Site| {
        issue(site);
        let key = site.path("broker.example.key");
        std::fs::remove_file(&key).unwrap();
        std::fs::rename(site.path("broker.example.pem"), site.path("kept.pem")).unwrap();
        issue(site);
        std::fs::rename(site.path("kept.pem"), site.path("broker.example.pem")).unwrap();
    };
    let newer = |site: &Site| {
        std::fs::create_dir(site.path("data")).unwrap();
        // The header of SQLite's file format: user version 99, application id FULM.
        let mut page = vec![0; 4096];
        page[..16].copy_from_slice(b"SQLite format 3\0");
        page[16..24].copy_from_slice(&[0x10, 0, 1, 1, 0, 64, 32, 32]);
        page[28..32].copy_from_slice(&[0, 0, 0, 1]);
        page[44..48].copy_from_slice(&[0, 0, 0, 4]);
        page[56..64].copy_from_slice(&[0, 0, 0, 1, 0, 0, 0, 99]);
        page[68..72].copy_from_slice(b"FULM");
        page[100..108].copy_from_slice(&[13, 0, 0, 0, 0, 0x10, 0, 0]);
        std::fs::write(site.path("data/broker.db"), page).unwrap();
    };
    let garbage = |site: &Site| {
        std::fs::create_dir(site.path("data")).unwrap();
        std::fs::write(site.path("data/broker.db"), [7; 4096]).unwrap();
    };
    let file = |site: &Site| std::fs::write(site.path("data"), "x").unwrap();
    let broken = |site: &Site| write_secret(site.path("passwords"), "ann secret\n");
    let passwords = "[auth]\npassword_file = \"passwords\"\n";
    let cases: [Fault<'_>; 9] = [
        ("[server]\nworker = 1\n", &|_| (), "did you mean `workers`?"),
        (passwords, &|_| (), "create it with `fulmar passwd USER --file passwords`"),
        (passwords, &broken, "passwords:1: expected an argon2 hash"),
        ("[[acl.rules]]\nallow = true\ntopic = \"a/#/b\"\n", &|_| (), "[[acl.rules]] topic"),
        (pair, &open, "run `chmod 600 broker.example.key`"),
        (pair, &other, "[tls] cert broker.example.pem and key broker.example.key"),
        ("", &newer, "has schema version 99"),
        ("", &garbage, "broker.db is damaged"),
        ("", &file, "data is not a folder"),
    ];
    for (config, break_it, part) in cases {
        let site = Site::new(config);
        break_it(&site);
        let before = files(site.0.path());
        let (checked, text) = outcome(&mut site.serve(&["--check"]));
        assert!(text.contains(part), "{part} is not in:\n{text}");
        assert_eq!(files(site.0.path()), before, "{part}");
        let (started, log) = outcome(&mut site.serve(&[]));
        assert_eq!(checked, started, "{part}\n{text}\n{log}");
    }
}

#[test]
fn it_goes_on_after_what_it_finds() {
    let site = Site::new("[auth]\npassword_file = \"none\"\n[coap]\npsk_file = \"none-either\"\n");
    std::fs::write(site.path("data"), "x").unwrap();
    let (code, text) = outcome(&mut site.serve(&["--check"]));
    let problems = text.lines().filter(|line| line.starts_with("PROBLEM")).count();
    assert!(problems >= 3, "{text}");
    assert_eq!(code, 2);
}
