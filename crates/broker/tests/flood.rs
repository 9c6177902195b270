//! Clients that want too much: those who publish, connect or fail to log in too often are slowed down
//! or turned away, alone, with MQTT's own reason codes.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{Conn, Seen, Setup, World, hello};
use fulmar_broker::auth::{AccessControl, JwtVerifier};
use fulmar_broker::{Limits, RatePolicy, StreamKey};
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::packet::{Connect, FilterList, Publish, Subscribe, SubscribeOptions};
use fulmar_mqtt::{Packet, PacketId, Properties, QoS, ReasonCode, Version};

const Q0: QoS = QoS::AtMostOnce;

fn world(limits: Limits) -> World {
    World::with(Setup { limits, ..Setup::default() })
}

#[test]
fn a_reader_of_many_streams_that_stops_holds_no_more_than_one_of_a_few() {
    const STREAMS: u64 = 16;
    let limits = Limits { max_connection_outbox_bytes: 256 * 1024, ..Limits::default() };
    let mut world = world(limits);
    let publisher = world.connect(0, &hello("p")).0;
    let reader = world.connect(1, &hello("r")).0;
    let stream = |number: u64| StreamKey(4 * number);
    for number in 1..STREAMS {
        let mut list = Vec::new();
        let filter = format!("t/{number}");
        FilterList::encode_one(&mut list, &filter, Some(SubscribeOptions::default()));
        let filters = FilterList::from_encoded(&list, true, Version::V5).unwrap();
        let (packet_id, properties) = (PacketId::FIRST, Properties::NONE);
        let subscribe = Packet::Subscribe(Subscribe { packet_id, properties, filters });
        world.send_on(reader, stream(number), &subscribe);
        world.read_stream(reader, stream(number));
    }
    let payload = "x".repeat(1000);
    for number in 1..STREAMS {
        for _ in 0..100 {
            world.publish(publisher, &format!("t/{number}"), &payload, QoS::AtMostOnce, 0);
        }
    }
    assert!(world.total("messages_dropped_qos0") > 1000);
    let held: usize = (1..STREAMS).map(|at| world.read_stream(reader, stream(at))).sum();
    assert!((200 * 1024..=280 * 1024).contains(&held), "{held}");
    // A client that reads again gets messages again.
    world.publish(publisher, "t/1", &payload, QoS::AtMostOnce, 0);
    assert!(world.read_stream(reader, stream(1)) > 1000);
}

/// 100 readers that read nothing yet, and another.
fn large_audience(world: &mut World, qos: QoS) -> (Vec<Conn>, Conn, Conn) {
    let audience = (0..100).map(|number| {
        let reader = world.connect(0, &hello(format!("r{number}").leak())).0;
        world.subscribe(reader, "large", qos);
        world.seen(reader);
        world.set_reading(reader, false);
        reader
    });
    let audience = audience.collect();
    let other = world.connect(0, &hello("other")).0;
    world.subscribe(other, "small", Q0);
    world.seen(other);
    world.set_reading(other, false);
    (audience, other, world.connect(0, &hello("p")).0)
}

#[test]
fn large_messages_for_many_are_sent_over_several_turns_and_small_ones_do_not_wait() {
    const LENGTH: usize = 500_000;
    for qos in [Q0, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let mut world = world(Limits::default());
        let (audience, other, publisher) = large_audience(&mut world, qos);
        world.publish(publisher, "large", &"x".repeat(LENGTH), qos, 1);
        if qos == QoS::ExactlyOnce {
            world.ack(publisher, AckKind::Pubrel, 1);
        }
        world.publish(publisher, "small", "x", Q0, 0);
        // All of them can write, in one turn.
        let mut first: Vec<Vec<u8>> =
            audience.iter().map(|reader| world.output(*reader).bytes).collect();
        let served = first.iter().filter(|bytes| !bytes.is_empty()).count();
        assert!((1..20).contains(&served), "{qos:?}: {served}");
        assert!(!world.output(other).bytes.is_empty(), "{qos:?}");
        // The others go on in later turns.
        for reader in &audience {
            world.set_reading(*reader, true);
        }
        for (reader, first) in audience.iter().zip(&mut first) {
            first.append(&mut world.bytes(*reader));
            assert!((LENGTH..LENGTH + 50).contains(&first.len()), "{qos:?}: {}", first.len());
        }
    }
}

