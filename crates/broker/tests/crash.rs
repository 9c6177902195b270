//! Crashes at any moment, with storage committed up to any point: what was acknowledged is
//! delivered, and at QoS 2 delivered once.
//!
//! A publisher and a subscriber, both with lasting sessions, follow the protocol; the broker is
//! torn down and restored from what was committed as often as the schedule says. The publisher
//! forgets a message only when it is acknowledged, so in the end every message must have arrived.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use common::storage::SimStorage;
use common::{Conn, Hello, Seen, Setup, World, hello, lasting, narrow};
use fulmar_broker::storage::{
    FlowId, Op, Progress, QueuedRecord, SessionKey, SessionRecord, Storage,
};
use fulmar_mqtt::ack::AckKind::{self, Puback, Pubcomp, Pubrec, Pubrel};
use fulmar_mqtt::packet::{Ack, Disconnect, FilterList, Publish, Subscribe, SubscribeOptions};
use fulmar_mqtt::session::{Inbound, InboundQos2, Outbound, Replay};
use fulmar_mqtt::{Packet, PacketId, Properties, QoS, ReasonCode, Version};
use proptest::prelude::*;

const WINDOW: u16 = 8;

#[derive(Clone, Copy, Debug)]
enum Step {
    Publish,
    PublisherReads,
    SubscriberReads,
    Commit,
    CutPublisher,
    CutSubscriber,
    Crash,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => Just(Step::Publish),
        6 => Just(Step::PublisherReads),
        6 => Just(Step::SubscriberReads),
        4 => Just(Step::Commit),
        1 => Just(Step::CutPublisher),
        1 => Just(Step::CutSubscriber),
        1 => Just(Step::Crash),
    ];
    proptest::collection::vec(step, 0..120)
}

struct Scene {
    qos: QoS,
    storage: Arc<SimStorage>,
    world: World,
    publisher: Conn,
    subscriber: Conn,
    outbound: Outbound<u32>,
    inbound: Inbound,
    sent: u32,
    /// Publications so far; the same message sent again is another.
    attempts: u32,
    /// Publications that have arrived, and the last one of this connection.
    arrived: HashSet<u32>,
    last: Option<u32>,
    delivered: Vec<u32>,
}

impl Scene {
    fn new(qos: QoS) -> Scene {
        let storage = Arc::new(SimStorage::default());
        let mut world =
            World::with(Setup { storage: Arc::clone(&storage) as _, ..Setup::default() });
        let subscriber = world.open(0);
        world.say_hello(subscriber, &narrow("s"));
        let publisher = world.open(1);
        world.say_hello(publisher, &lasting("p"));
        storage.commit();
        world.settle();
        world.subscribe(subscriber, "t", qos);
        storage.commit();
        world.settle();
        world.seen(subscriber);
        world.seen(publisher);
        Scene {
            qos,
            storage,
            world,
            publisher,
            subscriber,
            outbound: Outbound::new(WINDOW),
            inbound: Inbound::new(),
            sent: 0,
            attempts: 0,
            arrived: HashSet::new(),
            last: None,
            delivered: Vec::new(),
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Publish => {
                if let Some(id) = self.outbound.push(self.qos, self.sent) {
                    self.send_publish(id, self.sent, false);
                    self.sent += 1;
                }
            }
            Step::PublisherReads => self.publisher_reads(),
            Step::SubscriberReads => self.subscriber_reads(),
            Step::Commit => {
                self.storage.commit();
                self.world.settle();
            }
            Step::CutPublisher => {
                self.world.cut(self.publisher);
                self.reconnect_publisher();
            }
            Step::CutSubscriber => {
                self.world.cut(self.subscriber);
                self.reconnect_subscriber();
            }
            Step::Crash => self.crash(),
        }
    }

