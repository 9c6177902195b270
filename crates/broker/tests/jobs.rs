//! The jobs of a member of a shared subscription whose session ends: another member gets them (MQTT 5.0 section 4.8.2).
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::storage::SimStorage;
use common::{Conn, Hello, Setup, World, hello, lasting, narrow};
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::packet::Publish;
use fulmar_mqtt::{Packet, PacketId, Properties, QoS};

const Q1: QoS = QoS::AtLeastOnce;
const Q2: QoS = QoS::ExactlyOnce;
const GROUP: &str = "$share/g/jobs/+";

/// A member whose session outlives the other's.
fn second() -> Hello {
    Hello { expiry: Some(100_000), ..lasting("second") }
}

/// Two members: `first` takes three messages at once, and `second` has come when all jobs were there.
struct Scene {
    storage: Arc<SimStorage>,
    world: World,
    first: Conn,
    second: Conn,
    publisher: Conn,
}

impl Scene {
    /// Six jobs are the first member's: three in flight, three in its queue.
    fn new(qos: QoS) -> Scene {
        let storage = Arc::new(SimStorage::default());
        let mut world =
            World::with(Setup { storage: Arc::clone(&storage) as _, ..Setup::default() });
        let first = connected(&storage, &mut world, 0, &narrow("first"));
        subscribe(&storage, &mut world, first, GROUP, qos);
        let publisher = connected(&storage, &mut world, 1, &hello("publisher"));
        for job in 1..=6 {
            world.publish(publisher, "jobs/a", &job.to_string(), qos, job);
            commit(&storage, &mut world);
        }
        assert_eq!(world.got(first).len(), 3, "its receive maximum");
        let second = connected(&storage, &mut world, 0, &second());
        subscribe(&storage, &mut world, second, GROUP, qos);
        Scene { storage, world, first, second, publisher }
    }

    /// The second member resumes its session.
    fn second_returns(&mut self, worker: usize) {
        self.second = self.world.open(worker);
        self.world.say_hello(self.second, &second());
    }

    fn commit(&mut self) {
        commit(&self.storage, &mut self.world);
    }

    /// The jobs that the second member has got, and acknowledges; none of them twice.
    fn jobs(&mut self) -> Vec<String> {
        let mut jobs = Vec::new();
        loop {
            // Its connection, and at QoS 2 the identifiers, are stored first.
            (0..3).for_each(|_| self.commit());
            let got = self.world.got(self.second);
            if got.is_empty() {
                return jobs;
            }
            for got in got {
                assert!(!got.dup, "it has not had it before");
                jobs.push(String::from_utf8(got.payload).unwrap());
                let kind = if got.qos == Q2 { AckKind::Pubrec } else { AckKind::Puback };
                self.world.ack(self.second, kind, got.id);
                self.commit();
                if got.qos == Q2 {
                    self.world.ack(self.second, AckKind::Pubcomp, got.id);
                }
            }
        }
    }
}

fn commit(storage: &SimStorage, world: &mut World) {
    storage.commit();
    world.settle();
}

fn connected(storage: &SimStorage, world: &mut World, worker: usize, hello: &Hello) -> Conn {
    let conn = world.open(worker);
    world.say_hello(conn, hello);
    commit(storage, world);
    world.seen(conn);
    conn
}

fn subscribe(storage: &SimStorage, world: &mut World, conn: Conn, filter: &str, qos: QoS) {
    world.subscribe(conn, filter, qos);
    commit(storage, world);
    world.seen(conn);
}

/// Ways in which the first member's session ends.
type End = fn(&mut Scene);

const ENDS: [(&str, End); 6] = [
    ("taken over with clean start", |scene| {
        let conn = scene.world.open(1);
        scene.world.say_hello(conn, &hello("first"));
    }),
    ("clean start after the connection was lost", |scene| {
        scene.world.cut(scene.first);
        let conn = scene.world.open(1);
        scene.world.say_hello(conn, &hello("first"));
    }),
    ("DISCONNECT with an expiry of 0", |scene| {
        scene.world.send_bytes(scene.first, &[0xe0, 7, 0, 5, 0x11, 0, 0, 0, 0]);
    }),
    ("expiry", |scene| {
        scene.world.cut(scene.first);
        scene.world.wait(Duration::from_secs(1_001));
    }),
    ("deletion while it is connected", |scene| {
        scene.world.broker.delete_session("first").unwrap();
        scene.world.settle();
    }),
    ("deletion while it is away", |scene| {
        scene.world.cut(scene.first);
        scene.world.broker.delete_session("first").unwrap();
        scene.world.wait(Duration::ZERO);
    }),
];

