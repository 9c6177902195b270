//! Whoever delays, drops and reorders packets and acknowledgements at will keeps the window within its bounds.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use fulmar_congestion::Roadwise;
use proptest::prelude::*;

const DATAGRAM: u64 = 1200;

#[derive(Clone, Copy, Debug)]
enum Event {
    Sent,
    /// A packet sent so long ago has arrived.
    Acked {
        ago_us: u32,
        limited: bool,
    },
    Lost {
        ago_us: u32,
        packets: u8,
        persistent: bool,
    },
    Marked {
        ago_us: u32,
    },
}

fn event() -> impl Strategy<Value = Event> {
    let ago = prop_oneof![0..500_000u32, 100_000..101_000u32, Just(0), any::<u32>()];
    prop_oneof![
        1 => Just(Event::Sent),
        4 => (ago.clone(), prop::bool::weighted(0.1))
            .prop_map(|(ago_us, limited)| Event::Acked { ago_us, limited }),
        1 => (ago.clone(), any::<u8>(), prop::bool::weighted(0.1))
            .prop_map(|(ago_us, packets, persistent)| Event::Lost { ago_us, packets, persistent }),
        1 => ago.prop_map(|ago_us| Event::Marked { ago_us }),
    ]
}

proptest! {
    /// Besides two windows of the beginning no more than twice what arrived, at the start four times, over the share
    /// that is believed to arrive: 40 % at least.
    #[test]
    fn the_window_has_bounds(events in prop::collection::vec((event(), 0..100_000u32, 1..40u8), 0..300)) {
        let mut now = Instant::now() + Duration::from_secs(10_000);
        let mut road = Roadwise::new(now, DATAGRAM);
        let mut arrived = 0;
        for (event, pause_us, times) in events {
            now += Duration::from_micros(u64::from(pause_us));
            let at = |ago_us: u32| now - Duration::from_micros(u64::from(ago_us));
            for _ in 0..times {
                match event {
                    Event::Sent => road.sent(now),
                    Event::Acked { ago_us, limited } => {
                        arrived += DATAGRAM;
                        road.acked(now, at(ago_us), DATAGRAM, limited);
                    }
                    Event::Lost { ago_us, packets, persistent } => {
                        road.lost(now, at(ago_us), u64::from(packets) * DATAGRAM, persistent);
                    }
                    Event::Marked { ago_us } => road.marked(now, at(ago_us)),
                }
                prop_assert!(road.window() >= 4 * DATAGRAM);
                prop_assert!(road.window() <= 2 * 14_720 + 10 * arrived + DATAGRAM, "{}", road.window());
            }
        }
    }

    /// Whoever receives sends acknowledgements only, which nobody acknowledges.
    #[test]
    fn acknowledgements_take_nothing_from_the_window(rounds in 1..40u32, gap_us in 100..1_000_000u64) {
        let mut now = Instant::now();
        let mut road = Roadwise::new(now, DATAGRAM);
        for _ in 0..rounds {
            let sent = now;
            now += Duration::from_millis(50);
            for _ in 0..20 {
                road.sent(sent);
                road.acked(now, sent, DATAGRAM, false);
            }
        }
        let before = road.window();
        for _ in 0..50 {
            now += Duration::from_micros(gap_us);
            road.sent(now);
        }
        prop_assert_eq!(road.window(), before);
    }

    /// What was delivered long ago allows nothing: after rounds in which little arrives, the window is small again.
    #[test]
    fn a_link_that_became_slow_is_not_flooded(fast in 20..400u32, slow in 1..4u32, late_ms in 0..300u64) {
        let mut now = Instant::now();
        let mut road = Roadwise::new(now, DATAGRAM);
        for round in 0..40 {
            let (packets, took) = if round < 20 { (fast, 50) } else { (slow, 50 + late_ms) };
            let sent = now;
            now += Duration::from_millis(took);
            for _ in 0..packets {
                road.sent(sent);
                road.acked(now, sent, DATAGRAM, false);
            }
        }
        prop_assert!(road.window() <= 2 * 14_720, "{}", road.window());
    }
}
