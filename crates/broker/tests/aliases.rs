//! Topic aliases towards clients (MQTT 5.0, sections 3.1.2.11.5 and 3.3.2.3.4), as clients see them: the client
//! in `common` panics at an alias that is above its maximum or was not set on the stream.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::storage::SimStorage;
use common::{Conn, Got, Hello, Seen, Setup, World, hello, lasting};
use fulmar_broker::{Limits, StreamKey, TransportKind};
use fulmar_mqtt::ack::AckKind::Puback;
use fulmar_mqtt::flow::{self, DataFlow, FlowFlags, FlowHeader};
use fulmar_mqtt::packet::{Ack, FilterList, Subscribe, SubscribeOptions};
use fulmar_mqtt::{Packet, PacketId, Properties, QoS, ReasonCode, Version};

const Q0: QoS = QoS::AtMostOnce;
const Q1: QoS = QoS::AtLeastOnce;
const Q2: QoS = QoS::ExactlyOnce;

/// 36 bytes.
const TOPIC: &str = "site/17/building/2/floor/1/room/04/t";

fn allowing(most: u16, hello: Hello) -> Hello {
    Hello { alias_maximum: Some(most), ..hello }
}

/// A publisher and a subscriber to everything.
fn pair(world: &mut World, subscriber: &Hello, qos: QoS) -> (Conn, Conn) {
    let publisher = world.connect(0, &hello("p")).0;
    let subscriber = world.connect(1, subscriber).0;
    world.subscribe(subscriber, "#", qos);
    world.seen(subscriber);
    (publisher, subscriber)
}

/// Topic, whether the packet names it, and its alias.
fn named(got: &[Got]) -> Vec<(&str, bool, Option<u16>)> {
    got.iter().map(|got| (&*got.topic, got.in_full, got.alias)).collect()
}

/// The first, second and any further message of a topic.
fn first(topic: &str) -> (&str, bool, Option<u16>) {
    (topic, true, None)
}

fn sets(topic: &str, alias: u16) -> (&str, bool, Option<u16>) {
    (topic, true, Some(alias))
}

fn uses(topic: &str, alias: u16) -> (&str, bool, Option<u16>) {
    (topic, false, Some(alias))
}

#[test]
fn mqtt_3_1_2_27_a_client_that_allows_no_aliases_gets_none() {
    let refusing = Limits { topic_alias_maximum: 0, ..Limits::default() };
    for (hello, limits) in [
        (hello("s"), Limits::default()),
        (allowing(0, hello("s")), Limits::default()),
        (Hello { version: Version::V311, ..hello("s") }, Limits::default()),
        (allowing(10, hello("s")), refusing),
    ] {
        let mut world = World::with(Setup { limits, ..Setup::default() });
        let (publisher, subscriber) = pair(&mut world, &hello, Q0);
        for _ in 0..5 {
            world.publish(publisher, TOPIC, "x", Q0, 0);
        }
        assert_eq!(named(&world.got(subscriber)), [first(TOPIC); 5]);
    }
}

#[test]
fn mqtt_3_1_2_26_no_alias_is_above_the_clients_maximum_or_16() {
    for (allowed, most) in [(1, 1), (2, 2), (16, 16), (17, 16), (u16::MAX, 16)] {
        let mut world = World::new();
        let (publisher, subscriber) = pair(&mut world, &allowing(allowed, hello("s")), Q0);
        for _ in 0..4 {
            for topic in 0..20 {
                world.publish(publisher, &format!("plant/{topic:02}"), "x", Q0, 0);
            }
        }
        let got = world.got(subscriber);
        assert_eq!(got.iter().filter_map(|got| got.alias).max(), Some(most));
        let sent = (0..80).map(|message| format!("plant/{:02}", message % 20));
        assert!(got.iter().map(|got| got.topic.clone()).eq(sent));
    }
}

#[test]
fn mqtt_3_3_2_3_4_an_alias_out_of_use_is_set_anew() {
    let mut world = World::new();
    let (publisher, subscriber) = pair(&mut world, &allowing(1, hello("s")), Q0);
    let (a, b) = ("plant/a", "plant/b");
    for topic in [a, a, a, b, b, b, b, a] {
        world.publish(publisher, topic, "x", Q0, 0);
    }
    let wanted =
        [first(a), sets(a, 1), uses(a, 1), first(b), first(b), sets(b, 1), uses(b, 1), first(a)];
    assert_eq!(named(&world.got(subscriber)), wanted);
}

