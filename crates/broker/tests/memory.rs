//! The budget for memory that clients can use: what a greedy owner gets, what others keep, and what is given back.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::storage::SimStorage;
use common::{Conn, Hello, Seen, Setup, World, hello, lasting};
use fulmar_broker::message::Message;
use fulmar_broker::{Account, Limits, MemoryLimits, TransportKind};
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::{Properties, Property, PropertyBuf, QoS, ReasonCode, Version};

const Q0: QoS = QoS::AtMostOnce;
const Q1: QoS = QoS::AtLeastOnce;
/// DISCONNECT that ends the session.
const END: &[u8] = &[0xe0, 7, 0, 5, 0x11, 0, 0, 0, 0];
const MIB: usize = 1024 * 1024;

/// A world whose accounts have a MiB each.
fn world() -> World {
    World::with(Setup { limits: limits(), ..Setup::default() })
}

fn limits() -> Limits {
    let limit = |limits: MemoryLimits, account| limits.with(account, MIB);
    let memory = Account::ALL.into_iter().fold(MemoryLimits::NONE, limit);
    Limits { memory, ..Limits::default() }
}

fn used(world: &World, account: Account) -> usize {
    world.broker.memory_totals(account).0
}

fn connect(world: &mut World, user: &str, id: &str) -> (Conn, Vec<Seen>) {
    let conn = come_back(world, user, id);
    let seen = world.seen(conn);
    (conn, seen)
}

/// Publishes a retained message and returns the answer.
fn retain(world: &mut World, conn: Conn, topic: &str, payload: &str) -> ReasonCode {
    world.publish_with(conn, topic, payload, Q1, 7, true, Properties::NONE);
    match world.seen(conn)[..] {
        [Seen::Ack(AckKind::Puback, 7, reason)] => reason,
        ref other => panic!("{other:?}"),
    }
}

/// How many of a hundred new topics get a retained message.
fn retained(world: &mut World, conn: Conn, prefix: &str, payload: &str) -> usize {
    let mut put = |at: usize| retain(world, conn, &format!("{prefix}/{at}"), payload);
    (0..100).filter(|at| put(*at) != ReasonCode::QuotaExceeded).count()
}

#[test]
fn a_user_has_half_of_the_retained_messages_and_others_have_room() {
    let limits = Limits { max_retained_messages: 80, ..limits() };
    let mut world = World::with(Setup { limits, ..Setup::default() });
    let [greedy, again, other] = [("greedy", "a"), ("greedy", "b"), ("other", "c")]
        .map(|(user, id)| connect(&mut world, user, id).0);
    assert_eq!(retained(&mut world, greedy, "greedy", "x"), 40);
    assert_eq!(retained(&mut world, again, "again", "x"), 0, "another session of the same user");
    assert_eq!(retain(&mut world, again, "greedy/7", "new"), ReasonCode::NoMatchingSubscribers);
    assert_eq!(retained(&mut world, other, "other", "x"), 20);
    // A topic counts for the user who has published to it last, and for nobody once it is cleared.
    for at in 0..10 {
        assert_ne!(
            retain(&mut world, other, &format!("greedy/{at}"), "y"),
            ReasonCode::QuotaExceeded
        );
        retain(&mut world, other, &format!("other/{at}"), "");
    }
    // 50 are in use, 30 of them the greedy user's.
    assert_eq!(retained(&mut world, greedy, "more", "x"), 0);
    assert_eq!(retained(&mut world, other, "more", "x"), 5);
    // The program's own sessions may have all that is left.
    let program = connect(&mut world, "platform:", "own").0;
    assert_eq!(retained(&mut world, program, "own", "x"), 25);
}

#[test]
fn a_user_has_half_of_the_retained_bytes() {
    let limits = Limits { max_retained_bytes: 80_000, ..limits() };
    let mut world = World::with(Setup { limits, ..Setup::default() });
    let [greedy, other] = ["greedy", "other"].map(|user| connect(&mut world, user, user).0);
    let large = "x".repeat(1_000);
    let got = retained(&mut world, greedy, "greedy", &large);
    assert!((30..40).contains(&got), "{got}");
    assert!(retained(&mut world, other, "other", &large) >= 15);
    assert_eq!(
        retain(&mut world, greedy, "greedy/0", &large.repeat(20)),
        ReasonCode::QuotaExceeded
    );
    assert_ne!(retain(&mut world, greedy, "greedy/0", "smaller"), ReasonCode::QuotaExceeded);
}

