//! Retained messages over the restarts of the broker, the reconnections of their readers, and their own expiry.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use common::storage::SimStorage;
use common::{Conn, Hello, Seen, Setup, World, hello, lasting};
use fulmar_broker::{DropPolicy, Limits, StreamKey, TransportKind};
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::packet::{FilterList, Subscribe, SubscribeOptions};
use fulmar_mqtt::{Packet, PacketId, Properties, Property, PropertyBuf, QoS, ReasonCode, Version};

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

/// A bridge whose session ends with its connection subscribes again whenever it connects.
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

/// What a reader with the receive maximum 20 has acknowledged, once everything is at rest.
fn acknowledge_all(storage: &SimStorage, world: &mut World, conn: Conn) -> Vec<String> {
    let mut texts = Vec::new();
    loop {
        storage.commit();
        world.settle();
        let got = world.got(conn);
        if got.is_empty() {
            return texts;
        }
        assert!(got.len() <= 20);
        for got in got {
            assert!(got.retain);
            texts.push(got.topic);
            match got.qos {
                QoS::AtMostOnce => {}
                QoS::AtLeastOnce => world.ack(conn, AckKind::Puback, got.id),
                QoS::ExactlyOnce => {
                    world.ack(conn, AckKind::Pubrec, got.id);
                    storage.commit();
                    world.settle();
                    world.ack(conn, AckKind::Pubcomp, got.id);
                }
            }
        }
    }
}

/// A reader whose connection breaks after the first 20 of 500 messages that another client has retained.
fn interrupted(qos: QoS, transport: TransportKind) -> (Arc<SimStorage>, World, BTreeSet<String>) {
    let (storage, mut world) = world();
    let publisher = connected(&storage, &mut world, &hello("publisher"));
    for number in 0..500 {
        let topic = format!("r/{number}");
        world.publish_with(publisher, &topic, "x", qos, 1, true, Properties::NONE);
        if qos == QoS::ExactlyOnce {
            world.ack(publisher, AckKind::Pubrel, 1);
        }
    }
    storage.commit();
    world.settle();
    let reader = world.open_over(0, transport);
    world.say_hello(reader, &READER);
    storage.commit();
    world.settle();
    let stream = if transport == TransportKind::Quic { StreamKey(4) } else { StreamKey::CONTROL };
    let mut list = Vec::new();
    let options = SubscribeOptions { qos, no_local: true, ..SubscribeOptions::default() };
    FilterList::encode_one(&mut list, "r/#", Some(options));
    let filters = FilterList::from_encoded(&list, true, Version::V5).unwrap();
    let (packet_id, properties) = (PacketId::FIRST, Properties::NONE);
    let subscribe = Packet::Subscribe(Subscribe { packet_id, properties, filters });
    let publications = |seen: Vec<Seen>| {
        let seen = seen.into_iter().filter_map(|seen| match seen {
            Seen::Publish(got) => Some(got.topic),
            _ => None,
        });
        seen.collect::<BTreeSet<_>>()
    };
    let first = match transport {
        TransportKind::Quic => {
            world.send_on(reader, stream, &subscribe);
            storage.commit();
            world.settle();
            publications(world.seen_on(reader, stream))
        }
        _ => {
            world.send(reader, &subscribe);
            storage.commit();
            world.settle();
            publications(world.seen(reader))
        }
    };
    assert_eq!(first.len(), 20, "its receive maximum");
    world.cut(reader);
    storage.commit();
    world.settle();
    (storage, world, first)
}

const READER: Hello = Hello {
    id: "reader",
    version: Version::V5,
    bridge: false,
    clean: false,
    expiry: Some(1000),
    keep_alive: 0,
    receive_maximum: Some(20),
    max_packet: None,
    alias_maximum: None,
    will: None,
    will_qos: QoS::AtMostOnce,
    will_retain: false,
};

/// Resumes the session without another SUBSCRIBE: the messages that come, of which those sent before the connection broke
/// come again.
fn resumed(storage: &SimStorage, world: &mut World, first: &BTreeSet<String>) {
    let conn = world.open(0);
    world.say_hello(conn, &READER);
    let texts = acknowledge_all(storage, world, conn);
    let all: BTreeSet<String> = texts.iter().cloned().collect();
    assert_eq!(all.len(), 500);
    assert_eq!(texts.len(), 500, "each comes once");
    assert!(texts[..20].iter().all(|text| first.contains(text)), "as after each interruption");
    world.cut(conn);
    storage.commit();
    world.settle();
    let conn = world.open(0);
    world.say_hello(conn, &READER);
    assert_eq!(acknowledge_all(storage, world, conn), [""; 0], "that was all");
}

#[test]
fn retained_messages_for_a_subscription_go_on_when_the_session_is_resumed() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let (storage, mut world, first) = interrupted(qos, TransportKind::Tcp);
        resumed(&storage, &mut world, &first);
    }
}

#[test]
fn retained_messages_for_a_subscription_go_on_after_a_restart() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let (mut storage, world, first) = interrupted(qos, TransportKind::Tcp);
        let mut world = world.after_crash(&mut storage);
        resumed(&storage, &mut world, &first);
        let tables = storage.crash().1;
        assert!(tables.subscriptions.iter().all(|own| own.replay.is_none()), "it is over");
    }
}

/// As of EMQX's clients: the flow ends with its stream.
#[test]
fn retained_messages_of_a_stream_that_has_ended_go_on_over_tcp() {
    let (storage, mut world, first) = interrupted(Q1, TransportKind::Quic);
    resumed(&storage, &mut world, &first);
}

#[test]
fn retained_messages_at_qos_0_and_of_a_subscription_that_is_over_do_not_go_on() {
    let (storage, mut world, _) = interrupted(Q1, TransportKind::Tcp);
    let conn = world.open(0);
    world.say_hello(conn, &READER);
    storage.commit();
    world.settle();
    let got = world.got(conn);
    world.send_bytes(conn, &[0xa2, 8, 0, 1, 0, 0, 3, b'r', b'/', b'#']);
    got.iter().for_each(|got| world.ack(conn, AckKind::Puback, got.id));
    storage.commit();
    world.settle();
    assert_eq!(world.got(conn).len(), 0);
    assert_eq!(storage.crash().1.subscriptions.len(), 0);
}
