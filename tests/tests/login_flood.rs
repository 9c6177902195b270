//! Wrong logins from many networks, as many as could not be hashed in time, do not stop honest ones.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::net::Ipv4Addr;
use std::path::Path;

use fulmar_tests::{TestBroker, Wire, field, fulmar, packet, run};

const PASSWORD: &str = "correct horse";
const HOME: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// More than two threads hash within the time that a client has to log in.
const FLOOD: usize = 480;

fn with_password(words: &[&str], folder: &Path) {
    let secret = folder.join("secret");
    std::fs::write(&secret, PASSWORD).unwrap();
    let output = run(fulmar().args(words).stdin(File::open(&secret).unwrap()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The start of a login: CONNECT is on its way.
fn begin(broker: &TestBroker, from: Ipv4Addr, user: &str, password: &str) -> Wire {
    let terms = [5, 0xC2, 0, 0, 0].to_vec();
    let body = [field("MQTT"), terms, field(""), field(user), field(password)].concat();
    let mut wire = Wire::dial_from(from.into(), broker.address("mqtt"));
    wire.send(&packet(0x10, &body));
    wire
}

/// CONNACK's reason code; `None` if the broker closes without one.
fn code(mut wire: Wire) -> Option<u8> {
    let (first, body) = wire.read()?;
    assert_eq!(first, 0x20);
    Some(body[1])
}

/// Wrong logins, each from a network of its own, that wait for their answers.
fn flood(broker: &TestBroker, user: impl Fn(usize) -> String) -> Vec<Wire> {
    let login = |number: usize| {
        let source = Ipv4Addr::new(127, 3 + (number % 200) as u8, 1, 1 + (number / 200) as u8);
        begin(broker, source, &user(number), &format!("guess {number}"))
    };
    (0..FLOOD).map(login).collect()
}

#[test]
fn a_new_login_does_not_wait_for_wrong_ones_from_many_networks() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("passwords");
    with_password(&["passwd", "ann", "--file", file.to_str().unwrap()], folder.path());
    // Users who have not logged in, with the same password.
    let line = std::fs::read_to_string(&file).unwrap();
    let hash = line.trim().split_once(':').unwrap().1;
    let user = |number: usize| format!("user{number}:{hash}\n");
    std::fs::write(&file, format!("{line}{}", (0..FLOOD).map(user).collect::<String>())).unwrap();
    let broker =
        TestBroker::builder().config(&format!("[auth]\npassword_file = {file:?}\n")).start();
    for (user, known) in [("ann", false), ("user0", true)] {
        // Names that do not exist, and names that do and whose passwords have to be hashed.
        let name = move |number: usize| {
            if known { format!("user{}", number / 2) } else { format!("x{number}") }
        };
        let waiting = flood(&broker, name);
        assert_eq!(code(begin(&broker, HOME, user, PASSWORD)), Some(0), "{user}");
        assert_eq!(code(begin(&broker, HOME, user, PASSWORD)), Some(0), "{user} again");
        drop(waiting);
    }
}

#[test]
fn a_user_of_the_platform_does_not_wait_for_wrong_logins_from_many_networks() {
    let folder = tempfile::tempdir().unwrap();
    let broker = TestBroker::start();
    let data = broker.data();
    let data = data.to_str().unwrap();
    with_password(&["user", "add", "ann", "--admin", "--data", data], folder.path());
    for number in 0..8 {
        let user = format!("user{number}");
        with_password(&["user", "add", &user, "--admin", "--data", data], folder.path());
    }
    // Every second name exists: its password has to be hashed, as often as it has guesses.
    let name = |number: usize| match number % 2 {
        0 => format!("user{}", number / 2 % 8),
        _ => format!("x{number}"),
    };
    let waiting = flood(&broker, name);
    assert_eq!(code(begin(&broker, HOME, "ann", PASSWORD)), Some(0));
    drop(waiting);
}
