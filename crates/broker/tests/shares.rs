//! What one owner may heap up against all others: wildcard and shared subscriptions over many sessions,
//! publications that reach many, searches through all retained messages.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::storage::SimStorage;
use common::{Conn, Seen, Setup, World, hello, lasting};
use fulmar_broker::{Limits, TransportKind};
use fulmar_mqtt::packet::{Publish, SubscribeOptions};
use fulmar_mqtt::{Packet, PacketId, Properties, QoS};

const Q0: QoS = QoS::AtMostOnce;
const Q1: QoS = QoS::AtLeastOnce;
const QUOTA_EXCEEDED: u8 = 0x97;
/// What each session has for nothing.
const FREE: usize = 16;

fn limits() -> Limits {
    Limits { max_wildcard_subscriptions_per_user: 10, ..Limits::default() }
}

fn connect_as(world: &mut World, user: Option<&str>, id: &'static str) -> Conn {
    let conn = world.open_user(0, TransportKind::Tcp, user);
    world.say_hello(conn, &lasting(id));
    world.seen(conn);
    conn
}

/// Subscribes to `count` filters; how many were granted.
fn subscribe(world: &mut World, conn: Conn, filter: &str, count: usize) -> usize {
    let mut granted = 0;
    for number in 0..count {
        let codes = world.subscribe(conn, &filter.replace('N', &number.to_string()), Q0);
        assert!(codes == [0] || codes == [QUOTA_EXCEEDED], "{codes:x?}");
        granted += usize::from(codes == [0]);
        world.seen(conn);
    }
    granted
}

#[test]
fn wildcard_and_shared_subscriptions_are_bounded_over_all_sessions_of_a_user() {
    let mut world = World::with(Setup { limits: limits(), ..Setup::default() });
    let a = connect_as(&mut world, Some("eve"), "a");
    let b = connect_as(&mut world, Some("eve"), "b");
    let c = connect_as(&mut world, Some("ann"), "c");
    assert_eq!(subscribe(&mut world, a, "N/#", 20), 20);
    assert_eq!(subscribe(&mut world, b, "$share/N/t", 30), FREE + 6, "what the other left");
    assert_eq!(subscribe(&mut world, a, "N/#", 20), 20, "known ones are renewed");
    assert_eq!(subscribe(&mut world, b, "plain/N", 30), 30, "others are not counted");
    assert_eq!(subscribe(&mut world, c, "+/N", 30), FREE + 10, "nor for another user");
    world.send_bytes(a, &[0xa2, 8, 0, 1, 0, 0, 3, b'5', b'/', b'#']);
    assert_eq!(world.seen(a), [Seen::Unsuback(vec![0])]);
    assert_eq!(subscribe(&mut world, b, "$share/again/N", 5), 1, "one was given back");
    world.send_bytes(a, &[0xe0, 7, 0, 5, 0x11, 0, 0, 0, 0]);
    assert_eq!(subscribe(&mut world, b, "$share/more/N", 5), 3, "a session has ended");
}

#[test]
fn clients_without_a_user_are_counted_by_address() {
    let mut world = World::with(Setup { limits: limits(), ..Setup::default() });
    let mut from = |address, id| {
        let conn = world.open_from(0, address);
        world.say_hello(conn, &hello(id));
        world.seen(conn);
        subscribe(&mut world, conn, "#", 1);
        subscribe(&mut world, conn, "+/N", 40)
    };
    assert_eq!(from([192, 0, 2, 1], "a"), FREE + 9);
    assert_eq!(from([192, 0, 2, 1], "b"), FREE - 1);
    assert_eq!(from([192, 0, 2, 2], "c"), FREE + 9);
}

#[test]
fn subscriptions_that_storage_remembers_are_never_refused_and_count() {
    // Comes back for its session, and renews `count` subscriptions.
    fn come(world: &mut World, storage: &SimStorage, count: usize) -> usize {
        let conn = connect_as(world, Some("eve"), "a");
        for number in 0..count {
            let options = SubscribeOptions::default();
            world.subscribe_with(conn, &format!("{number}/#"), options, None);
        }
        storage.commit();
        world.settle();
        let granted = |seen: &Seen| *seen == Seen::Suback(vec![0]);
        world.seen(conn).iter().filter(|seen| granted(seen)).count()
    }
    let storage = Arc::new(SimStorage::default());
    let mut world = World::with(Setup { storage: Arc::clone(&storage) as _, ..Setup::default() });
    assert_eq!(come(&mut world, &storage, 60), 60);
    let (storage, restored) = storage.crash();
    let setup = Setup { limits: limits(), restored, ..Setup::default() };
    let mut world = World::with(Setup { storage: Arc::clone(&storage) as _, ..setup });
    assert_eq!(world.broker.subscriptions(), 60);
    let other = world.open_user(0, TransportKind::Tcp, Some("eve"));
    world.say_hello(other, &hello("b"));
    world.seen(other);
    assert_eq!(subscribe(&mut world, other, "N/#", 40), FREE);
    assert_eq!(come(&mut world, &storage, 60), 60, "they are the client's as before");
}