    fn send_publish(&mut self, id: PacketId, message: u32, dup: bool) {
        self.attempts += 1;
        let payload = format!("{message} {}", self.attempts);
        let publish = Publish {
            dup,
            qos: self.qos,
            retain: false,
            topic: "t",
            packet_id: Some(id),
            properties: Properties::NONE,
            payload: payload.as_bytes(),
        };
        self.world.send(self.publisher, &Packet::Publish(publish));
    }

    fn publisher_reads(&mut self) {
        for seen in self.world.seen(self.publisher) {
            match seen {
                Seen::Ack(Puback, id, _) => {
                    self.outbound.puback(PacketId::new(id).unwrap()).unwrap();
                }
                Seen::Ack(Pubrec, id, reason) => {
                    assert!(!reason.is_error(), "{reason}");
                    self.outbound.pubrec(PacketId::new(id).unwrap()).unwrap();
                    self.world.ack(self.publisher, Pubrel, id);
                }
                Seen::Ack(Pubcomp, id, _) => {
                    self.outbound.pubcomp(PacketId::new(id).unwrap()).unwrap();
                }
                Seen::Connack { .. } => {}
                other => panic!("publisher saw {other:?}"),
            }
        }
    }

    fn subscriber_reads(&mut self) {
        for seen in self.world.seen(self.subscriber) {
            match seen {
                Seen::Publish(got) => {
                    let text = String::from_utf8(got.payload).unwrap();
                    let (message, attempt) = text.split_once(' ').unwrap();
                    let (message, attempt) = (message.parse().unwrap(), attempt.parse().unwrap());
                    if got.qos == QoS::AtLeastOnce {
                        let again = !self.arrived.insert(attempt);
                        assert!(got.dup || !again, "{text} came again without DUP");
                        assert!(self.last < Some(attempt), "{text} after {:?}", self.last);
                        self.last = Some(attempt);
                        self.delivered.push(message);
                        self.world.ack(self.subscriber, Puback, got.id);
                        continue;
                    }
                    let id = PacketId::new(got.id).unwrap();
                    match self.inbound.publish(id, u16::MAX) {
                        InboundQos2::New => self.delivered.push(message),
                        InboundQos2::Duplicate => {}
                        InboundQos2::TooMany => panic!(),
                    }
                    self.world.ack(self.subscriber, Pubrec, got.id);
                }
                Seen::Ack(Pubrel, id, _) => {
                    self.inbound.release(PacketId::new(id).unwrap());
                    self.world.ack(self.subscriber, Pubcomp, id);
                }
                Seen::Connack { .. } => {}
                other => panic!("subscriber saw {other:?}"),
            }
        }
    }

    fn crash(&mut self) {
        self.world = self.world.after_crash(&mut self.storage);
        self.reconnect_subscriber();
        self.reconnect_publisher();
    }

    fn reconnect_publisher(&mut self) {
        self.publisher = self.world.open(0);
        self.world.say_hello(self.publisher, &lasting("p"));
        self.step(Step::Commit);
        assert!(matches!(
            self.world.seen(self.publisher)[..],
            [Seen::Connack { present: true, .. }]
        ));
        let replay: Vec<_> = self
            .outbound
            .replay()
            .map(|replay| match replay {
                Replay::Publish { packet_id, message, .. } => (packet_id, Some(*message)),
                Replay::Pubrel { packet_id } => (packet_id, None),
            })
            .collect();
        for (id, message) in replay {
            match message {
                Some(message) => self.send_publish(id, message, true),
                None => self.world.ack(self.publisher, Pubrel, id.get()),
            }
        }
    }

    fn reconnect_subscriber(&mut self) {
        self.last = None;
        self.subscriber = self.world.open(1);
        self.world.say_hello(self.subscriber, &narrow("s"));
        self.step(Step::Commit);
        assert!(matches!(
            self.world.peek(self.subscriber)[..],
            [Seen::Connack { present: true, .. }, ..]
        ));
    }

