//! Clients that subscribe more than they need to: to the same filter again and again, to thousands of filters at once,
//! many clients at the same time.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::storage::SimStorage;
use common::{Conn, Seen, Setup, World, hello, lasting};
use fulmar_broker::Limits;
use fulmar_mqtt::packet::{FilterList, RetainHandling, Subscribe, SubscribeOptions, Unsubscribe};
use fulmar_mqtt::{Packet, PacketId, Properties, QoS, Version};

const NEVER: RetainHandling = RetainHandling::Never;

fn options() -> SubscribeOptions {
    SubscribeOptions { qos: QoS::AtLeastOnce, retain_handling: NEVER, ..Default::default() }
}

/// A SUBSCRIBE to a filter, repeatedly.
fn subscribe(filter: &str, times: usize) -> Vec<u8> {
    let mut list = Vec::new();
    (0..times).for_each(|_| FilterList::encode_one(&mut list, filter, Some(options())));
    let filters = FilterList::from_encoded(&list, true, Version::V5).unwrap();
    let (packet_id, properties) = (PacketId::FIRST, Properties::NONE);
    let mut bytes = Vec::new();
    Packet::Subscribe(Subscribe { packet_id, properties, filters }).encode(Version::V5, &mut bytes);
    bytes
}

fn unsubscribe(filter: &str, times: usize) -> Vec<u8> {
    let mut list = Vec::new();
    (0..times).for_each(|_| FilterList::encode_one(&mut list, filter, None));
    let filters = FilterList::from_encoded(&list, false, Version::V5).unwrap();
    let (packet_id, properties) = (PacketId::FIRST, Properties::NONE);
    let packet = Packet::Unsubscribe(Unsubscribe { packet_id, properties, filters });
    let mut bytes = Vec::new();
    packet.encode(Version::V5, &mut bytes);
    bytes
}

fn world(limits: Limits) -> (World, Arc<SimStorage>) {
    let storage = Arc::new(SimStorage::default());
    let setup = Setup { storage: Arc::clone(&storage) as _, limits, ..Setup::default() };
    (World::with(setup), storage)
}

/// Clients with durable sessions.
fn clients(world: &mut World, storage: &SimStorage, count: usize) -> Vec<Conn> {
    let clients = (0..count).map(|number| {
        let conn = world.open(0);
        world.say_hello(conn, &lasting(format!("c{number}").leak()));
        storage.commit();
        world.settle();
        assert_eq!(world.seen(conn).len(), 1);
        conn
    });
    clients.collect()
}

#[test]
fn subscribing_again_without_a_change_stores_nothing() {
    let (mut world, storage) = world(Limits::default());
    let conn = clients(&mut world, &storage, 1)[0];
    world.send_bytes(conn, &subscribe("a", 1));
    storage.commit();
    world.settle();
    assert_eq!(world.seen(conn).len(), 1);
    let batches = storage.batches();
    world.send_bytes(conn, &subscribe("a", 1000));
    assert_eq!(storage.batches(), batches);
    assert_eq!(world.seen(conn).len(), 1, "answered at once");
    // What differs is stored, and survives.
    world.subscribe_with(conn, "a", options(), Some(7));
    assert_eq!(storage.batches(), batches + 1);
    world.subscribe_with(conn, "a", SubscribeOptions { no_local: true, ..options() }, Some(7));
    assert_eq!(storage.batches(), batches + 2);
    storage.commit();
    world.settle();
    assert_eq!(world.seen(conn).len(), 2);
    let mut storage = storage;
    let mut world = world.after_crash(&mut storage);
    let conn = world.open(0);
    world.say_hello(conn, &lasting("c0"));
    storage.commit();
    world.settle();
    world.seen(conn);
    world.publish(conn, "a", "own", QoS::AtMostOnce, 0);
    assert_eq!(world.got(conn), [], "No Local was stored");
}

