//! Wills that reach many: they give way to others as publications do, and each is published exactly once,
//! whenever the broker crashes meanwhile.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::storage::SimStorage;
use common::{Conn, Hello, Setup, World, hello, lasting};
use fulmar_mqtt::QoS;

const CROWD: usize = 300;
const CLIENTS: usize = 240;
/// Receivers of one turn: its budget, and the one that went over it.
const MOST_A_TURN: u64 = 10_000;

fn crowd(world: &mut World) -> Vec<Conn> {
    crowd_of(world, CROWD)
}

fn crowd_of(world: &mut World, size: usize) -> Vec<Conn> {
    let mut join = |_| {
        let (conn, _) = world.connect(1, &hello(""));
        world.subscribe(conn, "gone/+", QoS::AtMostOnce);
        world.seen(conn);
        conn
    };
    (0..size).map(&mut join).collect()
}

fn name(number: usize) -> &'static str {
    format!("c{number}").leak()
}

/// Clients with wills that reach the crowd, of the worker `shard`.
fn mortals(world: &mut World, shard: usize, of: &Hello, delay_s: u32) -> Vec<Conn> {
    let clients = (0..CLIENTS).map(|number| {
        let will = Some((&*format!("gone/{number}").leak(), delay_s));
        let conn = world.open(shard);
        world.say_hello_within_turn(conn, &Hello { id: name(number), will, ..of.clone() });
        conn
    });
    let clients = clients.collect();
    world.settle();
    clients
}

/// What the client has of the wills, sorted.
fn wills_at(world: &mut World, conn: Conn) -> Vec<usize> {
    let number = |text: &String| text.strip_prefix("gone/")?.strip_suffix(" will")?.parse().ok();
    let mut numbers: Vec<usize> = world.texts(conn).iter().filter_map(number).collect();
    numbers.sort_unstable();
    numbers
}

/// Ends turns of the first worker until nothing is due, and gives how many wills each of them published.
fn turns(world: &mut World) -> Vec<u64> {
    let mut went = Vec::new();
    let mut before = world.total("wills_published");
    while before < CLIENTS as u64 {
        world.end_turn(0);
        world.wait_within_turn(Duration::ZERO);
        let now = world.total("wills_published");
        went.push(now - before);
        before = now;
        assert!(went.len() < 10 * CLIENTS, "they come to an end: {went:?}");
    }
    went
}

fn expect_budget(published: u64, went: &[u64]) {
    for turn in [&[published], went].concat() {
        assert!(turn * CROWD as u64 <= MOST_A_TURN, "{published} wills, then {went:?}");
    }
}

#[test]
fn delayed_wills_that_reach_many_give_way_and_others_are_served_meanwhile() {
    let mut world = World::new();
    let crowd = crowd(&mut world);
    let reader = world.connect(1, &hello("reader")).0;
    world.subscribe(reader, "few", QoS::AtMostOnce);
    world.seen(reader);
    for client in mortals(&mut world, 1, &lasting(""), 5) {
        world.cut(client);
    }
    let few = Hello { will: Some(("few", 5)), ..lasting("modest") };
    let modest = world.connect(0, &few).0;
    world.cut(modest);
    world.wait_within_turn(Duration::from_secs(6));
    let published = world.total("wills_published");
    let went = turns(&mut world);
    expect_budget(published.saturating_sub(1), &went);
    world.settle();
    assert_eq!(world.texts(reader), ["few will"]);
    assert_eq!(world.total("wills_published"), CLIENTS as u64 + 1);
    let all: Vec<usize> = (0..CLIENTS).collect();
    for conn in [crowd[0], crowd[CROWD - 1]] {
        assert_eq!(wills_at(&mut world, conn), all);
    }
}

#[test]
fn wills_with_few_receivers_each_are_published_over_several_turns_too() {
    const FEW: usize = 60;
    let mut world = World::new();
    let crowd = crowd_of(&mut world, FEW);
    for client in mortals(&mut world, 1, &lasting(""), 5) {
        world.cut(client);
    }
    world.wait_within_turn(Duration::from_secs(6));
    let published = world.total("wills_published");
    let went = turns(&mut world);
    for turn in [&[published], &went[..]].concat() {
        assert!(turn * FEW as u64 <= MOST_A_TURN, "{published} wills, then {went:?}");
    }
    world.settle();
    assert_eq!(wills_at(&mut world, crowd[0]), (0..CLIENTS).collect::<Vec<_>>());
}

#[test]
fn wills_of_clients_that_all_vanish_at_once_give_way() {
    // Where housekeeping is done, and where it is not.
    for (of, shard) in [(hello(""), 1), (lasting(""), 0)] {
        let mut world = World::new();
        let crowd = crowd(&mut world);
        for client in mortals(&mut world, shard, &of, 0) {
            world.cut_within_turn(client);
        }
        let published = world.total("wills_published");
        world.end_turn(shard);
        world.wait_within_turn(Duration::ZERO);
        let first = world.total("wills_published") - published;
        let went = turns(&mut world);
        expect_budget(published, &[&[first], &went[..]].concat());
        world.settle();
        let all: Vec<usize> = (0..CLIENTS).collect();
        assert_eq!(wills_at(&mut world, crowd[0]), all, "{of:?}");
        // Sessions that were to end have ended, with nothing left of them.
        let left = if of.expiry.is_some() { CLIENTS } else { 0 };
        assert_eq!(world.broker.sessions(), CROWD + left);
        world.wait(Duration::from_secs(2000));
        assert_eq!(world.broker.sessions(), CROWD);
        assert_eq!(world.total("wills_published"), CLIENTS as u64);
    }
}

