//! What clients see while another broker may serve the same clients: no acknowledgement, also of what needs no storage.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::storage::SimStorage;
use common::{Conn, Seen, Setup, World, hello, lasting};
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::{QoS, ReasonCode};

struct Scene {
    world: World,
    storage: Arc<SimStorage>,
}

impl Scene {
    fn new() -> (Scene, Conn) {
        let storage = Arc::new(SimStorage::default());
        let world = World::with(Setup { storage: Arc::clone(&storage) as _, ..Setup::default() });
        let mut scene = Scene { world, storage };
        let conn = scene.world.open(0);
        scene.world.say_hello(conn, &lasting("p"));
        scene.commit();
        assert_eq!(scene.world.seen(conn).len(), 1);
        (scene, conn)
    }

    fn commit(&mut self) {
        self.storage.commit();
        self.notify();
    }

    fn notify(&mut self) {
        self.world.broker.storage_committed();
        self.world.settle();
    }
}

fn ack(kind: AckKind, id: u16) -> Seen {
    Seen::Ack(kind, id, ReasonCode::Success)
}

#[test]
fn a_publication_that_needs_no_storage_is_acknowledged_with_the_lease_only() {
    let (mut scene, conn) = Scene::new();
    scene.world.publish(conn, "nobody", "0", QoS::AtLeastOnce, 6);
    let unmatched = |kind, id| Seen::Ack(kind, id, ReasonCode::NoMatchingSubscribers);
    assert_eq!(scene.world.seen(conn), [unmatched(AckKind::Puback, 6)]);
    scene.storage.set_silent(true);
    scene.world.publish(conn, "nobody", "1", QoS::AtLeastOnce, 7);
    scene.world.publish(conn, "nobody", "2", QoS::ExactlyOnce, 8);
    scene.commit();
    assert_eq!(scene.world.seen(conn), []);
    scene.storage.set_silent(false);
    scene.notify();
    let expected = [unmatched(AckKind::Puback, 7), unmatched(AckKind::Pubrec, 8)];
    assert_eq!(scene.world.seen(conn), expected);
}

#[test]
fn what_is_stored_is_acknowledged_with_the_lease_only() {
    let (mut scene, conn) = Scene::new();
    scene.world.subscribe(conn, "a/#", QoS::AtLeastOnce);
    scene.commit();
    assert_eq!(scene.world.seen(conn).len(), 1, "SUBACK");
    scene.world.publish(conn, "a/b", "1", QoS::AtLeastOnce, 7);
    // The lease ends before the commit is seen.
    scene.storage.set_silent(true);
    scene.commit();
    assert!(!scene.world.seen(conn).contains(&ack(AckKind::Puback, 7)));
    scene.commit();
    assert_eq!(scene.world.seen(conn), []);
    scene.storage.set_silent(false);
    scene.notify();
    assert_eq!(scene.world.seen(conn), [ack(AckKind::Puback, 7)]);
}

#[test]
fn a_client_that_connects_meanwhile_waits() {
    let (mut scene, _) = Scene::new();
    scene.storage.set_silent(true);
    let other = scene.world.open(1);
    scene.world.say_hello(other, &hello("other"));
    assert_eq!(scene.world.seen(other), []);
    scene.storage.set_silent(false);
    scene.notify();
    assert_eq!(scene.world.seen(other).len(), 1);
}

#[test]
fn workers_sleep_while_there_is_no_lease() {
    let (mut scene, conn) = Scene::new();
    scene.storage.set_silent(true);
    scene.world.publish(conn, "nobody", "1", QoS::AtLeastOnce, 7);
    assert!(scene.world.may_sleep(0), "what waits for the lease is no work");
    // As for storage that makes no progress.
    scene.world.wait(Duration::from_secs(10));
    let refused = Seen::Ack(AckKind::Puback, 7, ReasonCode::ImplementationSpecificError);
    assert_eq!(scene.world.seen(conn), [refused]);
}