#[test]
fn an_unchanged_subscription_is_not_answered_before_it_is_durable() {
    let (mut world, storage) = world(Limits::default());
    let conn = clients(&mut world, &storage, 1)[0];
    world.send_bytes(conn, &subscribe("a", 1));
    world.send_bytes(conn, &subscribe("a", 1));
    assert_eq!(world.seen(conn), []);
    storage.commit();
    world.settle();
    assert_eq!(world.seen(conn).len(), 2);
}

#[test]
fn what_a_turn_stores_counts_before_storage_has_it() {
    let limits = Limits { max_storage_backlog: 100, ..Limits::default() };
    let (mut world, storage) = world(limits);
    let clients = clients(&mut world, &storage, 20);
    for (number, conn) in clients.iter().enumerate() {
        for round in 0..5 {
            let again = format!("{number}/{round}");
            world.send_bytes_within_turn(*conn, &subscribe(&again, 1));
            world.send_bytes_within_turn(*conn, &unsubscribe(&again, 1));
        }
    }
    world.settle();
    assert!(storage.largest_batch() <= 101, "{}", storage.largest_batch());
    // Those that had to wait go on.
    for _ in 0..5 {
        storage.commit();
        world.settle();
    }
    for conn in &clients {
        assert_eq!(world.seen(*conn).len(), 10);
    }
}

#[test]
fn without_storage_nobody_waits_for_it() {
    let limits = Limits { max_storage_backlog: 10, ..Limits::default() };
    let mut world = World::with(Setup { limits, ..Setup::default() });
    let conn = world.connect(0, &lasting("c")).0;
    let other = world.connect(0, &hello("other")).0;
    for number in 0..50 {
        world.send_bytes_within_turn(conn, &subscribe(&number.to_string(), 1));
    }
    // No event of its own wakes this one.
    world.send_bytes_within_turn(other, &subscribe("a", 1));
    world.settle();
    assert_eq!(world.seen(conn).len(), 50);
    assert_eq!(world.seen(other).len(), 1);
}

#[test]
fn clients_that_ask_for_thousands_of_subscriptions_at_once_take_turns() {
    let mut world = World::new();
    let greedy: Vec<Conn> =
        (0..20).map(|n| world.connect(0, &lasting(format!("g{n}").leak())).0).collect();
    let modest: Vec<Conn> =
        (0..20).map(|n| world.connect(0, &hello(format!("m{n}").leak())).0).collect();
    for packet in [subscribe("f", 10_000), unsubscribe("f", 10_000)] {
        let before = world.total("bytes_received");
        let (mut most, mut last) = (0, before);
        for conn in &greedy {
            world.send_bytes_within_turn(*conn, &packet);
        }
        let mut turns = 0;
        while last < before + (greedy.len() * packet.len()) as u64 {
            let received = world.total("bytes_received");
            most = most.max(received - last);
            last = received;
            if turns == 0 {
                // Those who ask for little do not wait.
                for conn in &modest {
                    world.send_bytes_within_turn(*conn, &subscribe("f", 5));
                    let output = world.output(*conn);
                    assert!(!output.bytes.is_empty());
                }
                last = world.total("bytes_received");
            }
            world.end_turn(0);
            for conn in &greedy {
                world.read_again(*conn);
            }
            turns += 1;
            assert!(turns < 100, "they do not go on");
        }
        assert!(most <= packet.len() as u64, "one per turn, not {most} bytes");
        world.settle();
        for conn in &greedy {
            let answers = world.seen(*conn);
            assert!(matches!(&answers[..], [Seen::Suback(_) | Seen::Unsuback(_)]), "{answers:?}");
        }
    }
}

#[test]
fn home_assistants_thousands_of_subscriptions_fit() {
    let mut world = World::new();
    let conn = world.connect(0, &hello("c")).0;
    for number in 0..10_000 {
        let codes =
            world.subscribe(conn, &format!("homeassistant/{number}/state"), QoS::AtLeastOnce);
        assert_eq!(codes, [1]);
        world.seen(conn);
    }
}
