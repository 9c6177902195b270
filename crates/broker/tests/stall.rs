//! What clients see while storage makes no progress, in simulated time: first they wait, then what would have to be
//! stored is refused, and everything else goes on.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::storage::SimStorage;
use common::{Conn, Hello, Seen, Setup, World, hello, lasting};
use fulmar_broker::Limits;
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::packet::{FilterList, Publish, Unsubscribe};
use fulmar_mqtt::{Packet, PacketId, Properties, QoS, ReasonCode, Version};

const REFUSED: ReasonCode = ReasonCode::ImplementationSpecificError;
/// The default of `storage_stall_timeout`.
const TIMEOUT: Duration = Duration::from_secs(10);

struct Scene {
    world: World,
    storage: Arc<SimStorage>,
}

impl Scene {
    /// A broker to which a durable client has subscribed, `a/#` at QoS 2; it is away.
    fn new() -> Scene {
        Scene::with(Setup::default())
    }

    fn with(setup: Setup) -> Scene {
        let storage = Arc::new(SimStorage::default());
        let world = World::with(Setup { storage: Arc::clone(&storage) as _, ..setup });
        let mut scene = Scene { world, storage };
        let conn = scene.join(1, &lasting("keeper"));
        scene.world.subscribe(conn, "a/#", QoS::ExactlyOnce);
        scene.commit();
        scene.world.cut(conn);
        scene.commit();
        scene
    }

    fn commit(&mut self) {
        self.storage.commit();
        self.world.broker.storage_committed();
        self.world.settle();
    }

    /// Connects while storage works.
    fn join(&mut self, shard: usize, hello: &Hello) -> Conn {
        let conn = self.world.open(shard);
        self.world.say_hello(conn, hello);
        self.commit();
        let seen = self.world.seen(conn);
        let accepted = matches!(seen[..], [Seen::Connack { reason: ReasonCode::Success, .. }]);
        assert!(accepted, "{seen:?}");
        conn
    }

    fn connect_refused(&mut self, shard: usize, hello: &Hello) -> ReasonCode {
        let conn = self.world.open(shard);
        self.world.say_hello(conn, hello);
        match self.world.seen(conn)[..] {
            [Seen::Connack { reason, .. }] => reason,
            ref other => panic!("{other:?}"),
        }
    }

    /// Makes storage stalled: another client's publication is overdue.
    fn stall(&mut self) -> Conn {
        let conn = self.join(1, &hello("first"));
        self.world.publish(conn, "a/first", "1", QoS::AtLeastOnce, 1);
        self.world.wait(TIMEOUT);
        assert_eq!(self.world.seen(conn), [Seen::Ack(AckKind::Puback, 1, REFUSED)]);
        conn
    }

    /// What the durable subscriber is sent after storage works again.
    fn kept(&mut self) -> Vec<String> {
        self.commit();
        let conn = self.world.open(0);
        self.world.say_hello(conn, &lasting("keeper"));
        self.commit();
        // A QoS 2 message waits for its packet identifier to be stored.
        self.commit();
        let mut texts: Vec<String> = self.world.got(conn).iter().map(common::Got::text).collect();
        texts.sort_unstable();
        texts
    }
}

fn of_311(id: &'static str) -> Hello {
    Hello { version: Version::V311, ..hello(id) }
}

fn puback(id: u16, reason: ReasonCode) -> Seen {
    Seen::Ack(AckKind::Puback, id, reason)
}

#[test]
fn a_short_stall_only_delays_the_acknowledgement() {
    for version in [Version::V5, Version::V311] {
        let mut scene = Scene::new();
        let conn = scene.join(0, &Hello { version, ..hello("p") });
        scene.world.publish(conn, "a/b", "1", QoS::AtLeastOnce, 7);
        scene.world.wait(TIMEOUT - Duration::from_millis(1));
        scene.world.publish(conn, "a/b", "2", QoS::AtLeastOnce, 8);
        assert_eq!(scene.world.seen(conn), []);
        scene.commit();
        let success = [puback(7, ReasonCode::Success), puback(8, ReasonCode::Success)];
        assert_eq!(scene.world.seen(conn), success);
        scene.world.wait(TIMEOUT);
        assert!(!scene.world.is_closed(conn));
        assert_eq!(scene.kept(), ["a/b 1", "a/b 2"]);
    }
}

