//! How long a client takes to connect over slow paths that lose packets: QUIC beside TLS over TCP.
#![allow(clippy::unwrap_used)]

mod lossy;

use std::time::Duration;

use lossy::{FRESH, Keys, Mode, Path, cases, tcp};

const SEEDS: u64 = 200;
const AGAIN: Mode = Mode { first_flights: true, ..FRESH };

/// Profiles of the lab, by name: bits per second up and down, one way and its spread in milliseconds.
const PROFILES: [(&str, [u64; 2], u64, u64); 3] = [
    ("2g-64k", [64_000; 2], 300, 0),
    ("nb-iot", [62_000, 26_000], 600, 300),
    ("3g", [768_000, 1_600_000], 150, 0),
];

fn path(rate: [u64; 2], delay_ms: u64, jitter_ms: u64, loss: f64) -> Path {
    let [delay, jitter] = [delay_ms, jitter_ms].map(Duration::from_millis);
    Path { delay, loss: [loss; 2], rate, jitter }
}

/// The middle, the 95th of 100 and the worst.
fn spread(times: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut times: Vec<f64> = times.collect();
    times.sort_by(f64::total_cmp);
    [0.5, 0.95, 1.0].map(|share| times[((times.len() - 1) as f64 * share).round() as usize])
}

#[test]
fn quic_connects_before_tls_over_tcp_where_packets_are_lost() {
    let keys = Keys::new();
    let mut missed = Vec::new();
    for (name, rate, delay, jitter) in PROFILES {
        for loss in [0.05, 0.1] {
            let path = path(rate, delay, jitter, loss);
            let quic =
                |mode| spread((0..SEEDS).map(|seed| cases::connect(&keys, path, mode, seed).0));
            let tcp = |seed| tcp::connect(path, &mut fastrand::Rng::with_seed(seed));
            let (before, after, tcp) = (quic(FRESH), quic(AGAIN), spread((0..SEEDS).map(tcp)));
            println!("{name} {loss}: TLS {tcp:.2?}, QUIC {after:.2?}, without {before:.2?}");
            let is_sooner = after[1] < tcp[1] && after[2] < tcp[2];
            missed.extend((!is_sooner).then_some((name, loss, after, tcp)));
        }
    }
    assert!(missed.is_empty(), "{missed:.2?}");
}

#[test]
fn where_nothing_is_lost_nothing_is_sent_twice() {
    let keys = Keys::new();
    for (rate, delay) in [([64_000; 2], 300), ([0; 2], 300), ([0; 2], 35), ([0; 2], 0)] {
        let path = path(rate, delay, 0, 0.0);
        let [before, after] = [FRESH, AGAIN].map(|mode| cases::connect(&keys, path, mode, 1));
        assert_eq!(after.1.copied.datagrams, 0, "{path:?}");
        assert_eq!(before.0, after.0, "{path:?}");
    }
}
