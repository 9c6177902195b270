//! Whole links in simulated time: every impairment from packet in to packet out.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use super::*;
use crate::link::{Impairments, JitterShape, QueueKind, QueueLimit, Rate, Schedule, Trace};
use crate::testing::{is_binomial, tcp, transport_sum, udp};
use crate::units::{MILLISECOND as MS, SECOND};
use proptest::prelude::*;

const A: [u8; 4] = [198, 18, 0, 2];
const B: [u8; 4] = [198, 18, 1, 2];

fn link(change: impl FnOnce(&mut Impairments)) -> Link {
    seeded(1, change)
}

fn seeded(seed: u64, change: impl FnOnce(&mut Impairments)) -> Link {
    let mut config = LinkConfig::default();
    change(&mut config.up);
    Link::new(config, seed).unwrap()
}

/// A datagram of this many bytes in all that carries a number.
fn numbered(number: u32, bytes: usize) -> Vec<u8> {
    let mut payload = vec![0; bytes - 28];
    payload[..4].copy_from_slice(&number.to_be_bytes());
    udp(A, 4000, B, 14_567, &payload)
}

fn number(packet: &[u8]) -> u32 {
    u32::from_be_bytes(packet[28..32].try_into().unwrap())
}

/// Offers `count` packets, one per `gap`; returns number and time of those that arrived, in the order of arrival.
fn run(link: &mut Link, count: u32, bytes: usize, gap: Nanos) -> Vec<(u32, Nanos)> {
    for index in 0..count {
        link.receive(u64::from(index) * gap, Direction::Up, numbered(index, bytes), 0);
    }
    drain(link)
}

fn drain(link: &mut Link) -> Vec<(u32, Nanos)> {
    let mut arrived = Vec::new();
    while let Some(output) = link.poll_event(100_000 * SECOND) {
        if let Output::Arrive { at, packet, .. } = output {
            arrived.push((number(&packet), at));
        }
    }
    arrived
}

#[test]
fn a_perfect_link_changes_nothing() {
    let mut link = link(|_| ());
    let arrived = run(&mut link, 100, 200, MS);
    let expected: Vec<_> = (0..100).map(|index| (index, u64::from(index) * MS)).collect();
    assert_eq!(arrived, expected);
    assert_eq!(link.deadline(), None);
}

#[test]
fn delay_is_exact_and_one_way() {
    let mut link = link(|up| up.delay = 150 * MS);
    link.receive(7, Direction::Up, numbered(0, 100), 42);
    assert_eq!(link.deadline(), Some(150 * MS + 7));
    assert_eq!(link.poll_event(150 * MS + 6), None);
    let arrived = link.poll_event(150 * MS + 7);
    assert!(matches!(arrived, Some(Output::Arrive { at: 150_000_007, tag: 42, .. })));
    link.receive(200 * MS, Direction::Down, udp(B, 14_567, A, 4000, b"back"), 0);
    assert!(matches!(link.poll_event(200 * MS), Some(Output::Arrive { at: 200_000_000, .. })));
}

#[test]
fn a_late_caller_learns_the_exact_time() {
    let mut link = link(|up| {
        up.delay = MS;
        up.rate = Rate::Constant(8_000_000);
    });
    link.receive(0, Direction::Up, numbered(0, 1000), 0);
    link.receive(0, Direction::Up, numbered(1, 1000), 0);
    assert_eq!(drain(&mut link), [(0, 2 * MS), (1, 3 * MS)]);
}