#[test]
fn wills_of_sessions_that_are_taken_over_give_way() {
    let mut world = World::new();
    let crowd = crowd(&mut world);
    let reader = world.connect(1, &hello("reader")).0;
    world.subscribe(reader, "few", QoS::AtMostOnce);
    world.seen(reader);
    // Each takes over from the one before, whose will is due then.
    let join = |number: usize| {
        let will = Some((&*format!("gone/{number}").leak(), 0));
        let conn = world.open(0);
        world.say_hello_within_turn(conn, &Hello { will, ..hello("one of many") });
        conn
    };
    let clients: Vec<Conn> = (0..=CLIENTS).map(join).collect();
    // A client that takes over a session whose will reaches few does not wait in the queue.
    let published = world.total("wills_published");
    let few = Hello { will: Some(("few", 0)), ..hello("modest") };
    let modest = [(); 2].map(|()| world.open(0));
    modest.iter().for_each(|conn| world.say_hello_within_turn(*conn, &few));
    assert_eq!(world.total("wills_published"), published + 1);
    let went = turns(&mut world);
    expect_budget(published, &went);
    world.settle();
    assert_eq!(world.texts(reader), ["few will"]);
    assert_eq!(wills_at(&mut world, crowd[0]), (0..CLIENTS).collect::<Vec<_>>());
    let (last, others) = clients.split_last().unwrap();
    assert!(others.iter().all(|conn| world.is_closed(*conn)));
    assert!(!world.is_closed(*last), "however long it waited");
    assert!(world.is_closed(modest[0]) && !world.is_closed(modest[1]));
}

#[test]
fn sessions_taken_over_all_at_once_keep_their_wills_until_their_turn() {
    let mut world = World::new();
    let crowd = crowd(&mut world);
    mortals(&mut world, 0, &lasting(""), 0);
    let heirs: Vec<Conn> = (0..CLIENTS)
        .map(|number| {
            let conn = world.open(0);
            world.say_hello_within_turn(conn, &lasting(name(number)));
            conn
        })
        .collect();
    let published = world.total("wills_published");
    let went = turns(&mut world);
    expect_budget(published, &went);
    world.settle();
    assert_eq!(wills_at(&mut world, crowd[0]), (0..CLIENTS).collect::<Vec<_>>());
    assert!(heirs.iter().all(|conn| !world.is_closed(*conn)));
}

#[test]
fn who_comes_back_while_the_will_gives_way_finds_it_published() {
    let mut world = World::new();
    let crowd = crowd(&mut world);
    for client in mortals(&mut world, 0, &lasting(""), 5) {
        world.cut(client);
    }
    world.wait_within_turn(Duration::from_secs(6));
    assert!(world.total("wills_published") < CLIENTS as u64);
    for number in 0..CLIENTS {
        let conn = world.open(0);
        world.say_hello_within_turn(conn, &lasting(name(number)));
    }
    world.settle();
    let all: Vec<usize> = (0..CLIENTS).collect();
    assert_eq!(wills_at(&mut world, crowd[0]), all);
}

#[test]
fn each_will_that_gives_way_is_published_once_whenever_the_broker_crashes() {
    for delay_s in [0, 5] {
        for crash_after in [0, 3] {
            let mut storage = Arc::new(SimStorage::default());
            let setup = Setup { storage: Arc::clone(&storage) as _, ..Setup::default() };
            let mut world = World::with(setup);
            let all = crowd(&mut world);
            let clients = mortals(&mut world, 0, &lasting(""), delay_s);
            storage.commit();
            world.settle();
            for client in clients {
                world.cut_within_turn(client);
            }
            world.end_turn(0);
            world.wait_within_turn(Duration::from_secs(delay_s.into()));
            for _ in 0..crash_after {
                world.end_turn(0);
                world.wait_within_turn(Duration::ZERO);
            }
            world.end_turn(0);
            let before = world.total("wills_published");
            storage.commit();
            world.end_turn(1);
            let mut got = wills_at(&mut world, all[0]);
            assert_eq!(got.len() as u64, before, "turn {crash_after}, delay {delay_s}");
            assert!(
                (1..CLIENTS as u64).contains(&before),
                "some were published, and some were not"
            );
            let mut world = world.after_crash(&mut storage);
            let witness = world.connect(1, &hello("")).0;
            world.subscribe(witness, "gone/+", QoS::AtMostOnce);
            world.seen(witness);
            world.wait(Duration::from_secs(10));
            got.extend(wills_at(&mut world, witness));
            got.sort_unstable();
            assert_eq!(got, (0..CLIENTS).collect::<Vec<_>>(), "turn {crash_after}, {delay_s} s");
        }
    }
}
