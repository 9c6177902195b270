//! Checks the log. One test alone, in a program of its own: tracing caches each callsite's interest for the process,
//! and other tests in it have no subscriber.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::log::Log;
use common::storage::SimStorage;
use common::{Hello, Setup, World, hello};
use fulmar_mqtt::packet::{FilterList, Subscribe, SubscribeOptions};
use fulmar_mqtt::{Packet, PacketId, Properties, Version};

/// Covers a reconnection on another worker as well, which has to wait until the old connection has gone.
#[test]
fn every_takeover_is_logged() {
    let device = Hello { clean: false, expiry: Some(3600), ..hello("device") };
    for waits in [false, true] {
        let log = Log::default();
        tracing::subscriber::with_default(log.clone(), || {
            let storage = Arc::new(SimStorage::default());
            let setup = Setup { storage: Arc::clone(&storage) as _, ..Setup::default() };
            let mut world = World::with(setup);
            let old = world.open(0);
            world.say_hello(old, &device);
            storage.commit();
            world.settle();
            if waits {
                let mut list = Vec::new();
                FilterList::encode_one(&mut list, "t", Some(SubscribeOptions::default()));
                let filters = FilterList::from_encoded(&list, true, Version::V5).unwrap();
                let (packet_id, properties) = (PacketId::FIRST, Properties::NONE);
                let subscribe = Packet::Subscribe(Subscribe { packet_id, properties, filters });
                world.send_within_turn(old, &subscribe);
            }
            let new = world.open(1);
            world.say_hello_within_turn(new, &device);
            world.end_turn(1);
            for _ in 0..2 {
                storage.commit();
                world.settle();
            }
            assert!(world.is_closed(old));
        });
        let text = log.text();
        let connected: Vec<&str> =
            text.lines().filter(|line| line.contains("message=connected")).collect();
        assert_eq!(connected.len(), 2, "{text}");
        assert!(connected[0].contains("taken_over=false"), "{text}");
        assert!(connected[1].contains("taken_over=true"), "waits: {waits}\n{text}");
        assert!(text.contains("disconnected: session taken over"), "{text}");
    }
}
