//! A session belongs to the user whose client created it: no other user's client can end it, take over its connection
//! or receive its messages, whatever client identifier it sends.
#![allow(clippy::unwrap_used)]

mod common;

use common::storage::SimStorage;
use common::{Conn, Hello, Seen, Setup, World, hello};
use fulmar_broker::auth::AccessControl;
use fulmar_broker::{SessionOwner, TransportKind};
use fulmar_mqtt::{QoS, ReasonCode, Version};

const Q1: QoS = QoS::AtLeastOnce;
const TCP: TransportKind = TransportKind::Tcp;
const SN: TransportKind = TransportKind::MqttSn;

/// A client with a persistent session.
fn device() -> Hello {
    Hello { clean: false, expiry: Some(3600), ..hello("device") }
}

fn connect(
    world: &mut World,
    over: TransportKind,
    user: Option<&str>,
    hello: &Hello,
) -> (Conn, Vec<Seen>) {
    let conn = world.open_user(0, over, user);
    world.say_hello(conn, hello);
    let seen = world.seen(conn);
    (conn, seen)
}

fn connack(present: bool, reason: ReasonCode) -> Vec<Seen> {
    vec![Seen::Connack { present, reason, assigned: None }]
}

fn refused() -> Vec<Seen> {
    connack(false, ReasonCode::ClientIdentifierNotValid)
}

/// Ann's device has a subscription and is offline.
fn world_with_an_offline_device() -> World {
    let mut world = World::new();
    let (conn, seen) = connect(&mut world, TCP, Some("ann"), &device());
    assert_eq!(seen, connack(false, ReasonCode::Success));
    world.subscribe(conn, "t", Q1);
    world.cut(conn);
    world
}

/// The device's session is still there, with what was published meanwhile.
fn expect_unchanged(world: &mut World) {
    let publisher = world.connect(1, &hello("publisher")).0;
    world.publish(publisher, "t", "kept", Q1, 1);
    let (conn, seen) = connect(world, TCP, Some("ann"), &device());
    assert_eq!(seen[..1], connack(true, ReasonCode::Success));
    let (conn, texts) = (conn, seen[1..].len() + world.texts(conn).len());
    assert_eq!(texts, 1, "the message queued for it");
    assert!(!world.is_closed(conn));
}

#[test]
fn no_other_user_ends_or_resumes_a_session() {
    for user in [Some("bob"), None] {
        for over in [TCP, TransportKind::Quic, TransportKind::Ws] {
            for clean in [true, false] {
                let mut world = world_with_an_offline_device();
                let (conn, seen) = connect(&mut world, over, user, &Hello { clean, ..device() });
                assert_eq!(seen, refused(), "{user:?} over {over}");
                assert!(world.is_closed(conn));
                assert_eq!(world.total("sessions_refused"), 1);
                expect_unchanged(&mut world);
            }
        }
    }
}

#[test]
fn clients_of_3_1_1_get_return_code_2() {
    let mut world = world_with_an_offline_device();
    let hello = Hello { version: Version::V311, expiry: None, ..device() };
    let (_, seen) = connect(&mut world, TCP, Some("bob"), &hello);
    assert_eq!(seen, refused());
    assert_eq!(ReasonCode::ClientIdentifierNotValid.to_v311_return_code(), 2);
    expect_unchanged(&mut world);
}

#[test]
fn a_connected_client_is_taken_over_by_its_own_user_only() {
    let mut world = World::new();
    let mut will = hello("device");
    will.will = Some(("gone", 0));
    let (first, _) = connect(&mut world, TCP, Some("ann"), &will);
    let watcher = world.connect(1, &hello("watcher")).0;
    world.subscribe(watcher, "gone", Q1);
    world.seen(watcher);
    for user in [Some("bob"), None] {
        assert_eq!(connect(&mut world, TCP, user, &hello("device")).1, refused());
    }
    assert!(!world.is_closed(first));
    assert_eq!(world.texts(watcher), Vec::<String>::new(), "its will is not published");
    let (_, seen) = connect(&mut world, TCP, Some("ann"), &hello("device"));
    assert_eq!(seen, connack(false, ReasonCode::Success));
    assert!(world.is_closed(first));
}

