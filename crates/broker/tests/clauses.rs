//! How the broker handles what the specifications forbid or leave open, clause by clause, as `docs/mqtt.md`
//! says. Single packets are in `crates/mqtt/tests/clauses.rs`.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::storage::SimStorage;
use common::{Conn, Hello, Seen, Setup, World, hello, lasting};
use fulmar_broker::Limits;
use fulmar_broker::access::{AccessRules, Action, Rule, Who};
use fulmar_broker::auth::{AccessControl, Logins, PasswordFile};
use fulmar_mqtt::ack::AckKind::{self, Puback, Pubcomp, Pubrec, Pubrel};
use fulmar_mqtt::packet::{Ack, FilterList, Subscribe, SubscribeOptions, Unsubscribe};
use fulmar_mqtt::{Packet, PacketId, Properties, QoS, ReasonCode, Version};

const Q0: QoS = QoS::AtMostOnce;
const Q1: QoS = QoS::AtLeastOnce;
const Q2: QoS = QoS::ExactlyOnce;
const V311: Version = Version::V311;
const V5: Version = Version::V5;

fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    [&[first, u8::try_from(body.len()).unwrap()], body].concat()
}

fn old(id: &'static str) -> Hello {
    Hello { version: V311, ..hello(id) }
}

/// What comes back for a CONNECT, and the connection closed behind it.
fn refusal(connect: &[u8]) -> Vec<u8> {
    let mut world = World::new();
    let conn = world.open(0);
    world.send_bytes(conn, connect);
    assert!(world.is_closed(conn), "{connect:x?}");
    assert_eq!(world.broker.sessions(), 0);
    world.bytes(conn)
}

#[test]
fn mqtt_3_1_4_1_v311_a_connect_that_is_not_valid_is_closed_without_a_packet() {
    let bad: [(&str, u8, &[u8]); 15] = [
        ("reserved flag", 0x10, b"\0\x04MQTT\x04\x03\0\0\0\x01p"),
        ("will QoS 3", 0x10, b"\0\x04MQTT\x04\x1e\0\0\0\x01p\0\x01t\0\0"),
        ("will QoS without will", 0x10, b"\0\x04MQTT\x04\x0a\0\0\0\x01p"),
        ("will RETAIN without will", 0x10, b"\0\x04MQTT\x04\x22\0\0\0\x01p"),
        ("will flag without will", 0x10, b"\0\x04MQTT\x04\x06\0\0\0\x01p"),
        ("password without user", 0x10, b"\0\x04MQTT\x04\x42\0\0\0\x01p\0\x01x"),
        ("identifier not UTF-8", 0x10, b"\0\x04MQTT\x04\x02\0\0\0\x01\xff"),
        ("user name with U+0000", 0x10, b"\0\x04MQTT\x04\x82\0\0\0\x01p\0\x01\0"),
        ("bytes left over", 0x10, b"\0\x04MQTT\x04\x02\0\0\0\x01p!"),
        ("flags of the fixed header", 0x12, b"\0\x04MQTT\x04\x02\0\0\0\x01p"),
        ("empty will topic", 0x10, b"\0\x04MQTT\x04\x06\0\0\0\x01p\0\0\0\0"),
        ("will topic with wildcard", 0x10, b"\0\x04MQTT\x04\x06\0\0\0\x01p\0\x03a/#\0\0"),
        ("a bridge's reserved flag", 0x10, b"\0\x04MQTT\x84\x03\0\0\0\x01p"),
        ("another protocol", 0x10, b"\0\x04mqtt\x04\x02\0\0\0\x01p"),
        ("too short for a version", 0x10, b"\0\x04MQ"),
    ];
    for (what, first, body) in bad {
        assert_eq!(refusal(&packet(first, body)), [0u8; 0], "{what}");
    }
}

#[test]
fn mqtt_4_13_1_a_connect_of_5_0_that_is_not_valid_is_told_why() {
    let bad: [(&[u8], u8); 4] = [
        (b"\0\x04MQTT\x05\x03\0\0\0\0\x01p", 0x81),
        (b"\0\x04MQTT\x05\x02\0\0\0\0\x01p!", 0x81),
        (b"\0\x04MQTT\x05\x06\0\0\0\0\x01p\0\0\0\0\0", 0x90),
        (b"\0\x04MQTT\x05\x06\0\0\0\0\x01p\0\0\x03a/#\0\0", 0x90),
    ];
    for (body, reason) in bad {
        assert_eq!(refusal(&packet(0x10, body)), [0x20, 3, 0, reason, 0], "{body:x?}");
    }
}

