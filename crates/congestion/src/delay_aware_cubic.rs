//! CUBIC (RFC 9438) that does not fill deep queues: packets that were delayed by a queue do not let the window grow.
//!
//! This module decides with which window CUBIC starts and which acknowledgements it gets; quinn's CUBIC does the rest.
//! The window never grows faster than RFC 9002 section 7.3 and CUBIC allow, except for the first two initial windows:
//! there it also grows while the application sends little, against section 7.8, as in Linux' TCP.
//!
//! A 2G link queues seconds of data. Slow start doubles the window until that queue overflows. Then CUBIC, which counts
//! in seconds although a round trip takes two, overflows it again and again; often the end of a response is lost, which
//! only a timeout detects. HyStart++ (RFC 9406) has the same purpose, but compares whole round trips and is too late
//! here: ten packets fill 64 kbit/s for two round trips, and their acknowledgements have doubled the window by then.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{
    Controller, ControllerFactory, ControllerMetrics, Cubic, CubicConfig,
};

use crate::choice::INITIAL_WINDOW_BYTES;

/// One in this many delayed packets counts: in slow start the window still grows by 3 % per round trip, so that the
/// queues of other flows do not keep it small for ever.
const DELAYED_SHARE: u32 = 32;

/// Shorter delays do not count: acknowledgements may be delayed by 25 ms, and shallow queues do no harm.
const MIN_QUEUE: Duration = Duration::from_millis(100);

/// The shortest RTT is kept for one to two times this long; after that, the path may be a longer one.
const MIN_RTT_AGE: Duration = Duration::from_secs(20);

/// Creates a controller per path.
#[derive(Debug)]
pub(crate) struct DelayAwareCubicFactory(Arc<CubicConfig>);

impl DelayAwareCubicFactory {
    pub(crate) fn new() -> DelayAwareCubicFactory {
        let mut cubic = CubicConfig::default();
        cubic.initial_window(INITIAL_WINDOW_BYTES);
        DelayAwareCubicFactory(Arc::new(cubic))
    }
}

impl ControllerFactory for DelayAwareCubicFactory {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let cubic = Cubic::new(Arc::clone(&self.0), now, current_mtu);
        let datagram_bytes = u64::from(current_mtu);
        Box::new(DelayAwareCubic { cubic, datagram_bytes, min_rtt: MinRtt::new(now), delayed: 0 })
    }
}

/// The controller of one path.
#[derive(Clone, Debug)]
struct DelayAwareCubic {
    cubic: Cubic,
    datagram_bytes: u64,
    min_rtt: MinRtt,
    /// Packets delayed by a queue.
    delayed: u32,
}

impl DelayAwareCubic {
    fn in_slow_start(&self) -> bool {
        self.cubic.metrics().ssthresh.is_none_or(|threshold| self.cubic.window() < threshold)
    }

    /// Whether a packet acknowledged after `took` was delayed by a queue and must not count.
    fn is_delayed(&mut self, now: Instant, took: Duration) -> bool {
        let min_rtt = self.min_rtt.with(now, took);
        if took <= min_rtt + (min_rtt / 2).max(MIN_QUEUE) {
            return false;
        }
        self.delayed = self.delayed.wrapping_add(1);
        !self.delayed.is_multiple_of(DELAYED_SHARE)
    }
}

/// The shortest recent RTT.
#[derive(Clone, Copy, Debug)]
struct MinRtt {
    before: Duration,
    since: Instant,
    current: Duration,
}

impl MinRtt {
    fn new(now: Instant) -> MinRtt {
        MinRtt { before: Duration::MAX, since: now, current: Duration::MAX }
    }

    fn with(&mut self, now: Instant, took: Duration) -> Duration {
        if now.saturating_duration_since(self.since) > MIN_RTT_AGE {
            *self = MinRtt { before: self.current, since: now, current: Duration::MAX };
        }
        self.current = self.current.min(took);
        self.before.min(self.current)
    }
}

impl Controller for DelayAwareCubic {
    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        if self.is_delayed(now, now.saturating_duration_since(sent)) {
            return;
        }
        // Packets of the handshake and of the first small responses count as full ones, as in Linux' TCP: a response
        // on a used connection then starts with as large a window as over TCP.
        if self.in_slow_start() && self.window() < 2 * self.initial_window() {
            self.cubic.on_ack(now, sent, bytes.max(self.datagram_bytes), false, rtt);
        } else {
            self.cubic.on_ack(now, sent, bytes, app_limited, rtt);
        }
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        self.cubic.on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.datagram_bytes = u64::from(new_mtu);
        self.cubic.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.cubic.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        self.cubic.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.cubic.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(now: Instant) -> DelayAwareCubic {
        let cubic = Cubic::new(Arc::new(CubicConfig::default()), now, 1200);
        DelayAwareCubic { cubic, datagram_bytes: 1200, min_rtt: MinRtt::new(now), delayed: 0 }
    }

    #[test]
    fn one_in_many_delayed_packets_counts() {
        let now = Instant::now();
        let mut control = control(now);
        let quick = Duration::from_millis(600);
        assert!(!control.is_delayed(now, quick));
        assert!(!control.is_delayed(now, quick + quick / 2));
        let long = 2 * quick;
        let counted = (0..DELAYED_SHARE).filter(|_| !control.is_delayed(now, long)).count();
        assert_eq!(counted, 1);
    }

    #[test]
    fn a_short_delay_in_a_shallow_queue_is_ignored() {
        let now = Instant::now();
        let mut control = control(now);
        let path = Duration::from_millis(4);
        assert!(!control.is_delayed(now, path));
        assert!(!control.is_delayed(now, path + MIN_QUEUE));
        assert!(control.is_delayed(now, path + MIN_QUEUE + path));
    }

    #[test]
    fn a_path_that_became_longer_is_accepted_after_a_while() {
        let begun = Instant::now();
        let mut control = control(begun);
        assert!(!control.is_delayed(begun, Duration::from_millis(20)));
        let longer = Duration::from_millis(400);
        assert!(control.is_delayed(begun + MIN_RTT_AGE / 2, longer));
        let second = Duration::from_secs(1);
        assert!(control.is_delayed(begun + MIN_RTT_AGE + second, longer));
        assert!(!control.is_delayed(begun + 2 * MIN_RTT_AGE + 2 * second, longer));
    }
}