    /// Lets everything finish undisturbed.
    fn finish(&mut self) {
        for _ in 0..1000 {
            self.publisher_reads();
            self.subscriber_reads();
            // What their acknowledgements made room for waits for storage in turn.
            self.step(Step::Commit);
            let quiet = self.world.peek(self.publisher).is_empty()
                && self.world.peek(self.subscriber).is_empty();
            if quiet && self.outbound.in_flight() == 0 && self.inbound.is_empty() {
                return;
            }
        }
        panic!("the exchange does not come to an end");
    }
}

fn play(qos: QoS, steps: &[Step]) -> (u32, Vec<u32>) {
    let mut scene = Scene::new(qos);
    for step in steps {
        scene.step(*step);
    }
    scene.finish();
    (scene.sent, scene.delivered)
}

proptest! {
    #[test]
    fn qos2_is_delivered_once(steps in steps()) {
        let (sent, mut delivered) = play(QoS::ExactlyOnce, &steps);
        delivered.sort_unstable();
        prop_assert_eq!(delivered, (0..sent).collect::<Vec<_>>());
    }

    #[test]
    fn qos1_is_delivered_at_least_once(steps in steps()) {
        let (sent, delivered) = play(QoS::AtLeastOnce, &steps);
        let mut counts: HashMap<u32, usize> = HashMap::new();
        for message in delivered {
            *counts.entry(message).or_default() += 1;
        }
        for message in 0..sent {
            prop_assert!(counts.contains_key(&message), "{} was lost", message);
        }
    }
}

/// A message has just been queued by the publisher's worker, whose turn goes on, when the subscriber
/// makes room for it.
fn queued_within_a_turn(qos: QoS) -> Scene {
    let mut scene = Scene::new(qos);
    (0..3).for_each(|_| scene.step(Step::Publish));
    scene.step(Step::Commit);
    let acks = if qos == QoS::ExactlyOnce {
        scene.subscriber_reads();
        scene.step(Step::Commit);
        let released = scene.world.seen(scene.subscriber);
        let released = released.into_iter().map(|seen| match seen {
            Seen::Ack(Pubrel, id, _) => (Pubcomp, id),
            other => panic!("{other:?}"),
        });
        released.collect::<Vec<_>>()
    } else {
        let got = scene.world.got(scene.subscriber);
        got.into_iter().map(|got| (Puback, got.id)).collect()
    };
    assert_eq!(acks.len(), 3, "the window is full");
    let id = scene.outbound.push(qos, scene.sent).unwrap();
    let payload = format!("{} 99", scene.sent);
    scene.sent += 1;
    let publish = Publish {
        dup: false,
        qos,
        retain: false,
        topic: "t",
        packet_id: Some(id),
        properties: Properties::NONE,
        payload: payload.as_bytes(),
    };
    scene.world.send_within_turn(scene.publisher, &Packet::Publish(publish));
    for (kind, id) in acks {
        scene.inbound.release(PacketId::new(id).unwrap());
        scene.acknowledge_within_turn(kind, id);
    }
    scene
}

impl Scene {
    fn acknowledge_within_turn(&mut self, kind: AckKind, id: u16) {
        let packet_id = PacketId::new(id).unwrap();
        let (reason, properties) = (ReasonCode::Success, Properties::NONE);
        let ack = Packet::Ack(kind, Ack { packet_id, reason, properties });
        self.world.send_within_turn(self.subscriber, &ack);
    }

    fn only_the_subscribers_worker_goes_on(&mut self) {
        for _ in 0..3 {
            self.world.end_turn(0);
            self.storage.commit();
        }
    }
}

/// Worker would store the identifier of a message that storage does not know yet, to no effect:
/// after a crash it would go out under another one, and arrive twice.
#[test]
fn mqtt_4_3_3_what_another_worker_has_just_queued_waits_for_the_end_of_that_workers_turn() {
    let mut scene = queued_within_a_turn(QoS::ExactlyOnce);
    scene.only_the_subscribers_worker_goes_on();
    assert_eq!(scene.world.peek(scene.subscriber), []);
    scene.finish();
    assert_eq!(scene.delivered, [0, 1, 2, 3]);
}