#[test]
fn retained_wills_count_for_the_user_of_the_session() {
    let limits = Limits { max_retained_messages: 8, ..limits() };
    let mut world = World::with(Setup { limits, ..Setup::default() });
    for at in 0..10 {
        let topic: &'static str = format!("will/{at}").leak();
        let conn = world.open_user(0, TransportKind::Tcp, Some("greedy"));
        let will = Hello { will: Some((topic, 0)), will_retain: true, ..hello(topic) };
        world.say_hello(conn, &will);
        world.cut(conn);
    }
    assert_eq!(world.broker.retained_totals().0, 4);
}

/// A durable session that is subscribed to `filter` and then leaves.
fn absent(world: &mut World, user: &str, id: &str, filter: &str) {
    let (conn, seen) = connect(world, user, id);
    assert!(is_accepted(&seen), "{seen:?}");
    world.subscribe(conn, filter, Q1);
    world.seen(conn);
    world.cut(conn);
}

fn come_back(world: &mut World, user: &str, id: &str) -> Conn {
    let conn = world.open_user(0, TransportKind::Tcp, Some(user));
    world.say_hello(conn, &lasting(id.to_owned().leak()));
    conn
}

fn is_accepted(seen: &[Seen]) -> bool {
    matches!(seen, [Seen::Connack { reason: ReasonCode::Success, .. }, ..])
}

/// Receives publications and acknowledges them until there are no more; how many there were.
fn receive(world: &mut World, conn: Conn) -> usize {
    let mut all = 0;
    loop {
        let got = world.got(conn);
        if got.is_empty() {
            return all;
        }
        all += got.len();
        for got in got.iter().filter(|got| got.qos == Q1) {
            world.ack(conn, AckKind::Puback, got.id);
        }
    }
}

/// Publishes at QoS 1; the reason in PUBACK.
fn publish(world: &mut World, conn: Conn, topic: &str, payload: &[u8]) -> ReasonCode {
    let text = std::str::from_utf8(payload).unwrap();
    world.publish(conn, topic, text, Q1, 1);
    let seen = world.seen(conn);
    let reason = seen.iter().find_map(|seen| match seen {
        Seen::Ack(AckKind::Puback, _, reason) => Some(*reason),
        _ => None,
    });
    reason.unwrap_or_else(|| panic!("{seen:?}"))
}

#[test]
fn a_user_with_very_many_sessions_is_refused_and_others_are_not() {
    let mut world = world();
    let mut opened = 0;
    let mut last = [None, None];
    for number in 0..2_000 {
        let (conn, seen) = connect(&mut world, "eve", &format!("eve-{number}"));
        if !is_accepted(&seen) {
            let quota = ReasonCode::QuotaExceeded;
            assert!(
                matches!(seen[..], [Seen::Connack { reason, .. }] if reason == quota),
                "{seen:?}"
            );
            break;
        }
        opened += 1;
        last = [last[1], Some(conn)];
    }
    assert!((200..1_200).contains(&opened), "{opened}");
    assert!(used(&world, Account::Sessions).abs_diff(MIB / 2) < MIB / 20);
    // A session that exists is resumed all the same.
    let (_, seen) = connect(&mut world, "eve", "eve-0");
    assert!(is_accepted(&seen), "{seen:?}");
    let (_, seen) = connect(&mut world, "ann", "ann-1");
    assert!(is_accepted(&seen), "{seen:?}");
    // What the others have, it can no longer have; two that end make room for one.
    for conn in last.into_iter().flatten() {
        world.send_bytes(conn, END);
    }
    let (_, seen) = connect(&mut world, "eve", "eve-next");
    assert!(is_accepted(&seen), "{seen:?}");
    let (_, seen) = connect(&mut world, "eve", "eve-one-more");
    assert!(!is_accepted(&seen), "{seen:?}");
}

#[test]
fn subscriptions_count_and_are_given_back() {
    let mut world = world();
    let (conn, _) = connect(&mut world, "eve", "a");
    let before = used(&world, Account::Sessions);
    let long = "t".repeat(2_000);
    let mut granted = 0;
    while world.subscribe(conn, &format!("{long}{granted}"), Q1) == [1] {
        world.seen(conn);
        granted += 1;
    }
    world.seen(conn);
    assert!((100..200).contains(&granted), "{granted}");
    assert_eq!(world.subscribe(conn, &format!("{long}{}", granted + 1), Q1), [0x97]);
    world.seen(conn);
    assert_eq!(world.subscribe(conn, &format!("{long}0"), Q1), [1], "a known one is renewed");
    let (other, _) = connect(&mut world, "ann", "b");
    assert_eq!(world.subscribe(other, &format!("{long}0"), Q1), [1]);
    world.send_bytes(other, END);
    world.send_bytes(conn, END);
    assert!(used(&world, Account::Sessions) < before);
}