#[test]
fn users_cannot_take_over_anonymous_sessions() {
    let mut world = World::new();
    let (conn, _) = connect(&mut world, TCP, None, &device());
    world.cut(conn);
    assert_eq!(connect(&mut world, TCP, Some("ann"), &device()).1, refused());
    let (_, seen) = connect(&mut world, TransportKind::Quic, None, &device());
    assert_eq!(seen, connack(true, ReasonCode::Success));
}

#[test]
fn clients_of_one_user_take_over_each_others_sessions() {
    let mut world = world_with_an_offline_device();
    let (first, seen) = connect(&mut world, TransportKind::Quic, Some("ann"), &device());
    assert_eq!(seen, connack(true, ReasonCode::Success));
    let (_, seen) = connect(&mut world, TCP, Some("ann"), &device());
    assert_eq!(seen, connack(true, ReasonCode::Success));
    assert!(world.is_closed(first));
}

#[test]
fn mqtt_sn_cannot_take_over_a_session_of_an_mqtt_client() {
    // As another user, anonymously, and as a user whose name the listener assigns to all clients.
    for user in [Some("bob"), None, Some("ann")] {
        for clean in [true, false] {
            let mut world = world_with_an_offline_device();
            let (_, seen) = connect(&mut world, SN, user, &Hello { clean, ..device() });
            assert_eq!(seen, refused(), "{user:?}");
            expect_unchanged(&mut world);
        }
    }
}

#[test]
fn an_mqtt_sn_session_does_not_block_an_authenticated_client() {
    for (user, present) in [(None, false), (Some("field"), false), (Some("ann"), true)] {
        let mut world = World::new();
        let (conn, _) = connect(&mut world, SN, user, &device());
        let (_, seen) = connect(&mut world, SN, user, &device());
        assert_eq!(seen, connack(true, ReasonCode::Success), "a device that reconnects");
        assert!(world.is_closed(conn));
        let (_, seen) = connect(&mut world, TCP, Some("ann"), &device());
        assert_eq!(seen, connack(present, ReasonCode::Success), "{user:?}");
    }
}

#[test]
fn an_identifier_is_free_when_its_session_has_expired() {
    let mut world = world_with_an_offline_device();
    assert_eq!(connect(&mut world, TCP, Some("bob"), &device()).1, refused());
    world.wait(std::time::Duration::from_secs(3601));
    let (_, seen) = connect(&mut world, TCP, Some("bob"), &device());
    assert_eq!(seen, connack(false, ReasonCode::Success));
}

#[test]
fn with_session_owner_none_users_take_over_identifiers_but_no_queued_messages() {
    let access_control =
        AccessControl { session_owner: SessionOwner::None, ..AccessControl::default() };
    let mut world = World::with(Setup { access_control, ..Setup::default() });
    let (conn, _) = connect(&mut world, TCP, Some("ann"), &device());
    world.subscribe(conn, "t", Q1);
    let (_, seen) = connect(&mut world, TCP, Some("bob"), &device());
    assert_eq!(seen, connack(false, ReasonCode::Success));
    assert!(world.is_closed(conn));
}

#[test]
fn owners_survive_a_crash() {
    let mut storage = std::sync::Arc::new(SimStorage::default());
    let setup = Setup { storage: std::sync::Arc::clone(&storage) as _, ..Setup::default() };
    let mut world = World::with(setup);
    let (conn, _) = connect(&mut world, TCP, Some("ann"), &device());
    storage.commit();
    world.settle();
    world.cut(conn);
    storage.commit();
    let mut world = world.after_crash(&mut storage);
    for (over, user) in [(TCP, Some("bob")), (TCP, None), (SN, Some("ann"))] {
        let (_, seen) = connect(&mut world, over, user, &device());
        assert_eq!(seen, refused(), "{user:?} over {over}");
    }
}