/// The removal would reach storage before the message itself, which would come again after each crash.
#[test]
fn what_is_acknowledged_while_the_turn_that_queued_it_goes_on_is_not_kept() {
    let mut scene = queued_within_a_turn(QoS::AtLeastOnce);
    scene.world.end_turn(0);
    scene.storage.commit();
    let got = scene.world.got(scene.subscriber);
    assert_eq!(got.len(), 1, "at QoS 1 it goes out at once");
    scene.acknowledge_within_turn(Puback, got[0].id);
    scene.only_the_subscribers_worker_goes_on();
    // The publisher's turn ends.
    scene.world.settle();
    scene.storage.commit();
    assert!(scene.storage.crash().1.queued.is_empty());
}

/// The subscriber's worker commits too late what it was sent under.
#[test]
fn mqtt_4_4_0_1_what_was_sent_just_before_the_crash_keeps_its_identifier_too() {
    let mut scene = queued_within_a_turn(QoS::AtLeastOnce);
    scene.world.end_turn(0);
    let before = scene.world.got(scene.subscriber);
    assert_eq!(before.len(), 1);
    scene.world.end_turn(1);
    scene.storage.commit();
    assert_eq!(scene.storage.crash().1.queued[0].progress, Progress::Queued);
    scene.crash();
    let after = scene.world.got(scene.subscriber);
    assert_eq!((after[0].id, &after[0].payload), (before[0].id, &before[0].payload));
}

/// A client's old connection is still at work on another worker when it comes back for a new session.
#[test]
fn a_session_is_taken_over_when_what_its_last_worker_stores_for_it_is_handed_over() {
    let storage = Arc::new(SimStorage::default());
    let mut world = World::with(Setup { storage: Arc::clone(&storage) as _, ..Setup::default() });
    let old = world.open(0);
    world.say_hello(old, &lasting("c"));
    storage.commit();
    world.settle();
    let mut list = Vec::new();
    FilterList::encode_one(&mut list, "t", Some(SubscribeOptions::default()));
    let filters = FilterList::from_encoded(&list, true, Version::V5).unwrap();
    let (packet_id, properties) = (PacketId::FIRST, Properties::NONE);
    let subscribe = Packet::Subscribe(Subscribe { packet_id, properties, filters });
    world.send_within_turn(old, &subscribe);
    let new = world.open(1);
    world.say_hello_within_turn(new, &Hello { clean: true, ..lasting("c") });
    world.end_turn(1);
    storage.commit();
    world.settle();
    storage.commit();
    world.settle();
    let (present, reason) = (false, ReasonCode::Success);
    assert_eq!(world.seen(new), [Seen::Connack { present, reason, assigned: None }]);
    let restored = storage.crash().1;
    assert_eq!(restored.sessions.len(), 1);
    assert!(restored.subscriptions.is_empty(), "{:?}", restored.subscriptions);
}

/// Earlier versions could leave these behind.
#[test]
fn records_of_sessions_that_are_no_more_are_removed_at_a_restart() {
    let mut scene = Scene::new(QoS::AtLeastOnce);
    let restored = scene.storage.crash().1;
    let own = |record: &&SessionRecord| &*record.client_id == "s";
    let kept = restored.sessions.iter().find(own).unwrap().clone();
    let newer = SessionKey(restored.last_session_key + 1);
    let mut orphan = restored.subscriptions[0].clone();
    orphan.session = SessionKey(99);
    let newest = SessionRecord { key: newer, ..kept };
    scene.storage.submit(&mut vec![Op::SessionPut(newest), Op::SubscriptionPut(orphan)]);
    scene.storage.commit();
    drop(scene.world.after_crash(&mut scene.storage));
    scene.storage.commit();
    let restored = scene.storage.crash().1;
    let mut keys: Vec<_> = restored.sessions.iter().filter(own).map(|record| record.key).collect();
    assert_eq!(keys.pop(), Some(newer));
    assert!(keys.is_empty());
    assert!(restored.subscriptions.is_empty(), "{:?}", restored.subscriptions);
}

