//! Clients wait while an internal session is behind, in simulated time.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::storage::SimStorage;
use common::{Conn, Hello, Seen, Setup, World, hello, lasting};
use fulmar_broker::storage::Restored;
use fulmar_broker::{Limits, TransportKind, User};
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::packet::Ack;
use fulmar_mqtt::{Packet, PacketId, Properties, QoS, ReasonCode};

/// Messages that may be queued for a session: clients that publish to an internal session wait from the fifth on, all
/// others from the seventh.
const MOST: usize = 8;

/// The internal session's client: one message at a time.
fn part() -> Hello {
    Hello { expiry: Some(u32::MAX), receive_maximum: Some(1), ..lasting("part") }
}

fn setup() -> Setup {
    Setup {
        limits: Limits { max_queued_messages: MOST, ..Limits::default() },
        internal_sessions: vec!["part".into()],
        ..Setup::default()
    }
}

struct Scene {
    world: World,
    packet_id: u16,
}

impl Scene {
    /// The internal session subscribes to `a/#`, and its client is away.
    fn new() -> Scene {
        Scene::with(setup())
    }

    fn with(setup: Setup) -> Scene {
        let mut scene = Scene { world: World::with(setup), packet_id: 0 };
        let conn = scene.program();
        scene.world.subscribe(conn, "a/#", QoS::AtLeastOnce);
        scene.world.cut(conn);
        scene
    }

    /// The program itself connects as the internal session's client.
    fn program(&mut self) -> Conn {
        let conn = self.world.open_user(0, TransportKind::Tcp, Some(User::program().text()));
        self.world.say_hello(conn, &part());
        conn
    }

    /// A client on the other worker.
    fn join(&mut self, id: &'static str) -> Conn {
        self.world.connect(1, &hello(id)).0
    }

    fn publish(&mut self, conn: Conn, topic: &str) {
        self.packet_id += 1;
        self.world.publish(conn, topic, "", QoS::AtLeastOnce, self.packet_id);
    }

    fn publish_times(&mut self, times: usize, conn: Conn, topic: &str) {
        (0..times).for_each(|_| self.publish(conn, topic));
    }

    /// Whether the client's next packet is left unread.
    fn waits(&mut self, conn: Conn) -> bool {
        let answers = |world: &mut World| {
            let seen = world.peek(conn);
            seen.iter().filter(|seen| **seen == Seen::Pingresp).count()
        };
        let before = answers(&mut self.world);
        self.world.send(conn, &Packet::Pingreq);
        answers(&mut self.world) == before
    }

    /// The internal session's client acknowledges what it has been sent, and gets the next.
    fn acknowledge(&mut self, conn: Conn) {
        for got in self.world.got(conn) {
            self.world.ack(conn, AckKind::Puback, got.id);
        }
    }
}

#[test]
fn clients_that_publish_to_a_session_that_is_behind_wait_and_others_do_not() {
    let mut scene = Scene::new();
    let (other, _) = scene.world.connect(0, &lasting("other"));
    scene.world.subscribe(other, "b/#", QoS::AtLeastOnce);
    scene.world.cut(other);
    let (device, stranger) = (scene.join("device"), scene.join("stranger"));
    scene.publish_times(MOST, device, "b/c");
    scene.publish_times(4, device, "a/b");
    assert!(!scene.waits(device), "another session's queue counts");
    scene.publish(device, "a/b");
    assert!(!scene.waits(device), "what it published before is in the queue already");
    let part = scene.program();
    // One of the five is in flight.
    scene.publish_times(2, part, "a/b");
    scene.acknowledge(part);
    scene.publish(stranger, "b/c");
    assert!(!scene.waits(device) && !scene.waits(stranger) && !scene.waits(part));
    scene.publish(device, "a/b");
    assert!(scene.waits(device) && !scene.waits(stranger) && !scene.waits(part));
    scene.acknowledge(part);
    assert!(scene.waits(device));
    scene.acknowledge(part);
    assert!(!scene.waits(device), "there is room");
    scene.publish(stranger, "a/b");
    assert!(!scene.waits(device), "it was forgotten when there was room");
    scene.publish(device, "a/b");
    assert!(scene.waits(device) && !scene.waits(stranger));
}