#[test]
fn the_rate_is_exact_and_the_queue_bounded() {
    let mut link = link(|up| {
        up.rate = Rate::Constant(1_000_000);
        up.queue_limit = Some(QueueLimit::Bytes(10_000));
    });
    // Twice what fits, for 10 s.
    let arrived = run(&mut link, 2500, 1000, 4 * MS);
    assert!(arrived.windows(2).all(|pair| pair[1].1 - pair[0].1 == 8 * MS), "8 ms a kilobyte");
    let (first, last) = (arrived[0].1, arrived[arrived.len() - 1].1);
    let rate = (arrived.len() - 1) as f64 * 8000.0 / ((last - first) as f64 / 1e9);
    assert!((rate - 1e6).abs() < 1.0, "{rate}");
    let stats = link.stats(Direction::Up);
    assert_eq!(stats.dropped(DropReason::QueueFull) + arrived.len() as u64, 2500);
    assert_eq!(stats.max_queue_bytes, 10_000);
    // Ten packets wait at most, before them the one being sent.
    let longest = arrived.iter().map(|(index, at)| at - u64::from(*index) * 4 * MS).max();
    assert_eq!(longest, Some(88 * MS));
}

#[test]
fn codel_keeps_waiting_short_where_drop_tail_does_not() {
    let mut waits = Vec::new();
    for queue in [QueueKind::DropTail, QueueKind::Codel, QueueKind::FqCodel] {
        let mut link = link(|up| {
            up.rate = Rate::Constant(1_000_000);
            up.queue = queue;
            up.queue_limit = Some(QueueLimit::Time(SECOND));
        });
        let arrived = run(&mut link, 7000, 1000, 7_600_000);
        let waited = |(index, at): &(u32, u64)| at - u64::from(*index) * 7_600_000;
        waits.push(arrived.iter().rev().take(1000).map(waited).max().unwrap() / MS);
    }
    assert!(waits[0] > 950 && waits[1] < 150 && waits[2] < 150, "{waits:?}");
}

#[test]
fn a_recorded_link_is_replayed() {
    let trace = Arc::new(Trace::parse("10\n20\n40\n").unwrap());
    let mut link = link(|up| up.rate = Rate::Trace(trace));
    let arrived = run(&mut link, 5, 1500, 0);
    let times: Vec<_> = arrived.iter().map(|(_, at)| at / MS).collect();
    assert_eq!(times, [10, 20, 40, 50, 60]);
}

#[test]
fn loss_is_within_binomial_bounds_and_takes_air_time() {
    for seed in 1..=4 {
        let mut link = seeded(seed, |up| {
            up.loss = 0.05;
            up.rate = Rate::Constant(8_000_000);
        });
        let arrived = run(&mut link, 50_000, 1000, MS);
        let lost = link.stats(Direction::Up).dropped(DropReason::Random);
        assert_eq!(lost + arrived.len() as u64, 50_000);
        assert!(is_binomial(lost, 50_000, 0.05), "{lost}");
        assert!(arrived.iter().all(|(index, at)| *at == (u64::from(*index) + 1) * MS));
    }
}

#[test]
fn every_nth_counts_each_flow_on_its_own() {
    let mut link = link(|up| up.drop_every = 5);
    let mut arrived = [0; 3];
    for round in 0..100u64 {
        for flow in 0..3 {
            let packet = udp(A, 4000 + flow, B, 14_567, b"xxxx");
            link.receive(round, Direction::Up, packet, u64::from(flow));
        }
    }
    while let Some(output) = link.poll_event(SECOND) {
        if let Output::Arrive { tag, .. } = output {
            arrived[tag as usize] += 1;
        }
    }
    assert_eq!(arrived, [80, 80, 80]);
}

#[test]
fn corruption_is_left_for_the_checksum_to_reject() {
    let mut link = link(|up| up.corrupt = 1.0);
    for index in 0..2000u32 {
        let packet = match index % 2 {
            0 => numbered(index, 300),
            _ => tcp(A, 4000, B, 1883, index, 16, &[7; 100]),
        };
        link.receive(0, Direction::Up, packet.clone(), 0);
        let Some(Output::Arrive { packet: arrived, .. }) = link.poll_event(0) else {
            panic!("lost")
        };
        let flipped: u32 =
            arrived.iter().zip(&packet).map(|(new, old)| (new ^ old).count_ones()).sum();
        assert_eq!((flipped, &arrived[..20]), (1, &packet[..20]));
        assert_ne!(transport_sum(&arrived), 0);
    }
    assert_eq!(link.stats(Direction::Up).corrupted, 2000);
}

