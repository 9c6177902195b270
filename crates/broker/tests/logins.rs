//! Passwords are checked in an order in which strangers do not stop honest clients, and only for clients that still wait.
//!
//! Hashing happens on real threads, so these tests wait for its results, however long it takes.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use common::{Conn, Seen, Setup, World};
use fulmar_broker::access::Action;
use fulmar_broker::auth::{
    AccessControl, Admitted, ExternalPassword, ExternalUsers, Logins, PasswordFile, hash_password,
};
use fulmar_broker::{Timestamp, User};
use fulmar_mqtt::packet::Connect;
use fulmar_mqtt::{Packet, Properties, ReasonCode, Version};

const ATTACKER: [u8; 4] = [192, 0, 2, 1];
const ELSEWHERE: [u8; 4] = [192, 0, 2, 2];

/// With these lines in the password file.
fn with_file(lines: &str) -> AccessControl {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("passwords");
    std::fs::write(&path, lines).unwrap();
    let logins = Arc::new(Logins::new(Some(PasswordFile::load(&path).unwrap())));
    AccessControl { logins, ..AccessControl::default() }
}

fn access_control() -> AccessControl {
    let line = hash_password(b"right").unwrap();
    with_file(&format!("ann:{line}\nbob:{line}\n"))
}

fn world() -> World {
    World::with(Setup { access_control: access_control(), ..Setup::default() })
}

fn log_in(world: &mut World, from: [u8; 4], user: &str, password: &[u8]) -> Conn {
    let conn = world.open_from(0, from);
    let connect = Connect {
        version: Version::V5,
        bridge: false,
        clean_start: true,
        keep_alive_s: 0,
        client_id: "",
        properties: Properties::NONE,
        will: None,
        username: Some(user),
        password: Some(password),
    };
    world.send(conn, &Packet::Connect(connect));
    conn
}

/// Wrong logins of a user who exists, each with another password, so that each is to be hashed; those that could wait.
fn flood(world: &mut World, from: [u8; 4], count: usize) -> Vec<Conn> {
    let mut conns = Vec::new();
    for number in 0..count {
        let conn = log_in(world, from, "ann", &number.to_be_bytes());
        if world.seen(conn).is_empty() {
            conns.push(conn);
        }
    }
    conns
}

fn decision(world: &mut World, conn: Conn) -> Option<ReasonCode> {
    world.settle();
    world.seen(conn).into_iter().find_map(|seen| match seen {
        Seen::Connack { reason, .. } => Some(reason),
        _ => None,
    })
}

