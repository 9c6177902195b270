//! Crashes at any moment, with storage committed up to any point: what was acknowledged is
//! delivered, and at QoS 2 delivered once.
//!
//! A publisher and a subscriber, both with lasting sessions, follow the protocol; the broker is
//! torn down and restored from what was committed as often as the schedule says. The publisher
//! forgets a message only when it is acknowledged, so in the end every message must have arrived.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::HashMap;
use std::sync::Arc;

use common::storage::SimStorage;
use common::{Conn, Seen, Setup, World, lasting};
use fulmar_mqtt::ack::AckKind::{Puback, Pubcomp, Pubrec, Pubrel};
use fulmar_mqtt::packet::Publish;
use fulmar_mqtt::session::{Inbound, Outbound, Received, Replay};
use fulmar_mqtt::{Packet, PacketId, Properties, QoS};
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
    delivered: Vec<u32>,
}

impl Scene {
    fn new(qos: QoS) -> Scene {
        let storage = Arc::new(SimStorage::default());
        let mut world =
            World::with(Setup { storage: Arc::clone(&storage) as _, ..Setup::default() });
        let subscriber = world.open(0);
        world.say_hello(subscriber, &lasting("s"));
        let publisher = world.open(1);
        world.say_hello(publisher, &lasting("p"));
        storage.commit();
        world.settle();
        world.subscribe(subscriber, "t", qos);
        storage.commit();
        world.settle();
        world.seen(subscriber);
        world.seen(publisher);
        let (outbound, inbound) = (Outbound::new(WINDOW), Inbound::new());
        let (sent, delivered) = (0, Vec::new());
        Scene { qos, storage, world, publisher, subscriber, outbound, inbound, sent, delivered }
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
        let payload = message.to_string();
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
                    let message = String::from_utf8(got.payload).unwrap().parse().unwrap();
                    if got.qos == QoS::AtLeastOnce {
                        self.delivered.push(message);
                        self.world.ack(self.subscriber, Puback, got.id);
                        continue;
                    }
                    let id = PacketId::new(got.id).unwrap();
                    match self.inbound.publish(id, u16::MAX) {
                        Received::New => self.delivered.push(message),
                        Received::Duplicate => {}
                        Received::TooMany => panic!(),
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
        let (storage, restored) = self.storage.crash();
        let now = self.world.now();
        let setup = Setup { storage: Arc::clone(&storage) as _, restored, now, ..Setup::default() };
        self.world = World::with(setup);
        self.storage = storage;
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
        self.subscriber = self.world.open(1);
        self.world.say_hello(self.subscriber, &lasting("s"));
        self.step(Step::Commit);
        assert!(matches!(
            self.world.peek(self.subscriber)[..],
            [Seen::Connack { present: true, .. }, ..]
        ));
    }

    /// Lets everything finish undisturbed.
    fn finish(&mut self) {
        for _ in 0..1000 {
            self.step(Step::Commit);
            self.publisher_reads();
            self.subscriber_reads();
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
