//! Each bound in `[limits]` has a defined response, a counter and a log line, as docs/guide.md says. One test alone; see
//! `common/log.rs`.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;

use common::log::Log;
use common::{Conn, Hello, Seen, Setup, World, hello, lasting};
use fulmar_broker::{DropPolicy, Limits, RatePolicy, StreamKey, TransportKind};
use fulmar_mqtt::packet::Publish;
use fulmar_mqtt::{Packet, PacketId, Properties, Property, PropertyBuf, QoS, ReasonCode};

const Q0: QoS = QoS::AtMostOnce;
const Q1: QoS = QoS::AtLeastOnce;
const Q2: QoS = QoS::ExactlyOnce;
const QUOTA: u8 = 0x97;

/// A bound, how it is set, and what goes beyond it.
struct Bound {
    names: &'static [&'static str],
    set: fn(&mut Limits),
    exceed: fn(&mut World),
    counter: &'static str,
    line: &'static str,
}

/// What has no answer to a client: it delays, names something smaller in CONNACK, or decides how others respond.
const OTHERS: [(&str, &str); 14] = [
    ("max_in_flight", "further messages wait in the queue"),
    ("max_keep_alive_s", "CONNACK has the broker's"),
    ("max_session_expiry_s", "CONNACK has the broker's"),
    ("drop_policy", "how full queues respond"),
    ("rate_policy", "how fast publishers are treated"),
    ("large_message_bytes", "how messages are copied"),
    ("large_bytes_per_turn", "further messages wait for the next turn"),
    ("connect_timeout", "a time: tests/protocol.rs"),
    ("max_storage_backlog", "publishers are not read from: tests/back_pressure.rs, tests/stall.rs"),
    ("storage_stall_timeout", "a time: tests/stall.rs"),
    ("memory", "each part of it: tests/memory.rs"),
    ("max_cached_routes", "routes are found anew"),
    ("max_cached_route_bytes", "routes are found anew"),
    (
        "max_connection_outbox_bytes",
        "the bound of max_outbox_bytes for many streams: tests/streams.rs",
    ),
];