#[test]
fn mqtt_3_1_2_2_a_version_that_does_not_exist_is_refused_in_words_all_understand() {
    for body in [
        &b"\0\x06MQIsdp\x03\x02\0\0\0\x01p"[..],
        b"\0\x04MQTT\x03\x02\0\0\0\x01p",
        b"\0\x04MQTT\x06\x02\0\0\0\0\x01p",
        b"\0\x04MQTT\x85\x02\0\0\0\0\x01p",
    ] {
        assert_eq!(refusal(&packet(0x10, body)), [0x20, 2, 0, 1], "{body:x?}");
    }
}

#[test]
fn mqtt_3_1_2_24_connack_is_no_larger_than_the_client_takes() {
    // As it is: flags, reason, and properties of 3, 3 and 5 bytes.
    let (most, granted) = (16, 16);
    for (size, present) in [(most, true), (most - 1, false), (5, false), (4, false), (1, false)] {
        let mut world = World::new();
        let conn = world.open(0);
        world.say_hello(conn, &Hello { max_packet: Some(size), ..hello("s") });
        assert_eq!(world.broker.sessions(), usize::from(present), "{size}");
        assert_eq!(world.is_closed(conn), !present);
        let said = world.bytes(conn);
        match size {
            _ if present => assert_eq!(said.len(), granted),
            5.. => assert_eq!(said, [0x20, 3, 0, 0x95, 0]),
            _ => assert_eq!(said, [0u8; 0], "{size}"),
        }
    }
    // Other refusals too.
    let mut world = World::new();
    let conn = world.open(0);
    let will = Some(("a/#", 0));
    world.say_hello(conn, &Hello { max_packet: Some(4), will, ..hello("s") });
    assert_eq!(world.bytes(conn), [0u8; 0]);
    assert!(world.is_closed(conn));
}

fn filters(count: usize, options: Option<SubscribeOptions>) -> Vec<u8> {
    let mut list = Vec::new();
    for i in 0..count {
        FilterList::encode_one(&mut list, &format!("t/{i}"), options);
    }
    list
}

/// A SUBSCRIBE or UNSUBSCRIBE with `count` filters.
fn ask(world: &mut World, conn: Conn, count: usize, subscribe: bool) {
    let (packet_id, properties) = (PacketId::FIRST, Properties::NONE);
    let options = subscribe.then(SubscribeOptions::default);
    let list = filters(count, options);
    let filters = FilterList::from_encoded(&list, subscribe, V5).unwrap();
    world.send(
        conn,
        &if subscribe {
            Packet::Subscribe(Subscribe { packet_id, properties, filters })
        } else {
            Packet::Unsubscribe(Unsubscribe { packet_id, properties, filters })
        },
    );
}

#[test]
fn mqtt_3_1_2_24_suback_and_unsuback_are_no_larger_than_the_client_takes() {
    for subscribe in [true, false] {
        let mut world = World::new();
        let conn = world.connect(0, &Hello { max_packet: Some(20), ..hello("s") }).0;
        ask(&mut world, conn, 15, subscribe);
        assert_eq!(world.bytes(conn).len(), 20);
        let before = world.broker.subscriptions();
        ask(&mut world, conn, 16, subscribe);
        assert_eq!(world.broker.subscriptions(), 0, "{before} before, and the session is gone");
        assert_eq!(world.seen(conn), [Seen::Disconnect(ReasonCode::PacketTooLarge)]);
        assert!(world.is_closed(conn));
    }
}

#[test]
fn mqtt_3_8_4_6_each_filter_has_its_code_or_the_packet_is_refused() {
    for subscribe in [true, false] {
        let limits = Limits { max_subscriptions_per_session: 20_000, ..Limits::default() };
        let mut world = World::with(Setup { limits, ..Setup::default() });
        let conn = world.connect(0, &hello("s")).0;
        ask(&mut world, conn, 10_000, subscribe);
        match &world.seen(conn)[..] {
            [Seen::Suback(codes) | Seen::Unsuback(codes)] => assert_eq!(codes.len(), 10_000),
            other => panic!("{other:?}"),
        }
        ask(&mut world, conn, 10_001, subscribe);
        assert_eq!(world.seen(conn), [Seen::Disconnect(ReasonCode::QuotaExceeded)]);
    }
}

