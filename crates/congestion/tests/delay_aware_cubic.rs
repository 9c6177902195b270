//! Congestion control in simulated time, over links as slow and with as deep queues as 2G's, compared with quinn's
//! own.
#![allow(clippy::unwrap_used)]

mod exchange;

use std::sync::Arc;
use std::time::Duration;

use exchange::{Link, Took, World};
use fulmar_congestion::Congestion;
use quinn_proto::congestion::{ControllerFactory, CubicConfig};

type Control = Arc<dyn ControllerFactory + Send + Sync>;

/// A slow link with a queue of two seconds.
fn link(bits_per_second: u64, delay_ms: u64) -> Link {
    let delay = Duration::from_millis(delay_ms);
    Link { bits_per_second, delay, queue: Duration::from_secs(2) }
}

fn usual() -> Control {
    Arc::new(CubicConfig::default())
}

/// A response of `bytes` on a new connection.
fn new(link: Link, control: &Control, bytes: usize) -> Took {
    World::connected(link, control).ask(bytes)
}

/// The same on a connection that has carried one byte and was idle.
fn kept(link: Link, control: &Control, bytes: usize) -> Took {
    let mut world = World::connected(link, control);
    world.ask(1);
    world.rest(Duration::from_secs(3));
    world.ask(bytes)
}

#[test]
fn deep_queues_are_not_filled() {
    let ours = Congestion::Cubic.factory();
    for link in [link(92_000, 700), link(900_000, 175)] {
        let (usual, ours) = (new(link, &usual(), 1_000_000), new(link, &ours, 1_000_000));
        assert!(usual.dropped > 200, "{usual:?}");
        assert!(ours.dropped < usual.dropped, "{ours:?} against {usual:?}");
        assert!(ours.time < usual.time, "{ours:?} against {usual:?}");
    }
    for bytes in [20_000, 60_000, 160_000] {
        let took = kept(link(92_000, 700), &ours, bytes);
        assert_eq!(took.dropped, 0, "{bytes} bytes: {took:?}");
    }
}

/// After the first loss, CUBIC controls the window, which counts in seconds; a round trip takes two here.
#[test]
fn what_was_lost_once_is_not_lost_again_and_again() {
    let ours = Congestion::Cubic.factory();
    for delay_ms in [100, 300] {
        let link = link(64_000, delay_ms);
        let (usual, ours) = (new(link, &usual(), 160_000), new(link, &ours, 160_000));
        assert!(10 * ours.dropped < usual.dropped, "{ours:?} against {usual:?}");
        assert!(ours.time < usual.time, "{ours:?} against {usual:?}");
    }
}

#[test]
fn answers_on_used_connections_begin_with_more() {
    let ours = Congestion::Cubic.factory();
    // 20 kB take one round trip of 1.4 s and 1.85 s of sending.
    let took = kept(link(92_000, 700), &ours, 20_000);
    assert!(took.time < Duration::from_millis(3300), "{took:?}");
    for bytes in [20_000, 60_000, 160_000] {
        let (usual, ours) =
            (kept(link(900_000, 175), &usual(), bytes), kept(link(900_000, 175), &ours, bytes));
        assert!(ours.time + Duration::from_millis(200) < usual.time, "{ours:?} against {usual:?}");
    }
}

#[test]
fn the_window_does_not_grow_for_ever_while_little_is_sent() {
    let ours = Congestion::Cubic.factory();
    let mut world = World::connected(link(900_000, 175), &ours);
    for _ in 0..200 {
        world.ask(1);
    }
    assert!(world.server_window() < 2 * 14_720 + 1_200);
}