fn bounds() -> [Bound; 16] {
    [
        Bound {
            names: &["max_packet_bytes"],
            set: |limits| limits.max_packet_bytes = 100,
            exceed: |world| {
                let conn = world.connect(0, &hello("c")).0;
                world.publish(conn, "t", &"x".repeat(100), Q0, 0);
                assert_eq!(disconnected(world, conn), ReasonCode::PacketTooLarge);
            },
            counter: "protocol_errors",
            line: "bad packet",
        },
        Bound {
            names: &["max_connections"],
            set: |limits| limits.max_connections = 0,
            exceed: |world| assert!(world.refuses_connection()),
            counter: "connections_refused",
            line: "max_connections reached",
        },
        Bound {
            names: &["max_connects_per_s_per_address"],
            set: |limits| limits.max_connects_per_s_per_address = 1,
            exceed: |world| assert!((0..3).any(|_| world.refuses_connection())),
            counter: "connections_too_fast",
            line: "max_connects_per_s_per_address exceeded",
        },
        Bound {
            names: &["max_client_id_bytes"],
            set: |limits| limits.max_client_id_bytes = 3,
            exceed: |world| refused(world, "long", ReasonCode::ClientIdentifierNotValid),
            counter: "connect_refused",
            line: "max_client_id_bytes reached",
        },
        Bound {
            names: &["max_sessions"],
            set: |limits| limits.max_sessions = 1,
            exceed: |world| {
                world.connect(0, &hello("first"));
                refused(world, "second", ReasonCode::QuotaExceeded);
            },
            counter: "connect_refused",
            line: "max_sessions reached",
        },
        Bound {
            names: &["receive_maximum"],
            set: |limits| limits.receive_maximum = 1,
            exceed: |world| {
                let conn = world.connect(0, &hello("c")).0;
                (1..=2).for_each(|id| world.publish(conn, "t", "x", Q2, id));
                assert_eq!(disconnected(world, conn), ReasonCode::ReceiveMaximumExceeded);
            },
            counter: "protocol_errors",
            line: "more QoS 2 messages than the receive maximum are open",
        },
        Bound {
            names: &["topic_alias_maximum"],
            set: |limits| limits.topic_alias_maximum = 1,
            exceed: |world| {
                let conn = world.connect(0, &hello("c")).0;
                let mut properties = PropertyBuf::new();
                properties.push(Property::TopicAlias(2));
                world.publish_with(conn, "t", "x", Q0, 0, false, properties.as_properties());
                assert_eq!(disconnected(world, conn), ReasonCode::TopicAliasInvalid);
            },
            counter: "protocol_errors",
            line: "topic alias 2 is not known or too large",
        },
        Bound {
            names: &["max_subscriptions_per_session"],
            set: |limits| limits.max_subscriptions_per_session = 1,
            exceed: |world| {
                let conn = world.connect(0, &hello("c")).0;
                assert_eq!(subscribe(world, conn, "a"), 1);
                assert_eq!(subscribe(world, conn, "a"), 1, "it has that");
                assert_eq!(subscribe(world, conn, "b"), QUOTA);
            },
            counter: "subscriptions_refused",
            line: "max_subscriptions_per_session reached",
        },
        Bound {
            names: &["max_wildcard_subscriptions_per_user"],
            set: |limits| limits.max_wildcard_subscriptions_per_user = 1,
            exceed: |world| {
                let conn = world.connect(0, &hello("c")).0;
                let mut codes = (0..).map(|number| subscribe(world, conn, &format!("{number}/#")));
                assert_eq!(codes.find(|code| *code != 1), Some(QUOTA));
            },
            counter: "subscriptions_refused",
            line: "max_wildcard_subscriptions_per_user reached",
        },
        Bound {
            names: &["max_flows_per_session"],
            set: |limits| limits.max_flows_per_session = 1,
            exceed: |world| {
                let conn = world.open_over(0, TransportKind::Quic);
                world.say_hello(conn, &hello("c"));
                world.send_on(conn, StreamKey(4), &Packet::Pingreq);
                assert_eq!(world.read_stream(conn, StreamKey(4)), 0, "it was reset");
            },
            counter: "protocol_errors",
            line: "data stream refused",
        },
        Bound {
            names: &["max_retained_messages"],
            set: |limits| limits.max_retained_messages = 1,
            exceed: retain,
            counter: "retained_refused",
            line: "max_retained_messages or max_retained_bytes",
        },
        Bound {
            names: &["max_retained_bytes"],
            set: |limits| limits.max_retained_bytes = 1,
            exceed: retain,
            counter: "retained_refused",
            line: "max_retained_messages or max_retained_bytes",
        },
        Bound {
            names: &["max_queued_messages", "max_queued_bytes"],
            set: |limits| (limits.max_queued_messages, limits.max_queued_bytes) = (1, usize::MAX),
            exceed: |world| assert_eq!(queue(world), ["t 1"]),
            counter: "messages_dropped_queue",
            line: "max_queued_messages or max_queued_bytes reached",
        },
        Bound {
            names: &["max_queued_bytes"],
            set: |limits| (limits.max_queued_bytes, limits.drop_policy) = (130, DropPolicy::Oldest),
            exceed: |world| assert_eq!(queue(world), ["t 2"]),
            counter: "messages_dropped_queue",
            line: "max_queued_messages or max_queued_bytes reached",
        },
        Bound {
            names: &["max_outbox_bytes"],
            set: |limits| limits.max_outbox_bytes = 1,
            exceed: |world| {
                let conn = world.connect(0, &hello("reader")).0;
                world.subscribe(conn, "t", Q0);
                world.set_reading(conn, false);
                let publisher = world.connect(0, &hello("publisher")).0;
                (1..=2)
                    .for_each(|number| world.publish(publisher, "t", &number.to_string(), Q0, 0));
                world.set_reading(conn, true);
                assert_eq!(world.texts(conn), ["t 1"]);
            },
            counter: "messages_dropped_qos0",
            line: "max_outbox_bytes reached",
        },
        Bound {
            names: &["max_publishes_per_s", "max_publish_bytes_per_s"],
            set: |limits| {
                limits.max_publishes_per_s = 1;
                limits.max_publish_bytes_per_s = 1000;
                limits.rate_policy = RatePolicy::Disconnect;
            },
            exceed: |world| {
                let conn = world.connect(0, &hello("c")).0;
                (1..=3).for_each(|_| publish_if_open(world, conn));
                assert_eq!(disconnected(world, conn), ReasonCode::MessageRateTooHigh);
            },
            counter: "publishers_throttled",
            line: "publishes faster than allowed",
        },
    ]
}

