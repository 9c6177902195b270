//! Tables of what copies do for thin streams, in simulated time:
//! `cargo run --release -p fulmar-congestion --example thin -- [SEEDS]`.
#![allow(clippy::unwrap_used)]

#[path = "../tests/lossy/mod.rs"]
mod lossy;

use std::time::Duration;

use fulmar_congestion::Congestion;
use lossy::cases::Cost;
use lossy::{FRESH, Keys, Mode, OFF, Path, cases, tcp};

const MESSAGES: usize = 1500;
const IN_SUCCESSION: usize = 50;
const EXCHANGES: usize = 100;
const LINES: usize = 500;

fn path(one_way_ms: u64, loss: [f64; 2]) -> Path {
    Path { delay: Duration::from_millis(one_way_ms), loss, ..Path::default() }
}

fn mean(times: &[f64]) -> f64 {
    times.iter().sum::<f64>() / times.len().max(1) as f64
}

fn percentile(times: &[f64], percent: usize) -> f64 {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    times[(times.len() * percent / 100).min(times.len() - 1)]
}

/// Median and worst of all seeds.
fn spread(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    format!("{:.2} / {:.2}", values[values.len() / 2], values[values.len() - 1])
}

/// What all ends sent per message, and how much of it are copies.
fn price(costs: &[Cost], messages: usize) -> String {
    let count = (costs.len() * messages).max(1) as f64;
    let sum = |part: fn(&Cost) -> u64| costs.iter().map(part).sum::<u64>() as f64;
    let (own, copies) = (sum(|cost| cost.sent.datagrams), sum(|cost| cost.copied.datagrams));
    let (bytes, copied) = (sum(|cost| cost.sent.bytes), sum(|cost| cost.copied.bytes));
    format!(
        "{:.2} datagrams and {:.0} bytes per message, with copies +{:.0} % and +{:.0} %",
        own / count,
        bytes / count,
        100.0 * copies / own.max(1.0),
        100.0 * copied / bytes.max(1.0)
    )
}

fn known(loss: [f64; 2]) -> Mode {
    Mode { known: loss, ..FRESH }
}

fn thin_stream(keys: &Keys, one_way_ms: u64, loss: f64, seeds: u64) {
    let path_ms = 2.0 * one_way_ms as f64;
    let tcp_mean = |seed| {
        let mut random = fastrand::Rng::with_seed(seed);
        let written: Vec<u64> = (0..MESSAGES as u64).map(|number| 20_000 * number).collect();
        let first = tcp::deliver(&written, 1000 * one_way_ms, loss, &mut random);
        let second = tcp::deliver(&first, 1000 * one_way_ms, loss, &mut random);
        let times: Vec<_> =
            written.iter().zip(second).map(|(from, to)| (to - from) as f64 / 1e3).collect();
        mean(&times)
    };
    let tcps: Vec<f64> = (1..=seeds).map(tcp_mean).collect();
    println!(
        "64 B each 20 ms, {one_way_ms}+{one_way_ms} ms, random {} %, {seeds} seeds, median / worst; TCP's mean {} ms",
        100.0 * loss,
        spread(tcps.clone())
    );
    for (name, mode) in [("off", OFF), ("new path", FRESH), ("known path", known([loss; 2]))] {
        let (mut means, mut gains, mut lates, mut costs) = (vec![], vec![], vec![], vec![]);
        for seed in 1..=seeds {
            let (times, cost) =
                cases::thin(keys, path(one_way_ms, [loss; 2]), mode, MESSAGES, seed);
            means.push(mean(&times));
            gains.push(100.0 * (mean(&times) / tcps[seed as usize - 1] - 1.0));
            lates.push((percentile(&times, 99) - path_ms) / path_ms);
            costs.push(cost);
        }
        println!(
            "  {name:<12} mean {} ms, against TCP {} %, p99 {} round trips above the path; {}",
            spread(means),
            spread(gains),
            spread(lates),
            price(&costs, MESSAGES)
        );
    }
}