#[test]
fn corruption_with_a_valid_checksum_is_accepted() {
    let mut link = link(|up| {
        up.corrupt = 1.0;
        up.corrupt_valid = 1.0;
    });
    for index in 0..2000u32 {
        let payload = vec![7; 99 + index as usize % 4];
        let packet = match index % 2 {
            0 => udp(A, 4000, B, 14_567, &payload),
            _ => tcp(A, 4000, B, 1883, index, 16, &payload),
        };
        link.receive(0, Direction::Up, packet.clone(), 0);
        let Some(Output::Arrive { packet: arrived, .. }) = link.poll_event(0) else {
            panic!("lost")
        };
        let behind = packet.len() - payload.len();
        let flipped = |of: &[u8]| of.iter().map(|byte| (byte ^ 7).count_ones()).sum::<u32>();
        assert_eq!((flipped(&arrived[behind..]), transport_sum(&arrived)), (1, 0));
    }
    // Without payload, nothing is flipped.
    let empty = tcp(A, 4000, B, 1883, 1, 16, &[]);
    link.receive(0, Direction::Up, empty.clone(), 0);
    let Some(Output::Arrive { packet: arrived, .. }) = link.poll_event(0) else { panic!("lost") };
    assert_eq!((arrived, link.stats(Direction::Up).corrupted), (empty, 2000));
}

#[test]
fn duplicates_come_right_behind() {
    let mut link = link(|up| {
        up.duplicate = 0.1;
        up.delay = MS;
    });
    let arrived = run(&mut link, 20_000, 100, MS);
    let doubled = arrived.windows(2).filter(|pair| pair[0] == pair[1]).count() as u64;
    assert_eq!(arrived.len() as u64, 20_000 + doubled);
    assert_eq!(link.stats(Direction::Up).duplicated, doubled);
    assert!(is_binomial(doubled, 20_000, 0.1), "{doubled}");
}

#[test]
fn reordering_holds_back_a_share_by_so_much() {
    let mut link = link(|up| {
        up.reorder = 0.05;
        up.reorder_by = 5 * MS + MS / 2;
        up.delay = 20 * MS;
    });
    let arrived = run(&mut link, 20_000, 100, MS);
    let late = arrived
        .iter()
        .filter(|(index, at)| *at == u64::from(*index) * MS + 25 * MS + MS / 2)
        .count() as u64;
    assert!(is_binomial(late, 20_000, 0.05), "{late}");
    let overtaken = arrived.windows(2).filter(|pair| pair[1].0 < pair[0].0).count();
    assert!(overtaken > 800, "{overtaken}");
    let on_time = arrived.iter().filter(|(i, at)| *at == u64::from(*i) * MS + 20 * MS).count();
    assert_eq!(on_time as u64 + late, 20_000, "nobody else is delayed");
}

#[test]
fn jitter_keeps_order_unless_told_otherwise() {
    for reorders in [false, true] {
        let mut link = link(|up| {
            up.delay = 50 * MS;
            up.jitter = 20 * MS;
            up.jitter_shape = JitterShape::Uniform;
            up.jitter_reorders = reorders;
        });
        let arrived = run(&mut link, 5000, 100, MS);
        assert!(
            arrived.iter().all(|(index, at)| {
                (30 * MS..=71 * MS).contains(&(at - u64::from(*index) * MS))
            })
        );
        let in_order = arrived.windows(2).all(|pair| pair[0].0 < pair[1].0);
        assert_eq!(in_order, !reorders);
        if reorders {
            let mean = arrived.iter().map(|(i, at)| at - u64::from(*i) * MS).sum::<u64>() / 5000;
            // Uniform ±20 ms: standard error of the mean 11.5/√5000 = 0.16 ms.
            assert!((49_200_000..50_800_000).contains(&mean), "{mean}");
        }
    }
}

