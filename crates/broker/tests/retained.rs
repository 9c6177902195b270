//! Retained messages over the restarts of the broker, the reconnections of their readers, and their own expiry.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::storage::SimStorage;
use common::{Conn, Hello, Seen, Setup, World, hello, lasting};
use fulmar_broker::{DropPolicy, Limits};
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::packet::SubscribeOptions;
use fulmar_mqtt::{Properties, Property, PropertyBuf, QoS, ReasonCode, Version};

const Q1: QoS = QoS::AtLeastOnce;

fn world() -> (Arc<SimStorage>, World) {
    let storage = Arc::new(SimStorage::default());
    let world = World::with(Setup { storage: Arc::clone(&storage) as _, ..Setup::default() });
    (storage, world)
}

fn connected(storage: &SimStorage, world: &mut World, hello: &Hello) -> Conn {
    let conn = world.open(0);
    world.say_hello(conn, hello);
    storage.commit();
    world.settle();
    world.seen(conn);
    conn
}

fn retain(storage: &SimStorage, world: &mut World, conn: Conn, topic: &str) {
    world.publish_with(conn, topic, "x", Q1, 1, true, Properties::NONE);
    storage.commit();
    world.settle();
}

fn subscribe_elsewhere(storage: &SimStorage, world: &mut World, conn: Conn, filter: &str) {
    let options = SubscribeOptions { qos: Q1, no_local: true, ..SubscribeOptions::default() };
    world.subscribe_with(conn, filter, options, None);
    storage.commit();
    world.settle();
}

/// Sessions that are not stored leave no trace in storage but the messages that they have published.
#[test]
fn mqtt_3_8_3_3_no_local_withholds_only_what_a_client_of_its_identifier_published() {
    let (mut storage, mut world) = world();
    let publisher = connected(&storage, &mut world, &hello("publisher"));
    retain(&storage, &mut world, publisher, "home/temp");
    let mut world = world.after_crash(&mut storage);
    let stranger = connected(&storage, &mut world, &hello("stranger"));
    subscribe_elsewhere(&storage, &mut world, stranger, "home/#");
    assert_eq!(world.texts(stranger), ["home/temp x"]);
    // The session is another one, the client is the same.
    let publisher = connected(&storage, &mut world, &hello("publisher"));
    subscribe_elsewhere(&storage, &mut world, publisher, "home/#");
    assert_eq!(world.texts(publisher), [""; 0]);
}

/// A bridge of MQTT 3.1.1 without a session of its own subscribes again whenever it connects.
#[test]
fn a_bridge_does_not_get_back_what_it_has_retained() {
    let (mut storage, mut world) = world();
    let bridge = Hello { version: Version::V311, bridge: true, ..hello("bridge") };
    let conn = connected(&storage, &mut world, &bridge);
    retain(&storage, &mut world, conn, "from/bridge");
    world.cut(conn);
    let conn = connected(&storage, &mut world, &bridge);
    assert_eq!(world.subscribe(conn, "from/#", Q1), [1]);
    assert_eq!(world.texts(conn), [""; 0], "it has connected again");
    let mut world = world.after_crash(&mut storage);
    let conn = connected(&storage, &mut world, &bridge);
    assert_eq!(world.subscribe(conn, "from/#", Q1), [1]);
    assert_eq!(world.texts(conn), [""; 0], "after a restart");
}

fn expiring(world: &mut World, conn: Conn, topic: &str, seconds: u32) -> ReasonCode {
    let mut properties = PropertyBuf::new();
    properties.push(Property::MessageExpiryInterval(seconds));
    world.publish_with(conn, topic, "x", Q1, 1, true, properties.as_properties());
    match world.seen(conn).pop() {
        Some(Seen::Ack(AckKind::Puback, 1, reason)) => reason,
        other => panic!("no acknowledgement: {other:?}"),
    }
}

#[test]
fn retained_messages_that_have_expired_make_room_at_once() {
    let one = 500;
    let by_number = Limits { max_retained_messages: 3, ..Limits::default() };
    let by_bytes = Limits { max_retained_bytes: 3 * one, ..Limits::default() };
    for limits in [by_number, by_bytes] {
        let mut world = World::with(Setup { limits, ..Setup::default() });
        let conn = world.connect(0, &hello("c")).0;
        // The search for what has expired is over for some time.
        world.wait(Duration::from_millis(1));
        let topic = |number: usize| format!("{number}/{}", "t".repeat(300));
        for number in 0..3 {
            expiring(&mut world, conn, &topic(number), 10);
        }
        let full = (3..10).map(|number| expiring(&mut world, conn, &topic(number), 10)).last();
        assert_eq!(full, Some(ReasonCode::QuotaExceeded));
        world.wait(Duration::from_secs(10));
        let before = world.broker.retained_totals().0;
        for number in 10..10 + before {
            let reason = expiring(&mut world, conn, &topic(number), 10);
            assert_eq!(reason, ReasonCode::NoMatchingSubscribers, "{number} of {before}");
        }
        assert_eq!(world.broker.retained_totals().0, before);
    }
}

