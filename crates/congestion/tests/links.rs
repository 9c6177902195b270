//! Bad links in simulated time. `cargo run -p fulmar-congestion --example links` prints whole tables.
#![allow(clippy::unwrap_used)]

mod bottleneck;

use std::sync::Arc;
use std::time::Duration;

use bottleneck::{Bottleneck, Control, Flow, Keys, run};
use quinn_proto::congestion::CubicConfig;

const BITS_PER_SECOND: f64 = 20e6;
const RTT: Duration = Duration::from_millis(100);
const ENDLESS: usize = 1 << 40;
const LATE: Duration = Duration::from_secs(3);

fn bottleneck(queue: f64, loss: f64) -> Bottleneck {
    let queue = RTT.mul_f64(queue);
    Bottleneck { bits_per_second: BITS_PER_SECOND, delay: RTT / 2, queue, loss }
}

fn flow(control: Control, begin: Duration, bytes: usize) -> Flow {
    let idle = Duration::from_secs(120);
    Flow { control, begin, bytes, window: 4 << 20, idle, copies: false }
}

/// As `fulmar send --via quic --adaptive` sends.
fn adaptive(begin: Duration, bytes: usize) -> Flow {
    let control = fulmar_congestion::Congestion::Adaptive.factory();
    Flow { copies: true, ..flow(control, begin, bytes) }
}

fn cubic() -> Control {
    Arc::new(CubicConfig::default())
}

#[test]
fn random_loss_is_not_treated_as_a_full_queue() {
    let (keys, longest) = (Keys::new(), Duration::from_secs(100));
    for (loss, least) in [(0.05, 0.45), (0.2, 0.4)] {
        for seed in 1..=2 {
            let took = |control| {
                let flows = [flow(control, Duration::ZERO, 3_000_000)];
                run(&keys, bottleneck(1.0, loss), &flows, seed, longest).remove(0)
            };
            let (ours, usual) =
                (took(fulmar_congestion::Congestion::Adaptive.factory()), took(cubic()));
            assert!(ours.done.is_some(), "seed {seed}");
            let share = ours.rate(longest) / (BITS_PER_SECOND / 8.0 * (1.0 - loss));
            assert!(share > least, "{share} of what arrives at {loss}, seed {seed}");
            assert!(ours.rate(longest) > 5.0 * usual.rate(longest), "seed {seed}");
        }
    }
}

/// QUIC's timers double each time that a probe or its acknowledgement is lost, which at a loss of a half happens for ever.
#[test]
fn a_transfer_does_not_end_in_timers() {
    let (keys, longest) = (Keys::new(), Duration::from_secs(300));
    for seed in [1, 3, 4] {
        let flows = [adaptive(Duration::ZERO, 1_000_000)];
        let result = run(&keys, bottleneck(1.0, 0.5), &flows, seed, longest).remove(0);
        let share = result.rate(longest) / (BITS_PER_SECOND / 8.0 * 0.5);
        assert!(share > 0.1, "{share} of what arrives, seed {seed}");
    }
}

/// The queue alone would hold 400 ms, and CUBIC keeps it full.
#[test]
fn a_deep_queue_is_not_filled() {
    let (keys, end) = (Keys::new(), Duration::from_secs(10));
    let alone = |control| {
        run(&keys, bottleneck(4.0, 0.0), &[flow(control, Duration::ZERO, ENDLESS)], 1, end)
    };
    let (ours, usual) = (alone(fulmar_congestion::Congestion::Adaptive.factory()), alone(cubic()));
    assert!(usual[0].wait(95) > 300.0);
    assert!(ours[0].wait(95) < 100.0, "{} ms", ours[0].wait(95));
    let rate = 8.0 * ours[0].rate_within(LATE, end);
    assert!(rate > 0.9 * BITS_PER_SECOND, "{rate} bits per second");
}

#[test]
fn others_keep_their_share() {
    let (keys, end) = (Keys::new(), Duration::from_secs(23));
    for queue in [0.5, 4.0] {
        let beside = |control| {
            let flows = [flow(cubic(), Duration::ZERO, ENDLESS), flow(control, LATE, ENDLESS)];
            let results = run(&keys, bottleneck(queue, 0.0), &flows, 1, end);
            (results[0].rate_within(LATE, end), results[1].rate_within(LATE, end))
        };
        let ((theirs, ours), (usual, _)) =
            (beside(fulmar_congestion::Congestion::Adaptive.factory()), beside(cubic()));
        assert!(theirs > 0.7 * usual, "{theirs} of {usual}, queue {queue}");
        assert!(ours > 0.1 * usual, "{ours}, queue {queue}");
    }
}

/// Where the buffer is too shallow to measure a queue, losses limit the window.
#[test]
fn a_shallow_queue_does_not_overflow_for_ever() {
    let (keys, end) = (Keys::new(), Duration::from_secs(20));
    let flows = [flow(fulmar_congestion::Congestion::Adaptive.factory(), Duration::ZERO, ENDLESS)];
    let results = run(&keys, bottleneck(0.1, 0.0), &flows, 1, end);
    let packets = results[0].bytes as u64 / 1200;
    assert!(50 * results[0].dropped < packets, "{} of {packets}", results[0].dropped);
    assert!(8.0 * results[0].rate_within(LATE, end) > 0.75 * BITS_PER_SECOND);
}
