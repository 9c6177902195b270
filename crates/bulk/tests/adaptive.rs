//! The adaptive rate on links that lose packets at random, and beside TCP, in simulated time. `cargo test -p
//! fulmar-bulk --test adaptive -- --ignored --nocapture` prints the whole table.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use fulmar_bulk::SenderConfig;
use support::{Congestion, Link, Outcome, Scene, noise};

/// The link's rate.
const BYTES_PER_S: f64 = 2_500_000.0;
/// The share of a symbol in the bytes of a datagram on the link.
const NET: f64 = 1424.0 / 1500.0;

fn milliseconds(number: u64) -> Duration {
    Duration::from_millis(number)
}

/// A transfer over a link with this round-trip time and a queue of this length, on a machine that is busy now and
/// then; if `tcp` is set, beside a flow that started two seconds earlier.
fn scene(
    bytes: usize,
    rtt: Duration,
    loss: f64,
    queue: Duration,
    tcp: Option<Congestion>,
) -> Scene {
    let bottleneck = Some((BYTES_PER_S, queue.as_secs_f64() * BYTES_PER_S));
    let (delay, jitter, stalls) = (rtt / 2, milliseconds(1), milliseconds(20));
    let link = Link { loss, delay, bottleneck, jitter, stalls, ..Link::default() };
    let sender =
        SenderConfig { adaptive: true, rate_bytes_per_s: 1_000_000_000, ..SenderConfig::default() };
    let begins = tcp.map_or(Duration::ZERO, |_| Duration::from_secs(2));
    Scene { link, sender, objects: vec![noise(1, bytes)], begins, tcp, ..Scene::default() }
}

/// Goodput: bytes of the object per second, until all of it has arrived.
fn goodput(outcome: &Outcome, scene: &Scene) -> f64 {
    let seconds = (outcome.completed_at[0] - scene.begins).as_secs_f64();
    scene.objects[0].len() as f64 / seconds
}

#[test]
fn the_rate_is_found_whatever_is_lost_by_chance() {
    for (loss, queue) in [(0.0, 100), (0.0, 10), (0.05, 100), (0.2, 500), (0.5, 100), (0.5, 10)] {
        let scene = scene(20_000_000, milliseconds(50), loss, milliseconds(queue), None);
        let mut outcome = scene.play();
        outcome.assert_complete(&scene);
        let limit = BYTES_PER_S * (1.0 - loss);
        let share = goodput(&outcome, &scene) / limit;
        assert!(share > 0.8 * NET, "{loss}, {queue} ms: {share} of the limit");
        // The sender does not flood the link either.
        let sent = outcome.sender.sent_bytes as f64 / 20_000_000.0 * (1.0 - loss);
        assert!(sent < 1.3, "{loss}, {queue} ms: {sent} times what was needed");
    }
}

#[test]
fn beside_tcp_neither_starves() {
    for queue in [50, 200] {
        let tcp = Some(Congestion::Cubic);
        let scene = scene(24_000_000, milliseconds(50), 0.0, milliseconds(queue), tcp);
        let mut outcome = scene.play();
        outcome.assert_complete(&scene);
        let (ours, tcp) = (goodput(&outcome, &scene), tcp_rate(&outcome, &scene));
        assert!((0.4..2.0).contains(&(ours / tcp)), "{queue} ms: {ours} beside {tcp}");
        assert!(ours + tcp > 0.85 * BYTES_PER_S, "{queue} ms: {ours} beside {tcp}");
    }
}

/// BBR keeps a queue of one round trip full all the time, so that a latecomer never sees the path without it, and
/// loses a part of its packets at any rate.
#[test]
fn beside_bbr_in_a_short_queue_neither_starves() {
    for seed in 1..=3 {
        let tcp = Some(Congestion::Bbr);
        let scene = scene(24_000_000, milliseconds(50), 0.0, milliseconds(50), tcp);
        let scene = Scene { seed, ..scene };
        let mut outcome = scene.play();
        outcome.assert_complete(&scene);
        let (ours, tcp) = (goodput(&outcome, &scene), tcp_rate(&outcome, &scene));
        let least = 0.24 * BYTES_PER_S;
        assert!(ours > least && tcp > least, "seed {seed}: {ours} beside {tcp}");
        // It would be more than six times if all losses without a measurable queue counted as random.
        let sent = outcome.sender.sent_bytes as f64 / 24_000_000.0;
        assert!(sent < 2.0, "seed {seed}: {sent} times the object was sent");
    }
}

fn tcp_rate(outcome: &Outcome, scene: &Scene) -> f64 {
    outcome.tcp_bytes as f64 / (outcome.ended.unwrap().0 - scene.begins).as_secs_f64()
}

/// All cells of the goals; takes half a minute.
#[test]
#[ignore = "long: it prints a table rather than looking for something"]
fn the_whole_table() {
    for (rtt, loss) in [50, 500].into_iter().flat_map(|rtt| [0, 5, 20, 50].map(|loss| (rtt, loss)))
    {
        for seed in 1..=8 {
            let loss = f64::from(loss) / 100.0;
            let scene = scene(64_000_000, milliseconds(rtt), loss, milliseconds(200), None);
            let scene = Scene { seed, ..scene };
            let mut outcome = scene.play();
            outcome.assert_complete(&scene);
            let share = goodput(&outcome, &scene) / (BYTES_PER_S * (1.0 - loss));
            println!("{rtt} ms, {loss} lost, seed {seed}: {share:.3} of the limit");
        }
    }
    for congestion in [Congestion::Cubic, Congestion::Bbr] {
        for (queue, seed) in [50, 100, 200].into_iter().flat_map(|q| (1..=6).map(move |s| (q, s))) {
            let queue_for = milliseconds(queue);
            let scene = scene(32_000_000, milliseconds(50), 0.0, queue_for, Some(congestion));
            let scene = Scene { seed, ..scene };
            let mut outcome = scene.play();
            outcome.assert_complete(&scene);
            let (ours, tcp) = (goodput(&outcome, &scene), tcp_rate(&outcome, &scene));
            let jain = (ours + tcp).powi(2) / (2.0 * (ours.powi(2) + tcp.powi(2)));
            println!(
                "beside {congestion:?}, queue {queue} ms, seed {seed}: {:.1} and {:.1} Mbit/s, index {jain:.3}",
                8e-6 * ours,
                8e-6 * tcp,
            );
        }
    }
}