#[test]
fn all_other_clients_wait_before_the_queue_overflows() {
    let mut scene = Scene::new();
    let part = scene.program();
    let (device, stranger) = (scene.join("device"), scene.join("stranger"));
    let quiet = scene.join("quiet");
    // The first is in flight.
    scene.publish_times(6, device, "a/b");
    scene.publish(stranger, "a/b");
    assert!(!scene.waits(quiet));
    // So far the device is not known as one that publishes to the session.
    scene.publish(device, "a/b");
    assert!(scene.waits(quiet) && scene.waits(device) && !scene.waits(part));
    scene.acknowledge(part);
    assert!(!scene.waits(quiet) && scene.waits(device));
    (0..MOST).for_each(|_| scene.acknowledge(part));
    assert!(!scene.waits(device));
    assert_eq!(scene.world.total("messages_dropped_queue"), 0);
}

#[test]
fn bytes_count_like_messages() {
    let limits = Limits { max_queued_bytes: 4000, ..Limits::default() };
    let mut scene = Scene::with(Setup { limits, ..setup() });
    let (device, stranger) = (scene.join("device"), scene.join("stranger"));
    let large = "x".repeat(1100);
    scene.world.publish(device, "a/b", &large, QoS::AtLeastOnce, 1);
    scene.publish(device, "a/b");
    assert!(!scene.waits(device));
    scene.world.publish(device, "a/b", &large, QoS::AtLeastOnce, 2);
    scene.publish(device, "a/b");
    assert!(scene.waits(device) && !scene.waits(stranger));
    scene.world.publish(stranger, "a/b", &large, QoS::AtLeastOnce, 1);
    let quiet = scene.join("quiet");
    assert!(scene.waits(quiet));
}

#[test]
fn limits_too_small_to_delay_clients_lose_nothing() {
    let defaults = Limits::default();
    for limits in [
        Limits { max_queued_messages: 0, ..defaults.clone() },
        Limits { max_queued_bytes: 0, ..defaults },
    ] {
        let mut scene = Scene::with(Setup { limits, ..setup() });
        let (device, stranger) = (scene.join("device"), scene.join("stranger"));
        let mut published = 0;
        while !scene.waits(device) && published < 100 {
            scene.publish(device, "a/b");
            published += 1;
        }
        assert!((1..100).contains(&published), "{published}");
        let part = scene.program();
        for _ in 0..published {
            let got = scene.world.got(part);
            assert_eq!(got.len(), 1, "of {published}");
            scene.world.ack(part, AckKind::Puback, got[0].id);
        }
        assert!(!scene.waits(device) && !scene.waits(stranger));
        assert_eq!(scene.world.total("messages_dropped_queue"), 0);
    }
}

#[test]
fn clients_wait_no_longer_when_the_session_ends() {
    let mut scene = Scene::new();
    let device = scene.join("device");
    scene.publish_times(6, device, "a/b");
    assert!(scene.waits(device));
    let conn = scene.world.open_user(0, TransportKind::Tcp, Some(User::program().text()));
    scene.world.say_hello(conn, &Hello { clean: true, ..part() });
    assert!(!scene.waits(device));
    scene.publish_times(MOST, device, "a/b");
    assert!(!scene.waits(device), "the new session has no subscriptions");
    scene.world.subscribe(conn, "a/#", QoS::AtLeastOnce);
    scene.world.cut(conn);
    scene.publish_times(6, device, "a/b");
    assert!(scene.waits(device), "it is internal too");
}

#[test]
fn what_was_queued_before_a_restart_counts() {
    let mut storage = Arc::new(SimStorage::default());
    let start = |storage: &Arc<SimStorage>, restored| {
        let storage = Arc::clone(storage) as _;
        World::with(Setup { storage, restored, ..setup() })
    };
    let mut scene = Scene { world: start(&storage, Restored::default()), packet_id: 0 };
    let commit = |scene: &mut Scene, storage: &SimStorage| {
        storage.commit();
        scene.world.broker.storage_committed();
        scene.world.settle();
    };
    let conn = scene.program();
    commit(&mut scene, &storage);
    scene.world.subscribe(conn, "a/#", QoS::AtLeastOnce);
    let device = scene.join("device");
    // One in flight and five in the queue.
    scene.publish_times(6, device, "a/b");
    commit(&mut scene, &storage);
    for waiting in [true, false] {
        let (next, restored) = storage.crash();
        storage = next;
        scene.world = start(&storage, restored);
        let device = scene.join("device");
        scene.world.publish(device, "a/b", "", QoS::AtMostOnce, 0);
        assert_eq!(scene.waits(device), waiting);
        let conn = scene.program();
        commit(&mut scene, &storage);
        scene.acknowledge(conn);
        commit(&mut scene, &storage);
    }
}