#[test]
fn every_quality_of_service_uses_them() {
    for qos in [Q0, Q1, Q2] {
        let storage = Arc::new(SimStorage::default());
        let mut world =
            World::with(Setup { storage: Arc::clone(&storage) as _, ..Setup::default() });
        let publisher = world.connect(0, &hello("p")).0;
        let subscriber = world.open(1);
        world.say_hello(subscriber, &allowing(5, lasting("s")));
        world.subscribe(subscriber, "#", qos);
        storage.commit();
        world.settle();
        world.seen(subscriber);
        for id in 1..=4 {
            world.publish(publisher, TOPIC, "x", qos, id);
        }
        // At QoS 2 none is out before its identifier is stored.
        storage.commit();
        world.settle();
        let wanted = [first(TOPIC), sets(TOPIC, 1), uses(TOPIC, 1), uses(TOPIC, 1)];
        assert_eq!(named(&world.got(subscriber)), wanted, "{qos:?}");
    }
}

#[test]
fn mqtt_3_3_2_7_a_new_connection_of_a_session_begins_without_aliases() {
    for taken_over in [false, true] {
        let mut world = World::new();
        let hello = allowing(5, lasting("s"));
        let (publisher, old) = pair(&mut world, &hello, Q1);
        for id in 1..=3 {
            world.publish(publisher, TOPIC, "x", Q1, id);
        }
        assert_eq!(named(&world.got(old))[2], uses(TOPIC, 1));
        if !taken_over {
            world.cut(old);
        }
        let new = world.open(0);
        world.say_hello(new, &hello);
        world.publish(publisher, TOPIC, "x", Q1, 4);
        let got = world.got(new);
        assert!(got[..3].iter().all(|got| got.dup), "sent again: {got:?}");
        let wanted = [first(TOPIC), sets(TOPIC, 1), uses(TOPIC, 1), uses(TOPIC, 1)];
        assert_eq!(named(&got), wanted);
    }
}

#[test]
fn the_next_connection_decides_anew_how_many_it_allows() {
    let mut world = World::new();
    let (publisher, old) = pair(&mut world, &allowing(5, lasting("s")), Q1);
    world.cut(old);
    let new = world.open(0);
    world.say_hello(new, &lasting("s"));
    for id in 1..=3 {
        world.publish(publisher, TOPIC, "x", Q1, id);
    }
    assert_eq!(named(&world.got(new)), [first(TOPIC); 3]);
}

#[test]
fn mqtt_3_1_2_24_an_alias_makes_no_packet_too_large() {
    // Named in full 41 bytes and the payload, with an alias beside it 3 more, and without the name 8.
    let mut world = World::new();
    let hello = Hello { max_packet: Some(50), ..allowing(5, hello("s")) };
    let (publisher, subscriber) = pair(&mut world, &hello, Q0);
    for payload in ["123456789", "123456789", "1", "12", "1", "123456789012345678901234567890"] {
        world.publish(publisher, TOPIC, payload, Q0, 0);
    }
    let wanted = [
        first(TOPIC),
        first(TOPIC),
        sets(TOPIC, 1),
        uses(TOPIC, 1),
        uses(TOPIC, 1),
        uses(TOPIC, 1),
    ];
    assert_eq!(named(&world.got(subscriber)), wanted);
    assert_eq!(world.total("messages_dropped_size"), 0);
}

#[test]
fn what_a_full_outbox_drops_sets_nothing() {
    let limits = Limits { max_outbox_bytes: 60, ..Limits::default() };
    let mut world = World::with(Setup { limits, ..Setup::default() });
    let (publisher, subscriber) = pair(&mut world, &allowing(5, hello("s")), Q0);
    world.set_reading(subscriber, false);
    for topic in ["plant/a", "plant/b"] {
        for _ in 0..10 {
            world.publish(publisher, topic, "x", Q0, 0);
        }
    }
    world.set_reading(subscriber, true);
    for topic in ["plant/b", "plant/b", "plant/b", "plant/a"] {
        world.publish(publisher, topic, "x", Q0, 0);
    }
    assert!(world.total("messages_dropped_qos0") > 0);
    let got = world.got(subscriber);
    let [.., last_b, a] = &got[..] else { panic!("{got:?}") };
    assert_eq!((&*last_b.topic, last_b.alias), ("plant/b", Some(2)));
    assert_eq!(named(std::slice::from_ref(a)), [uses("plant/a", 1)]);
}