#[test]
fn what_waits_for_another_worker_is_not_forgotten_over_what_need_not_wait() {
    let mut scene = queued_within_a_turn(QoS::ExactlyOnce);
    scene.world.end_turn(0);
    let publish = Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic: "t",
        packet_id: None,
        properties: Properties::NONE,
        payload: b"at once",
    };
    scene.world.send_within_turn(scene.publisher, &Packet::Publish(publish));
    scene.only_the_subscribers_worker_goes_on();
    // The publisher's turn ends.
    scene.world.settle();
    scene.step(Step::Commit);
    assert_eq!(scene.world.texts(scene.subscriber), ["t at once", "t 3 99"]);
}

#[test]
fn what_goes_out_again_ahead_of_a_later_message_has_its_identifier_in_storage() {
    let mut scene = Scene::new(QoS::AtLeastOnce);
    let got = restored_as(&mut scene, queued_then_sent);
    scene.storage.commit();
    let queued = scene.storage.crash().1.queued;
    let progress: Vec<_> = queued.iter().map(|queued| queued.progress).collect();
    let sent = |(id, _): &(u16, bool)| Progress::Sent(PacketId::new(*id).unwrap());
    assert_eq!(progress, got.iter().map(sent).collect::<Vec<_>>());
}

#[test]
fn mqtt_3_3_1_1_what_no_client_can_have_seen_comes_without_dup() {
    let mut scene = Scene::new(QoS::AtLeastOnce);
    scene.world.cut(scene.subscriber);
    scene.step(Step::Publish);
    scene.step(Step::Commit);
    scene.crash();
    let got = scene.world.got(scene.subscriber);
    // The publisher got no acknowledgement and has sent it again.
    assert_eq!(got.len(), 2);
    assert!(got.iter().all(|got| !got.dup), "{got:?}");
}

/// Two messages for a subscriber that was away, then a crash after which storage says of them what
/// `record` makes of it. What the subscriber gets at once: identifiers and DUP.
fn restored_as(scene: &mut Scene, record: impl Fn(u64) -> (FlowId, Progress)) -> Vec<(u16, bool)> {
    recorded_as(scene, record);
    scene.crash();
    let seen = scene.world.peek(scene.subscriber);
    let publish = |seen: &Seen| match seen {
        Seen::Publish(got) => Some((got.id, got.dup)),
        _ => None,
    };
    seen.iter().filter_map(publish).collect()
}

fn recorded_as(scene: &mut Scene, record: impl Fn(u64) -> (FlowId, Progress)) {
    scene.world.cut(scene.subscriber);
    scene.step(Step::Publish);
    scene.step(Step::Publish);
    scene.step(Step::Commit);
    scene.publisher_reads();
    let (storage, restored) = scene.storage.crash();
    scene.storage = storage;
    let mut ops = Vec::new();
    for queued in restored.queued {
        let QueuedRecord { session, position, message, delivery, .. } = queued;
        ops.push(Op::Dequeue { session, flow: FlowId::CONTROL, position });
        let (flow, progress) = record(position.0);
        ops.push(Op::Enqueue { session, flow, position, message, delivery, progress });
    }
    scene.storage.submit(&mut ops);
    scene.step(Step::Commit);
}

fn all_came_once_and_nothing_is_left(mut scene: Scene) {
    scene.finish();
    assert_eq!(scene.delivered, [0, 1]);
    assert!(scene.storage.crash().1.queued.is_empty());
}

#[test]
fn what_was_under_way_on_streams_without_a_name_comes_on_the_control_stream_and_then_no_more() {
    let mut scene = Scene::new(QoS::AtLeastOnce);
    let sent = Progress::Sent(PacketId::FIRST);
    let got = restored_as(&mut scene, |position| (FlowId(1 << 62 | position), sent));
    assert_eq!(got, [(1, true), (2, true)]);
    all_came_once_and_nothing_is_left(scene);
}

