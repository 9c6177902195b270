//! The broker as its clients see it, in simulated time: routing, sessions, wills, limits, errors.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::storage::SimStorage;
use common::{Got, Hello, Seen, Setup, World, hello, lasting};
use fulmar_broker::{DropPolicy, Limits};
use fulmar_mqtt::ack::AckKind::{Puback, Pubcomp, Pubrec, Pubrel};
use fulmar_mqtt::packet::{Disconnect, RetainHandling, SubscribeOptions};
use fulmar_mqtt::{Packet, Properties, Property, PropertyBuf, QoS, ReasonCode, Version};

const Q0: QoS = QoS::AtMostOnce;
const Q1: QoS = QoS::AtLeastOnce;
const Q2: QoS = QoS::ExactlyOnce;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn messages_reach_subscribers_on_every_worker_in_their_own_version() {
    let mut world = World::new();
    let (publisher, _) = world.connect(0, &hello("p"));
    let v5 = world.connect(1, &hello("a")).0;
    let v311 = world.connect(0, &Hello { version: Version::V311, ..hello("b") }).0;
    for conn in [v5, v311] {
        world.subscribe(conn, "s/+", Q0);
        world.seen(conn);
    }
    world.publish(publisher, "s/1", "x", Q0, 0);
    world.publish(publisher, "other", "y", Q0, 0);
    for conn in [v5, v311] {
        assert_eq!(world.texts(conn), ["s/1 x"]);
    }
}

#[test]
fn qos_is_the_lower_of_publication_and_subscription() {
    let mut world = World::new();
    let publisher = world.connect(0, &hello("p")).0;
    for (id, qos) in [("a", Q0), ("b", Q1), ("c", Q2)] {
        let conn = world.connect(1, &hello(id)).0;
        world.subscribe(conn, "t", qos);
        world.seen(conn);
        world.publish(publisher, "t", "1", Q1, 1);
        let got: Vec<Got> = world.got(conn);
        assert_eq!(got[0].qos, qos.min(Q1));
    }
}

#[test]
fn qos2_goes_through_its_four_steps_both_ways() {
    let mut world = World::new();
    let publisher = world.connect(0, &hello("p")).0;
    let subscriber = world.connect(1, &hello("s")).0;
    world.subscribe(subscriber, "t", Q2);
    world.seen(subscriber);
    world.publish(publisher, "t", "x", Q2, 7);
    assert_eq!(world.seen(publisher), [Seen::Ack(Pubrec, 7, ReasonCode::Success)]);
    // The same identifier again is the same message.
    world.publish(publisher, "t", "x", Q2, 7);
    world.seen(publisher);
    world.ack(publisher, Pubrel, 7);
    assert_eq!(world.seen(publisher), [Seen::Ack(Pubcomp, 7, ReasonCode::Success)]);
    let got = world.got(subscriber);
    assert_eq!(got.len(), 1);
    world.ack(subscriber, Pubrec, got[0].id);
    assert_eq!(world.seen(subscriber), [Seen::Ack(Pubrel, got[0].id, ReasonCode::Success)]);
    world.ack(subscriber, Pubcomp, got[0].id);
    world.ack(publisher, Pubrel, 7);
    let unknown = ReasonCode::PacketIdentifierNotFound;
    assert_eq!(world.seen(publisher), [Seen::Ack(Pubcomp, 7, unknown)]);
}

#[test]
fn a_lasting_session_keeps_messages_and_resends_with_dup() {
    let mut world = World::new();
    let publisher = world.connect(0, &hello("p")).0;
    let (first, present) = world.connect(0, &lasting("s"));
    assert!(!present);
    world.subscribe(first, "t", Q1);
    world.publish(publisher, "t", "1", Q1, 1);
    world.seen(first);
    world.cut(first);
    world.publish(publisher, "t", "2", Q1, 2);
    world.publish(publisher, "t", "gone", Q0, 0);
    let second = world.open(1);
    world.say_hello(second, &lasting("s"));
    let all = world.got(second);
    let all: Vec<_> = all.iter().map(|got| (got.text(), got.dup)).collect();
    assert_eq!(all, [("t 1".to_owned(), true), ("t 2".to_owned(), false)]);
}

