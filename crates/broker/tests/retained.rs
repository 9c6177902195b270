//! Retained messages over the restarts of the broker, the reconnections of their readers, and their own expiry.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::storage::SimStorage;
use common::{Conn, Hello, Setup, World, hello};
use fulmar_mqtt::packet::SubscribeOptions;
use fulmar_mqtt::{Properties, QoS, Version};

const Q1: QoS = QoS::AtLeastOnce;

fn world() -> (Arc<SimStorage>, World) {
    let storage = Arc::new(SimStorage::default());
    let world = World::with(Setup { storage: Arc::clone(&storage) as _, ..Setup::default() });
    (storage, world)
}

fn connected(storage: &SimStorage, world: &mut World, hello: &Hello) -> Conn {
    let conn = world.open(0);
    world.say_hello(conn, hello);
    storage.commit();
    world.settle();
    world.seen(conn);
    conn
}

fn retain(storage: &SimStorage, world: &mut World, conn: Conn, topic: &str) {
    world.publish_with(conn, topic, "x", Q1, 1, true, Properties::NONE);
    storage.commit();
    world.settle();
}

fn subscribe_elsewhere(storage: &SimStorage, world: &mut World, conn: Conn, filter: &str) {
    let options = SubscribeOptions { qos: Q1, no_local: true, ..SubscribeOptions::default() };
    world.subscribe_with(conn, filter, options, None);
    storage.commit();
    world.settle();
}

/// Sessions that are not stored leave no trace in storage but the messages that they have published.
#[test]
fn mqtt_3_8_3_3_no_local_withholds_only_what_a_client_of_its_identifier_published() {
    let (mut storage, mut world) = world();
    let publisher = connected(&storage, &mut world, &hello("publisher"));
    retain(&storage, &mut world, publisher, "home/temp");
    let mut world = world.after_crash(&mut storage);
    let stranger = connected(&storage, &mut world, &hello("stranger"));
    subscribe_elsewhere(&storage, &mut world, stranger, "home/#");
    assert_eq!(world.texts(stranger), ["home/temp x"]);
    // The session is another one, the client is the same.
    let publisher = connected(&storage, &mut world, &hello("publisher"));
    subscribe_elsewhere(&storage, &mut world, publisher, "home/#");
    assert_eq!(world.texts(publisher), [""; 0]);
}

/// A bridge of MQTT 3.1.1 without a session of its own subscribes again whenever it connects.
#[test]
fn a_bridge_does_not_get_back_what_it_has_retained() {
    let (mut storage, mut world) = world();
    let bridge = Hello { version: Version::V311, bridge: true, ..hello("bridge") };
    let conn = connected(&storage, &mut world, &bridge);
    retain(&storage, &mut world, conn, "from/bridge");
    world.cut(conn);
    let conn = connected(&storage, &mut world, &bridge);
    assert_eq!(world.subscribe(conn, "from/#", Q1), [1]);
    assert_eq!(world.texts(conn), [""; 0], "it has connected again");
    let mut world = world.after_crash(&mut storage);
    let conn = connected(&storage, &mut world, &bridge);
    assert_eq!(world.subscribe(conn, "from/#", Q1), [1]);
    assert_eq!(world.texts(conn), [""; 0], "after a restart");
}
