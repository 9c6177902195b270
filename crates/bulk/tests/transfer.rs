//! Whole transfers over bad links, in simulated time.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use fulmar_bulk::{Partition, ReceiverConfig, SenderConfig};
use proptest::prelude::*;
use support::{Link, Memory, Scene, checksum, noise};

fn unicast(loss: f64, bytes: usize) -> Scene {
    let link = Link { loss, ..Link::default() };
    Scene { link, objects: vec![noise(1, bytes)], ..Scene::default() }
}

fn group(receivers: usize) -> SenderConfig {
    let rate_bytes_per_s = 1_250_000;
    SenderConfig { backoff: 4, receivers, rate_bytes_per_s, ..SenderConfig::default() }
}

#[test]
fn every_loss_up_to_two_thirds_is_repaired() {
    for loss in [0.0, 0.01, 0.05, 0.2, 0.5, 0.65] {
        let scene = unicast(loss, 1_000_000);
        let mut outcome = scene.play();
        outcome.assert_complete(&scene);
        let (at, _) = outcome.ended.unwrap();
        // At 10 Mbit/s the object takes 0.83 s; the rest is losses and a few round trips of 50 ms.
        let limit = 0.83 / (1.0 - loss) * 1.2 + if loss < 0.4 { 0.5 } else { 1.5 };
        assert!(at.as_secs_f64() < limit, "{loss}: {at:?} {:?}", outcome.sender);
    }
}

#[test]
fn without_loss_nothing_is_sent_twice() {
    let scene = unicast(0.0, 1_000_000);
    let outcome = scene.play();
    assert_eq!(outcome.sender.repair_bytes, 0);
    assert_eq!(outcome.sender.nacks, 0);
    assert!(outcome.sender.sent_bytes < 1_060_000, "{:?}", outcome.sender);
}

#[test]
fn ten_receivers_share_repairs() {
    // With an independent loss rate of a half, a block of 64 needs about 145 symbols until all ten receivers have it.
    for (loss, most) in [(0.2, 1.5), (0.5, 2.5)] {
        let link = Link { loss, ..Link::default() };
        let objects = vec![noise(1, 1_000_000)];
        let scene = Scene { link, objects, receivers: 10, sender: group(10), ..Scene::default() };
        let mut outcome = scene.play();
        outcome.assert_complete(&scene);
        let share = outcome.sender.sent_bytes as f64 / 1_000_000.0;
        assert!(share < most, "{loss}: sent {share} times the object");
    }
}

#[test]
fn who_joins_late_gets_everything() {
    let link = Link { loss: 0.1, ..Link::default() };
    let objects = (1..=3).map(|seed| noise(seed, 200_000)).collect();
    let joins = |number| Duration::from_millis(200 * number as u64);
    let scene = Scene { link, objects, receivers: 3, sender: group(3), joins, ..Scene::default() };
    scene.play().assert_complete(&scene);
}

#[test]
fn empty_and_tiny_objects_arrive_too() {
    let objects = vec![vec![], b"x".to_vec(), noise(1, 1424), noise(2, 1425), vec![]];
    let link = Link { loss: 0.4, ..Link::default() };
    let scene = Scene { link, objects, ..Scene::default() };
    scene.play().assert_complete(&scene);
}

#[test]
fn with_no_room_for_parity_symbols_are_sent_again() {
    let sender =
        SenderConfig { parity_symbols: 10, rate_bytes_per_s: 1_250_000, ..SenderConfig::default() };
    let receiver = ReceiverConfig { max_parity_bytes: 0, ..ReceiverConfig::default() };
    let scene = Scene { sender, receiver, ..unicast(0.2, 300_000) };
    let mut outcome = scene.play();
    outcome.assert_complete(&scene);
    assert!(outcome.receivers[0].progress().dropped > 0);
}

#[test]
fn nobody_there_ends_without_success() {
    let joins = |_| Duration::MAX;
    let patience = Duration::from_secs(5);
    let sender = SenderConfig { patience, ..SenderConfig::default() };
    let outcome = Scene { joins, sender, ..unicast(0.0, 10_000) }.play();
    assert!(matches!(outcome.ended, Some((_, false))), "{:?}", outcome.ended);
}

#[test]
fn a_receiver_that_cannot_store_it_is_waited_for_as_long_as_one_that_is_silent() {
    let storage = |_: &Scene| Memory { full: true, ..Memory::default() };
    let patience = Duration::from_secs(5);
    let sender = SenderConfig { patience, ..SenderConfig::default() };
    let outcome = Scene { storage, sender, ..unicast(0.0, 10_000) }.play();
    assert_eq!(outcome.failed, 1);
    let (at, complete) = outcome.ended.unwrap();
    assert!(!complete && at < 2 * patience, "{at:?} {complete}");
}