#[test]
fn mqtt_3_3_4_9_what_is_sent_again_keeps_to_the_new_receive_maximum() {
    let mut world = World::new();
    let publisher = world.connect(0, &hello("p")).0;
    let first = world.connect(0, &lasting("s")).0;
    world.subscribe(first, "t", Q1);
    for id in 1..=5 {
        world.publish(publisher, "t", &id.to_string(), Q1, id);
    }
    world.cut(first);
    let second = world.open(1);
    world.say_hello(second, &Hello { receive_maximum: Some(2), ..lasting("s") });
    let mut texts = Vec::new();
    loop {
        let got = world.got(second);
        assert!(got.len() <= 2, "{got:?}");
        let Some(last) = got.last() else { break };
        texts.extend(got.iter().map(Got::text));
        world.ack(second, Puback, last.id);
        if got.len() == 2 {
            world.ack(second, Puback, got[0].id);
        }
    }
    assert_eq!(texts, ["t 1", "t 2", "t 3", "t 4", "t 5"]);
}

#[test]
fn mqtt_3_1_2_25_what_is_sent_again_keeps_to_the_new_maximum_packet_size() {
    for qos in [Q1, Q2] {
        let mut world = World::new();
        let publisher = world.connect(0, &hello("p")).0;
        let first = world.connect(0, &lasting("s")).0;
        world.subscribe(first, "t", qos);
        world.publish(publisher, "t", &"x".repeat(100), qos, 1);
        world.publish(publisher, "t", "y", qos, 2);
        world.cut(first);
        let second = world.open(1);
        world.say_hello(second, &Hello { max_packet: Some(50), ..lasting("s") });
        assert_eq!(world.texts(second), ["t y"]);
    }
}

#[test]
fn mqtt_3_2_0_1_nothing_is_said_before_a_connack_that_waits_for_storage() {
    let storage = Arc::new(SimStorage::default());
    let setup = || Setup { storage: Arc::clone(&storage) as _, ..Setup::default() };
    let mut world = World::with(setup());
    let conn = world.open(0);
    world.say_hello(conn, &lasting("s"));
    world.send(conn, &Packet::Pingreq);
    assert_eq!(world.seen(conn), []);
    storage.commit();
    world.settle();
    assert!(matches!(world.seen(conn)[..], [Seen::Connack { .. }, Seen::Pingresp]));
    // [MQTT-3.14.0-1]: nor goodbye.
    let conn = world.open(0);
    world.say_hello(conn, &lasting("r"));
    world.send_bytes(conn, &[0xF1, 0]);
    assert!(world.is_closed(conn));
    assert_eq!(world.seen(conn), []);
}

#[test]
fn a_blocked_client_that_does_not_read_costs_no_turns() {
    let storage = Arc::new(SimStorage::default());
    let limits = Limits { receive_maximum: 1, ..Limits::default() };
    let mut world =
        World::with(Setup { storage: Arc::clone(&storage) as _, limits, ..Setup::default() });
    let conn = world.open(0);
    world.say_hello(conn, &lasting("s"));
    storage.commit();
    world.settle();
    world.set_reading(conn, false);
    world.send(conn, &Packet::Pingreq);
    // The second waits until the first is durable; the workers must come to rest meanwhile.
    world.subscribe(conn, "a", Q1);
    world.subscribe(conn, "b", Q1);
    storage.commit();
    world.settle();
    storage.commit();
    world.set_reading(conn, true);
    let seen = world.seen(conn);
    let granted = |code| Seen::Suback(vec![code]);
    assert_eq!(seen[1..], [Seen::Pingresp, granted(1), granted(1)]);
}

#[test]
fn a_session_ends_with_its_expiry() {
    let mut world = World::new();
    let first = world.connect(0, &lasting("s")).0;
    world.subscribe(first, "t", Q1);
    world.cut(first);
    world.wait(seconds(999));
    assert_eq!(world.broker.sessions(), 1);
    world.wait(seconds(2));
    assert_eq!(world.broker.sessions(), 0);
    assert_eq!(world.broker.subscriptions(), 0);
    assert!(!world.connect(0, &lasting("s")).1);
}