#[test]
fn oversized_packets_are_answered_or_vanish() {
    for silent in [false, true] {
        let mut link = link(|up| {
            up.mtu = Some(1280);
            up.mtu_silent = silent;
        });
        link.receive(5, Direction::Up, numbered(0, 1281), 9);
        link.receive(5, Direction::Up, numbered(1, 1280), 9);
        let outputs: Vec<_> = std::iter::from_fn(|| link.poll_event(5)).collect();
        let answers = outputs.iter().filter(|o| matches!(o, Output::Answer { tag: 9, at: 5, .. }));
        assert_eq!(answers.count(), usize::from(!silent));
        let dropped = link.stats(Direction::Up).dropped(DropReason::TooBig);
        assert_eq!((dropped, link.stats(Direction::Up).delivered_packets), (1, 1));
    }
}

#[test]
fn nothing_enters_while_the_link_is_down_and_what_is_under_way_arrives() {
    let mut link = link(|up| {
        up.outage.windows = vec![(10 * MS, 20 * MS)];
        up.delay = 5 * MS;
    });
    let arrived = run(&mut link, 30, 100, MS);
    let numbers: Vec<_> = arrived.iter().map(|(index, _)| *index).collect();
    let expected: Vec<_> = (0..10).chain(20..30).collect();
    assert_eq!(numbers, expected);
    assert_eq!(link.stats(Direction::Up).dropped(DropReason::Down), 10);
}

#[test]
fn a_rebinding_changes_the_port_but_not_the_flows_decisions() {
    let run = |rebind: bool| {
        let mut config = LinkConfig::default();
        config.up.loss = 0.3;
        config.down.loss = 0.3;
        if rebind {
            config.set("nat-rebind-every", "10ms").unwrap();
        }
        let mut link = Link::new(config, 5).unwrap();
        let mut ports = std::collections::BTreeSet::new();
        for index in 0..100 {
            link.receive(index * MS, Direction::Up, numbered(index as u32, 100), 0);
            while let Some(output) = link.poll_event(index * MS) {
                let Output::Arrive { direction, packet, at, .. } = output else { continue };
                let view = PacketView::parse(&packet).unwrap();
                let (from, to) = view.ports().unwrap();
                if direction == Direction::Up {
                    ports.insert(from);
                    link.receive(at, Direction::Down, udp(B, 14_567, A, from, b"back"), 0);
                } else {
                    assert_eq!((from, to), (14_567, 4000), "the host never sees the NAT");
                }
            }
        }
        (link, ports.len())
    };
    let ((plain, one), (bound, ten)) = (run(false), run(true));
    assert_eq!((one, ten), (1, 10));
    assert_eq!(plain.log().first_difference(bound.log()), None);
    assert!(plain.log().common(bound.log()) > 150);
}

#[test]
fn address_changes_are_told_when_due() {
    let address_changes = Schedule { at: vec![], every: SECOND };
    let config = LinkConfig { address_changes, ..LinkConfig::default() };
    let mut link = Link::new(config, 1).unwrap();
    assert_eq!(link.deadline(), Some(SECOND));
    assert_eq!(link.poll_event(SECOND - 1), None);
    assert_eq!(link.poll_event(SECOND), Some(Output::AddressChange { at: SECOND, ordinal: 1 }));
    assert_eq!(link.poll_event(SECOND), None);
}

#[test]
fn what_is_not_ip_is_dropped_with_a_reason() {
    let mut link = link(|_| ());
    link.receive(0, Direction::Up, vec![0; 50], 0);
    assert!(matches!(
        link.poll_event(0),
        Some(Output::Dropped { reason: DropReason::Malformed, .. })
    ));
}