fn in_succession(keys: &Keys, loss: [f64; 2], seeds: u64) {
    let clean = path(50, [0.0; 2]);
    let (best, _) = cases::succession(keys, clean, OFF, IN_SUCCESSION, 1);
    println!(
        "{IN_SUCCESSION} requests in succession, 100 ms, {loss:?} lost up and down, {seeds} seeds: time against no loss"
    );
    for (name, mode) in [("off", OFF), ("new path", FRESH), ("known path", known(loss))] {
        let runs = (1..=seeds)
            .map(|seed| cases::succession(keys, path(50, loss), mode, IN_SUCCESSION, seed));
        let (times, costs): (Vec<f64>, Vec<Cost>) = runs.unzip();
        let ratios = times.iter().map(|time| time / best).collect();
        println!(
            "  {name:<12} {}, mean {:.2}; {}",
            spread(ratios),
            mean(&times) / best,
            price(&costs, IN_SUCCESSION)
        );
    }
}

fn lines(keys: &Keys, loss: f64, seeds: u64) {
    println!("200 B each 20 ms on one stream, 50 ms, random {} %, {seeds} seeds", 100.0 * loss);
    for (name, mode) in [
        ("off", OFF),
        ("new path", FRESH),
        ("off, adaptive", Mode { control: Congestion::Adaptive, ..OFF }),
        ("adaptive", Mode { control: Congestion::Adaptive, ..FRESH }),
    ] {
        let (mut means, mut lates, mut costs) = (vec![], vec![], vec![]);
        for seed in 1..=seeds {
            let (times, cost) = cases::lines(keys, path(25, [loss; 2]), mode, LINES, seed);
            means.push(mean(&times));
            lates.push(percentile(&times, 99));
            costs.push(cost);
        }
        println!(
            "  {name:<14} mean {} ms, p99 {} ms; {}",
            spread(means),
            spread(lates),
            price(&costs, LINES)
        );
    }
}

fn exchanges(keys: &Keys, loss: f64, seeds: u64) {
    let http = |seed| {
        let mut random = fastrand::Rng::with_seed(seed);
        let times: Vec<_> =
            (0..1000).map(|_| tcp::exchange(50_000, loss, &mut random) as f64 / 1e3).collect();
        mean(&times)
    };
    let https: Vec<f64> = (1..=seeds).map(http).collect();
    println!(
        "{EXCHANGES} requests in 0-RTT, 100 ms, random {} % both ways, {seeds} seeds; HTTP/1.1's mean {} ms",
        100.0 * loss,
        spread(https.clone())
    );
    let client = known([loss, 0.0]);
    let modes = [
        ("off", OFF, false),
        ("new path", FRESH, false),
        ("client knows", client, false),
        ("both know", known([loss; 2]), true),
    ];
    for (name, mode, server) in modes {
        let (mut means, mut gains, mut costs) = (vec![], vec![], vec![]);
        for seed in 1..=seeds {
            let (times, cost) =
                cases::exchanges(keys, path(50, [loss; 2]), mode, server, EXCHANGES, seed);
            means.push(mean(&times));
            gains.push(100.0 * (mean(&times) / https[seed as usize - 1] - 1.0));
            costs.push(cost);
        }
        println!(
            "  {name:<12} mean {} ms, against HTTP/1.1 {} %; {}",
            spread(means),
            spread(gains),
            price(&costs, EXCHANGES)
        );
    }
}

fn main() {
    let seeds = std::env::args().nth(1).map_or(20, |seeds| seeds.parse().unwrap());
    let keys = Keys::new();
    for loss in [0.0, 0.1, 0.2] {
        lines(&keys, loss, seeds);
    }
    for loss in [0.0, 0.02, 0.05, 0.1, 0.2] {
        thin_stream(&keys, 35, loss, seeds);
    }
    for loss in [[0.1, 0.0], [0.1, 0.1], [0.2, 0.2]] {
        in_succession(&keys, loss, seeds);
    }
    for loss in [0.1, 0.2] {
        exchanges(&keys, loss, seeds);
    }
}