#[test]
fn mqtt_4_8_2_jobs_of_a_member_whose_session_ends_go_to_another() {
    for (name, end) in ENDS {
        let mut scene = Scene::new(Q1);
        end(&mut scene);
        assert_eq!(scene.jobs(), ["1", "2", "3", "4", "5", "6"], "{name}");
        assert_eq!(scene.storage.crash().1.queued.len(), 0, "{name}");
    }
}

#[test]
fn mqtt_4_8_2_5_what_a_member_may_have_got_at_qos_2_goes_to_nobody_else() {
    for (name, end) in ENDS {
        let mut scene = Scene::new(Q2);
        end(&mut scene);
        assert_eq!(scene.jobs(), ["4", "5", "6"], "{name}");
        assert_eq!(scene.storage.crash().1.queued.len(), 0, "{name}");
    }
}

/// The session is not stored; its connection breaks.
#[test]
fn jobs_of_a_member_without_a_lasting_session_go_to_another() {
    let storage = Arc::new(SimStorage::default());
    let mut world = World::with(Setup { storage: Arc::clone(&storage) as _, ..Setup::default() });
    let first = connected(&storage, &mut world, 0, &hello("first"));
    subscribe(&storage, &mut world, first, GROUP, Q1);
    let publisher = connected(&storage, &mut world, 1, &hello("publisher"));
    world.publish(publisher, "jobs/a", "1", Q1, 1);
    world.publish(publisher, "other", "no job", Q1, 2);
    let second = connected(&storage, &mut world, 0, &hello("second"));
    subscribe(&storage, &mut world, second, "$share/h/jobs/+", Q1);
    subscribe(&storage, &mut world, second, GROUP, Q1);
    world.cut(first);
    commit(&storage, &mut world);
    assert_eq!(world.texts(second), ["jobs/a 1"], "of this group only");
}

/// The power fails at each commit of the end of the first member's session.
#[test]
fn a_crash_while_jobs_go_to_another_member_loses_none() {
    for (name, end) in ENDS {
        for qos in [Q1, Q2] {
            for commits in 0..4 {
                let mut scene = Scene::new(qos);
                scene.world.cut(scene.second);
                scene.commit();
                end(&mut scene);
                (0..commits).for_each(|_| scene.commit());
                scene.world = scene.world.after_crash(&mut scene.storage);
                scene.second_returns(0);
                scene.world.broker.delete_session("first").ok();
                scene.world.wait(Duration::ZERO);
                let jobs = scene.jobs();
                let expected = if qos == Q1 { 1..=6 } else { 4..=6 };
                let expected: Vec<String> = expected.map(|job| job.to_string()).collect();
                assert_eq!(jobs, expected, "{name}, {qos:?}, {commits} commits");
            }
        }
    }
}

/// A job was queued by another worker, whose turn goes on when the session ends. Batches become durable one by one.
#[test]
fn a_job_that_is_not_stored_yet_is_neither_lost_nor_doubled() {
    for (turns, committed) in
        [(&[0, 1][..], false), (&[0, 1], true), (&[1, 0], true), (&[0, 1, 0], true)]
    {
        for qos in [Q1, Q2] {
            let mut scene = Scene::new(qos);
            scene.world.cut(scene.second);
            scene.commit();
            let publish = Publish {
                dup: false,
                qos,
                retain: false,
                topic: "jobs/b",
                packet_id: PacketId::new(99),
                properties: Properties::NONE,
                payload: b"late",
            };
            scene.world.send_within_turn(scene.publisher, &Packet::Publish(publish));
            scene.world.cut_within_turn(scene.first);
            let conn = scene.world.open(0);
            scene.world.say_hello_within_turn(conn, &hello("first"));
            for worker in turns {
                scene.world.end_turn(*worker);
            }
            if committed {
                scene.storage.commit();
            }
            scene.world = scene.world.after_crash(&mut scene.storage);
            scene.world.settle();
            scene.second_returns(1);
            scene.world.broker.delete_session("first").ok();
            scene.world.wait(Duration::ZERO);
            let late = scene.jobs().into_iter().filter(|job| job == "late").count();
            assert_eq!(late, usize::from(committed), "{turns:?} {qos:?}");
            let tables = scene.storage.crash().1;
            assert!(tables.queued.is_empty(), "{turns:?} {qos:?} {:?}", tables.queued);
        }
    }
}
