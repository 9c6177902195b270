//! The village: the same for the same seed, whenever it is queried, and like real homes.
#![allow(clippy::unwrap_used)]

use std::collections::{HashMap, HashSet};

use super::*;
use crate::Reading;

const DAY_MS: u64 = 86_400_000;
/// 2026-01-05, a Monday.
const MONDAY_MS: u64 = 20_458 * DAY_MS;

fn plan(seed: u64) -> Plan {
    Plan { homes: 20, seed, every_s: 600 }
}

fn values(all: &[Measured], device: &str, quantity: &str) -> Vec<f64> {
    let wanted = |one: &&Measured| one.reading.device == device && one.reading.quantity == quantity;
    all.iter().filter(wanted).map(|one| one.reading.value).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

/// The quantity's mean within some hours of the day, over homes without faults.
fn at_hours(all: &[Measured], quantity: &str, hours: std::ops::Range<u64>) -> f64 {
    let wanted = |one: &&Measured| {
        let hour = one.reading.at_ms.unwrap() % DAY_MS / 3_600_000;
        one.reading.quantity == quantity && one.fault.is_none() && hours.contains(&hour)
    };
    mean(&all.iter().filter(wanted).map(|one| one.reading.value).collect::<Vec<_>>())
}

#[test]
fn the_seed_decides_everything() {
    let run = |seed| Village::new(&plan(seed), MONDAY_MS).advance(MONDAY_MS + DAY_MS);
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn steps_do_not_matter() {
    let end = MONDAY_MS + DAY_MS / 4;
    let whole = Village::new(&plan(1), MONDAY_MS).advance(end);
    let mut village = Village::new(&plan(1), MONDAY_MS);
    let mut parts = Vec::new();
    let mut at = MONDAY_MS;
    while at < end {
        // A step that is neither minutes nor intervals.
        at = (at + 37_123).min(end);
        parts.extend(village.advance(at));
    }
    assert_eq!(parts, whole);
    assert_eq!(village.advance(MONDAY_MS), [], "time does not go back");
}

#[test]
fn a_village_begun_earlier_is_the_same_later() {
    let late = Village::new(&plan(1), MONDAY_MS + 10 * DAY_MS).advance(MONDAY_MS + 11 * DAY_MS);
    let mut early = Village::new(&plan(1), MONDAY_MS);
    early.advance(MONDAY_MS + 10 * DAY_MS);
    let early = early.advance(MONDAY_MS + 11 * DAY_MS);
    assert_eq!(early.len(), late.len());
    for (early, late) in early.iter().zip(&late) {
        assert_eq!(early.reading.at_ms, late.reading.at_ms);
        let (one, other) = (early.reading.value, late.reading.value);
        let near = (one - other).abs() <= 0.05 * one.abs() + 2.0;
        assert!(near || early.fault.is_some(), "{early:?} {late:?}");
    }
}

#[test]
fn every_device_speaks_in_order_and_at_its_pace() {
    let all = Village::new(&plan(1), MONDAY_MS).advance(MONDAY_MS + DAY_MS);
    let times: Vec<u64> = all.iter().map(|one| one.reading.at_ms.unwrap()).collect();
    assert!(times.is_sorted());
    assert!(times.iter().all(|at| (MONDAY_MS..MONDAY_MS + DAY_MS).contains(at)));
    let mut last: HashMap<(&str, &str), u64> = HashMap::new();
    for one in &all {
        let Reading { device, quantity, at_ms, .. } = &one.reading;
        if let Some(before) = last.insert((device, quantity), at_ms.unwrap()) {
            let between = at_ms.unwrap() - before;
            assert_eq!(between % 600_000, 0, "{device} {quantity}");
            assert!(between == 600_000 || device == "home-08-living", "{device}: {between}");
        }
    }
    assert_eq!(last.len(), 20 * 6);
    let first: HashSet<u64> = all.iter().take(240).map(|one| one.reading.at_ms.unwrap()).collect();
    assert!(first.len() > 20, "they do not all speak at once");
}

#[test]
fn readings_can_come_every_second() {
    let plan = Plan { homes: 3, seed: 1, every_s: 1 };
    let all = Village::new(&plan, MONDAY_MS).advance(MONDAY_MS + 10_000);
    assert_eq!(all.len(), 3 * 6 * 10);
}

#[test]
fn days_have_a_shape() {
    let all = Village::new(&plan(1), MONDAY_MS).advance(MONDAY_MS + 5 * DAY_MS);
    let (night, noon) = (at_hours(&all, "co2", 3..6), at_hours(&all, "co2", 12..15));
    assert!(night > noon + 100.0, "people sleep, then go out: {night} {noon}");
    assert!((600.0..2500.0).contains(&night), "{night}");
    assert!((420.0..900.0).contains(&noon), "{noon}");
    let (cold, warm) = (at_hours(&all, "temperature", 4..6), at_hours(&all, "temperature", 19..22));
    assert!(warm > cold + 0.7, "the heating rests at night: {cold} {warm}");
    assert!((15.0..20.5).contains(&cold) && (18.0..23.5).contains(&warm), "{cold} {warm}");
    let humid = at_hours(&all, "humidity", 0..24);
    assert!((30.0..70.0).contains(&humid), "{humid}");
}

#[test]
fn summer_is_no_furnace() {
    let from = MONDAY_MS + 190 * DAY_MS;
    let all = Village::new(&plan(1), from).advance(from + 5 * DAY_MS);
    let warm = at_hours(&all, "temperature", 0..24);
    assert!((18.0..27.0).contains(&warm), "{warm}");
}

#[test]
fn radon_is_a_matter_of_where_one_lives() {
    for seed in 1..=5 {
        let all = Village::new(&plan(seed), MONDAY_MS).advance(MONDAY_MS + 7 * DAY_MS);
        let means: Vec<f64> = (1..=20)
            .map(|home| mean(&values(&all, &format!("home-{home:02}-living"), "radon")))
            .collect();
        let above = means.iter().filter(|mean| **mean > 300.0).count();
        assert!((1..=5).contains(&above), "seed {seed}: {means:?}");
        let low = means.iter().filter(|mean| **mean < 100.0).count();
        assert!(low >= 6, "seed {seed}: {means:?}");
        assert!(most(&means) < 2000.0, "seed {seed}: {means:?}");
    }
}

#[test]
fn carbon_monoxide_comes_once_in_nine_days_in_one_home() {
    let all = Village::new(&plan(1), MONDAY_MS).advance(MONDAY_MS + 9 * DAY_MS);
    let peak = |home| most(&values(&all, &format!("home-{home:02}-boiler"), "co"));
    assert!((80.0..250.0).contains(&peak(11)), "{}", peak(11));
    for home in (1..=20).filter(|home| *home != 11) {
        assert!(peak(home) < 30.0, "home {home}: {}", peak(home));
    }
    let high = values(&all, "home-11-boiler", "co").iter().filter(|co| **co > 50.0).count();
    assert!((2..=18).contains(&high), "it is aired within hours: {high}");
}

#[test]
fn sensors_fail_in_three_homes() {
    let all = Village::new(&plan(1), MONDAY_MS).advance(MONDAY_MS + 10 * DAY_MS);
    let devices = |fault| -> HashSet<&str> {
        let having = |one: &&Measured| one.fault == Some(fault);
        all.iter().filter(having).map(|one| one.reading.device.as_str()).collect()
    };
    assert_eq!(devices(Fault::Stuck), HashSet::from(["home-06-living"]));
    assert_eq!(devices(Fault::Spike), HashSet::from(["home-16-living"]));
    let stuck: HashSet<u64> = all
        .iter()
        .filter(|one| one.fault == Some(Fault::Stuck))
        .map(|one| one.reading.value.to_bits())
        .collect();
    assert_eq!(stuck.len(), 2, "one value in each of two nights");
    let spikes = all.iter().filter(|one| one.fault == Some(Fault::Spike));
    assert!(spikes.clone().count() >= 1 && spikes.clone().all(|one| one.reading.value == 85.0));
    let whole = 10 * 144;
    let got = values(&all, "home-08-living", "co2").len();
    assert!((whole / 2..whole * 9 / 10).contains(&got), "{got}");
    assert_eq!(values(&all, "home-07-living", "co2").len(), whole);
}

#[test]
fn homes_are_apart() {
    let village = Village::new(&plan(1), MONDAY_MS);
    let homes = village.homes();
    let streets: HashSet<&str> = homes.iter().map(|home| home.street.as_str()).collect();
    assert_eq!(streets.len(), homes.len());
    for (number, one) in homes.iter().enumerate() {
        assert!(one.devices.iter().all(|device| crate::is_device(&device.name)));
        for other in &homes[..number] {
            let far =
                (one.latitude - other.latitude).abs() + (one.longitude - other.longitude).abs();
            assert!(far > 0.0005, "{one:?} {other:?}");
        }
    }
}