/// Puts a publication before its worker, whose turn goes on.
fn publish_within_turn(world: &mut World, conn: Conn, topic: &str, number: u16) {
    let payload = number.to_string();
    let publish = Publish {
        dup: false,
        qos: Q1,
        retain: false,
        topic,
        packet_id: PacketId::new(number),
        properties: Properties::NONE,
        payload: payload.as_bytes(),
    };
    world.send_within_turn(conn, &Packet::Publish(publish));
}

#[test]
fn publications_that_reach_many_give_way_and_keep_their_order() {
    const CROWD: usize = 300;
    const EACH: u16 = 100;
    let mut world = World::new();
    let crowd: Vec<Conn> = (0..CROWD)
        .map(|_| {
            let (conn, _) = world.connect(1, &hello(""));
            world.subscribe(conn, "many/+", Q1);
            world.seen(conn);
            conn
        })
        .collect();
    let reader = world.connect(1, &hello("reader")).0;
    world.subscribe(reader, "few", Q0);
    world.seen(reader);
    let flooders: Vec<Conn> = ["f0", "f1", "f2"].map(|id| world.connect(0, &hello(id)).0).into();
    let modest = world.connect(0, &hello("modest")).0;
    let before = world.total("messages_received");
    for (number, flooder) in flooders.iter().enumerate() {
        for id in 1..=EACH {
            publish_within_turn(&mut world, *flooder, &format!("many/{number}"), id);
        }
    }
    let done = world.total("messages_received") - before;
    assert!(done * CROWD as u64 <= 10_000, "{done} publications to {CROWD} each in one turn");
    // Behind all of them, and with few receivers: at once.
    publish_within_turn(&mut world, modest, "few", 1);
    assert_eq!(world.total("messages_received") - before, done + 1);
    // Each further turn is one flooder's, in the order in which they came.
    let mut goes = Vec::new();
    for turn in 0..6 {
        world.end_turn(0);
        // In a different order in each turn.
        for at in 0..flooders.len() {
            let before = world.total("messages_received");
            world.read_again(flooders[(turn + at) % flooders.len()]);
            let went = world.total("messages_received") - before;
            if went > 0 {
                goes.push(((turn + at) % flooders.len(), went));
            }
        }
    }
    let order: Vec<usize> = goes.iter().map(|went| went.0).collect();
    assert_eq!(order, [0, 1, 2, 0, 1, 2], "{goes:?}");
    assert!(goes.iter().all(|went| went.1 * CROWD as u64 <= 10_000), "{goes:?}");
    world.settle();
    assert_eq!(world.texts(reader), ["few 1"]);
    for number in 0..flooders.len() {
        let topic = format!("many/{number} ");
        let expected: Vec<String> = (1..=EACH).map(|id| format!("{topic}{id}")).collect();
        for conn in [crowd[0], crowd[CROWD - 1]] {
            let got = world.peek(conn).into_iter().filter_map(|seen| match seen {
                Seen::Publish(got) => Some(got.text()),
                _ => None,
            });
            let got: Vec<String> = got.filter(|text| text.starts_with(&topic)).collect();
            assert_eq!(got, expected, "all of them, in order");
        }
    }
    for flooder in flooders {
        let acks = world.seen(flooder).len();
        assert_eq!(acks, usize::from(EACH), "all are acknowledged");
    }
}

#[test]
fn a_search_through_all_retained_messages_goes_in_slices() {
    const TOPICS: usize = 20_000;
    let mut world = World::new();
    let publisher = world.connect(0, &hello("p")).0;
    for number in 0..TOPICS {
        let topic = format!("r/{number}");
        world.publish_with(publisher, &topic, "old", Q0, 0, true, Properties::NONE);
    }
    let searcher = world.connect(1, &hello("s")).0;
    world.set_reading(searcher, false);
    world.subscribe_with(searcher, "+/+/none", SubscribeOptions::default(), None);
    let mut slices = 0;
    while world.output(searcher).more {
        slices += 1;
        assert!(slices < 1000, "it comes to an end");
    }
    // The turn's budget, then a little each time, until the worker's next turn.
    assert!(slices > 40, "{slices} slices");
    world.set_reading(searcher, true);
    world.subscribe_with(searcher, "r/+", SubscribeOptions::default(), None);
    assert_eq!(world.got(searcher).len(), TOPICS, "nobody loses anything by it");
}