#[test]
fn mqtt_3_1_4_3_the_newer_connection_takes_the_session_over() {
    for newer in [0, 1] {
        let mut world = World::new();
        let old = world.connect(0, &lasting("s")).0;
        world.subscribe(old, "t", Q1);
        world.seen(old);
        let (new, present) = world.connect(newer, &lasting("s"));
        assert!(present);
        assert_eq!(world.seen(old), [Seen::Disconnect(ReasonCode::SessionTakenOver)]);
        assert!(world.is_closed(old));
        world.cut(old);
        let publisher = world.connect(1, &hello("p")).0;
        world.publish(publisher, "t", "x", Q0, 0);
        assert_eq!(world.texts(new), ["t x"]);
    }
}

#[test]
fn wills_are_published_for_the_vanished_only() {
    let mut world = World::new();
    let watcher = world.connect(0, &hello("w")).0;
    world.subscribe(watcher, "gone/#", Q0);
    world.seen(watcher);
    let vanished = world.connect(1, &Hello { will: Some(("gone/a", 0)), ..hello("a") }).0;
    let polite = world.connect(1, &Hello { will: Some(("gone/b", 0)), ..hello("b") }).0;
    let bye = Disconnect { reason: ReasonCode::Success, properties: Properties::NONE };
    world.send(polite, &Packet::Disconnect(bye));
    world.cut(polite);
    world.cut(vanished);
    assert_eq!(world.texts(watcher), ["gone/a will"]);
    let with_will =
        Disconnect { reason: ReasonCode::DisconnectWithWill, properties: Properties::NONE };
    let c = world.connect(1, &Hello { will: Some(("gone/c", 0)), ..hello("c") }).0;
    world.send(c, &Packet::Disconnect(with_will));
    world.cut(c);
    assert_eq!(world.texts(watcher), ["gone/c will"]);
}

#[test]
fn a_delayed_will_waits_and_is_dropped_if_the_client_returns() {
    let mut world = World::new();
    let watcher = world.connect(0, &hello("w")).0;
    world.subscribe(watcher, "gone", Q0);
    world.seen(watcher);
    let delayed = Hello { will: Some(("gone", 10)), ..lasting("a") };
    let first = world.connect(0, &delayed).0;
    world.cut(first);
    world.wait(seconds(9));
    let second = world.connect(0, &delayed).0;
    world.wait(seconds(20));
    assert!(world.texts(watcher).is_empty());
    world.cut(second);
    world.wait(seconds(11));
    assert_eq!(world.texts(watcher), ["gone will"]);
}

#[test]
fn retained_messages_come_with_a_subscription_as_its_options_say() {
    let mut world = World::new();
    let publisher = world.connect(0, &hello("p")).0;
    for topic in ["r/a", "r/b", "q"] {
        world.publish_with(publisher, topic, "old", Q1, 1, true, Properties::NONE);
    }
    world.publish_with(publisher, "r/b", "", Q1, 2, true, Properties::NONE);
    let conn = world.connect(1, &hello("s")).0;
    let mut options = SubscribeOptions { qos: Q1, ..SubscribeOptions::default() };
    world.subscribe_with(conn, "r/#", options, None);
    let got = world.got(conn);
    assert_eq!(
        got.iter().map(|got| (got.text(), got.retain)).collect::<Vec<_>>(),
        [("r/a old".to_owned(), true)]
    );
    options.retain_handling = RetainHandling::IfNew;
    world.subscribe_with(conn, "r/#", options, None);
    assert!(world.got(conn).is_empty());
    options.retain_handling = RetainHandling::Never;
    world.subscribe_with(conn, "q", options, None);
    assert!(world.got(conn).is_empty());
}

#[test]
fn many_retained_messages_all_come_through_a_small_window() {
    let mut world = World::new();
    let publisher = world.connect(0, &hello("p")).0;
    for i in 0..3000 {
        let topic = format!("r/{i:04}");
        world.publish_with(publisher, &topic, "v", Q1, 1, true, Properties::NONE);
    }
    let small = Hello { receive_maximum: Some(10), ..hello("s") };
    let conn = world.connect(1, &small).0;
    world.subscribe(conn, "r/+", Q1);
    let mut topics = Vec::new();
    loop {
        let got = world.got(conn);
        if got.is_empty() {
            break;
        }
        assert!(got.len() <= 10, "more in flight than the receive maximum");
        for got in got {
            topics.push(got.topic);
            world.ack(conn, Puback, got.id);
        }
    }
    assert_eq!(topics.len(), 3000);
    topics.dedup();
    assert_eq!(topics.len(), 3000);
}

