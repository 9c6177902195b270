//! The first start of a broker that other machines can reach creates a user who can log in, and shows the password once.
//! On a terminal, see `tests/interop/test_first_login.py`.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use fulmar_tests::{TestBroker, fulmar, run, write_secret};

/// All addresses: what only other machines could reach is not on every machine of ours.
const OPEN: &[&str] = &["0.0.0.0:0"];

fn file(broker: &TestBroker) -> PathBuf {
    broker.data().join("first-administrator")
}

/// How many users are stored.
fn users(broker: &TestBroker) -> i64 {
    let store = broker.data().join("identities.db");
    if !store.exists() {
        return 0;
    }
    let sql =
        "SELECT (SELECT count(*) FROM account) + (SELECT count(*) FROM entity WHERE kind = 3)";
    rusqlite::Connection::open(store).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
}

fn password(broker: &TestBroker) -> String {
    let text = std::fs::read_to_string(file(broker)).unwrap();
    assert!(text.contains("name: admin\n"), "{text}");
    text.lines().find_map(|line| line.strip_prefix("password: ")).unwrap().to_owned()
}

/// Whether a client can log in at the port that other machines reach. A user of the platform may not publish this.
fn can_log_in(broker: &TestBroker, password: Option<&str>) -> bool {
    let url = format!("mqtt://127.0.0.1:{}", broker.address("mqtt").port());
    let mut command = fulmar();
    command.args(["pub", &url, "-t", "t", "-m", "m", "-q", "1"]);
    if let Some(password) = password {
        command.args(["-u", "admin"]).env("FULMAR_PASSWORD", password);
    }
    let output = run(&mut command);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    output.status.success() || error.contains("refused the publication")
}

fn first_and_second_start(platform: bool) {
    let config = format!("[platform]\nenabled = {platform}\n");
    let mut broker = TestBroker::builder().config(&config).listen("mqtt", OPEN).start();
    let path = file(&broker);
    broker.wait_for_log(path.to_str().unwrap());
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let password = password(&broker);
    assert!(!broker.log().contains(&password) && !broker.output().contains(&password));
    assert_eq!(broker.output().lines().count(), 1, "{}", broker.output());
    assert!(can_log_in(&broker, Some(&password)));
    assert!(!can_log_in(&broker, Some("another")) && !can_log_in(&broker, None));
    // Only its hash is stored with the user.
    for entry in std::fs::read_dir(broker.data()).unwrap() {
        let other = entry.unwrap().path();
        if other != path && other.is_file() {
            let bytes = std::fs::read(&other).unwrap();
            let found = bytes.windows(password.len()).any(|part| part == password.as_bytes());
            assert!(!found, "{}", other.display());
        }
    }
    std::fs::remove_file(&path).unwrap();
    assert!(broker.terminate().success());
    broker.restart();
    assert!(can_log_in(&broker, Some(&password)));
    assert!(!path.exists() && !broker.log().contains("first-administrator"), "{}", broker.log());
    assert!(broker.data().join("identities.db").exists());
}

#[test]
fn a_user_of_the_platform_can_log_in_after_the_first_start() {
    first_and_second_start(true);
}

#[test]
fn a_user_of_a_broker_without_the_platform_can_log_in_after_the_first_start() {
    first_and_second_start(false);
}

#[test]
fn nobody_is_created_on_loopback_or_beside_another_way_to_log_in() {
    let folder = tempfile::tempdir().unwrap();
    let passwords = folder.path().join("passwords");
    write_secret(&passwords, "# none yet\n");
    let key = passwords.to_str().unwrap();
    for broker in [
        TestBroker::start(),
        TestBroker::builder().env("FULMAR_PLATFORM__ENABLED", "false").start(),
        TestBroker::builder().listen("mqtt", OPEN).env("FULMAR_AUTH__PASSWORD_FILE", key).start(),
        TestBroker::builder()
            .listen("mqtt", OPEN)
            .env("FULMAR_AUTH__ALLOW_ANONYMOUS", "always")
            .start(),
    ] {
        assert!(!file(&broker).exists());
        assert_eq!(users(&broker), 0);
    }
}

#[test]
fn pages_that_other_machines_reach_have_an_administrator() {
    let broker = TestBroker::builder()
        .listen("https", OPEN)
        .env("FULMAR_AUTH__ALLOW_ANONYMOUS", "always")
        .start();
    assert!(file(&broker).exists());
    let mut users = fulmar();
    let output = run(users.args(["user", "list", "--data"]).arg(broker.data()));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "admin\tadmin\tadmin");
}

#[test]
fn the_check_announces_it_and_creates_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    for platform in ["true", "false"] {
        let mut command = fulmar();
        for (name, _) in fulmar_tests::default_listeners() {
            let key = format!("FULMAR_LISTENERS__{}", name.to_uppercase());
            command.env(key, format!("{OPEN:?}"));
        }
        command.env("FULMAR_LISTENERS__COAP", "[]").env("FULMAR_LISTENERS__COAPS", "[]");
        command.env("FULMAR_LISTENERS__MQTT_SN", "[]");
        command.env("FULMAR_PLATFORM__ENABLED", platform);
        let output = run(command.args(["serve", "--check", "--data"]).arg(&data));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        assert!(text.contains("the next start creates a first administrator"), "{text}");
        assert!(!data.exists());
    }
}