fn disconnected(world: &mut World, conn: Conn) -> ReasonCode {
    match world.seen(conn).pop() {
        Some(Seen::Disconnect(reason)) => reason,
        other => panic!("not disconnected: {other:?}"),
    }
}

fn refused(world: &mut World, id: &'static str, expected: ReasonCode) {
    let conn = world.open(0);
    world.say_hello(conn, &hello(id));
    let seen = world.seen(conn);
    assert!(matches!(seen[..], [Seen::Connack { reason, .. }] if reason == expected), "{seen:?}");
}

fn subscribe(world: &mut World, conn: Conn, filter: &str) -> u8 {
    let codes = world.subscribe(conn, filter, Q1);
    world.seen(conn);
    codes[0]
}

fn retain(world: &mut World) {
    let conn = world.connect(0, &hello("c")).0;
    for topic in ["a", "b"] {
        world.publish_with(conn, topic, "x", Q1, 1, true, Properties::NONE);
    }
    let last = world.seen(conn).pop();
    assert!(matches!(last, Some(Seen::Ack(_, 1, ReasonCode::QuotaExceeded))), "{last:?}");
}

/// Publishes two messages for a client that is away; those that it gets.
fn queue(world: &mut World) -> Vec<String> {
    let conn = world.connect(0, &lasting("reader")).0;
    world.subscribe(conn, "t", Q1);
    world.cut(conn);
    let publisher = world.connect(0, &hello("publisher")).0;
    (1..=2).for_each(|number| world.publish(publisher, "t", &number.to_string(), Q1, number));
    let conn = world.open(0);
    world.say_hello(conn, &Hello { clean: false, ..lasting("reader") });
    world.texts(conn)
}

fn publish_if_open(world: &mut World, conn: Conn) {
    let (packet_id, properties) = (None::<PacketId>, Properties::NONE);
    let (dup, qos, retain, topic, payload) = (false, Q0, false, "t", &b"x"[..]);
    let publish = Publish { dup, qos, retain, topic, packet_id, properties, payload };
    if !world.is_closed(conn) {
        world.send(conn, &Packet::Publish(publish));
    }
}

/// The fields of a struct, of its debugging form.
fn fields(text: &str) -> BTreeSet<String> {
    let (mut depth, mut word, mut fields) = (0, String::new(), BTreeSet::new());
    for letter in text.chars() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ':' if depth == 1 => drop(fields.insert(word.clone())),
            _ => {}
        }
        if letter.is_alphanumeric() || letter == '_' { word.push(letter) } else { word.clear() }
    }
    fields
}

#[test]
fn each_bound_has_its_response_its_counter_and_its_log_line() {
    for Bound { names, set, exceed, counter, line } in bounds() {
        let log = Log::default();
        tracing::subscriber::with_default(log.clone(), || {
            let mut limits = Limits::default();
            set(&mut limits);
            let mut world = World::with(Setup { limits, ..Setup::default() });
            exceed(&mut world);
            assert!(world.total(counter) > 0, "{names:?}: {counter} counts it");
        });
        assert!(
            log.text().contains(line),
            "{names:?}: {line:?} is not in the log:\n{}",
            log.text()
        );
    }
    let tested = bounds().into_iter().flat_map(|bound| bound.names).copied();
    let known: BTreeSet<String> =
        tested.chain(OTHERS.map(|(name, _)| name)).map(String::from).collect();
    assert_eq!(fields(&format!("{:?}", Limits::default())), known, "each is in one of the lists");
}