#[test]
fn receivers_that_read_lose_nothing_however_fast_large_messages_are_published() {
    const EACH: u16 = 10;
    const PUBLISHERS: usize = 20;
    for qos in [Q0, QoS::AtLeastOnce] {
        let limits = Limits {
            max_outbox_bytes: 50_000,
            max_queued_messages: 5,
            large_message_bytes: 4_000,
            large_bytes_per_turn: 64 * 1024,
            ..Limits::default()
        };
        let mut world = world(limits);
        let (audience, ..) = large_audience(&mut world, qos);
        for reader in &audience {
            world.set_reading(*reader, true);
        }
        let flood = |number: usize| {
            let mut flood = Vec::new();
            for id in 1..=EACH {
                let payload = format!("{number} {id:06000}");
                let publish = Publish {
                    dup: false,
                    qos,
                    retain: false,
                    topic: "large",
                    packet_id: PacketId::new(id).filter(|_| qos > Q0),
                    properties: Properties::NONE,
                    payload: payload.as_bytes(),
                };
                Packet::Publish(publish).encode(Version::V5, &mut flood);
            }
            flood
        };
        let publishers: Vec<Conn> = (0..PUBLISHERS)
            .map(|number| world.connect(number % 2, &hello(format!("p{number}").leak())).0)
            .collect();
        for (number, publisher) in publishers.iter().enumerate() {
            world.send_bytes_within_turn(*publisher, &flood(number));
        }
        world.settle();
        for reader in &audience {
            let mut got = [0; PUBLISHERS];
            for text in world.texts(*reader) {
                let mut words = text.split(' ').skip(1);
                let number: usize = words.next().unwrap().parse().unwrap();
                got[number] += 1;
                let id: u16 = words.next().unwrap().parse().unwrap();
                assert_eq!(id, got[number], "in order");
            }
            assert_eq!(got, [EACH; PUBLISHERS], "{qos:?}");
        }
    }
}

#[test]
fn queues_of_large_messages_are_sent_over_several_turns() {
    let mut world = world(Limits::default());
    let (audience, _, publisher) = large_audience(&mut world, QoS::AtLeastOnce);
    world.publish_with(
        publisher,
        "large",
        &"x".repeat(500_000),
        QoS::AtLeastOnce,
        1,
        true,
        Properties::NONE,
    );
    let late: Vec<_> = (0..100)
        .map(|number| {
            let reader = world.connect(0, &hello(format!("late{number}").leak())).0;
            world.set_reading(reader, false);
            world.subscribe(reader, "large", Q0);
            reader
        })
        .collect();
    for waiting in [audience, late] {
        let served = waiting.iter().map(|reader| world.output(*reader).bytes.len());
        let served = served.filter(|bytes| *bytes > 400_000).count();
        assert!((1..20).contains(&served), "{served}");
        for reader in &waiting {
            world.set_reading(*reader, true);
        }
    }
}

#[test]
fn a_client_that_publishes_too_fast_is_read_from_no_faster_than_allowed() {
    let mut world = world(Limits { max_publishes_per_s: 10, ..Limits::default() });
    let subscriber = world.connect(0, &hello("s")).0;
    world.subscribe(subscriber, "t", Q0);
    world.seen(subscriber);
    let flooder = world.connect(1, &hello("f")).0;
    for number in 0..40 {
        world.publish(flooder, "t", &number.to_string(), Q0, 0);
    }
    // Ten at once, and the one that overdraws.
    assert_eq!(world.texts(subscriber).len(), 11);
    let calm = world.connect(1, &hello("c")).0;
    world.publish(calm, "t", "calm", Q0, 0);
    assert_eq!(world.texts(subscriber), ["t calm"], "others are not held up");
    let mut got = Vec::new();
    for _ in 0..30 {
        world.wait(Duration::from_millis(100));
        got.extend(world.texts(subscriber));
    }
    let expected: Vec<String> = (11..40).map(|number| format!("t {number}")).collect();
    assert_eq!(got, expected, "late, but all of it and in order");
    assert!(!world.is_closed(flooder));
}