#[test]
fn a_filter_counts_with_each_of_its_levels() {
    let mut world = world();
    let (conn, _) = connect(&mut world, "eve", "a");
    let levels = "a/".repeat(120);
    let granted = (0..1_000)
        .take_while(|number| {
            let codes = world.subscribe(conn, &format!("{number}/{levels}"), Q1);
            world.seen(conn);
            codes == [1]
        })
        .count();
    // Some 16 KB each in the tree, of half a MiB.
    assert!((20..40).contains(&granted), "{granted}");
}

#[test]
fn a_users_queues_are_full_at_its_share_and_the_publisher_is_told() {
    let mut world = world();
    for number in 0..20 {
        absent(&mut world, "eve", &format!("eve-{number}"), &format!("eve/{number}"));
    }
    absent(&mut world, "ann", "ann", "ann/#");
    let (publisher, _) = connect(&mut world, "bob", "publisher");
    let payload = vec![b'x'; 10_000];
    let mut accepted = 0;
    let refused = (0..200).find(|number| {
        let topic = format!("eve/{}", number % 20);
        let reason = publish(&mut world, publisher, &topic, &payload);
        accepted += usize::from(reason == ReasonCode::Success);
        reason == ReasonCode::QuotaExceeded
    });
    assert!(refused.is_some(), "{accepted}");
    assert!((45..60).contains(&accepted), "half a MiB of 10 kB messages: {accepted}");
    let dropped = world.broker.metrics().sum(|shard| &shard.memory_refused);
    assert_eq!(dropped, 1);
    for _ in 0..18 {
        assert_eq!(publish(&mut world, publisher, "ann/t", &payload), ReasonCode::Success);
    }
    // What was acknowledged is there.
    let reader = come_back(&mut world, "ann", "ann");
    assert_eq!(receive(&mut world, reader), 18);
    let readers = (0..20).map(|number| come_back(&mut world, "eve", &format!("eve-{number}")));
    let readers: Vec<_> = readers.collect();
    let received: usize = readers.into_iter().map(|reader| receive(&mut world, reader)).sum();
    assert_eq!(received, accepted);
}

#[test]
fn a_subscriber_that_reads_is_served_while_others_have_filled_the_account() {
    let mut world = world();
    for user in 0..30 {
        absent(&mut world, &format!("eve-{user}"), &format!("eve-{user}"), "eve/#");
    }
    let (publisher, _) = connect(&mut world, "bob", "publisher");
    for number in 0..200 {
        // Each has a content of its own for one receiver, as far as there is room.
        publish(&mut world, publisher, &format!("eve/{number}"), &[b'x'; 9_000]);
    }
    let refused = publish(&mut world, publisher, "eve/t", &[b'x'; 9_000]);
    assert_eq!(refused, ReasonCode::QuotaExceeded, "nobody of them has room");
    let (reader, _) = connect(&mut world, "ann", "ann");
    world.subscribe(reader, "ann/#", Q1);
    world.seen(reader);
    for _ in 0..100 {
        assert_eq!(publish(&mut world, publisher, "ann/t", &[b'x'; 2_000]), ReasonCode::Success);
        assert_eq!(receive(&mut world, reader), 1);
    }
}

#[test]
fn a_message_for_many_receivers_is_counted_once() {
    let mut world = world();
    for number in 0..50 {
        absent(&mut world, "fleet", &format!("device-{number}"), "all");
    }
    let (publisher, _) = connect(&mut world, "bob", "publisher");
    let before = used(&world, Account::Messages);
    assert_eq!(publish(&mut world, publisher, "all", &[b'x'; 5_000]), ReasonCode::Success);
    let taken = used(&world, Account::Messages) - before;
    assert!((5_000..25_000).contains(&taken), "{taken}");
}

#[test]
fn everything_is_given_back_with_the_sessions() {
    let mut world = world();
    for number in 0..5 {
        absent(&mut world, "eve", &format!("eve-{number}"), "#");
    }
    let (publisher, _) = connect(&mut world, "bob", "publisher");
    for _ in 0..20 {
        publish(&mut world, publisher, "t", &[b'x'; 1_000]);
    }
    assert!(used(&world, Account::Messages) > 20_000);
    for number in 0..5 {
        // Some have messages in flight then, and some have them queued.
        let (conn, _) = connect(&mut world, "eve", &format!("eve-{number}"));
        world.send_bytes(conn, END);
    }
    world.send_bytes(publisher, END);
    for account in Account::ALL {
        assert_eq!(used(&world, account), 0, "{account:?}");
    }
}