#[test]
fn shared_subscriptions_give_each_message_to_one_member() {
    let mut world = World::new();
    let publisher = world.connect(0, &hello("p")).0;
    let members = [("a", 0), ("b", 1), ("c", 0)].map(|(id, shard)| {
        let conn = world.connect(shard, &hello(id)).0;
        world.subscribe(conn, "$share/g/t/#", Q0);
        world.seen(conn);
        conn
    });
    for i in 0..30 {
        world.publish(publisher, "t/x", &i.to_string(), Q0, 0);
    }
    let counts = members.map(|conn| world.got(conn).len());
    assert_eq!(counts.iter().sum::<usize>(), 30);
    assert!(counts.iter().all(|count| *count >= 5), "{counts:?}");
    world.cut(members[0]);
    world.cut(members[1]);
    world.publish(publisher, "t/y", "last", Q0, 0);
    assert_eq!(world.texts(members[2]), ["t/y last"]);
}

#[test]
fn options_and_identifiers_of_subscriptions() {
    let mut world = World::new();
    let conn = world.connect(0, &hello("s")).0;
    let other = world.connect(1, &hello("o")).0;
    let no_local = SubscribeOptions { no_local: true, ..SubscribeOptions::default() };
    world.subscribe_with(conn, "a/#", no_local, Some(5));
    world.seen(conn);
    world.publish(conn, "a/1", "own", Q0, 0);
    assert!(world.got(conn).is_empty());
    let keep = SubscribeOptions { retain_as_published: true, ..SubscribeOptions::default() };
    world.subscribe_with(conn, "a/+", keep, Some(300));
    world.seen(conn);
    world.publish_with(other, "a/1", "x", Q0, 0, true, Properties::NONE);
    let got = world.got(conn);
    assert_eq!(got.len(), 1, "overlapping subscriptions are one delivery");
    let mut ids = got[0].subscription_ids.clone();
    ids.sort_unstable();
    assert_eq!(ids, [5, 300]);
    assert!(got[0].retain);
}

#[test]
fn a_bridge_gets_nothing_back_and_keeps_what_is_retained() {
    let mut world = World::new();
    let state = "$SYS/broker/connection/far/state";
    let far = Hello { version: Version::V311, bridge: true, ..hello("far") };
    let bridge = world.connect(0, &Hello { will: Some((state, 0)), ..far }).0;
    let near = world.connect(1, &hello("near")).0;
    world.subscribe(near, "$SYS/broker/connection/#", Q1);
    world.seen(near);
    world.subscribe(bridge, "#", Q1);
    world.subscribe(bridge, "$share/group/#", Q1);
    world.seen(bridge);
    world.publish(bridge, "t", "own", Q0, 0);
    assert_eq!(world.texts(bridge), ["t own"], "the group's, once");
    world.publish_with(near, "t", "kept", Q0, 0, true, Properties::NONE);
    assert!(world.got(bridge).iter().all(|got| got.retain));
    world.publish_with(bridge, state, "1", Q1, 1, true, Properties::NONE);
    assert_eq!(world.texts(near), [format!("{state} 1")]);
    world.cut(bridge);
    assert_eq!(world.texts(near), [format!("{state} will")]);
}

#[test]
fn message_expiry_counts_down_in_the_queue() {
    let mut world = World::new();
    let publisher = world.connect(0, &hello("p")).0;
    let first = world.connect(0, &lasting("s")).0;
    world.subscribe(first, "t", Q1);
    world.cut(first);
    for (payload, life, id) in [("short", 5, 1), ("long", 100, 2)] {
        let mut properties = PropertyBuf::new();
        properties.push(Property::MessageExpiryInterval(life));
        let properties = properties.as_properties();
        world.publish_with(publisher, "t", payload, Q1, id, false, properties);
    }
    world.wait(seconds(30));
    let second = world.open(1);
    world.say_hello(second, &lasting("s"));
    let got = world.got(second);
    assert_eq!(got.len(), 1);
    assert_eq!((got[0].text().as_str(), got[0].expiry), ("t long", Some(70)));
}