#[test]
fn any_number_of_expired_retained_messages_is_gone_soon() {
    const TOPICS: usize = 3_500;
    let (storage, mut world) = world();
    let conn = connected(&storage, &mut world, &hello("c"));
    let mut properties = PropertyBuf::new();
    properties.push(Property::MessageExpiryInterval(10));
    for number in 0..TOPICS {
        let (topic, properties) = (format!("r/{number}"), properties.as_properties());
        world.publish_with(conn, &topic, "x", QoS::AtMostOnce, 0, true, properties);
    }
    storage.commit();
    world.wait(Duration::from_secs(40));
    for _ in 0..10 {
        world.wait(Duration::ZERO);
    }
    assert_eq!(world.broker.retained_totals(), (0, 0));
    assert!(storage.largest_batch() <= 1_000, "{} in one turn", storage.largest_batch());
    storage.commit();
    assert_eq!(storage.crash().1.retained.len(), 0);
}

/// The limit is lower than before the restart.
#[test]
fn what_has_expired_leaves_storage_at_a_restart_whatever_fits() {
    let (storage, mut world) = world();
    let conn = connected(&storage, &mut world, &hello("c"));
    for topic in ["a", "b"] {
        retain(&storage, &mut world, conn, topic);
    }
    world.seen(conn);
    let mut properties = PropertyBuf::new();
    properties.push(Property::MessageExpiryInterval(10));
    world.publish_with(conn, "c", "x", Q1, 1, true, properties.as_properties());
    storage.commit();
    world.settle();
    let (storage, restored) = storage.crash();
    let limits = Limits { max_retained_messages: 1, ..Limits::default() };
    let now = world.now() + Duration::from_secs(60);
    let setup =
        Setup { storage: Arc::clone(&storage) as _, restored, limits, now, ..Setup::default() };
    let world = World::with(setup);
    assert_eq!(world.broker.retained_totals().0, 1);
    storage.commit();
    assert_eq!(storage.crash().1.retained.len(), 2, "those that do not fit may fit again");
}

#[test]
fn queued_messages_that_have_expired_make_room_at_once() {
    for drop_policy in [DropPolicy::Newest, DropPolicy::Oldest] {
        let limits = Limits { max_queued_messages: 3, drop_policy, ..Limits::default() };
        let storage = Arc::new(SimStorage::default());
        let setup = Setup { storage: Arc::clone(&storage) as _, limits, ..Setup::default() };
        let mut world = World::with(setup);
        let reader = connected(&storage, &mut world, &lasting("reader"));
        world.subscribe(reader, "t", Q1);
        storage.commit();
        world.settle();
        world.cut(reader);
        let conn = connected(&storage, &mut world, &hello("c"));
        let publish = |world: &mut World, payload: &str, seconds: Option<u32>| {
            let mut properties = PropertyBuf::new();
            if let Some(seconds) = seconds {
                properties.push(Property::MessageExpiryInterval(seconds));
            }
            world.publish_with(conn, "t", payload, Q1, 1, false, properties.as_properties());
            storage.commit();
            world.settle();
        };
        publish(&mut world, "first", None);
        for payload in ["a", "b"] {
            publish(&mut world, payload, Some(10));
        }
        world.wait(Duration::from_secs(10));
        for payload in ["new", "newer"] {
            publish(&mut world, payload, Some(100));
        }
        assert_eq!(world.total("messages_dropped_queue"), 0);
        assert_eq!(world.total("messages_expired"), 2);
        let queued = storage.crash().1.queued;
        assert_eq!(queued.len(), 3, "what has expired is not stored any more");
        let reader = connected_again(&storage, &mut world);
        assert_eq!(world.texts(reader), ["t first", "t new", "t newer"]);
    }
}

fn connected_again(storage: &SimStorage, world: &mut World) -> Conn {
    let conn = world.open(0);
    world.say_hello(conn, &lasting("reader"));
    storage.commit();
    world.settle();
    conn
}