#[test]
fn receivers_that_do_not_read_get_small_outboxes_at_their_share() {
    let mut world = world();
    let deaf: Vec<_> = (0..40)
        .map(|number| {
            let (conn, _) = connect(&mut world, "eve", &format!("eve-{number}"));
            world.subscribe(conn, "t", Q0);
            world.seen(conn);
            world.set_reading(conn, false);
            conn
        })
        .collect();
    let (reader, _) = connect(&mut world, "ann", "ann");
    world.subscribe(reader, "t", Q0);
    world.seen(reader);
    let (publisher, _) = connect(&mut world, "bob", "publisher");
    for _ in 0..300 {
        world.publish(publisher, "t", &"x".repeat(2_000), Q0, 1);
        assert_eq!(receive(&mut world, reader), 1);
    }
    // Without the budget: 40 times 600 kB.
    let output = used(&world, Account::Output);
    assert!((MIB / 3..MIB).contains(&output), "{output}");
    drop(deaf);
}

#[test]
fn large_messages_for_receivers_that_do_not_read_count_before_they_are_sent() {
    let mut world = world();
    for number in 0..40 {
        let (conn, _) = connect(&mut world, "eve", &format!("eve-{number}"));
        world.subscribe(conn, "t", Q0);
        world.seen(conn);
        world.set_reading(conn, false);
    }
    let (publisher, _) = connect(&mut world, "bob", "publisher");
    world.publish(publisher, "t", &"x".repeat(200_000), Q0, 1);
    let output = used(&world, Account::Output);
    assert!((MIB / 3..MIB).contains(&output), "{output}");
}

#[test]
fn a_client_that_does_not_read_its_answers_is_not_read_from() {
    const PINGS: usize = 50_000;
    let mut world = world();
    let (conn, _) = connect(&mut world, "eve", "eve");
    world.set_reading(conn, false);
    world.send_bytes(conn, &[0xC0, 0].repeat(PINGS));
    let waiting = world.output(conn).bytes.len();
    assert!((4_000..5_000).contains(&waiting), "{waiting}");
    // It goes on where it was.
    world.set_reading(conn, true);
    assert_eq!(waiting + world.bytes(conn).len(), 2 * PINGS);
}

#[test]
fn a_longer_will_needs_memory_also_when_a_session_is_resumed() {
    let mut world = world();
    let will = |length: usize| Some((&*"w".repeat(length).leak(), 3600));
    let come = |world: &mut World, number: usize, will| {
        let conn = world.open_user(0, TransportKind::Tcp, Some("eve"));
        let id = format!("eve-{number}").leak();
        world.say_hello(conn, &Hello { will, ..lasting(id) });
        let accepted = is_accepted(&world.seen(conn));
        world.cut(conn);
        accepted
    };
    assert!((0..30).all(|number| come(&mut world, number, None)));
    let accepted = (0..30).filter(|number| come(&mut world, *number, will(60_000))).count();
    assert!((5..15).contains(&accepted), "{accepted}");
    assert!(used(&world, Account::Sessions) <= MIB);
    assert!((0..30).all(|number| come(&mut world, number, will(500))), "short ones always");
}

#[test]
fn topic_aliases_count_over_all_connections_of_a_user() {
    let mut world = world();
    let mut kept = 0;
    let mut conns = Vec::new();
    'all: for number in 0..50 {
        let conn = world.open_user(0, TransportKind::Quic, Some("eve"));
        world.say_hello(conn, &hello(format!("eve-{number}").leak()));
        world.seen(conn);
        conns.push(conn);
        for alias in 1..=10 {
            let topic = format!("{}{alias}", "t".repeat(5_000));
            let mut properties = PropertyBuf::new();
            properties.push(Property::TopicAlias(alias));
            world.publish_with(conn, &topic, "", Q0, 1, false, properties.as_properties());
            let seen = world.seen(conn);
            if seen.contains(&Seen::Disconnect(ReasonCode::QuotaExceeded)) {
                break 'all;
            }
            assert_eq!(seen, []);
            kept += 1;
        }
    }
    assert!((95..115).contains(&kept), "half a MiB of 5 kB topics: {kept}");
    for conn in conns {
        world.cut(conn);
    }
    assert_eq!(used(&world, Account::Aliases), 0);
}