#[test]
fn topic_aliases_are_resolved_and_checked() {
    let mut world = World::new();
    let conn = world.connect(0, &hello("s")).0;
    world.subscribe(conn, "#", Q0);
    world.seen(conn);
    let alias = |alias| {
        let mut properties = PropertyBuf::new();
        properties.push(Property::TopicAlias(alias));
        properties
    };
    world.publish_with(conn, "long/topic", "1", Q0, 0, false, alias(3).as_properties());
    world.publish_with(conn, "", "2", Q0, 0, false, alias(3).as_properties());
    assert_eq!(world.texts(conn), ["long/topic 1", "long/topic 2"]);
    // One that is not set, and one that cannot be.
    for (number, reason) in
        [(4, ReasonCode::ProtocolError), (u16::MAX, ReasonCode::TopicAliasInvalid)]
    {
        let conn = world.connect(0, &hello("s")).0;
        world.publish_with(conn, "", "3", Q0, 0, false, alias(number).as_properties());
        assert_eq!(world.seen(conn), [Seen::Disconnect(reason)]);
    }
}

#[test]
fn a_full_queue_drops_by_the_operators_policy() {
    let wanted = [
        (DropPolicy::Newest, vec!["t 0", "t 1", "t 2"]),
        (DropPolicy::Oldest, vec!["t 3", "t 4", "t 5"]),
    ];
    for (drop_policy, wanted) in wanted {
        let limits = Limits { max_queued_messages: 3, drop_policy, ..Limits::default() };
        let mut world = World::with(Setup { limits, ..Setup::default() });
        let publisher = world.connect(0, &hello("p")).0;
        let first = world.connect(0, &lasting("s")).0;
        world.subscribe(first, "t", Q1);
        world.cut(first);
        for i in 0..6 {
            world.publish(publisher, "t", &i.to_string(), Q1, i + 1);
        }
        let second = world.open(0);
        world.say_hello(second, &lasting("s"));
        assert_eq!(world.texts(second), wanted);
        let dropped = world.broker.metrics().sum(|shard| &shard.messages_dropped_queue);
        assert_eq!(dropped, 3);
    }
}

#[test]
fn a_packet_larger_than_the_client_takes_is_not_sent() {
    let mut world = World::new();
    let publisher = world.connect(0, &hello("p")).0;
    let conn = world.connect(1, &Hello { max_packet: Some(100), ..hello("s") }).0;
    world.subscribe(conn, "t", Q1);
    world.seen(conn);
    world.publish(publisher, "t", &"x".repeat(200), Q1, 1);
    world.publish(publisher, "t", "small", Q1, 2);
    assert_eq!(world.texts(conn), ["t small"]);
}

#[test]
fn what_reaches_nobody_is_counted_and_what_the_broker_says_of_itself_is_not() {
    let mut world = World::with(Setup { sys_interval_s: 10, ..Setup::default() });
    let publisher = world.connect(0, &hello("p")).0;
    world.publish(publisher, "t", "nobody listens", Q1, 1);
    assert_eq!(world.total("messages_unroutable"), 1);
    world.wait(seconds(11));
    // It has said something since.
    let conn = world.connect(0, &hello("s")).0;
    world.subscribe(conn, "$SYS/broker/uptime", Q0);
    assert_eq!(world.texts(conn), ["$SYS/broker/uptime 11 seconds"]);
    assert_eq!(world.total("messages_unroutable"), 1);
}

#[test]
fn mqtt_3_1_2_24_nothing_larger_is_sent_later_or_again_either() {
    let storage = Arc::new(SimStorage::default());
    let setup = Setup { storage: Arc::clone(&storage) as _, ..Setup::default() };
    let mut world = World::with(setup);
    let come_back = |world: &mut World, most| {
        let conn = world.open(1);
        world.say_hello(conn, &Hello { max_packet: most, ..lasting("s") });
        storage.commit();
        world.settle();
        conn
    };
    let conn = come_back(&mut world, Some(100));
    world.subscribe(conn, "t", Q2);
    let publisher = world.connect(0, &hello("p")).0;
    let large = "x".repeat(200);
    // Sent when its identifier is durable.
    world.publish(publisher, "t", &large, Q2, 1);
    world.publish(publisher, "t", "small", Q2, 2);
    storage.commit();
    world.settle();
    assert_eq!(world.texts(conn), ["t small"]);
    world.ack(conn, Pubrec, 2);
    // In flight to a client that takes everything, and then no longer does.
    world.cut(conn);
    let conn = come_back(&mut world, None);
    world.publish(publisher, "t", &large, Q1, 3);
    world.publish(publisher, "t", "small", Q1, 4);
    assert_eq!(world.texts(conn), [format!("t {large}"), "t small".to_owned()]);
    world.cut(conn);
    let conn = come_back(&mut world, Some(100));
    assert_eq!(world.texts(conn), ["t small"]);
    let dropped = world.broker.metrics().sum(|shard| &shard.messages_dropped_size);
    assert_eq!(dropped, 2);
}

