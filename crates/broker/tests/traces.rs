//! What the tracer sees of a publication's path.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::{Arc, Mutex};

use common::storage::SimStorage;
use common::{Conn, Setup, World, hello, lasting};
use fulmar_broker::message::MessageId;
use fulmar_broker::{Arrival, Delivered, TraceNumber, Tracer};
use fulmar_mqtt::QoS;
use fulmar_mqtt::ack::AckKind;

/// Traces publications to `traced/#`, and writes down what it sees.
#[derive(Default)]
struct Recorder(Mutex<Vec<String>>);

impl Recorder {
    fn note(&self, text: String) {
        self.0.lock().unwrap().push(text);
    }

    fn seen(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Tracer for Recorder {
    fn received(&self, arrival: &Arrival<'_>) -> Option<TraceNumber> {
        let number = arrival.topic.strip_prefix("traced/")?.parse().ok()?;
        self.note(format!("received {number} from {}", arrival.client_id));
        Some(TraceNumber(number))
    }

    fn routed(&self, number: TraceNumber, message: Option<MessageId>, receivers: usize) {
        let kept = if message.is_some() { "kept" } else { "passing" };
        self.note(format!("routed {} {kept} to {receivers}", number.0));
    }

    fn durable(&self, number: TraceNumber) {
        self.note(format!("durable {}", number.0));
    }

    fn delivered(&self, delivered: &Delivered<'_>) {
        let Delivered { number, message, topic, client_id, qos, .. } = *delivered;
        assert_eq!(number.is_none(), message.is_some());
        self.note(format!("delivered {topic} to {client_id} {qos:?}"));
    }
}

struct Scene {
    world: World,
    storage: Arc<SimStorage>,
    recorder: Arc<Recorder>,
    device: Conn,
}

fn scene() -> Scene {
    let storage = Arc::new(SimStorage::default());
    let world = World::with(Setup { storage: Arc::clone(&storage) as _, ..Setup::default() });
    let recorder = Arc::new(Recorder::default());
    world.broker.set_tracer(Arc::clone(&recorder) as _);
    let mut scene = Scene { world, storage, recorder, device: Conn(0) };
    scene.device = scene.world.connect(0, &hello("device")).0;
    scene
}

impl Scene {
    /// A subscriber on the other worker, with a durable session.
    fn subscriber(&mut self, id: &'static str, qos: QoS) -> Conn {
        let conn = self.world.open(1);
        self.world.say_hello(conn, &lasting(id));
        self.committed();
        self.world.subscribe(conn, "#", qos);
        self.committed();
        conn
    }

    fn committed(&mut self) {
        self.storage.commit();
        self.world.settle();
    }
}

#[test]
fn a_publication_is_durable_when_its_receivers_sessions_have_it_and_delivered_when_they_acknowledge()
 {
    let mut scene = scene();
    let office = scene.subscriber("office", QoS::AtLeastOnce);
    scene.world.publish(scene.device, "traced/1", "x", QoS::AtLeastOnce, 1);
    assert_eq!(scene.recorder.seen(), ["received 1 from device", "routed 1 kept to 1"]);
    scene.committed();
    assert_eq!(scene.recorder.seen(), ["durable 1"]);
    let id = scene.world.got(office)[0].id;
    scene.world.ack(office, AckKind::Puback, id);
    assert_eq!(scene.recorder.seen(), ["delivered traced/1 to office AtLeastOnce"]);
}

#[test]
fn at_qos_2_it_is_delivered_once() {
    let mut scene = scene();
    let office = scene.subscriber("office", QoS::ExactlyOnce);
    scene.world.publish(scene.device, "traced/1", "x", QoS::ExactlyOnce, 1);
    scene.committed();
    let id = scene.world.got(office)[0].id;
    scene.recorder.seen();
    for kind in [AckKind::Pubrec, AckKind::Pubrec, AckKind::Pubcomp] {
        scene.world.ack(office, kind, id);
        scene.committed();
    }
    assert_eq!(scene.recorder.seen(), ["delivered traced/1 to office ExactlyOnce"]);
}

#[test]
fn at_qos_0_nothing_is_stored_and_it_is_delivered_at_once() {
    let mut scene = scene();
    scene.subscriber("office", QoS::AtMostOnce);
    scene.world.publish(scene.device, "traced/1", "x", QoS::AtMostOnce, 0);
    let seen = scene.recorder.seen();
    let delivered = "delivered traced/1 to office AtMostOnce";
    assert_eq!(seen, ["received 1 from device", delivered, "routed 1 passing to 1", "durable 1"]);
}

#[test]
fn nothing_is_reported_of_other_publications() {
    let mut scene = scene();
    let office = scene.subscriber("office", QoS::AtLeastOnce);
    scene.world.publish(scene.device, "traced/1", "x", QoS::AtLeastOnce, 1);
    scene.world.publish(scene.device, "else/2", "x", QoS::AtLeastOnce, 2);
    scene.committed();
    let got = scene.world.got(office);
    scene.recorder.seen();
    scene.world.ack(office, AckKind::Puback, got[0].id);
    scene.world.ack(office, AckKind::Puback, got[1].id);
    assert_eq!(scene.recorder.seen(), ["delivered traced/1 to office AtLeastOnce"]);
}
