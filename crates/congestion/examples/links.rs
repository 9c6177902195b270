//! Tables of how congestion controls use bad links, in simulated time:
//! `cargo run -p fulmar-congestion --example links -- lossy|shared|alone|files [SEEDS]`.
#![allow(clippy::unwrap_used)]

#[path = "../tests/bottleneck/mod.rs"]
mod bottleneck;

use std::sync::Arc;
use std::time::Duration;

use bottleneck::{Bottleneck, Control, Flow, Keys, run};
use quinn_proto::congestion::{BbrConfig, CubicConfig};

const BITS_PER_SECOND: f64 = 20e6;
const RTT: Duration = Duration::from_millis(100);
const QUEUES: [f64; 3] = [0.5, 1.0, 4.0];
const SHARED_QUEUES: [f64; 4] = [0.1, 0.5, 1.0, 4.0];
const LOSSES: [f64; 5] = [0.0, 0.05, 0.1, 0.2, 0.5];
const FILE_BYTES: usize = 10_000_000;
const WINDOW_BYTES: u32 = 4 << 20;
const IDLE: Duration = Duration::from_secs(120);
const LONGEST: Duration = Duration::from_secs(300);

fn bottleneck(queue: f64, loss: f64) -> Bottleneck {
    Bottleneck { bits_per_second: BITS_PER_SECOND, delay: RTT / 2, queue: RTT.mul_f64(queue), loss }
}

fn control(name: &str) -> Control {
    match name {
        "cubic" => Arc::new(CubicConfig::default()),
        "bbr" => Arc::new(BbrConfig::default()),
        "default" => fulmar_congestion::Congestion::Cubic.factory(),
        _ => fulmar_congestion::Congestion::Adaptive.factory(),
    }
}

fn flow(name: &str, begin: Duration, bytes: usize) -> Flow {
    Flow {
        control: control(name),
        begin,
        bytes,
        window: WINDOW_BYTES,
        idle: IDLE,
        copies: name == "ours",
    }
}

/// One file alone: its rate as a share of what the link can deliver, in percent.
fn lossy(keys: &Keys, names: &[&str], seeds: u64) {
    println!(
        "{FILE_BYTES} bytes, share of (1-p) x rate: median / worst of {seeds} seeds, median of longest wait and 95th percentile; died"
    );
    for name in names {
        for loss in LOSSES {
            for queue in QUEUES {
                let (mut shares, mut waits, mut longest, mut died) = (vec![], vec![], vec![], 0);
                for seed in 1..=seeds {
                    let results = run(
                        keys,
                        bottleneck(queue, loss),
                        &[flow(name, Duration::ZERO, FILE_BYTES)],
                        seed,
                        LONGEST,
                    );
                    let carries = BITS_PER_SECOND / 8.0 * (1.0 - loss);
                    shares.push(100.0 * results[0].rate(LONGEST) / carries);
                    waits.push(f64::from(results[0].wait(95)));
                    longest.push(results[0].longest_wait.as_secs_f64() * 1e3);
                    died += u32::from(results[0].died.is_some());
                }
                shares.sort_by(f64::total_cmp);
                waits.sort_by(f64::total_cmp);
                longest.sort_by(f64::total_cmp);
                let middle = shares.len() / 2;
                println!(
                    "{name:8} loss {:3.0} % queue {queue:3}: {:5.1} / {:5.1}   waits {:4.0} {:4.0} ms  died {died}",
                    loss * 100.0,
                    shares[middle],
                    shares[0],
                    longest[middle],
                    waits[middle]
                );
            }
        }
    }
}

/// Beside one CUBIC or BBR flow, which begins before or after: the rate of each in Mbit/s, and that of the other as a
/// share of its rate beside a CUBIC flow.
fn shared(keys: &Keys, other: &str, names: &[&str], seeds: u64) {
    let (late, end) = (Duration::from_secs(5), Duration::from_secs(65));
    for queue in SHARED_QUEUES {
        for other_first in [true, false] {
            let share = |name: &str| {
                let (mut theirs, mut ours, mut worst) = (0.0, 0.0, f64::MAX);
                for seed in 1..=seeds {
                    // A little later each time: nothing else is random here.
                    let late = late + Duration::from_millis(17 * seed);
                    let (a, b) =
                        if other_first { (Duration::ZERO, late) } else { (late, Duration::ZERO) };
                    let flows = [flow(other, a, 1 << 40), flow(name, b, 1 << 40)];
                    let results = run(keys, bottleneck(queue, 0.0), &flows, seed, end);
                    let rate = |which: usize| 8e-6 * results[which].rate_within(late, end);
                    theirs += rate(0) / seeds as f64;
                    ours += rate(1) / seeds as f64;
                    worst = rate(0).min(worst);
                }
                (theirs, ours, worst)
            };
            let usual = share("cubic").0;
            for name in names {
                let (theirs, ours, worst) = share(name);
                println!(
                    "queue {queue:3} {other} {}: it gets {theirs:5.2}, {name} {ours:5.2}; beside cubic it gets {usual:5.2}: keeps {:.2}, worst {:.2}",
                    if other_first { "first" } else { "later" },
                    theirs / usual,
                    worst / usual
                );
            }
        }
    }
}