#[test]
fn mqtt_4_4_0_1_what_was_sent_before_the_crash_keeps_its_identifier() {
    let mut scene = Scene::new(QoS::AtLeastOnce);
    let sent = |position| Progress::Sent(PacketId::new(40 + position as u16).unwrap());
    let got = restored_as(&mut scene, |position| (FlowId::CONTROL, sent(position)));
    assert_eq!(got, [(41, true), (42, true)]);
    all_came_once_and_nothing_is_left(scene);
}

#[test]
fn mqtt_4_6_0_1_order_outlives_a_crash_between_two_workers_commits() {
    let mut scene = Scene::new(QoS::AtLeastOnce);
    let got = restored_as(&mut scene, queued_then_sent);
    assert_eq!(got.len(), 2);
    // [MQTT-4.4.0-1].
    assert_eq!(got[1], (7, true), "{got:?}");
    all_came_once_and_nothing_is_left(scene);
}

/// One worker queued the first, its client's worker gave it an identifier and committed too late; the
/// second was given its own by its publisher's worker.
fn queued_then_sent(position: u64) -> (FlowId, Progress) {
    match position {
        1 => (FlowId::CONTROL, Progress::Queued),
        _ => (FlowId::CONTROL, Progress::Sent(PacketId::new(7).unwrap())),
    }
}

#[test]
fn mqtt_4_6_0_5_order_outlives_a_crash_between_two_workers_commits_at_qos_2_too() {
    let mut scene = Scene::new(QoS::ExactlyOnce);
    let got = restored_as(&mut scene, queued_then_sent);
    assert_eq!(got, [(1, false), (7, true)]);
    all_came_once_and_nothing_is_left(scene);
}

/// A subscriber to wills and a client with one, both lasting and connected.
fn with_will(delay_s: u32) -> (Arc<SimStorage>, World, Conn) {
    let storage = Arc::new(SimStorage::default());
    let mut world = World::with(Setup { storage: Arc::clone(&storage) as _, ..Setup::default() });
    let subscriber = world.open(0);
    world.say_hello(subscriber, &lasting("s"));
    storage.commit();
    world.settle();
    world.subscribe(subscriber, "w", QoS::AtMostOnce);
    let client = world.open(1);
    world.say_hello(client, &Hello { will: Some(("w", delay_s)), ..lasting("c") });
    storage.commit();
    world.settle();
    (storage, world, client)
}