/// A subscriber with a window of one that has been sent a message, and its publisher.
fn exchange(world: &mut World, hello: &Hello, qos: QoS) -> (Conn, Conn, u16) {
    let subscriber = world.open(0);
    world.say_hello(subscriber, hello);
    world.subscribe(subscriber, "t", qos);
    world.seen(subscriber);
    let publisher = world.connect(1, &self::hello("p")).0;
    world.publish(publisher, "t", "1", qos, 1);
    let got = world.got(subscriber);
    assert_eq!(got.len(), 1);
    (subscriber, publisher, got[0].id)
}

fn acknowledge(world: &mut World, conn: Conn, kind: AckKind, id: u16, reason: ReasonCode) {
    let (packet_id, properties) = (PacketId::new(id).unwrap(), Properties::NONE);
    world.send(conn, &Packet::Ack(kind, Ack { packet_id, reason, properties }));
}

#[test]
fn mqtt_4_3_3_4_a_pubrec_with_an_error_ends_the_exchange_without_pubrel() {
    let narrow = Hello { receive_maximum: Some(1), ..hello("s") };
    for accepted_first in [false, true] {
        let mut world = World::new();
        let (subscriber, publisher, id) = exchange(&mut world, &narrow, Q2);
        world.publish(publisher, "t", "2", Q2, 2);
        if accepted_first {
            world.ack(subscriber, Pubrec, id);
            world.seen(subscriber);
        }
        acknowledge(&mut world, subscriber, Pubrec, id, ReasonCode::QuotaExceeded);
        // No PUBREL, and the window has room for the next.
        let seen = world.seen(subscriber);
        assert!(matches!(&seen[..], [Seen::Publish(got)] if got.text() == "t 2"), "{seen:?}");
        // Nor for one that is not in flight.
        acknowledge(&mut world, subscriber, Pubrec, 77, ReasonCode::QuotaExceeded);
        assert_eq!(world.seen(subscriber), []);
    }
}

#[test]
fn mqtt_4_3_3_4_what_was_refused_is_not_sent_again_after_a_crash() {
    let mut storage = Arc::new(SimStorage::default());
    let mut world = World::with(Setup { storage: Arc::clone(&storage) as _, ..Setup::default() });
    let commit = |world: &mut World, storage: &SimStorage| {
        storage.commit();
        world.settle();
    };
    let subscriber = world.open(0);
    world.say_hello(subscriber, &lasting("s"));
    commit(&mut world, &storage);
    world.subscribe(subscriber, "t", Q2);
    commit(&mut world, &storage);
    let publisher = world.connect(1, &hello("p")).0;
    world.publish(publisher, "t", "1", Q2, 1);
    commit(&mut world, &storage);
    let id = world.got(subscriber)[0].id;
    acknowledge(&mut world, subscriber, Pubrec, id, ReasonCode::UnspecifiedError);
    commit(&mut world, &storage);
    let mut world = world.after_crash(&mut storage);
    let subscriber = world.open(0);
    world.say_hello(subscriber, &lasting("s"));
    commit(&mut world, &storage);
    assert!(matches!(world.seen(subscriber)[..], [Seen::Connack { present: true, .. }]));
}

#[test]
fn mqtt_4_13_1_the_wrong_acknowledgement_for_a_quality_of_service_is_a_protocol_error() {
    for (qos, kind) in [(Q1, Pubrec), (Q1, Pubcomp), (Q2, Puback), (Q2, Pubcomp)] {
        for version in [V5, V311] {
            let mut world = World::new();
            let hello = Hello { version, ..hello("s") };
            let (subscriber, _, id) = exchange(&mut world, &hello, qos);
            world.ack(subscriber, kind, id);
            assert!(world.is_closed(subscriber), "{qos:?} {kind:?}");
            let wanted = if version == V5 { &[0xE0, 1, 0x82][..] } else { &[] };
            assert_eq!(world.bytes(subscriber), wanted);
        }
    }
    // One for nothing is not: the message may have expired meanwhile.
    let mut world = World::new();
    let conn = world.connect(0, &hello("s")).0;
    for kind in [Puback, Pubcomp] {
        world.ack(conn, kind, 9);
    }
    assert_eq!(world.seen(conn), []);
    assert!(!world.is_closed(conn));
}