/// Alone and without losses for a minute: the rate and the queueing delay.
fn alone(keys: &Keys, names: &[&str]) {
    let end = Duration::from_secs(60);
    for (rate, round_ms) in [(20e6, 100), (100e6, 20), (2e6, 40), (300e3, 300), (64e3, 600)] {
        for queue in [0.1, 0.5, 1.0, 4.0] {
            for name in names {
                let round = Duration::from_millis(round_ms);
                let bottleneck = Bottleneck {
                    bits_per_second: rate,
                    delay: round / 2,
                    queue: round.mul_f64(queue),
                    loss: 0.0,
                };
                let results = run(keys, bottleneck, &[flow(name, Duration::ZERO, 1 << 40)], 1, end);
                println!(
                    "{:7.1} Mbit/s {round_ms} ms queue {queue:3} {name:8}: {:5.1} % of it; waits median {:4.0}, 95 % {:4.0}, longest {:4.0} ms; dropped {}",
                    rate * 1e-6,
                    800.0 * results[0].rate_within(Duration::from_secs(2), end) / rate,
                    results[0].wait(50),
                    results[0].wait(95),
                    results[0].longest_wait.as_secs_f64() * 1e3,
                    results[0].dropped
                );
            }
        }
    }
}

/// Short and long files alone: the time from the end of the handshake, and the share of datagrams that were dropped.
fn files(keys: &Keys, names: &[&str], seeds: u64) {
    for (rate, round_ms) in [(64e3, 600), (300e3, 300), (2e6, 40), (20e6, 100), (100e6, 20)] {
        for (queue, loss) in [(0.1, 0.0), (1.0, 0.0), (4.0, 0.0), (1.0, 0.01), (1.0, 0.05)] {
            for bytes in [10_000, 100_000, 1_000_000] {
                if bytes as f64 * 8.0 / rate > 60.0 {
                    continue;
                }
                let row = names.iter().map(|name| {
                    let (mut times, mut dropped) = (Vec::new(), Vec::new());
                    for seed in 1..=seeds {
                        let round = Duration::from_millis(round_ms);
                        let bottleneck = Bottleneck {
                            bits_per_second: rate,
                            delay: round / 2,
                            queue: round.mul_f64(queue),
                            loss,
                        };
                        let flows = [flow(name, Duration::ZERO, bytes)];
                        let result = run(keys, bottleneck, &flows, seed, LONGEST).remove(0);
                        let begun = result.connected.unwrap_or(LONGEST);
                        times.push(result.done.unwrap_or(LONGEST).saturating_sub(begun));
                        dropped.push(result.dropped);
                    }
                    times.sort();
                    dropped.sort();
                    let (middle, last) = (times.len() / 2, times.len() - 1);
                    let [median, worst] =
                        [times[middle], times[last]].map(|time| time.as_secs_f64());
                    format!("{name} {median:6.2} {worst:6.2} s, {:3} dropped", dropped[middle])
                });
                println!(
                    "{:6.1} Mbit/s {round_ms:3} ms queue {queue:3} loss {:2.0} % {:4} kB: {}",
                    rate * 1e-6,
                    loss * 100.0,
                    bytes / 1000,
                    row.collect::<Vec<_>>().join("   ")
                );
            }
        }
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let seeds = words.get(1).and_then(|n| n.parse().ok()).unwrap_or(5);
    let names: Vec<&str> = words.iter().skip(2).map(String::as_str).collect();
    let names = if names.is_empty() { vec!["ours"] } else { names };
    let keys = Keys::new();
    match words.first().map(String::as_str) {
        Some("lossy") => lossy(&keys, &names, seeds),
        Some("shared") => {
            ["cubic", "bbr"].iter().for_each(|other| shared(&keys, other, &names, seeds))
        }
        Some("alone") => alone(&keys, &names),
        Some("files") => files(&keys, &names, seeds),
        _ => println!("links lossy|shared|alone|files [SEEDS] [cubic|bbr|default|ours]..."),
    }
}
