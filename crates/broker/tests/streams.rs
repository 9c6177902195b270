//! Subscribers on several QUIC streams: whatever becomes of stream, connection and broker, and
//! however soon it happens again, what was acknowledged to the publisher arrives. On streams without
//! a name (EMQX's multi-stream mode) it does so if the subscriber never subscribes again, and in
//! order, whichever of its streams the subscriber looks at first; on named flows, which promise more
//! or less by their terms, when they are opened again.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;

use common::storage::SimStorage;
use common::{Conn, Seen, Setup, World, hello, narrow};
use fulmar_broker::{StreamKey, TransportKind};
use fulmar_mqtt::ack::AckKind::{Puback, Pubcomp, Pubrec, Pubrel};
use fulmar_mqtt::flow::{self, DataFlow, FlowFlags, FlowHeader};
use fulmar_mqtt::packet::{Ack, FilterList, Subscribe, SubscribeOptions};
use fulmar_mqtt::{Packet, PacketId, Properties, QoS, ReasonCode, Version};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    Publish,
    Read,
    Commit,
    /// The subscription moves to a further stream.
    Subscribe,
    EndStream,
    Leave,
    Return,
    Crash,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => Just(Step::Publish),
        6 => Just(Step::Read),
        5 => Just(Step::Commit),
        3 => Just(Step::Subscribe),
        1 => Just(Step::EndStream),
        1 => Just(Step::Leave),
        4 => Just(Step::Return),
        2 => Just(Step::Crash),
    ];
    proptest::collection::vec(step, 0..120)
}

struct Scene {
    qos: QoS,
    storage: Arc<SimStorage>,
    world: World,
    publisher: Conn,
    subscriber: Option<Conn>,
    /// Whether its streams name their flows.
    named: bool,
    /// Further streams of this connection, opened one after the other, and the flows they name.
    streams: Vec<(StreamKey, u64)>,
    opened: u64,
    sent: u16,
    acknowledged: BTreeSet<u16>,
    arrived: BTreeSet<u16>,
    /// Packets looked at.
    looked: usize,
}