#[test]
fn mqtt_3_4_2_1_a_reason_that_is_not_the_acknowledgements_is_a_protocol_error() {
    for bytes in
        [[0x40, 3, 0, 1, 0x92], [0x50, 3, 0, 1, 0x8F], [0x62, 3, 0, 1, 0x10], [0x70, 3, 0, 1, 0x97]]
    {
        let mut world = World::new();
        let conn = world.connect(0, &hello("s")).0;
        world.send_bytes(conn, &bytes);
        assert_eq!(world.seen(conn), [Seen::Disconnect(ReasonCode::ProtocolError)], "{bytes:x?}");
    }
}

#[test]
fn mqtt_4_13_1_packets_that_may_not_come_are_protocol_errors_whatever_is_in_them() {
    for bytes in [
        &[0x20, 3, 0, 0, 0][..],
        &[0x20, 1, 7],
        &[0x90, 4, 0, 1, 0, 0],
        &[0x90, 4, 0, 0, 0, 0x55],
        &[0xB0, 4, 0, 1, 0, 0],
        &[0xB0, 0],
        &[0xD0, 0],
        &[0xD0, 1, 0],
        // A second CONNECT (section 3.1) is likewise: of a protocol or a version that does not exist, too.
        &[0x10, 0],
        &[0x10, 7, 0, 4, b'M', b'Q', b'T', b'T', 9],
        &[0x10, 3, 0, 1, b'X'],
    ] {
        let mut world = World::new();
        let conn = world.connect(0, &hello("s")).0;
        world.send_bytes(conn, bytes);
        assert_eq!(world.seen(conn), [Seen::Disconnect(ReasonCode::ProtocolError)], "{bytes:x?}");
        let conn = world.connect(0, &old("t")).0;
        world.seen(conn);
        world.send_bytes(conn, bytes);
        assert_eq!((world.bytes(conn), world.is_closed(conn)), (Vec::new(), true), "{bytes:x?}");
    }
}

#[test]
fn mqtt_3_3_2_3_4_an_empty_topic_without_alias_is_a_protocol_error() {
    let mut world = World::new();
    let conn = world.connect(0, &hello("s")).0;
    world.publish(conn, "", "x", Q0, 0);
    assert_eq!(world.seen(conn), [Seen::Disconnect(ReasonCode::ProtocolError)]);
}

fn unsubscribe(world: &mut World, conn: Conn, version: Version, filter: &str) {
    let mut list = Vec::new();
    FilterList::encode_one(&mut list, filter, None);
    let filters = FilterList::from_encoded(&list, false, version).unwrap();
    let (packet_id, properties) = (PacketId::FIRST, Properties::NONE);
    world.send(conn, &Packet::Unsubscribe(Unsubscribe { packet_id, properties, filters }));
}

#[test]
fn mqtt_4_8_0_1_v311_a_filter_that_is_none_closes_the_connection() {
    for filter in ["", "a/#/b", "a#", "+a", "$share/g/a#"] {
        for subscribing in [true, false] {
            let mut world = World::new();
            let conn = world.connect(0, &old("s")).0;
            world.seen(conn);
            if subscribing {
                world.subscribe(conn, filter, Q1);
            } else {
                unsubscribe(&mut world, conn, V311, filter);
            }
            assert_eq!((world.bytes(conn), world.is_closed(conn)), (Vec::new(), true), "{filter}");
        }
    }
    // What is one and not taken here has an answer.
    let deep = "/".repeat(128);
    for filter in [&*deep, "$share/g"] {
        let mut world = World::new();
        let conn = world.connect(0, &old("s")).0;
        world.seen(conn);
        assert_eq!(world.subscribe(conn, filter, Q1), [0x80], "{filter}");
        world.seen(conn);
        unsubscribe(&mut world, conn, V311, filter);
        assert_eq!(world.seen(conn), [Seen::Unsuback(Vec::new())]);
    }
}