#[test]
fn a_receiver_that_takes_many_rounds_is_waited_for() {
    let patience = Duration::from_secs(3);
    let sender = SenderConfig { patience, ..SenderConfig::default() };
    let link = Link { loss: 0.5, delay: Duration::from_millis(500), ..Link::default() };
    let scene = Scene { sender, link, ..unicast(0.5, 1_000_000) };
    let mut outcome = scene.play();
    outcome.assert_complete(&scene);
    // The object takes eight seconds at 1 Mbit/s.
    let (at, _) = outcome.ended.unwrap();
    assert!(at > Duration::from_secs(8) + 2 * patience, "{at:?}");
}

#[test]
fn a_long_delay_costs_little_more_than_itself() {
    let link = Link { loss: 0.2, delay: Duration::from_millis(500), ..Link::default() };
    let scene = Scene { link, ..unicast(0.2, 2_000_000) };
    let mut outcome = scene.play();
    outcome.assert_complete(&scene);
    // Sending takes 2.1 s; the rest is a few rounds of a second.
    assert!(outcome.completed_at[0] < Duration::from_secs(6), "{:?}", outcome.completed_at);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn objects_arrive_whole_over_any_link(
        seed: u64,
        loss in 0.0..0.6,
        duplicate in 0.0..0.5,
        jitter in 0u64..30,
        delay in 0u64..100,
        receivers in 1usize..4,
        bytes in prop::collection::vec(0usize..60_000, 1..4),
        shape in (100u16..1424, 1u8..64, 0u8..100),
    ) {
        let jitter = Duration::from_millis(jitter);
        let delay = Duration::from_millis(delay);
        let link = Link { loss, duplicate, jitter, delay, ..Link::default() };
        let (symbol_bytes, block_symbols, parity_symbols) = shape;
        let sender = SenderConfig { symbol_bytes, block_symbols, parity_symbols, ..group(receivers) };
        let objects = bytes.iter().map(|&bytes| noise(seed, bytes)).collect();
        let scene = Scene { seed, link, sender, receivers, objects, ..Scene::default() };
        scene.play().assert_complete(&scene);
    }

    #[test]
    fn corruption_never_completes_a_wrong_object(seed: u64, corrupt in 0.0..0.3, loss in 0.0..0.3) {
        let link = Link { loss, corrupt, ..Link::default() };
        let until = Duration::from_secs(20);
        let mut outcome = Scene { seed, link, until, ..unicast(0.0, 100_000) }.play();
        for (id, object) in &outcome.receivers[0].storage().complete {
            prop_assert!(*id == 0 && *object == noise(1, 100_000), "object {} differs", id);
        }
    }
}

/// Three quarters of the first object's blocks, left by an earlier run.
fn three_quarters(scene: &Scene) -> Memory {
    let (object, config) = (&scene.objects[0], &scene.sender);
    let bytes = object.len() as u64;
    let parts = Partition::new(bytes, config.symbol_bytes, config.block_symbols.into()).unwrap();
    let (mut blocks, mut left) = (Vec::new(), vec![0xEE; object.len()]);
    for block in (0..parts.blocks()).filter(|block| block % 4 != 1) {
        let at = parts.offset(block) as usize..;
        let bytes = parts.block_bytes(block);
        left[at.clone()][..bytes].copy_from_slice(&object[at][..bytes]);
        blocks.push(block);
    }
    Memory { earlier: [(checksum(object), (blocks, left))].into(), ..Memory::default() }
}

#[test]
fn an_interrupted_transfer_sends_only_what_is_missing() {
    for loss in [0.0, 0.3] {
        for receivers in [1, 4] {
            let group = if receivers == 1 { SenderConfig::default() } else { group(receivers) };
            let sender = SenderConfig { ask_first: true, rate_bytes_per_s: 1_250_000, ..group };
            let scene =
                Scene { sender, receivers, storage: three_quarters, ..unicast(loss, 4_000_000) };
            let mut outcome = scene.play();
            outcome.assert_complete(&scene);
            let share = outcome.sender.sent_bytes as f64 / 4_000_000.0;
            let most = if loss == 0.0 { 0.35 } else { 0.35 * 2.2 };
            assert!(share < most, "{receivers} with {loss}: {share} {:?}", outcome.sender);
            assert!(outcome.receivers[0].progress().resumed_bytes > 2_900_000);
            assert!(outcome.receivers[0].storage().kept > 0);
        }
    }
}

#[test]
fn a_sender_that_asks_first_serves_who_has_nothing() {
    let sender = SenderConfig { ask_first: true, ..group(3) };
    let objects = vec![noise(1, 500_000), vec![], noise(2, 3000)];
    let scene = Scene { sender, receivers: 3, objects, ..unicast(0.2, 0) };
    scene.play().assert_complete(&scene);
}