#[test]
fn an_overdue_puback_is_a_refusal_and_its_message_may_arrive() {
    let mut scene = Scene::new();
    let conn = scene.join(0, &hello("p"));
    scene.world.publish(conn, "a/b", "1", QoS::AtLeastOnce, 7);
    scene.world.wait(Duration::from_secs(4));
    scene.world.publish(conn, "a/b", "2", QoS::AtLeastOnce, 8);
    scene.world.wait(TIMEOUT - Duration::from_secs(4));
    assert_eq!(scene.world.seen(conn), [puback(7, REFUSED)], "each has its own time");
    scene.world.wait(Duration::from_secs(4));
    assert_eq!(scene.world.seen(conn), [puback(8, REFUSED)]);
    assert_eq!(scene.kept(), ["a/b 1", "a/b 2"]);
    scene.world.publish(conn, "a/b", "3", QoS::AtLeastOnce, 9);
    scene.commit();
    assert_eq!(scene.world.seen(conn), [puback(9, ReasonCode::Success)], "it recovers by itself");
}

#[test]
fn while_storage_is_stalled_a_refused_publication_has_no_effect() {
    for shard in [0, 1] {
        let mut scene = Scene::new();
        let conn = scene.join(shard, &hello("p"));
        let watcher = scene.join(shard, &hello("watcher"));
        scene.world.subscribe(watcher, "#", QoS::AtLeastOnce);
        scene.world.seen(watcher);
        scene.stall();
        scene.world.seen(watcher);
        let batches = scene.storage.batches();
        scene.world.publish(conn, "a/b", "no", QoS::AtLeastOnce, 2);
        scene.world.publish(conn, "a/b", "no", QoS::ExactlyOnce, 3);
        scene.world.publish_with(conn, "r", "no", QoS::AtLeastOnce, 4, true, Properties::NONE);
        let pubrec = Seen::Ack(AckKind::Pubrec, 3, REFUSED);
        assert_eq!(scene.world.seen(conn), [puback(2, REFUSED), pubrec, puback(4, REFUSED)]);
        assert_eq!(scene.world.seen(watcher), []);
        assert_eq!(scene.storage.batches(), batches, "storage is given nothing");
        assert_eq!(scene.kept(), ["a/first 1"]);
        let late = scene.join(0, &hello("late"));
        scene.world.subscribe(late, "r", QoS::AtMostOnce);
        assert_eq!(scene.world.got(late), [], "a refused message is not retained");
    }
}

#[test]
fn what_need_not_be_stored_goes_on() {
    let mut scene = Scene::new();
    let conn = scene.join(0, &hello("p"));
    let watcher = scene.join(1, &hello("watcher"));
    scene.world.subscribe(watcher, "#", QoS::ExactlyOnce);
    scene.world.seen(watcher);
    scene.stall();
    scene.world.seen(watcher);
    scene.storage.set_backlog(usize::MAX);
    scene.world.publish(conn, "a/b", "0", QoS::AtMostOnce, 0);
    scene.world.publish(conn, "b", "1", QoS::AtLeastOnce, 2);
    scene.world.publish(conn, "b", "2", QoS::ExactlyOnce, 3);
    assert_eq!(scene.world.texts(watcher), ["a/b 0", "b 1", "b 2"]);
    let pubrec = Seen::Ack(AckKind::Pubrec, 3, ReasonCode::Success);
    assert_eq!(scene.world.seen(conn), [puback(2, ReasonCode::Success), pubrec]);
    let other = scene.world.open(0);
    scene.world.say_hello(other, &hello("other"));
    let accepted = Seen::Connack { present: false, reason: ReasonCode::Success, assigned: None };
    assert_eq!(scene.world.seen(other), [accepted]);
}