#[test]
fn mqtt_3_9_3_a_filter_that_is_none_has_its_code_in_5_0() {
    let deep = "/".repeat(128);
    for filter in ["", "a/#/b", "a#", "$share/g", &deep] {
        let mut world = World::new();
        let conn = world.connect(0, &hello("s")).0;
        assert_eq!(world.subscribe(conn, filter, Q1), [0x8F], "{filter}");
        world.seen(conn);
        unsubscribe(&mut world, conn, V5, filter);
        assert_eq!(world.seen(conn), [Seen::Unsuback(vec![0x8F])]);
    }
}

#[test]
fn mqtt_3_4_2_1_a_retained_message_over_the_bound_is_refused_with_0x97() {
    for qos in [Q1, Q2] {
        let limits = Limits { max_retained_messages: 1, ..Limits::default() };
        let mut world = World::with(Setup { limits, ..Setup::default() });
        let watcher = world.connect(0, &hello("w")).0;
        world.subscribe(watcher, "#", Q0);
        world.seen(watcher);
        let publisher = world.connect(1, &hello("p")).0;
        let kind = if qos == Q1 { Puback } else { Pubrec };
        let retain = |world: &mut World, conn, topic, qos, id| {
            world.publish_with(conn, topic, "x", qos, id, true, Properties::NONE);
        };
        retain(&mut world, publisher, "a", qos, 1);
        assert_eq!(world.seen(publisher), [Seen::Ack(kind, 1, ReasonCode::Success)]);
        assert_eq!(world.texts(watcher), ["a x"]);
        retain(&mut world, publisher, "b", qos, 2);
        assert_eq!(world.seen(publisher), [Seen::Ack(kind, 2, ReasonCode::QuotaExceeded)]);
        assert_eq!(world.texts(watcher), [""; 0], "what was refused is not delivered");
        // The identifier is free again.
        world.publish(publisher, "b", "y", qos, 2);
        assert_eq!(world.seen(publisher), [Seen::Ack(kind, 2, ReasonCode::Success)]);
        assert_eq!(world.texts(watcher), ["b y"]);
        // Clients that cannot get a reason code: their messages are delivered, and not retained.
        let old = world.connect(1, &old("old")).0;
        world.seen(old);
        retain(&mut world, old, "c", qos, 3);
        assert_eq!(world.seen(old), [Seen::Ack(kind, 3, ReasonCode::Success)]);
        retain(&mut world, publisher, "d", Q0, 0);
        assert_eq!(world.texts(watcher), ["c x", "d x"]);
        assert_eq!(world.broker.retained_totals().0, 1);
    }
}

#[test]
fn mqtt_3_2_2_2_anonymous_is_not_authorised_and_not_a_wrong_password() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let logins = Arc::new(Logins::new(Some(PasswordFile::load(file.path()).unwrap())));
    let access_control = AccessControl { logins, ..AccessControl::default() };
    let mut world = World::with(Setup { access_control, ..Setup::default() });
    for (version, answer) in [(V5, &[0x20, 3, 0, 0x87, 0][..]), (V311, &[0x20, 2, 0, 5])] {
        let conn = world.open_as(0, false);
        world.say_hello(conn, &Hello { version, ..hello("s") });
        assert_eq!(world.bytes(conn), answer);
        assert!(world.is_closed(conn));
    }
}

#[test]
fn mqtt_3_1_2_24_v311_a_client_that_cannot_be_told_keeps_its_own_keep_alive() {
    let limits = Limits { max_keep_alive_s: Some(10), ..Limits::default() };
    let mut world = World::with(Setup { limits, ..Setup::default() });
    let connect = |world: &mut World, version, id, keep_alive| {
        world.connect(0, &Hello { version, keep_alive, ..hello(id) }).0
    };
    let told = connect(&mut world, V5, "told", 100);
    let own = connect(&mut world, V311, "own", 100);
    let none = connect(&mut world, V311, "none", 0);
    world.wait(Duration::from_secs(16));
    assert!(world.is_closed(told));
    world.wait(Duration::from_secs(130));
    assert!(!world.is_closed(own) && !world.is_closed(none));
    world.wait(Duration::from_secs(10));
    assert!(world.is_closed(own) && !world.is_closed(none));
}

fn rule(allow: bool, who: Who, filter: &str) -> Rule {
    Rule { allow, who, action: Some(Action::Subscribe), filter: filter.into(), exact: false }
}