#[test]
fn keep_alive_is_one_and_a_half_times_what_was_asked() {
    let mut world = World::new();
    let conn = world.connect(0, &Hello { keep_alive: 10, ..hello("s") }).0;
    world.wait(seconds(14));
    world.send(conn, &Packet::Pingreq);
    assert_eq!(world.seen(conn), [Seen::Pingresp]);
    world.wait(seconds(14));
    assert!(!world.is_closed(conn));
    world.wait(seconds(2));
    assert_eq!(world.seen(conn), [Seen::Disconnect(ReasonCode::KeepAliveTimeout)]);
}

#[test]
fn a_connection_that_does_not_say_connect_in_time_is_closed() {
    let mut world = World::new();
    let conn = world.open(0);
    world.send_bytes(conn, &[0x10]);
    world.wait(seconds(6));
    world.send_bytes(conn, &[0x10]);
    world.wait(seconds(6));
    assert!(world.is_closed(conn), "dribbling does not buy time");
}

#[test]
fn bad_packets_are_answered_with_mqtts_own_reason_and_close_that_connection_alone() {
    let bad: [(&[u8], ReasonCode); 7] = [
        (&[0x30, 0xFF, 0xFF, 0xFF, 0x7F], ReasonCode::PacketTooLarge),
        (&[0x30, 0x80, 0x80, 0x80, 0x80], ReasonCode::MalformedPacket),
        (&[0x36, 0x05, 0, 1, b'a', 0, 1], ReasonCode::MalformedPacket),
        (&[0x30, 0x04, 0, 1, b'+', 0], ReasonCode::TopicNameInvalid),
        (&[0x00, 0x00], ReasonCode::MalformedPacket),
        (&[0x20, 0x03, 0, 0, 0], ReasonCode::ProtocolError),
        (
            &[0x10, 0x0d, 0, 4, b'M', b'Q', b'T', b'T', 5, 2, 0, 0, 0, 0, 0],
            ReasonCode::ProtocolError,
        ),
    ];
    for (bytes, reason) in bad {
        let mut world = World::new();
        let conn = world.connect(0, &hello("bad")).0;
        let neighbour = world.connect(0, &hello("good")).0;
        world.send_bytes(conn, bytes);
        assert_eq!(world.seen(conn), [Seen::Disconnect(reason)], "{bytes:x?}");
        assert!(world.is_closed(conn));
        world.send(neighbour, &Packet::Pingreq);
        assert_eq!(world.seen(neighbour), [Seen::Pingresp]);
    }
}

#[test]
fn connect_errors_are_told_in_the_clients_version() {
    let mut world = World::new();
    let conn = world.open(0);
    let empty_id = Hello { id: "", version: Version::V311, clean: false, ..hello("") };
    world.say_hello(conn, &empty_id);
    let refused = |reason| Seen::Connack { present: false, reason, assigned: None };
    assert_eq!(world.seen(conn), [refused(ReasonCode::ClientIdentifierNotValid)]);
    assert!(world.is_closed(conn));
    let conn = world.open(0);
    world.send_bytes(conn, b"\x10\x0c\x00\x04MQTT\x09\x02\x00\x00\x00\x00");
    world.line_version(conn, Version::V311);
    assert_eq!(world.seen(conn), [refused(ReasonCode::UnsupportedProtocolVersion)]);
    let conn = world.open(0);
    world.say_hello(conn, &hello(""));
    let seen = world.seen(conn);
    assert!(
        matches!(&seen[..], [Seen::Connack { assigned: Some(id), .. }] if id.len() > 20),
        "{seen:?}"
    );
}