#[test]
fn a_retained_qos_0_message_is_dropped_only_while_storage_has_too_much() {
    let mut scene = Scene::new();
    let conn = scene.join(0, &hello("p"));
    let watcher = scene.join(1, &hello("watcher"));
    scene.world.subscribe(watcher, "r", QoS::AtMostOnce);
    scene.world.seen(watcher);
    scene.stall();
    let retain = |scene: &mut Scene, text: &str| {
        scene.world.publish_with(conn, "r", text, QoS::AtMostOnce, 0, true, Properties::NONE);
        scene.world.texts(watcher)
    };
    assert_eq!(retain(&mut scene, "1"), ["r 1"]);
    scene.storage.set_backlog(Limits::default().max_storage_backlog + 1);
    assert!(retain(&mut scene, "2").is_empty());
    scene.storage.set_backlog(0);
    assert_eq!(retain(&mut scene, "3"), ["r 3"]);
}

#[test]
fn a_client_of_3_1_1_is_disconnected_when_its_acknowledgement_is_overdue() {
    let mut scene = Scene::new();
    let conn = scene.join(0, &of_311("p"));
    scene.world.publish(conn, "a/b", "1", QoS::AtLeastOnce, 7);
    scene.world.wait(TIMEOUT);
    assert_eq!(scene.world.seen(conn), []);
    assert!(scene.world.is_closed(conn));
}

#[test]
fn what_a_client_of_3_1_1_sends_meanwhile_waits_as_long_and_has_no_effect() {
    let mut scene = Scene::new();
    scene.stall();
    let conn = scene.join_stalled(0, &of_311("p"));
    scene.world.publish(conn, "a/b", "1", QoS::AtLeastOnce, 7);
    scene.world.wait(TIMEOUT - Duration::from_millis(1));
    assert!(!scene.world.is_closed(conn));
    scene.world.wait(Duration::from_millis(1));
    assert!(scene.world.is_closed(conn));
    let conn = scene.join_stalled(0, &of_311("p"));
    scene.world.publish(conn, "a/b", "2", QoS::AtLeastOnce, 8);
    scene.world.wait(TIMEOUT - Duration::from_millis(1));
    scene.commit();
    scene.world.wait(Duration::from_millis(1));
    scene.commit();
    assert_eq!(scene.world.seen(conn), [puback(8, ReasonCode::Success)]);
    scene.world.wait(TIMEOUT);
    assert!(!scene.world.is_closed(conn), "an old wait ends it");
    assert_eq!(scene.kept(), ["a/b 2", "a/first 1"]);
}

#[test]
fn an_overdue_qos_2_message_is_not_refused_but_repeated() {
    let mut scene = Scene::new();
    let conn = scene.join(0, &lasting("p"));
    scene.world.publish(conn, "a/b", "1", QoS::ExactlyOnce, 7);
    scene.world.wait(TIMEOUT);
    assert_eq!(scene.world.seen(conn), [Seen::Disconnect(REFUSED)]);
    assert!(scene.world.is_closed(conn));
    scene.world.cut(conn);
    assert_eq!(scene.connect_refused(0, &lasting("p")), ReasonCode::ServerUnavailable);
    scene.commit();
    let conn = scene.join(0, &lasting("p"));
    let publish = Publish {
        dup: true,
        qos: QoS::ExactlyOnce,
        retain: false,
        topic: "a/b",
        packet_id: PacketId::new(7),
        properties: Properties::NONE,
        payload: b"1",
    };
    scene.world.send(conn, &Packet::Publish(publish));
    scene.commit();
    assert_eq!(scene.world.seen(conn), [Seen::Ack(AckKind::Pubrec, 7, ReasonCode::Success)]);
    assert_eq!(scene.kept(), ["a/b 1"]);
}