#[test]
fn sessions_that_the_program_does_not_name_delay_nobody() {
    // One left from an earlier configuration.
    let mut scene = Scene::with(Setup { internal_sessions: vec!["new".into()], ..setup() });
    let device = scene.join("device");
    scene.publish_times(MOST + 1, device, "a/b");
    assert!(!scene.waits(device));
    // A stranger who has guessed the name.
    let (guesser, _) = scene.world.connect(1, &lasting("new"));
    scene.world.subscribe(guesser, "a/#", QoS::AtLeastOnce);
    scene.world.cut(guesser);
    scene.publish_times(MOST + 1, device, "a/b");
    assert!(!scene.waits(device));
}

#[test]
fn a_client_that_waits_is_not_disconnected_for_its_keep_alive() {
    let mut scene = Scene::new();
    let (device, _) = scene.world.connect(1, &Hello { keep_alive: 10, ..hello("device") });
    scene.publish_times(6, device, "a/b");
    assert!(scene.waits(device));
    scene.world.wait(Duration::from_secs(100));
    assert!(!scene.world.is_closed(device));
    let part = scene.program();
    scene.acknowledge(part);
    assert!(!scene.waits(device));
    scene.world.wait(Duration::from_secs(15));
    assert!(scene.world.is_closed(device), "its PINGREQ was 15 s ago");
}

#[test]
fn a_client_that_has_gone_while_it_waits_is_not_kept() {
    let mut scene = Scene::new();
    for keep_alive in [0, 10] {
        let (device, _) = scene.world.connect(1, &Hello { keep_alive, ..hello("device") });
        scene.publish_times(6, device, "a/b");
        assert!(scene.waits(device));
        scene.world.half_close(device);
        scene.world.wait(Duration::from_secs(14));
        assert!(!scene.world.is_closed(device), "there may be room yet for what it sent");
        scene.world.wait(Duration::from_secs(80));
        assert!(scene.world.is_closed(device));
    }
}

#[test]
fn a_client_that_waits_gets_its_turn_without_a_commit_and_whatever_worker_serves_it() {
    let mut scene = Scene::new();
    let device = scene.join("device");
    scene.publish_times(6, device, "a/b");
    let part = scene.program();
    scene.publish(device, "a/late");
    let got = scene.world.got(part);
    scene.world.seen(device);
    let (reason, properties) = (ReasonCode::Success, Properties::NONE);
    let packet_id = PacketId::new(got[0].id).unwrap();
    let ack = Ack { packet_id, reason, properties };
    scene.world.send_within_turn(part, &Packet::Ack(AckKind::Puback, ack));
    assert!(scene.world.may_sleep(1), "there is no room yet");
    // Its output is taken from the queue.
    scene.world.end_turn(0);
    assert!(!scene.world.may_sleep(1));
    scene.world.end_turn(1);
    scene.world.settle();
    let answered = Seen::Ack(AckKind::Puback, scene.packet_id, ReasonCode::Success);
    assert_eq!(scene.world.seen(device), [answered]);
}

#[test]
fn wills_for_a_session_that_is_behind_wait_and_none_is_lost() {
    // More than are examined at once.
    const CLIENTS: usize = 1_200;
    let mut scene = Scene::new();
    let mortal = |number: usize, topic: &'static str| Hello {
        will: Some((topic, number as u32 % 2)),
        will_qos: QoS::AtLeastOnce,
        expiry: Some(10 * (number as u32 % 2)),
        ..hello(format!("mortal{number}").leak())
    };
    let clients: Vec<Conn> = (0..CLIENTS)
        .map(|number| scene.world.connect(1, &mortal(number, format!("a/{number}").leak())).0)
        .collect();
    let (other, _) = scene.world.connect(1, &mortal(CLIENTS + 1, "b/gone"));
    clients.into_iter().for_each(|conn| scene.world.cut(conn));
    (0..20).for_each(|_| scene.world.wait(Duration::from_millis(100)));
    assert_eq!(scene.world.total("wills_published"), 5, "half of what may be queued, and one");
    scene.world.cut(other);
    (0..20).for_each(|_| scene.world.wait(Duration::from_millis(100)));
    assert_eq!(scene.world.total("wills_published"), 6, "the one for somebody else");
    let part = scene.program();
    let mut topics = std::collections::BTreeSet::new();
    for _ in 0..20 * CLIENTS {
        if topics.len() == CLIENTS {
            break;
        }
        for got in scene.world.got(part) {
            topics.insert(got.topic);
            scene.world.ack(part, AckKind::Puback, got.id);
        }
        scene.world.wait(Duration::from_millis(10));
    }
    assert_eq!(topics.len(), CLIENTS);
    assert_eq!(scene.world.total("messages_dropped_queue"), 0);
}