fn access_control(rules: Vec<Rule>, default_allow: bool) -> AccessControl {
    AccessControl {
        rules: AccessRules::new(rules, default_allow).unwrap(),
        ..AccessControl::default()
    }
}

#[test]
fn a_denied_part_of_a_subscription_is_kept_back_and_the_rest_comes() {
    let denied = || vec![rule(false, Who::Client("s".into()), "secret/#")];
    let mut world =
        World::with(Setup { access_control: access_control(denied(), true), ..Setup::default() });
    let publisher = world.connect(0, &hello("p")).0;
    for topic in ["secret/kept", "open/kept"] {
        world.publish_with(publisher, topic, "old", Q1, 1, true, Properties::NONE);
    }
    let subscriber = world.connect(1, &hello("s")).0;
    let other = world.connect(1, &hello("o")).0;
    assert_eq!(world.subscribe(subscriber, "secret/x", Q1), [0x87]);
    world.seen(subscriber);
    for conn in [subscriber, other] {
        assert_eq!(world.subscribe(conn, "#", Q1), [1]);
    }
    assert_eq!(world.texts(subscriber), ["open/kept old"], "retained ones too");
    assert_eq!(world.texts(other), ["open/kept old", "secret/kept old"]);
    for (topic, qos) in [("secret/a", Q0), ("secret/b", Q1), ("open/c", Q0), ("open/d", Q1)] {
        world.publish(publisher, topic, "x", qos, 1);
    }
    assert_eq!(world.texts(subscriber), ["open/c x", "open/d x"]);
    assert_eq!(world.texts(other).len(), 4);
}

#[test]
fn a_member_of_a_group_that_may_not_have_a_message_is_passed_over() {
    let denied = vec![rule(false, Who::Client("s".into()), "secret/#")];
    let mut world =
        World::with(Setup { access_control: access_control(denied, true), ..Setup::default() });
    let publisher = world.connect(0, &hello("p")).0;
    let members = ["s", "o"].map(|id| {
        let conn = world.connect(1, &hello(id)).0;
        assert_eq!(world.subscribe(conn, "$share/g/#", Q0), [0]);
        world.seen(conn);
        conn
    });
    for _ in 0..10 {
        world.publish(publisher, "secret/a", "x", Q0, 0);
    }
    assert_eq!(members.map(|conn| world.got(conn).len()), [0, 10]);
    for _ in 0..10 {
        world.publish(publisher, "open", "x", Q0, 0);
    }
    assert!(members.iter().all(|conn| !world.got(*conn).is_empty()));
}

#[test]
fn new_rules_hold_for_subscriptions_that_exist() {
    let mut world = World::new();
    let publisher = world.connect(0, &hello("p")).0;
    let subscriber = world.connect(1, &lasting("s")).0;
    world.subscribe(subscriber, "#", Q1);
    world.seen(subscriber);
    let both = |world: &mut World| {
        world.publish(publisher, "a", "x", Q1, 1);
        world.publish(publisher, "b", "x", Q1, 2);
        let got = world.got(subscriber);
        for got in &got {
            world.ack(subscriber, Puback, got.id);
        }
        got.iter().map(|got| got.topic.clone()).collect::<Vec<_>>()
    };
    assert_eq!(both(&mut world), ["a", "b"]);
    world.broker.set_access_control(access_control(vec![rule(false, Who::Anyone, "b")], true));
    assert_eq!(both(&mut world), ["a"]);
    let publish = Rule { action: Some(Action::Publish), ..rule(true, Who::Anyone, "#") };
    world
        .broker
        .set_access_control(access_control(vec![publish, rule(true, Who::Anyone, "b")], false));
    assert_eq!(both(&mut world), ["b"]);
    world.broker.set_access_control(AccessControl::default());
    assert_eq!(both(&mut world), ["a", "b"]);
}

#[test]
fn new_rules_hold_for_the_topic_a_client_has_just_published_to() {
    let allowing = access_control(vec![rule(false, Who::Anyone, "elsewhere")], true);
    let mut world = World::with(Setup { access_control: allowing, ..Setup::default() });
    let publisher = world.connect(0, &hello("p")).0;
    world.publish(publisher, "a", "x", Q1, 1);
    let nobody = ReasonCode::NoMatchingSubscribers;
    assert_eq!(world.seen(publisher), [Seen::Ack(Puback, 1, nobody)]);
    world.broker.set_access_control(access_control(Vec::new(), false));
    world.settle();
    world.publish(publisher, "a", "x", Q1, 2);
    assert_eq!(world.seen(publisher), [Seen::Ack(Puback, 2, ReasonCode::NotAuthorized)]);
}

