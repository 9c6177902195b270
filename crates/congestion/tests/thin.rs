//! Thin streams on paths that lose packets, in simulated time. `cargo run --release -p fulmar-congestion --example thin`
//! prints whole tables.
#![allow(clippy::unwrap_used)]

mod lossy;

use std::time::Duration;

use lossy::{FRESH, Keys, Mode, OFF, Path, cases};

const LOSS: f64 = 0.1;

fn path(one_way_ms: u64, loss: [f64; 2]) -> Path {
    Path { delay: Duration::from_millis(one_way_ms), loss, ..Path::default() }
}

fn mean(times: &[f64]) -> f64 {
    times.iter().sum::<f64>() / times.len() as f64
}

fn percentile(times: &[f64], percent: usize) -> f64 {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    times[times.len() * percent / 100]
}

/// Bytes on a path that loses nothing are the same with and without them.
#[test]
fn nothing_is_copied_where_nothing_is_lost() {
    let keys = Keys::new();
    let clean = path(35, [0.0; 2]);
    for seed in 1..=2 {
        let (_, with) = cases::thin(&keys, clean, FRESH, 300, seed);
        let (_, without) = cases::thin(&keys, clean, OFF, 300, seed);
        assert_eq!((with.copied.datagrams, without.copied.datagrams), (0, 0));
        assert_eq!(with.sent.datagrams, without.sent.datagrams);
    }
}

#[test]
fn messages_do_not_wait_for_lost_packets() {
    let keys = Keys::new();
    let lossy = path(35, [LOSS; 2]);
    for seed in 1..=2 {
        let (with, cost) = cases::thin(&keys, lossy, FRESH, 1500, seed);
        let (without, _) = cases::thin(&keys, lossy, OFF, 1500, seed);
        // Without what was sent before the losses were seen.
        let (with, without) = (&with[250..], &without[250..]);
        assert!(mean(with) < 0.85 * mean(without), "{} of {} ms", mean(with), mean(without));
        let late = [with, without].map(|times| percentile(times, 99));
        assert!(late[0] + 40.0 < late[1], "{late:?}");
        assert!(cost.copied.bytes <= 2 * cost.sent.bytes, "{cost:?}");
    }
}

#[test]
fn requests_in_succession_do_not_wait_for_timers() {
    let keys = Keys::new();
    let known = Mode { known: [LOSS; 2], ..FRESH };
    let time = |mode| {
        (1..=4).map(|seed| cases::succession(&keys, path(50, [LOSS; 2]), mode, 50, seed).0).sum()
    };
    let (with, without): (f64, f64) = (time(known), time(OFF));
    assert!(with < 0.85 * without, "{with} of {without} s");
}

#[test]
fn the_first_flight_of_a_returning_client_is_sent_again() {
    let keys = Keys::new();
    let lossy = path(50, [LOSS; 2]);
    let known = Mode { known: [LOSS, 0.0], ..FRESH };
    let (with, cost) = cases::exchanges(&keys, lossy, known, true, 40, 1);
    let (without, _) = cases::exchanges(&keys, lossy, OFF, false, 40, 1);
    assert!(mean(&with) < mean(&without), "{} of {} ms", mean(&with), mean(&without));
    assert!(cost.copied.bytes <= 2 * cost.sent.bytes, "{cost:?}");
}
