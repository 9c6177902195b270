//! The queues alone, in simulated time.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::units::SECOND;
use proptest::prelude::*;

#[derive(Clone, Debug, PartialEq)]
struct Packet {
    bytes: u64,
    flow: u64,
    at: Nanos,
}

impl QueueItem for Packet {
    fn bytes(&self) -> u64 {
        self.bytes
    }
    fn flow(&self) -> u64 {
        self.flow
    }
    fn queued_at(&self) -> Nanos {
        self.at
    }
}

/// Sends packets of 1,500 bytes every `gap` into a queue that serves one every `service`; returns the flow and
/// waiting time of each served packet, and the number of drops by reason.
fn run(
    queue: &mut Queue<Packet>,
    flows: impl Fn(u64) -> u64,
    gap: Nanos,
    service: Nanos,
    length: Nanos,
) -> (Vec<(u64, Nanos, Nanos)>, [u64; 2]) {
    let (mut served, mut drops) = (Vec::new(), [0, 0]);
    let (mut next_in, mut next_out, mut dropped, mut number) = (0, service, Vec::new(), 0);
    while next_in < length {
        if next_in <= next_out {
            queue.push(Packet { bytes: 1500, flow: flows(number), at: next_in }, &mut dropped);
            number += 1;
            next_in += gap;
        } else {
            if let Some(packet) = queue.pop(next_out, &mut dropped) {
                served.push((packet.flow, packet.at, next_out - packet.at));
            }
            next_out += service;
        }
        for (_, why) in dropped.drain(..) {
            drops[usize::from(why == QueueDrop::Aqm)] += 1;
        }
    }
    (served, drops)
}

fn longest_wait(served: &[(u64, Nanos, Nanos)], after: Nanos) -> Nanos {
    served.iter().filter(|(_, at, _)| *at > after).map(|(_, _, wait)| *wait).max().unwrap()
}

#[test]
fn drop_tail_holds_its_bound_and_keeps_order() {
    let mut queue = Queue::new(QueueKind::DropTail, 15_000, MILLISECOND);
    let (served, drops) = run(&mut queue, |_| 1, MILLISECOND, 2 * MILLISECOND, 10 * SECOND);
    assert!(served.is_sorted_by_key(|(_, at, _)| *at));
    assert!(longest_wait(&served, SECOND) <= 20 * MILLISECOND);
    assert_eq!(drops[1], 0);
    assert!((4_900..=5_010).contains(&drops[0]), "half is too much for it: {drops:?}");
}

#[test]
fn an_empty_queue_takes_a_packet_larger_than_its_bound() {
    let mut dropped = Vec::new();
    for kind in [QueueKind::DropTail, QueueKind::Codel, QueueKind::FqCodel] {
        let mut queue = Queue::new(kind, 100, MILLISECOND);
        queue.push(Packet { bytes: 1500, flow: 1, at: 0 }, &mut dropped);
        assert!(dropped.is_empty() && queue.pop(1, &mut dropped).is_some());
    }
}

#[test]
fn codel_lets_a_short_burst_pass() {
    let mut queue = Queue::new(QueueKind::Codel, 10_000_000, MILLISECOND);
    let mut dropped = Vec::new();
    for _ in 0..90 {
        queue.push(Packet { bytes: 1500, flow: 1, at: 0 }, &mut dropped);
    }
    for time in 1..=90 {
        assert!(queue.pop(time * MILLISECOND, &mut dropped).is_some());
    }
    assert!(dropped.is_empty(), "gone within an interval of 100 ms");
}

#[test]
fn codel_drops_one_an_interval_first_and_then_faster() {
    let mut queue = Queue::new(QueueKind::Codel, 10_000_000, MILLISECOND);
    let mut dropped = Vec::new();
    let mut times = Vec::new();
    for at in 0..2000 {
        // Two packets arrive for each one sent: the queue stands.
        for _ in 0..2 {
            queue.push(Packet { bytes: 1500, flow: 1, at: at * MILLISECOND }, &mut dropped);
        }
        queue.pop(at * MILLISECOND, &mut dropped);
        times.extend(dropped.drain(..).map(|_| at));
    }
    // From the first packet that waited 5 ms (at 9 ms) an interval; then interval/√count.
    assert_eq!(times[0], 109);
    let law: Vec<u64> = (1..6)
        .scan(109.0, |at, count| {
            *at += 100.0 / f64::from(count).sqrt();
            Some(at.ceil() as u64)
        })
        .collect();
    assert_eq!(times[1..6], law);
}