#[test]
fn the_first_rules_hold_for_publishers_that_are_connected_and_so_does_their_end() {
    let mut world = World::new();
    let publisher = world.connect(0, &hello("p")).0;
    let deny = Rule { action: Some(Action::Publish), ..rule(false, Who::Anyone, "a") };
    let deny = access_control(vec![deny], true);
    let open = AccessControl::default();
    let (nobody, denied) = (ReasonCode::NoMatchingSubscribers, ReasonCode::NotAuthorized);
    let steps = [(None, nobody), (Some(deny), denied), (Some(open), nobody)];
    for (id, (rules, expected)) in (1..).zip(steps) {
        if let Some(rules) = rules {
            world.broker.set_access_control(rules);
        }
        world.publish(publisher, "a", "x", Q1, id);
        assert_eq!(world.seen(publisher), [Seen::Ack(Puback, id, expected)]);
    }
}

/// An error in PUBREC frees the identifier for the client. Until its PUBREL, the broker takes a new message with the
/// identifier of an accepted one for a duplicate.
#[test]
fn mqtt_4_3_3_9_a_duplicate_of_an_accepted_message_succeeds_although_its_topic_is_denied_since() {
    let mut world = World::new();
    let publisher = world.connect(0, &lasting("p")).0;
    let subscriber = world.connect(1, &lasting("s")).0;
    world.subscribe(subscriber, "#", Q2);
    world.seen(subscriber);
    world.publish(publisher, "a", "accepted", Q2, 1);
    // Its PUBREC is lost.
    world.cut(publisher);
    let deny = Rule { action: Some(Action::Publish), ..rule(false, Who::Anyone, "a") };
    world.broker.set_access_control(access_control(vec![deny], true));
    let publisher = world.connect(0, &lasting("p")).0;
    world.publish(publisher, "a", "accepted", Q2, 1);
    assert_eq!(world.seen(publisher), [Seen::Ack(Pubrec, 1, ReasonCode::Success)]);
    world.ack(publisher, Pubrel, 1);
    assert_eq!(world.seen(publisher), [Seen::Ack(Pubcomp, 1, ReasonCode::Success)]);
    world.publish(publisher, "a", "denied", Q2, 1);
    assert_eq!(world.seen(publisher), [Seen::Ack(Pubrec, 1, ReasonCode::NotAuthorized)]);
    world.publish(publisher, "b", "next", Q2, 1);
    assert_eq!(world.seen(publisher), [Seen::Ack(Pubrec, 1, ReasonCode::Success)]);
    assert_eq!(world.texts(subscriber), ["a accepted", "b next"]);
}

/// All Rust sources of these folders of the workspace, one after the other.
fn sources(folders: &[&str]) -> String {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut folders: Vec<_> = folders.iter().map(|folder| root.join(folder)).collect();
    let mut all = String::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            match entry.extension().and_then(|extension| extension.to_str()) {
                Some("rs") => all.push_str(&std::fs::read_to_string(entry).unwrap()),
                _ if entry.is_dir() => folders.push(entry),
                _ => {}
            }
        }
    }
    all
}

#[test]
fn every_row_of_the_conformance_notes_names_a_test_that_exists() {
    let sources = sources(&["crates/broker", "crates/client", "crates/mqtt"]);
    let notes = include_str!("../../../docs/mqtt.md");
    let rows: Vec<&str> = notes
        .lines()
        .filter(|line| {
            line.starts_with('|') && !line.starts_with("|---") && !line.ends_with("| test |")
        })
        .collect();
    assert!(rows.len() > 25, "{} rows", rows.len());
    for row in rows {
        let cell = row.trim_end_matches([' ', '|']).rsplit(" | ").next().unwrap();
        let names: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
        let tests = names.iter().filter(|name| name.matches('_').count() > 2);
        for name in tests {
            assert!(sources.contains(&format!("fn {name}(")), "there is no test {name}");
        }
        assert!(
            !names.is_empty() || cell.contains("the same") || cell.contains("the first test"),
            "{row}"
        );
    }
}
