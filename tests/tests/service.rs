//! The systemd unit in `packaging/`: what it starts does start, in the way it says, and ends so.
#![allow(clippy::unwrap_used)]

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};

use fulmar_tests::{PATIENCE, default_listeners, fulmar, run};

const UNIT: &str = include_str!("../../packaging/fulmar.service");
const EXAMPLE: &str = include_str!("../../fulmar.example.toml");

/// The value of a key that the unit has once.
fn unit(key: &str) -> &str {
    let mut values = UNIT.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    let value = values.next().unwrap_or_else(|| panic!("no {key} in the unit"));
    assert_eq!(values.next(), None, "{key} more than once");
    value
}

/// The broker as the unit starts it, with `folder` for `/etc/fulmar` and `/var/lib/fulmar`.
fn command(folder: &Path) -> Command {
    let mut words = unit("ExecStart").split(' ');
    assert_eq!(words.next(), Some("/usr/local/bin/fulmar"));
    let here = |word: &str| {
        let word = word.replace("/etc/fulmar", folder.to_str().unwrap());
        word.replace("/var/lib/fulmar", folder.join("data").to_str().unwrap())
    };
    let mut command = fulmar();
    command.args(words.map(here)).stdin(Stdio::null());
    command
}

#[test]
fn it_starts_the_example_configuration_and_is_told() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("fulmar.toml"), EXAMPLE).unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = command(folder.path());
    // All that the example has: no test may need a default port, which `make run` beside it uses.
    for (name, _) in default_listeners() {
        command.env(format!("FULMAR_LISTENERS__{}", name.to_uppercase()), r#"["127.0.0.1:0"]"#);
    }
    command.env("NOTIFY_SOCKET", &path).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let next = || {
        let mut buffer = [0; 64];
        let len = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..len].to_vec()).unwrap()
    };
    assert_eq!(unit("Type"), "notify");
    assert_eq!(next(), "READY=1");
    // What systemd does on reload, and on stop unless the unit says otherwise.
    for (signal, told) in [("-HUP", None), ("-TERM", Some("STOPPING=1"))] {
        let pid = child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        if let Some(told) = told {
            assert_eq!(next(), told);
        }
    }
    assert_eq!(unit("ExecReload"), "/bin/sh -c 'kill -HUP $MAINPID'");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn wrong_configuration_is_not_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("fulmar.toml"), "[server]\nworker = 1\n").unwrap();
    let code = run(&mut command(folder.path())).status.code().unwrap();
    assert_eq!(unit("RestartPreventExitStatus"), code.to_string());
    assert_eq!(unit("Restart"), "on-failure");
}

#[test]
fn systemd_waits_longer_than_the_broker_drains() {
    let drain = EXAMPLE.lines().find_map(|line| line.strip_prefix("drain_timeout_s = ")).unwrap();
    let drain: u32 = drain.parse().unwrap();
    let stop: u32 = unit("TimeoutStopSec").strip_suffix('s').unwrap().parse().unwrap();
    assert!(stop > drain + 5, "{stop} s to stop, {drain} s to drain");
}

/// What a broker that somebody has taken over, or that grows without end, must not do to the machine.
#[test]
fn it_is_confined() {
    for (key, value) in [
        ("NoNewPrivileges", "yes"),
        ("CapabilityBoundingSet", ""),
        ("AmbientCapabilities", ""),
        ("ProtectSystem", "strict"),
        ("ProtectHome", "yes"),
        ("PrivateDevices", "yes"),
        ("PrivateTmp", "yes"),
        ("MemoryDenyWriteExecute", "yes"),
        ("RestrictAddressFamilies", "AF_INET AF_INET6 AF_UNIX AF_NETLINK"),
        ("UMask", "0077"),
    ] {
        assert_eq!(unit(key), value, "{key}");
    }
    for key in ["MemoryHigh", "MemoryMax", "TasksMax"] {
        assert!(unit(key).trim_end_matches('%').parse::<u32>().is_ok(), "{key}");
    }
}

#[test]
fn the_guide_installs_the_configuration_for_the_broker_alone() {
    let guide = include_str!("../../docs/guide.md");
    let line = guide.lines().find(|line| line.contains("fulmar.example.toml /etc")).unwrap();
    assert!(line.contains("-m 640 ") && line.contains("-o root -g fulmar "), "{line}");
    let user = guide.find("useradd --system").unwrap();
    assert!(user < guide.find(line).unwrap(), "the group has to be there before");
}

/// What the guide's steps do not install, the unit must not name.
#[test]
fn the_unit_names_no_documentation_that_is_not_installed() {
    let files = UNIT.lines().filter_map(|line| line.strip_prefix("Documentation=file:"));
    let guide = include_str!("../../docs/guide.md");
    for file in files {
        assert!(guide.contains(file), "{file}");
    }
}

#[test]
fn systemd_finds_nothing_to_complain_of() {
    let folder = tempfile::tempdir().unwrap();
    // The program need not be installed where the tests run.
    let text = UNIT.replace("/usr/local/bin/fulmar", "/bin/true");
    let path = folder.path().join("fulmar.service");
    std::fs::write(&path, text).unwrap();
    let mut analyze = Command::new("systemd-analyze");
    if analyze.arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("not checked: systemd-analyze is not installed");
        return;
    }
    let output = run(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path));
    let said = String::from_utf8_lossy(&output.stderr);
    let about_us: Vec<&str> = said.lines().filter(|line| line.contains("fulmar.service")).collect();
    assert!(about_us.is_empty(), "{about_us:#?}");
}