#[test]
fn a_repeated_qos_2_message_that_was_accepted_is_not_refused() {
    let mut scene = Scene::new();
    let conn = scene.join(0, &lasting("p"));
    scene.world.publish(conn, "a/b", "1", QoS::ExactlyOnce, 7);
    scene.commit();
    scene.world.seen(conn);
    scene.stall();
    scene.world.publish(conn, "a/b", "1", QoS::ExactlyOnce, 7);
    let refused = scene.world.seen(conn);
    assert_eq!(refused, [], "its answer waits");
    assert_eq!(scene.kept(), ["a/b 1", "a/first 1"]);
    assert_eq!(scene.world.seen(conn), [Seen::Ack(AckKind::Pubrec, 7, ReasonCode::Success)]);
}

#[test]
fn subscriptions_of_durable_sessions_are_refused() {
    for version in [Version::V5, Version::V311] {
        let mut scene = Scene::new();
        let lasting = match version {
            Version::V5 => lasting("s"),
            Version::V311 => Hello { clean: false, ..of_311("s") },
        };
        let conn = scene.join(0, &lasting);
        scene.world.subscribe(conn, "old", QoS::AtLeastOnce);
        scene.commit();
        scene.world.seen(conn);
        scene.stall();
        let code = if version == Version::V5 { 0x83 } else { 0x80 };
        assert_eq!(scene.world.subscribe(conn, "new", QoS::AtMostOnce), [code]);
        scene.world.seen(conn);
        let mut filters = Vec::new();
        FilterList::encode_one(&mut filters, "old", None);
        let unsubscribe = Unsubscribe {
            packet_id: PacketId::FIRST,
            properties: Properties::NONE,
            filters: FilterList::from_encoded(&filters, false, version).unwrap(),
        };
        scene.world.send(conn, &Packet::Unsubscribe(unsubscribe));
        let answer = scene.world.seen(conn);
        let publisher = scene.join_stalled(1, &hello("p"));
        scene.world.publish(publisher, "new", "1", QoS::AtMostOnce, 0);
        scene.world.publish(publisher, "old", "1", QoS::AtMostOnce, 0);
        assert_eq!(scene.world.texts(conn), ["old 1"]);
        match version {
            Version::V5 => assert_eq!(answer, [Seen::Unsuback(vec![0x83])]),
            Version::V311 => {
                assert_eq!(answer, [], "3.1.1 has no such answer");
                scene.world.wait(TIMEOUT);
                assert!(scene.world.is_closed(conn));
            }
        }
    }
}

#[test]
fn a_session_that_would_have_to_be_stored_is_refused() {
    let mut scene = Scene::new();
    scene.stall();
    assert_eq!(scene.connect_refused(0, &lasting("new")), ReasonCode::ServerUnavailable);
    let clean = hello("keeper");
    assert_eq!(scene.connect_refused(0, &clean), ReasonCode::ServerUnavailable);
    let of_311 = Hello { clean: false, ..of_311("old") };
    assert_eq!(scene.connect_refused(0, &of_311), ReasonCode::ServerUnavailable);
    assert_eq!(scene.kept(), ["a/first 1"], "the session to be removed is still there");
}

#[test]
fn an_overdue_connack_refuses_the_client_and_its_will() {
    let mut scene = Scene::new();
    let watcher = scene.join(0, &hello("watcher"));
    scene.world.subscribe(watcher, "gone", QoS::AtMostOnce);
    scene.world.seen(watcher);
    let conn = scene.world.open(1);
    scene.world.say_hello(conn, &Hello { will: Some(("gone", 0)), ..lasting("new") });
    scene.world.wait(TIMEOUT);
    let reason = ReasonCode::ServerUnavailable;
    let refused = Seen::Connack { present: false, reason, assigned: None };
    assert_eq!(scene.world.seen(conn), [refused]);
    assert!(scene.world.is_closed(conn));
    scene.world.cut(conn);
    scene.commit();
    assert_eq!(scene.world.got(watcher), []);
}

#[test]
fn a_ping_is_answered_while_acknowledgements_wait() {
    let mut scene = Scene::new();
    let conn = scene.join(0, &hello("p"));
    scene.world.publish(conn, "a/b", "1", QoS::AtLeastOnce, 7);
    scene.world.send(conn, &Packet::Pingreq);
    assert_eq!(scene.world.seen(conn), [Seen::Pingresp]);
}