#[test]
fn what_storage_remembers_counts() {
    let storage = Arc::new(SimStorage::default());
    let setup = Setup { storage: Arc::clone(&storage) as _, limits: limits(), ..Setup::default() };
    let mut world = World::with(setup);
    let conn = world.open_user(0, TransportKind::Tcp, Some("eve"));
    world.say_hello(conn, &lasting("eve"));
    storage.commit();
    world.settle();
    world.subscribe(conn, "t", Q1);
    storage.commit();
    world.settle();
    world.cut(conn);
    let publisher = world.open_user(0, TransportKind::Tcp, Some("bob"));
    world.say_hello(publisher, &hello("bob"));
    for _ in 0..5 {
        world.publish(publisher, "t", &"x".repeat(1_000), Q1, 1);
        storage.commit();
        world.settle();
    }
    let before = used(&world, Account::Messages);
    assert!(before > 5_000, "{before}");
    let (storage, mut restored) = storage.crash();
    for record in &mut restored.queued {
        // As read from a disk.
        record.message = Message::new(record.message.id(), &record.message.parts());
    }
    let setup = Setup { limits: limits(), restored, ..Setup::default() };
    let world = World::with(Setup { storage: storage as _, ..setup });
    assert_eq!(used(&world, Account::Messages), before);
    assert!(used(&world, Account::Sessions) > 500);
}

/// How many QoS 2 messages a client has opened until one is refused, or the connection is closed.
fn open_identifiers(world: &mut World, conn: Conn) -> (u16, Option<ReasonCode>) {
    for id in 1..=1_000 {
        world.publish(conn, "nobody", "x", QoS::ExactlyOnce, id);
        let seen = world.seen(conn);
        match seen[..] {
            [Seen::Ack(AckKind::Pubrec, _, reason)] if reason.is_error() => {
                return (id - 1, Some(reason));
            }
            [Seen::Ack(AckKind::Pubrec, ..)] => {}
            _ => {
                assert!(world.is_closed(conn), "{seen:?}");
                return (id - 1, None);
            }
        }
    }
    (1_000, None)
}

#[test]
fn identifiers_that_a_publisher_does_not_release_count() {
    let mut world = world();
    let (conn, _) = connect(&mut world, "eve", "eve");
    let before = used(&world, Account::Sessions);
    assert_eq!(open_identifiers(&mut world, conn), (1_000, None));
    let taken = used(&world, Account::Sessions) - before;
    assert!((30_000..=32_000).contains(&taken), "{taken}");
    for id in 1..=1_000 {
        world.ack(conn, AckKind::Pubrel, id);
    }
    assert_eq!(used(&world, Account::Sessions), before);
    world.seen(conn);
    // A user's share ends them too; a session with none open is let in.
    let mut opened = 0;
    let (id, reason) = loop {
        let (conn, seen) = connect(&mut world, "eve", &format!("eve-{opened}"));
        assert!(is_accepted(&seen), "{seen:?}");
        opened += 1;
        let (id, reason) = open_identifiers(&mut world, conn);
        if id < 1_000 {
            // A repeated one is none more.
            world.publish(conn, "nobody", "x", QoS::ExactlyOnce, id);
            assert!(matches!(world.seen(conn)[..], [Seen::Ack(_, _, ReasonCode::Success)]));
            break (id, reason);
        }
    };
    assert_eq!(reason, Some(ReasonCode::QuotaExceeded), "{id}");
    assert!((10..30).contains(&opened), "{opened}");
    // A 3.1.1 client, for which one session makes room, would take any answer as success.
    world.send_bytes(conn, END);
    let old = world.open_user(0, TransportKind::Tcp, Some("eve"));
    world.say_hello(old, &Hello { version: Version::V311, ..hello("old") });
    assert!(is_accepted(&world.seen(old)));
    assert_eq!(open_identifiers(&mut world, old), (15, None));
    assert!(world.is_closed(old));
}

#[test]
fn a_users_connections_share_what_may_be_sent_before_it_is_processed() {
    let mut world = world();
    let mut window = |user: &str, number: usize| {
        let conn = world.open_user(0, TransportKind::Quic, Some(user));
        world.say_hello(conn, &hello(format!("{user}-{number}").leak()));
        world.seen(conn);
        (conn, world.input_window(conn, 100_000))
    };
    let windows: Vec<_> = (0..10).map(|number| window("eve", number)).collect();
    let granted: usize = windows.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(windows[0].1, 100_000);
    assert_eq!(windows[9].1, 0, "{windows:?}");
    assert!(granted.abs_diff(MIB / 2) < MIB / 10, "{granted}");
    assert_eq!(window("ann", 0).1, 100_000);
    for (conn, _) in windows {
        world.cut(conn);
    }
    assert_eq!(used(&world, Account::Input), 100_000, "that of ann");
}
