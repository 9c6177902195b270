//! The window stays within its bounds, however an attacker delays, drops and reorders packets and acknowledgements.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use fulmar_congestion::DelayBased;
use proptest::prelude::*;

const DATAGRAM: u64 = 1200;

#[derive(Clone, Copy, Debug)]
enum Event {
    Sent,
    /// A packet sent this long ago is acknowledged.
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
    /// Besides two initial windows, at most twice the delivered bytes (four times in slow start), divided by the assumed
    /// share of packets that arrive, which is at least 40 %.
    #[test]
    fn the_window_has_bounds(events in prop::collection::vec((event(), 0..100_000u32, 1..40u8), 0..300)) {
        let mut now = Instant::now() + Duration::from_secs(10_000);
        let mut control = DelayBased::new(now, DATAGRAM);
        let mut arrived = 0;
        for (event, pause_us, times) in events {
            now += Duration::from_micros(u64::from(pause_us));
            let at = |ago_us: u32| now - Duration::from_micros(u64::from(ago_us));
            for _ in 0..times {
                match event {
                    Event::Sent => control.on_sent(now),
                    Event::Acked { ago_us, limited } => {
                        arrived += DATAGRAM;
                        control.on_ack(now, at(ago_us), DATAGRAM, limited);
                    }
                    Event::Lost { ago_us, packets, persistent } => {
                        control.on_loss(now, at(ago_us), u64::from(packets) * DATAGRAM, persistent);
                    }
                    Event::Marked { ago_us } => control.on_ecn_mark(now, at(ago_us)),
                }
                prop_assert!(control.window() >= 4 * DATAGRAM);
                prop_assert!(control.window() <= 2 * 14_720 + 10 * arrived + DATAGRAM, "{}", control.window());
            }
        }
    }

    /// A receiver sends only acknowledgements, which are not acknowledged in turn.
    #[test]
    fn acknowledgements_take_nothing_from_the_window(rounds in 1..40u32, gap_us in 100..1_000_000u64) {
        let mut now = Instant::now();
        let mut control = DelayBased::new(now, DATAGRAM);
        for _ in 0..rounds {
            let sent = now;
            now += Duration::from_millis(50);
            for _ in 0..20 {
                control.on_sent(sent);
                control.on_ack(now, sent, DATAGRAM, false);
            }
        }
        let before = control.window();
        for _ in 0..50 {
            now += Duration::from_micros(gap_us);
            control.on_sent(now);
        }
        prop_assert_eq!(control.window(), before);
    }

    /// Bytes delivered long ago do not count: after rounds in which little arrives, the window is small again.
    #[test]
    fn a_link_that_became_slow_is_not_flooded(fast in 20..400u32, slow in 1..4u32, late_ms in 0..300u64) {
        let mut now = Instant::now();
        let mut control = DelayBased::new(now, DATAGRAM);
        for round in 0..40 {
            let (packets, took) = if round < 20 { (fast, 50) } else { (slow, 50 + late_ms) };
            let sent = now;
            now += Duration::from_millis(took);
            for _ in 0..packets {
                control.on_sent(sent);
                control.on_ack(now, sent, DATAGRAM, false);
            }
        }
        prop_assert!(control.window() <= 2 * 14_720, "{}", control.window());
    }
}