#[test]
fn a_subscriber_whose_pubrel_waits_stays_connected() {
    let mut scene = Scene::new();
    let conn = scene.join(0, &lasting("keeper"));
    let publisher = scene.join(1, &hello("p"));
    scene.world.publish(publisher, "a/b", "2", QoS::ExactlyOnce, 7);
    scene.commit();
    let id = scene.world.got(conn)[0].id;
    scene.world.ack(conn, AckKind::Pubrec, id);
    scene.world.wait(TIMEOUT);
    assert_eq!(scene.world.seen(conn), []);
    scene.world.publish(conn, "a/c", "1", QoS::AtLeastOnce, 5);
    assert_eq!(scene.world.seen(conn), [puback(5, REFUSED)], "its refusal does not wait");
    scene.commit();
    assert_eq!(scene.world.seen(conn), [Seen::Ack(AckKind::Pubrel, id, ReasonCode::Success)]);
}

#[test]
fn publishers_that_wait_for_a_backlog_go_on_after_the_next_commit() {
    let mut scene = Scene::new();
    let conn = scene.join(0, &hello("p"));
    let watcher = scene.join(0, &hello("watcher"));
    scene.world.subscribe(watcher, "b", QoS::AtMostOnce);
    scene.world.seen(watcher);
    let other = scene.join(0, &hello("other"));
    scene.world.publish(other, "a/b", "1", QoS::AtLeastOnce, 1);
    scene.storage.set_backlog(usize::MAX);
    scene.world.publish(conn, "b", "1", QoS::AtMostOnce, 0);
    assert!(scene.world.texts(watcher).is_empty());
    scene.world.wait(TIMEOUT);
    scene.world.settle();
    assert_eq!(scene.world.texts(watcher), ["b 1"], "a stall ends the wait");
}

#[test]
fn a_packet_left_unread_is_read_after_a_commit_that_came_within_the_turn() {
    let mut scene = Scene::new();
    let old = scene.join(0, &of_311("old"));
    scene.stall();
    // The worker still takes storage for stalled.
    scene.storage.commit();
    let packet = Packet::Publish(Publish {
        dup: false,
        qos: QoS::AtLeastOnce,
        retain: false,
        topic: "a/b",
        packet_id: PacketId::new(7),
        properties: Properties::NONE,
        payload: b"1",
    });
    scene.world.send_within_turn(old, &packet);
    scene.world.settle();
    scene.commit();
    assert_eq!(scene.world.seen(old), [puback(7, ReasonCode::Success)]);
}

#[test]
fn wills_are_not_stored_without_end() {
    let mut scene = Scene::new();
    scene.stall();
    let with_will = Hello { will: Some(("a/will", 0)), ..hello("mourned") };
    assert_eq!(scene.connect_refused(0, &with_will), ReasonCode::Success);
    scene.storage.set_backlog(usize::MAX);
    assert_eq!(scene.connect_refused(0, &with_will), ReasonCode::ServerUnavailable);
}

#[test]
fn sys_says_why_and_stops_saying_it() {
    let mut scene = Scene::with(Setup { sys_interval_s: 1, ..Setup::default() });
    let failures = |scene: &mut Scene| {
        scene.world.wait(Duration::from_secs(1));
        let conn = scene.join_stalled(0, &hello("reader"));
        scene.world.subscribe(conn, "$SYS/broker/storage/failure", QoS::AtMostOnce);
        let texts = scene.world.texts(conn);
        scene.world.cut(conn);
        texts
    };
    assert!(failures(&mut scene).is_empty());
    scene.stall();
    assert!(scene.world.broker.storage_problem().is_some());
    assert!(failures(&mut scene)[0].contains("longer than 10s"));
    scene.commit();
    assert!(scene.world.broker.storage_problem().is_none());
    assert!(failures(&mut scene).is_empty());
    assert!(scene.world.total("storage_refused") > 0);
}

impl Scene {
    /// Connects a client whose session need not be stored, while storage is stalled.
    fn join_stalled(&mut self, shard: usize, hello: &Hello) -> Conn {
        self.world.connect(shard, hello).0
    }
}