/// The world after a crash, with the subscriber back.
fn after_crash(storage: &mut Arc<SimStorage>, world: &World) -> (World, Conn) {
    let mut world = world.after_crash(storage);
    let subscriber = world.open(0);
    world.say_hello(subscriber, &lasting("s"));
    storage.commit();
    world.settle();
    world.seen(subscriber);
    (world, subscriber)
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_will_whose_client_was_connected_at_the_crash_is_published_after_its_delay_and_once() {
    let (mut storage, world, _) = with_will(30);
    let (mut world, subscriber) = after_crash(&mut storage, &world);
    world.wait(seconds(29));
    assert_eq!(world.texts(subscriber), [""; 0]);
    world.wait(seconds(2));
    assert_eq!(world.texts(subscriber), ["w will"]);
    storage.commit();
    let (mut world, subscriber) = after_crash(&mut storage, &world);
    world.wait(seconds(500));
    assert_eq!(world.texts(subscriber), [""; 0]);
}

#[test]
fn a_will_that_waited_when_the_broker_crashed_keeps_its_time() {
    let (mut storage, mut world, client) = with_will(30);
    world.cut(client);
    storage.commit();
    world.wait(seconds(20));
    let (mut world, subscriber) = after_crash(&mut storage, &world);
    world.wait(seconds(9));
    assert_eq!(world.texts(subscriber), [""; 0]);
    world.wait(seconds(2));
    assert_eq!(world.texts(subscriber), ["w will"]);
}

#[test]
fn a_client_that_comes_back_in_time_or_said_goodbye_leaves_no_will() {
    let (mut storage, world, _) = with_will(30);
    let (mut world, subscriber) = after_crash(&mut storage, &world);
    let client = world.open(1);
    world.say_hello(client, &lasting("c"));
    world.wait(seconds(60));
    assert_eq!(world.texts(subscriber), [""; 0]);
    let (mut storage, mut world, client) = with_will(30);
    let reason = ReasonCode::Success;
    world.send(client, &Packet::Disconnect(Disconnect { reason, properties: Properties::NONE }));
    storage.commit();
    let (mut world, subscriber) = after_crash(&mut storage, &world);
    world.wait(seconds(60));
    assert_eq!(world.texts(subscriber), [""; 0]);
}

#[test]
fn the_end_of_the_session_does_not_wait_for_its_wills_delay() {
    let (mut storage, world, _) = with_will(5000);
    let (mut world, subscriber) = after_crash(&mut storage, &world);
    world.wait(seconds(998));
    assert_eq!(world.texts(subscriber), [""; 0]);
    world.wait(seconds(3));
    assert_eq!(world.texts(subscriber), ["w will"]);
}

/// Messages of mixed QoS for a client that was away, each acknowledged at once, or that it gets while it is connected.
fn order_of_mixed(storage: &mut Arc<SimStorage>, away: bool, restarted: bool) -> Vec<String> {
    let mut world = World::with(Setup { storage: Arc::clone(storage) as _, ..Setup::default() });
    let mut reader = world.open(0);
    world.say_hello(reader, &lasting("reader"));
    storage.commit();
    world.settle();
    world.subscribe(reader, "t/+", QoS::ExactlyOnce);
    storage.commit();
    world.settle();
    if away {
        world.cut(reader);
    }
    let publisher = world.connect(1, &hello("publisher")).0;
    for (number, qos) in (1..).zip([2, 1, 1, 2, 1, 2, 2, 1]) {
        let qos = if qos == 2 { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
        world.publish(publisher, &format!("t/{number}"), "x", qos, number);
    }
    if away {
        storage.commit();
        world.settle();
        if restarted {
            world = world.after_crash(storage);
        }
        reader = world.open(0);
        world.say_hello(reader, &lasting("reader"));
    }
    for _ in 0..3 {
        storage.commit();
        world.settle();
    }
    world.got(reader).into_iter().map(|got| got.topic).collect()
}

#[test]
fn a_queue_of_mixed_qos_is_delivered_in_the_order_of_arrival() {
    let expected: Vec<String> = (1..=8).map(|number| format!("t/{number}")).collect();
    for (away, restarted) in [(false, false), (true, false), (true, true)] {
        let mut storage = Arc::new(SimStorage::default());
        let order = order_of_mixed(&mut storage, away, restarted);
        assert_eq!(order, expected, "away: {away}, after a restart: {restarted}");
    }
}

/// The connection breaks before storage has the identifiers of those at QoS 2.
#[test]
fn the_order_of_mixed_qos_outlives_a_connection() {
    let mut storage = Arc::new(SimStorage::default());
    let first = order_of_mixed(&mut storage, true, true);
    let (storage, restored) = storage.crash();
    let mut world =
        World::with(Setup { storage: Arc::clone(&storage) as _, restored, ..Setup::default() });
    for _ in 0..2 {
        let reader = world.open(0);
        world.say_hello(reader, &lasting("reader"));
        world.cut(reader);
    }
    let reader = world.open(1);
    world.say_hello(reader, &lasting("reader"));
    for _ in 0..3 {
        storage.commit();
        world.settle();
    }
    let again: Vec<String> = world.got(reader).into_iter().map(|got| got.topic).collect();
    assert_eq!(again, first);
}
