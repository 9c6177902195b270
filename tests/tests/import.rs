//! `fulmar import` reads regular files only: others that a configuration names would hold it up, or never end.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use fulmar_tests::{fulmar, run};

/// What the import prints about `other`, which is refused.
fn refused(command: &mut Command, other: &Path) {
    let output = run(command);
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert_ne!(output.status.code(), Some(0), "{said}");
    let named = said.contains(other.to_str().unwrap());
    assert!(named && said.contains("no regular file"), "{said}");
}

#[test]
fn what_is_no_regular_file_is_refused_wherever_it_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::create_dir(path("conf.d")).unwrap();
    for fifo in ["fifo", "conf.d/x.conf"] {
        assert!(Command::new("mkfifo").arg(path(fifo)).status().unwrap().success());
    }
    let import = |what: &str, file: &Path, target: &str| {
        let mut command = fulmar();
        command.args(["import", what]).arg(file).arg(target).arg(path("out"));
        command
    };
    for other in [path("fifo"), "/dev/zero".into(), "/proc/self/environ".into(), path("conf.d")] {
        refused(&mut import("mosquitto", &other, "--out"), &other);
        refused(&mut import("dynamic-security", &other, "--data"), &other);
        let config = path("mosquitto.conf");
        for option in ["password_file", "acl_file"] {
            std::fs::write(&config, format!("listener 21883\n{option} {}\n", other.display()))
                .unwrap();
            refused(&mut import("mosquitto", &config, "--out"), &other);
        }
        let plugin = "plugin /usr/lib/mosquitto_dynamic_security.so\nplugin_opt_config_file";
        std::fs::write(&config, format!("listener 21883\n{plugin} {}\n", other.display())).unwrap();
        refused(&mut import("mosquitto", &config, "--out"), &other);
    }
    std::fs::write(path("mosquitto.conf"), format!("include_dir {}\n", path("conf.d").display()))
        .unwrap();
    let config = path("mosquitto.conf");
    refused(&mut import("mosquitto", &config, "--out"), &path("conf.d/x.conf"));
    assert!(!path("out").exists());
}
