//! Random impairments alone: how often they happen, and that they depend on nothing but seed, direction, flow and index.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::link::Bursts;
use crate::link::flow::FlowTable;
use crate::testing::{is_binomial, udp};
use crate::wire::PacketView;
use proptest::prelude::*;

const PACKETS: u64 = 100_000;

fn decisions(seed: u64, impairments: &Impairments, packets: u64) -> Vec<Decision> {
    let mut table = FlowTable::default();
    let packet = udp([198, 18, 0, 2], 4000, [198, 18, 1, 2], 1883, b"x");
    let random = ImpairmentSampler::new(seed, Direction::Up);
    (0..packets)
        .map(|_| {
            let (flow, index) = table.count(&PacketView::parse(&packet).unwrap(), Direction::Up);
            random.draw(flow, Direction::Up, index, impairments)
        })
        .collect()
}

fn count(decisions: &[Decision], is: impl Fn(&Decision) -> bool) -> u64 {
    decisions.iter().filter(|decision| is(decision)).count() as u64
}

#[test]
fn frequencies_are_as_set_and_independent_of_each_other() {
    let impairments = Impairments {
        loss: 0.05,
        corrupt: 0.02,
        duplicate: 0.1,
        reorder: 0.3,
        reorder_by: 1,
        ..Impairments::default()
    };
    for seed in 1..=5 {
        let decided = decisions(seed, &impairments, PACKETS);
        let lost = |d: &Decision| d.drop_reason == Some(DropReason::Random);
        assert!(is_binomial(count(&decided, lost), PACKETS, 0.05));
        assert!(is_binomial(count(&decided, |d| d.corrupt.is_some()), PACKETS, 0.02));
        assert!(is_binomial(count(&decided, |d| d.duplicate), PACKETS, 0.1));
        assert!(is_binomial(count(&decided, |d| d.reorder), PACKETS, 0.3));
        let both = count(&decided, |d| lost(d) && d.duplicate);
        assert!(is_binomial(both, PACKETS, 0.005), "{both} both lost and doubled");
        let pairs = decided.windows(2).filter(|pair| lost(&pair[0]) && lost(&pair[1])).count();
        assert!(is_binomial(pairs as u64, PACKETS - 1, 0.0025), "{pairs} in a row");
    }
}

#[test]
fn corrupted_bits_are_spread_evenly() {
    let impairments = Impairments { corrupt: 1.0, ..Impairments::default() };
    let decided = decisions(3, &impairments, PACKETS);
    let mut bits = [0; 64];
    for decision in &decided {
        bits[(decision.corrupt.unwrap() % 64) as usize] += 1;
    }
    assert!(bits.iter().all(|count| is_binomial(*count, PACKETS, 1.0 / 64.0)), "{bits:?}");
}

#[test]
fn every_nth_packet_is_lost_and_no_other() {
    let impairments = Impairments { drop_every: 10, ..Impairments::default() };
    for (index, decision) in decisions(1, &impairments, 1000).iter().enumerate() {
        let expected = (index % 10 == 9).then_some(DropReason::EveryNth);
        assert_eq!(decision.drop_reason, expected, "packet {index}");
    }
}

#[test]
fn bursts_have_the_models_mean_length_and_loss() {
    let bursts = Bursts { to_bad: 0.01, to_good: 0.25, loss_good: 0.0, loss_bad: 1.0 };
    let impairments = Impairments { bursts: Some(bursts), ..Impairments::default() };
    let decided = decisions(7, &impairments, 1_000_000);
    let lost: Vec<bool> = decided.iter().map(|decision| decision.drop_reason.is_some()).collect();
    let losses = lost.iter().filter(|lost| **lost).count() as f64;
    let begins = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count() as f64;
    // Stationary probability of the bad state: p / (p + r) = 0.03846; mean burst: 1/r = 4 packets. 9,600 bursts with
    // geometric lengths: standard error of the mean 3.46/√9600 = 0.035; five of them are allowed.
    assert!((losses / begins - 4.0).abs() < 0.18, "mean burst {}", losses / begins);
    assert!((losses / 1e6 - 0.038_46).abs() < 0.002, "loss {}", losses / 1e6);
}

#[test]
fn jitter_has_its_shape() {
    let jitter = 1_000_000;
    let uniform = Impairments { jitter, ..Impairments::default() };
    let normal = Impairments { jitter_shape: JitterShape::Normal, ..uniform.clone() };
    let moments = |impairments: &Impairments| {
        let decided = decisions(11, impairments, PACKETS);
        let n = decided.len() as f64;
        let mean = decided.iter().map(|d| d.jitter as f64).sum::<f64>() / n;
        let square = decided.iter().map(|d| (d.jitter as f64 - mean).powi(2)).sum::<f64>() / n;
        let most = decided.iter().map(|d| d.jitter.unsigned_abs()).max().unwrap();
        (mean, square.sqrt(), most)
    };
    let (mean, deviation, most) = moments(&uniform);
    assert!(mean.abs() < 6_000.0 && (deviation - 577_350.0).abs() < 3_000.0 && most <= jitter);
    let (mean, deviation, most) = moments(&normal);
    assert!(mean.abs() < 10_000.0 && (deviation - 995_000.0).abs() < 8_000.0);
    assert!(most <= 3 * jitter && most > 2 * jitter);
}

#[test]
fn another_seed_direction_or_flow_draws_anew() {
    let impairments = Impairments { loss: 0.5, ..Impairments::default() };
    let lost = |seed| -> Vec<_> {
        decisions(seed, &impairments, 1000).iter().map(|decision| decision.drop_reason).collect()
    };
    assert_eq!(lost(1), lost(1));
    let same = lost(1).iter().zip(lost(2)).filter(|(a, b)| *a == b).count() as u64;
    assert!(is_binomial(same, 1000, 0.5), "{same}");
    let (up, down) =
        (ImpairmentSampler::new(1, Direction::Up), ImpairmentSampler::new(1, Direction::Down));
    let equal = (0..1000)
        .filter(|index| {
            (up.unit(5, *index, Purpose::Loss) < 0.5) == (down.unit(5, *index, Purpose::Loss) < 0.5)
        })
        .count() as u64;
    assert!(is_binomial(equal, 1000, 0.5), "{equal}");
}

proptest! {
    #[test]
    fn other_impairments_do_not_change_a_decision(
        seed: u64,
        corrupt in 0.0..1.0f64,
        duplicate in 0.0..1.0f64,
        jitter in 0u64..1_000_000,
    ) {
        let alone = Impairments { loss: 0.2, ..Impairments::default() };
        let among = Impairments { corrupt, duplicate, jitter, ..alone.clone() };
        for (a, b) in decisions(seed, &alone, 50).iter().zip(decisions(seed, &among, 50)) {
            prop_assert_eq!(a.drop_reason, b.drop_reason);
        }
    }
}