#[test]
fn codel_keeps_the_delay_near_its_target_where_drop_tail_does_not() {
    // 4 % too much for the link: CoDel's control law reaches that within a few seconds.
    let wait_of = |kind| {
        let mut queue = Queue::new(kind, 1_500_000, MILLISECOND);
        let (served, _) = run(&mut queue, |_| 1, 960_000, MILLISECOND, 60 * SECOND);
        longest_wait(&served, 40 * SECOND)
    };
    assert!(wait_of(QueueKind::DropTail) > 900 * MILLISECOND);
    assert!(wait_of(QueueKind::Codel) < 100 * MILLISECOND);
}

#[test]
fn fq_codel_keeps_a_sparse_flow_from_waiting_behind_a_greedy_one() {
    let mut queue = Queue::new(QueueKind::FqCodel, 1_500_000, MILLISECOND);
    let flows = |number| if number % 20 == 0 { 7 } else { 1 };
    let (served, drops) = run(&mut queue, flows, MILLISECOND / 2, MILLISECOND, 20 * SECOND);
    let sparse: Vec<_> = served.iter().filter(|(flow, ..)| *flow == 7).copied().collect();
    assert!(sparse.len() >= 1990, "{} of 2,000", sparse.len());
    assert!(longest_wait(&sparse, 0) <= 3 * MILLISECOND);
    assert!(drops[0] + drops[1] > 10_000);
}

#[test]
fn fq_codel_shares_evenly() {
    let mut queue = Queue::new(QueueKind::FqCodel, 300_000, MILLISECOND);
    // Flow 1 sends three times as much as flow 2; both more than half of what fits.
    let flows = |number| if number % 4 == 0 { 2 } else { 1 };
    let (served, _) = run(&mut queue, flows, MILLISECOND / 4, MILLISECOND, 20 * SECOND);
    let ones = served.iter().filter(|(flow, ..)| *flow == 1).count();
    let share = ones as f64 / served.len() as f64;
    assert!((0.48..0.52).contains(&share), "{share}");
}

proptest! {
    #[test]
    fn what_goes_in_comes_out_or_is_handed_back_once(
        kind in prop_oneof![
            Just(QueueKind::DropTail),
            Just(QueueKind::Codel),
            Just(QueueKind::FqCodel)
        ],
        limit in 100u64..20_000,
        steps in proptest::collection::vec((any::<bool>(), 40u64..1500, 0u64..5, 0u64..50), 1..400),
    ) {
        let mut queue = Queue::new(kind, limit, MILLISECOND);
        let (mut dropped, mut pushed, mut popped, mut now) = (Vec::new(), 0, 0, 0);
        let mut out_bytes = 0;
        let mut in_bytes = 0;
        for (push, bytes, flow, pause) in steps {
            now += pause * MILLISECOND;
            if push {
                queue.push(Packet { bytes, flow, at: now }, &mut dropped);
                pushed += 1;
                in_bytes += bytes;
            } else if let Some(packet) = queue.pop(now, &mut dropped) {
                popped += 1;
                out_bytes += packet.bytes;
            }
            let lost: u64 = dropped.iter().map(|(packet, _)| packet.bytes).sum();
            prop_assert_eq!(queue.bytes(), in_bytes - out_bytes - lost);
            prop_assert!(queue.bytes() <= limit.max(1500));
        }
        while queue.pop(now, &mut dropped).is_some() {
            popped += 1;
        }
        prop_assert!(queue.is_empty());
        prop_assert_eq!(pushed, popped + dropped.len());
    }
}