/// A busy link with everything on.
fn everything(seed: u64) -> Link {
    let mut config = LinkConfig::default();
    for (key, value) in [
        ("delay", "20ms"),
        ("jitter", "10ms"),
        ("rate", "2M"),
        ("queue", "fq-codel"),
        ("loss", "5%"),
        ("drop-every", "17"),
        ("bursts", "1%,30%"),
        ("corrupt", "3%"),
        ("duplicate", "4%"),
        ("reorder", "5%"),
        ("reorder-by", "30ms"),
        ("mtu", "1400"),
        ("down-every", "500ms"),
        ("down-for", "20ms"),
    ] {
        config.set(key, value).unwrap();
    }
    Link::new(config, seed).unwrap()
}

#[derive(Clone, Debug)]
struct Send {
    gap: Nanos,
    flow: u16,
    bytes: usize,
    up: bool,
}

fn sends() -> impl Strategy<Value = Vec<Send>> {
    let send = (0..20 * MS, 0u16..4, 32usize..1500, any::<bool>())
        .prop_map(|(gap, flow, bytes, up)| Send { gap, flow, bytes, up });
    proptest::collection::vec(send, 1..300)
}

fn offer_all(link: &mut Link, sends: &[Send], stretch: u64, poll: bool) -> Vec<Output> {
    let (mut now, mut outputs) = (0, Vec::new());
    for Send { gap, flow, bytes, up } in sends {
        now += gap * stretch / 4;
        if poll {
            outputs.extend(std::iter::from_fn(|| link.poll_event(now)));
        }
        let payload = vec![1; bytes - 28];
        let (direction, packet) = match up {
            true => (Direction::Up, udp(A, 4000 + flow, B, 1883, &payload)),
            false => (Direction::Down, udp(B, 1883, A, 4000 + flow, &payload)),
        };
        link.receive(now, direction, packet, 0);
    }
    outputs.extend(std::iter::from_fn(|| link.poll_event(1_000_000 * SECOND)));
    outputs
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_packet_arrives_or_is_dropped_once_and_times_ascend(seed: u64, sends in sends()) {
        let mut link = everything(seed);
        let outputs = offer_all(&mut link, &sends, 4, false);
        prop_assert_eq!(link.deadline(), None);
        for direction in Direction::ALL {
            let stats = link.stats(direction);
            let ended = stats.delivered_packets - stats.duplicated + stats.dropped_packets();
            prop_assert_eq!(stats.offered_packets, ended);
            let times: Vec<_> = outputs.iter().filter_map(|output| match output {
                Output::Arrive { at, direction: way, .. }
                | Output::Dropped { at, direction: way, .. } if *way == direction => Some(*at),
                _ => None,
            }).collect();
            prop_assert!(times.is_sorted());
        }
    }

    #[test]
    fn polling_often_or_once_makes_no_difference(seed: u64, sends in sends()) {
        let sorted = |mut outputs: Vec<Output>| {
            outputs.sort_by_key(|output| format!("{output:?}"));
            outputs
        };
        let often = sorted(offer_all(&mut everything(seed), &sends, 4, true));
        let once = sorted(offer_all(&mut everything(seed), &sends, 4, false));
        prop_assert_eq!(often, once);
    }

    #[test]
    fn the_same_seed_decides_alike_whatever_the_timing(
        seed: u64,
        sends in sends(),
        stretch in 1u64..40,
    ) {
        let lossy = || {
            let mut config = LinkConfig::default();
            for (key, value) in [
                ("rate", "300k"),
                ("loss", "10%"),
                ("corrupt", "10%"),
                ("bursts", "5%,30%"),
                ("jitter", "5ms"),
                ("duplicate", "9%"),
            ] {
                config.set(key, value).unwrap();
            }
            Link::new(config, seed).unwrap()
        };
        let (mut one, mut other) = (lossy(), lossy());
        offer_all(&mut one, &sends, 4, false);
        offer_all(&mut other, &sends, stretch, true);
        prop_assert_eq!(one.log().first_difference(other.log()), None);
        prop_assert_eq!(one.log().common(other.log()), sends.len() as u64);
    }
}