#[test]
fn an_acknowledgement_waits_for_storage_and_keeps_its_order() {
    let storage = Arc::new(SimStorage::default());
    let setup = Setup { storage: Arc::clone(&storage) as _, ..Setup::default() };
    let mut world = World::with(setup);
    let subscriber = world.open(0);
    world.say_hello(subscriber, &lasting("s"));
    storage.commit();
    world.settle();
    assert!(matches!(world.seen(subscriber)[..], [Seen::Connack { .. }]));
    world.subscribe(subscriber, "t", Q1);
    assert!(world.seen(subscriber).is_empty(), "SUBACK before the subscription is durable");
    storage.commit();
    world.settle();
    assert!(matches!(world.seen(subscriber)[..], [Seen::Suback(_)]));
    let publisher = world.connect(1, &hello("p")).0;
    world.publish(publisher, "t", "1", Q1, 1);
    world.publish(publisher, "nobody", "2", Q1, 2);
    assert!(world.seen(publisher).is_empty(), "PUBACK before the message is durable");
    assert_eq!(world.texts(subscriber), ["t 1"], "delivery need not wait");
    storage.commit();
    world.settle();
    let nobody = ReasonCode::NoMatchingSubscribers;
    let acks = [Seen::Ack(Puback, 1, ReasonCode::Success), Seen::Ack(Puback, 2, nobody)];
    assert_eq!(world.seen(publisher), acks);
}

/// Each worker sees a commit at a time of its own. The subscriber's worker sends the messages queued while it was
/// offline, the publisher's the new ones.
#[test]
fn mqtt_4_6_0_5_qos_2_keeps_its_order_whichever_worker_sees_the_commit_first() {
    for (subscribers, publishers) in [(0, 1), (1, 0)] {
        let storage = Arc::new(SimStorage::default());
        let setup = Setup { storage: Arc::clone(&storage) as _, ..Setup::default() };
        let mut world = World::with(setup);
        let commit = |world: &mut World| {
            storage.commit();
            world.settle();
        };
        let come_back = |world: &mut World| {
            let conn = world.open(subscribers);
            world.say_hello(conn, &lasting("s"));
            commit(world);
            conn
        };
        let subscriber = come_back(&mut world);
        world.subscribe(subscriber, "t", Q2);
        commit(&mut world);
        world.cut(subscriber);
        let publisher = world.connect(publishers, &hello("p")).0;
        world.publish(publisher, "t", "1", Q2, 1);
        world.publish(publisher, "t", "2", Q2, 2);
        commit(&mut world);

        let subscriber = come_back(&mut world);
        world.publish(publisher, "t", "3", Q2, 3);
        world.publish(publisher, "t", "4", Q2, 4);
        assert_eq!(world.texts(subscriber), [""; 0], "sent before its identifier is durable");
        commit(&mut world);
        assert_eq!(world.texts(subscriber), ["t 1", "t 2", "t 3", "t 4"]);

        // The same for what is in flight but not yet clear when the client comes back.
        world.publish(publisher, "t", "5", Q2, 5);
        world.cut(subscriber);
        let subscriber = world.open(subscribers);
        world.say_hello(subscriber, &lasting("s"));
        world.publish(publisher, "t", "6", Q2, 6);
        commit(&mut world);
        commit(&mut world);
        assert_eq!(world.texts(subscriber), ["t 1", "t 2", "t 3", "t 4", "t 5", "t 6"]);
    }
}

/// A client of 3.1.1 cannot know a receive maximum: its packet identifiers are the bound, and they count as memory
/// (`memory.rs`).
#[test]
fn a_client_of_3_1_1_may_have_any_number_of_qos_2_messages_open() {
    const OPEN: u16 = 5_000;
    let mut world = World::new();
    for version in [Version::V311, Version::V5] {
        let conn = world.connect(0, &Hello { version, ..hello("c") }).0;
        for id in 1..=OPEN {
            if !world.is_closed(conn) {
                world.publish(conn, "t", "x", QoS::ExactlyOnce, id);
            }
        }
        let seen = world.seen(conn);
        let acks = seen.iter().filter(|seen| matches!(seen, Seen::Ack(Pubrec, ..)));
        let (acks, last) = (acks.count(), seen.last());
        match version {
            Version::V311 => assert_eq!((acks, world.is_closed(conn)), (usize::from(OPEN), false)),
            Version::V5 => {
                assert_eq!(acks, 1024);
                assert_eq!(last, Some(&Seen::Disconnect(ReasonCode::ReceiveMaximumExceeded)));
            }
        }
    }
}