#[test]
fn bytes_count_too_and_keep_alive_does_not_run_out_meanwhile() {
    let mut world = world(Limits { max_publish_bytes_per_s: 1000, ..Limits::default() });
    let subscriber = world.connect(0, &hello("s")).0;
    world.subscribe(subscriber, "t", Q0);
    world.seen(subscriber);
    let flooder = world.connect(1, &common::Hello { keep_alive: 1, ..hello("f") }).0;
    world.publish(flooder, "t", &"x".repeat(5000), Q0, 0);
    world.publish(flooder, "t", "next", Q0, 0);
    assert_eq!(world.texts(subscriber).len(), 1);
    world.wait(Duration::from_secs(3));
    assert_eq!(world.texts(subscriber).len(), 0);
    assert!(!world.is_closed(flooder));
    world.wait(Duration::from_millis(1_100));
    assert_eq!(world.texts(subscriber), ["t next"]);
    world.wait(Duration::from_secs(2));
    assert!(world.is_closed(flooder), "now it is its own silence");
}

#[test]
fn an_operator_may_have_it_disconnected_with_96() {
    let rate_policy = RatePolicy::Disconnect;
    let mut world = world(Limits { max_publishes_per_s: 2, rate_policy, ..Limits::default() });
    let flooder = world.connect(0, &hello("f")).0;
    for _ in 0..4 {
        world.publish(flooder, "t", "x", Q0, 0);
    }
    assert_eq!(world.seen(flooder), [Seen::Disconnect(ReasonCode::MessageRateTooHigh)]);
    assert!(world.is_closed(flooder));
}

#[test]
fn failed_logins_are_answered_later_and_later_and_good_ones_at_once() {
    let jwt = Some(JwtVerifier::new("HS256", &[7; 32]).unwrap());
    let access_control = AccessControl { jwt, ..AccessControl::default() };
    let mut world = World::with(Setup { access_control, ..Setup::default() });
    let log_in = |world: &mut World, password: Option<&[u8]>| {
        let conn = world.open(0);
        world.send(
            conn,
            &Packet::Connect(Connect {
                version: Version::V5,
                bridge: false,
                clean_start: true,
                keep_alive_s: 0,
                client_id: "c",
                properties: Properties::NONE,
                will: None,
                username: Some("ann"),
                password,
            }),
        );
        conn
    };
    let refused = ReasonCode::BadUserNameOrPassword;
    let refused = Seen::Connack { present: false, reason: refused, assigned: None };
    for _ in 0..3 {
        let conn = log_in(&mut world, Some(b"ey.bad.token"));
        assert_eq!(world.seen(conn), std::slice::from_ref(&refused));
    }
    let conn = log_in(&mut world, Some(b"ey.bad.token"));
    assert_eq!(world.seen(conn), []);
    let good = log_in(&mut world, None);
    assert!(matches!(world.seen(good)[..], [Seen::Connack { reason: ReasonCode::Success, .. }]));
    world.wait(Duration::from_millis(260));
    assert_eq!(world.seen(conn), [refused]);
    assert!(world.is_closed(conn));
}

#[test]
fn subscribing_again_without_reading_owes_each_retained_message_a_few_times_only() {
    let mut world = world(Limits { max_subscriptions_per_session: 5, ..Limits::default() });
    let publisher = world.connect(0, &hello("p")).0;
    world.publish_with(publisher, "r", "old", Q0, 0, true, Properties::NONE);
    let conn = world.connect(1, &hello("s")).0;
    world.set_reading(conn, false);
    for _ in 0..100 {
        world.subscribe_with(conn, "r", SubscribeOptions::default(), None);
    }
    world.set_reading(conn, true);
    let got = world.got(conn).len();
    assert!((1..=5).contains(&got), "{got} copies");
}