impl Scene {
    fn new(qos: QoS, named: bool) -> Scene {
        let storage = Arc::new(SimStorage::default());
        let mut world =
            World::with(Setup { storage: Arc::clone(&storage) as _, ..Setup::default() });
        let publisher = world.connect(1, &hello("p")).0;
        let mut scene = Scene {
            qos,
            storage,
            world,
            publisher,
            subscriber: None,
            named,
            streams: Vec::new(),
            opened: 0,
            sent: 0,
            acknowledged: BTreeSet::new(),
            arrived: BTreeSet::new(),
            looked: 0,
        };
        scene.step(Step::Return);
        scene.step(Step::Subscribe);
        scene.step(Step::Commit);
        scene.step(Step::Read);
        scene
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Publish => {
                self.sent += 1;
                let text = self.sent.to_string();
                self.world.publish(self.publisher, "t", &text, self.qos, self.sent);
            }
            Step::Read => self.read(),
            Step::Commit => {
                self.storage.commit();
                self.world.settle();
            }
            Step::Subscribe => self.subscribe(),
            Step::EndStream => {
                if let (Some(conn), false) = (self.subscriber, self.streams.is_empty()) {
                    let (stream, _) = self.streams.remove(0);
                    self.world.end_stream(conn, stream);
                }
            }
            Step::Leave => {
                if let Some(conn) = self.subscriber.take() {
                    self.world.cut(conn);
                }
            }
            Step::Return if self.subscriber.is_none() => {
                self.streams.clear();
                // Streams of a connection are counted from its beginning, names are not.
                self.opened = if self.named { self.opened } else { 0 };
                let conn = self.world.open_over(0, TransportKind::Quic);
                self.world.say_hello(conn, &narrow("s"));
                self.subscriber = Some(conn);
                self.step(Step::Commit);
            }
            Step::Return => {}
            Step::Crash => self.crash(),
        }
    }

    fn subscribe(&mut self) {
        let Some(conn) = self.subscriber else { return };
        self.opened += 1;
        let stream = StreamKey(4 * self.opened);
        let flow = self.name(conn, stream);
        let options = SubscribeOptions { qos: self.qos, ..SubscribeOptions::default() };
        let mut list = Vec::new();
        FilterList::encode_one(&mut list, "t", Some(options));
        let filters = FilterList::from_encoded(&list, true, Version::V5).unwrap();
        let (packet_id, properties) = (PacketId::FIRST, Properties::NONE);
        let subscribe = Packet::Subscribe(Subscribe { packet_id, properties, filters });
        self.world.send_on(conn, stream, &subscribe);
        self.streams.push((stream, flow));
    }

    /// Two flows in turn, now to be kept and now not.
    fn name(&mut self, conn: Conn, stream: StreamKey) -> u64 {
        if !self.named {
            return 0;
        }
        let id = 2 + 2 * (self.opened % 2);
        let expiry_s = if self.opened.is_multiple_of(3) { 0 } else { 1000 };
        let keeps = FlowFlags::PERSISTENT_QOS | FlowFlags::PERSISTENT_SUBSCRIPTIONS;
        let mut header = Vec::new();
        let flow = DataFlow { id, expiry_s, flags: FlowFlags(keeps) };
        flow::encode(&FlowHeader::ClientData(flow), &mut header);
        self.world.send_bytes_on(conn, stream, &header);
        self.streams.retain(|(_, flow)| *flow != id);
        id
    }

    fn read(&mut self) {
        for seen in self.world.seen(self.publisher) {
            self.looked += 1;
            match seen {
                Seen::Ack(Puback, id, reason) => {
                    assert!(!reason.is_error(), "{reason}");
                    self.acknowledged.insert(id);
                }
                Seen::Ack(Pubrec, id, reason) => {
                    assert!(!reason.is_error(), "{reason}");
                    self.acknowledged.insert(id);
                    self.world.ack(self.publisher, Pubrel, id);
                }
                Seen::Ack(Pubcomp, ..) | Seen::Connack { .. } => {}
                other => panic!("publisher saw {other:?}"),
            }
        }
        let Some(conn) = self.subscriber else { return };
        for (stream, _) in self.streams.clone().into_iter().rev() {
            for seen in self.world.seen_on(conn, stream) {
                self.take(conn, stream, seen);
            }
        }
        for seen in self.world.seen(conn) {
            self.take(conn, StreamKey::CONTROL, seen);
        }
    }

    fn take(&mut self, conn: Conn, stream: StreamKey, seen: Seen) {
        self.looked += 1;
        let (kind, id) = match seen {
            Seen::Publish(got) => {
                let number = String::from_utf8(got.payload).unwrap().parse().unwrap();
                let last = self.arrived.last().copied().unwrap_or_default();
                let new = self.arrived.insert(number);
                assert!(self.named || !new || number > last, "{number} came after {last}");
                (if got.qos == QoS::AtLeastOnce { Puback } else { Pubrec }, got.id)
            }
            Seen::Ack(Pubrel, id, _) => (Pubcomp, id),
            Seen::Connack { present, .. } => {
                assert!(present || self.sent == 0, "the session is gone");
                return;
            }
            _ => return,
        };
        let packet_id = PacketId::new(id).unwrap();
        let (reason, properties) = (ReasonCode::Success, Properties::NONE);
        let ack = Packet::Ack(kind, Ack { packet_id, reason, properties });
        if stream == StreamKey::CONTROL {
            self.world.send(conn, &ack);
        } else {
            self.world.send_on(conn, stream, &ack);
        }
    }

    /// The subscriber stays away at first; the publisher is back at once, and what it had no
    /// acknowledgement for is given up.
    fn crash(&mut self) {
        self.world = self.world.after_crash(&mut self.storage);
        self.subscriber = None;
        self.publisher = self.world.connect(1, &hello("p")).0;
    }

    /// Lets everything finish undisturbed.
    fn finish(&mut self) {
        self.step(Step::Return);
        if self.named {
            self.step(Step::Subscribe);
            self.step(Step::Subscribe);
        }
        let mut quiet = 0;
        for _ in 0..1000 {
            let before = self.looked;
            self.read();
            self.step(Step::Commit);
            quiet = if self.looked == before { quiet + 1 } else { 0 };
            if quiet == 3 {
                return;
            }
        }
        panic!("the exchange does not come to an end");
    }

    fn lost(&self) -> Vec<u16> {
        self.acknowledged.difference(&self.arrived).copied().collect()
    }
}

proptest! {
    #[test]
    fn what_was_acknowledged_arrives(
        steps in steps(),
        twice in any::<bool>(),
        named in any::<bool>(),
    ) {
        let qos = if twice { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
        let mut scene = Scene::new(qos, named);
        for step in steps {
            scene.step(step);
        }
        scene.finish();
        prop_assert_eq!(scene.lost(), Vec::<u16>::new());
        // Nothing is kept for what is over, which would come again after each crash.
        let (_, restored) = scene.storage.crash();
        prop_assert!(restored.queued.is_empty(), "{:?}", restored.queued);
    }
}

#[test]
fn a_subscription_on_a_stream_outlives_two_crashes_though_messages_waited_at_the_first() {
    let mut scene = Scene::new(QoS::AtLeastOnce, false);
    for _ in 0..2 {
        scene.step(Step::Publish);
        scene.step(Step::Commit);
        scene.step(Step::Crash);
        scene.step(Step::Commit);
    }
    scene.step(Step::Publish);
    scene.step(Step::Commit);
    scene.finish();
    assert_eq!(scene.acknowledged.len(), 1, "of the others the publisher was not told");
    assert_eq!(scene.arrived.into_iter().collect::<Vec<_>>(), [1, 2, 3]);
}