fn wait_for(world: &mut World, conn: Conn) -> ReasonCode {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        if let Some(reason) = decision(world, conn) {
            return reason;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    panic!("not decided")
}

#[test]
fn a_new_login_does_not_wait_behind_those_of_another_address() {
    let mut world = world();
    let flood = flood(&mut world, ATTACKER, 100);
    let bob = log_in(&mut world, ELSEWHERE, "bob", b"right");
    assert_eq!(wait_for(&mut world, bob), ReasonCode::Success);
    let checked = world.total("authentication_failed");
    assert!(checked < flood.len() as u64 / 2, "{checked} were checked before");
}

#[test]
fn a_login_that_was_right_is_not_checked_again_also_by_the_next_file() {
    let mut world = world();
    let first = log_in(&mut world, ELSEWHERE, "ann", b"right");
    assert_eq!(wait_for(&mut world, first), ReasonCode::Success);
    flood(&mut world, ATTACKER, 50);
    let again = log_in(&mut world, ELSEWHERE, "ann", b"right");
    assert_eq!(decision(&mut world, again), Some(ReasonCode::Success), "at once");
    let (line, other) = (hash_password(b"right").unwrap(), hash_password(b"new").unwrap());
    world.broker.set_access_control(with_file(&format!("ann:{line}\nbob:{other}\n")));
    let changed = log_in(&mut world, ATTACKER, "ann", b"right");
    assert_eq!(decision(&mut world, changed), None, "her line has changed");
}

#[test]
fn who_goes_away_leaves_the_queue() {
    let mut world = world();
    let waiting = flood(&mut world, ATTACKER, 1200);
    world.settle();
    assert!(world.total("logins_busy") > 0);
    for conn in waiting {
        world.cut(conn);
    }
    let before = world.total("authentication_failed");
    let bob = log_in(&mut world, ATTACKER, "bob", b"right");
    assert_eq!(wait_for(&mut world, bob), ReasonCode::Success);
    let checked = world.total("authentication_failed") - before;
    assert!(checked < 10, "{checked} more were checked");
}

#[test]
fn who_waits_when_the_file_changes_is_checked_by_the_new_one() {
    let access_control = access_control();
    let logins = Arc::clone(&access_control.logins);
    let mut world = World::with(Setup { access_control, ..Setup::default() });
    // Both threads have something to do until the file has changed.
    let (begun, begins) = mpsc::channel();
    let busy: Vec<_> = (0..2)
        .map(|_| {
            let (release, released) = mpsc::channel::<()>();
            let begun = begun.clone();
            let work = move || {
                begun.send(()).unwrap();
                let _ = released.recv();
            };
            (logins.work(&User::named("clerk").unwrap(), work).unwrap(), release)
        })
        .collect();
    for _ in 0..2 {
        begins.recv_timeout(Duration::from_secs(60)).unwrap();
    }
    let [old, new] = ["right", "new"].map(|password| {
        let bob = log_in(&mut world, ELSEWHERE, "bob", password.as_bytes());
        assert_eq!(decision(&mut world, bob), None, "as the threads are busy");
        bob
    });
    let line = hash_password(b"new").unwrap();
    world.broker.set_access_control(with_file(&format!("ann:{line}\nbob:{line}\n")));
    drop(busy);
    assert_eq!(wait_for(&mut world, new), ReasonCode::Success);
    assert_ne!(wait_for(&mut world, old), ReasonCode::Success);
}

#[test]
fn a_wrong_login_that_is_repeated_is_not_checked_again() {
    let mut world = world();
    let first = log_in(&mut world, ATTACKER, "ann", b"wrong");
    assert_eq!(wait_for(&mut world, first), ReasonCode::BadUserNameOrPassword);
    let again = log_in(&mut world, ATTACKER, "ann", b"wrong");
    assert_eq!(decision(&mut world, again), Some(ReasonCode::BadUserNameOrPassword), "at once");
    // And the right one is.
    let right = log_in(&mut world, ATTACKER, "ann", b"right");
    assert_eq!(wait_for(&mut world, right), ReasonCode::Success);
}

#[test]
fn a_password_too_long_for_the_queue_is_refused_at_once() {
    let mut world = world();
    let longest = log_in(&mut world, ATTACKER, "ann", &[b'p'; 4096]);
    assert_eq!(wait_for(&mut world, longest), ReasonCode::BadUserNameOrPassword);
    assert_eq!(world.total("authentication_failed"), 1, "was checked");
    for (user, password) in [("ann", &[b'p'; 4097][..]), (&"a".repeat(4097), b"right")] {
        let conn = log_in(&mut world, ELSEWHERE, user, password);
        assert_eq!(decision(&mut world, conn), Some(ReasonCode::BadUserNameOrPassword), "at once");
    }
    assert!(hash_password(&[b'p'; 4096]).is_ok() && hash_password(&[b'p'; 4097]).is_err());
}

/// External users who all have the password "right".
#[derive(Debug)]
struct Everybody;

impl ExternalUsers for Everybody {
    fn admit(&self, _: &str, _: Option<&str>, _: Timestamp) -> Option<Admitted> {
        None
    }

    fn knows(&self, _: &str) -> bool {
        true
    }

    fn is_good(&self, _: &str) -> bool {
        true
    }

    fn allows(&self, _: &str, _: Action, _: &str) -> bool {
        true
    }
}

fn world_of_external_users() -> World {
    let logins = Arc::new(Logins::default());
    let hash = hash_password(b"right").unwrap();
    logins.add_external_users(move |name| {
        let credential = format!("external:{name}").into();
        Some(ExternalPassword { hash: Some(hash.clone()), credential })
    });
    let external_users = Some(Arc::new(Everybody) as Arc<dyn ExternalUsers>);
    let access_control = AccessControl { external_users, logins, ..AccessControl::default() };
    World::with(Setup { access_control, ..Setup::default() })
}

#[test]
fn external_users_log_in_and_leave_in_the_same_order() {
    let mut world = world_of_external_users();
    let waiting = flood(&mut world, ATTACKER, 1200);
    assert!(world.total("logins_busy") > 0, "there is a bound");
    let new = log_in(&mut world, ELSEWHERE, "bob", b"right");
    assert_eq!(wait_for(&mut world, new), ReasonCode::Success);
    let again = log_in(&mut world, ELSEWHERE, "bob", b"right");
    assert_eq!(decision(&mut world, again), Some(ReasonCode::Success), "at once");
    for conn in waiting {
        world.cut(conn);
    }
    let before = world.total("authentication_failed");
    let eve = log_in(&mut world, ATTACKER, "eve", b"right");
    assert_eq!(wait_for(&mut world, eve), ReasonCode::Success);
    let checked = world.total("authentication_failed") - before;
    assert!(checked < 10, "{checked} more were checked");
}

#[test]
fn an_external_user_with_a_name_or_password_too_long_is_refused_at_once() {
    let mut world = world_of_external_users();
    for (user, password) in [("ann", &[b'p'; 4097][..]), (&"a".repeat(513), b"right")] {
        let conn = log_in(&mut world, ELSEWHERE, user, password);
        assert_eq!(decision(&mut world, conn), Some(ReasonCode::BadUserNameOrPassword), "at once");
    }
}