fn subscribe_on(world: &mut World, conn: Conn, stream: StreamKey, filter: &str) {
    let options = SubscribeOptions { qos: Q1, ..SubscribeOptions::default() };
    let mut list = Vec::new();
    FilterList::encode_one(&mut list, filter, Some(options));
    let filters = FilterList::from_encoded(&list, true, Version::V5).unwrap();
    let packet_id = PacketId::new(9999).unwrap();
    let subscribe = Subscribe { packet_id, properties: Properties::NONE, filters };
    world.send_on(conn, stream, &Packet::Subscribe(subscribe));
    world.seen_on(conn, stream);
}

fn got_on(world: &mut World, conn: Conn, stream: StreamKey) -> Vec<Got> {
    let publishes = world.seen_on(conn, stream).into_iter().filter_map(|seen| match seen {
        Seen::Publish(got) => Some(got),
        _ => None,
    });
    publishes.collect()
}

#[test]
fn an_alias_holds_on_the_stream_on_which_it_was_set() {
    let mut world = World::new();
    let publisher = world.connect(0, &hello("p")).0;
    let subscriber = world.open_over(1, TransportKind::Quic);
    world.say_hello(subscriber, &allowing(5, lasting("s")));
    world.seen(subscriber);
    let (one, other) = (StreamKey(4), StreamKey(8));
    // Streams without a name, from one of which the subscription moves to the other.
    for stream in [one, other] {
        subscribe_on(&mut world, subscriber, stream, "#");
        for id in 1..=3 {
            world.publish(publisher, TOPIC, "x", Q1, id);
        }
        let got = got_on(&mut world, subscriber, stream);
        assert_eq!(named(&got), [first(TOPIC), sets(TOPIC, 1), uses(TOPIC, 1)], "{stream:?}");
        for got in got.iter().filter(|_| stream == one) {
            let (reason, properties) = (ReasonCode::Success, Properties::NONE);
            let packet_id = PacketId::new(got.id).unwrap();
            let ack = Ack { packet_id, reason, properties };
            world.send_on(subscriber, stream, &Packet::Ack(Puback, ack));
        }
    }
    // What was not acknowledged comes on the control stream, named there.
    world.end_stream(subscriber, other);
    let wanted = [first(TOPIC), sets(TOPIC, 1), uses(TOPIC, 1)];
    assert_eq!(named(&world.got(subscriber)), wanted);
}

#[test]
fn a_flow_on_another_stream_begins_without_aliases() {
    let storage = Arc::new(SimStorage::default());
    let mut world = World::with(Setup { storage: Arc::clone(&storage) as _, ..Setup::default() });
    let commit = |world: &mut World| {
        storage.commit();
        world.settle();
    };
    let publisher = world.connect(0, &hello("p")).0;
    let subscriber = world.open_over(1, TransportKind::Quic);
    world.say_hello(subscriber, &allowing(5, lasting("s")));
    commit(&mut world);
    world.seen(subscriber);
    let keeps = FlowFlags::PERSISTENT_QOS | FlowFlags::PERSISTENT_SUBSCRIPTIONS;
    let mut header = Vec::new();
    let data = DataFlow { id: 2, expiry_s: 1000, flags: FlowFlags(keeps) };
    flow::encode(&FlowHeader::ClientData(data), &mut header);
    for stream in [StreamKey(4), StreamKey(8)] {
        world.send_bytes_on(subscriber, stream, &header);
        if stream == StreamKey(4) {
            subscribe_on(&mut world, subscriber, stream, "#");
        }
        commit(&mut world);
        for id in 1..=3 {
            world.publish(publisher, TOPIC, "x", Q1, id);
        }
        commit(&mut world);
        let got = got_on(&mut world, subscriber, stream);
        let wanted = [first(TOPIC), sets(TOPIC, 1), uses(TOPIC, 1)];
        assert_eq!(named(&got).get(..3), Some(&wanted[..]), "{stream:?}");
    }
}

#[test]
fn a_message_of_64_bytes_takes_a_third_less() {
    let mut sizes = Vec::new();
    for hello in [hello("s"), allowing(5, hello("s"))] {
        let mut world = World::new();
        let (publisher, subscriber) = pair(&mut world, &hello, Q1);
        for id in 1..=3 {
            world.bytes(subscriber);
            world.publish(publisher, TOPIC, &"x".repeat(64), Q1, id);
        }
        sizes.push(world.bytes(subscriber).len());
    }
    println!("PUBLISH, QoS 1, topic of {} bytes, payload of 64: {sizes:?} bytes", TOPIC.len());
    assert_eq!(sizes, [107, 74]);
}
