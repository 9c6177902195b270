//! Congestion control of what we send over QUIC: CUBIC (RFC 9438) that does not fill deep queues.
//!
//! Here is how the window begins and when it may grow: never faster than RFC 9002 section 7.3 and CUBIC have it, but
//! for the first two initial windows, in which it also grows while little is sent, where section 7.8 says that it should
//! not: Linux's TCP does so, too. How much it grows then, and what happens at losses, is quinn's affair.
//!
//! A 2G link queues seconds of data. Slow start doubles the window until that overflows, and CUBIC, which counts in
//! seconds where a round trip takes two, does so again and again; what is lost is often the end of an answer, which
//! only a timeout finds. So a packet that waited long in a queue does not let the window grow. HyStart++ (RFC 9406) has
//! the same end by looking at whole round trips, and comes too late here: ten packets fill 64 kbit/s for two round
//! trips, and their acknowledgements have doubled the window by then.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{
    Controller, ControllerFactory, ControllerMetrics, Cubic, CubicConfig,
};

use crate::choice::INITIAL_WINDOW_BYTES;

/// Of the packets that waited long, one in so many counts: in slow start the window still grows by 3 % a round trip,
/// so that others' queues do not keep it small for ever.
const PATIENT_SHARE: u32 = 32;

/// What is waited in any case is not long: acknowledgements are put off by 25 ms, and shallow queues do no harm.
const NOT_LONG: Duration = Duration::from_millis(100);

/// How long the least round trip is believed, once to twice. After that the path may have become a longer one.
const BELIEVED: Duration = Duration::from_secs(20);

/// Makes the controllers of connections.
#[derive(Debug)]
pub(crate) struct Patient(Arc<CubicConfig>);

impl Patient {
    pub(crate) fn new() -> Patient {
        let mut cubic = CubicConfig::default();
        cubic.initial_window(INITIAL_WINDOW_BYTES);
        Patient(Arc::new(cubic))
    }
}

impl ControllerFactory for Patient {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let cubic = Cubic::new(Arc::clone(&self.0), now, current_mtu);
        let datagram_bytes = u64::from(current_mtu);
        Box::new(PatientCubic { cubic, datagram_bytes, least: Least::new(now), waited: 0 })
    }
}

/// The controller of one path.
#[derive(Clone, Debug)]
struct PatientCubic {
    cubic: Cubic,
    datagram_bytes: u64,
    least: Least,
    /// Packets that waited long.
    waited: u32,
}

impl PatientCubic {
    fn in_slow_start(&self) -> bool {
        self.cubic.metrics().ssthresh.is_none_or(|threshold| self.cubic.window() < threshold)
    }

    /// Whether a packet acknowledged after `took` waited long and is not to count.
    fn is_to_wait(&mut self, now: Instant, took: Duration) -> bool {
        let least = self.least.with(now, took);
        if took <= least + (least / 2).max(NOT_LONG) {
            return false;
        }
        self.waited = self.waited.wrapping_add(1);
        !self.waited.is_multiple_of(PATIENT_SHARE)
    }
}

/// The least time lately from a packet to its acknowledgement.
#[derive(Clone, Copy, Debug)]
struct Least {
    before: Duration,
    since: Instant,
    current: Duration,
}

impl Least {
    fn new(now: Instant) -> Least {
        Least { before: Duration::MAX, since: now, current: Duration::MAX }
    }

    fn with(&mut self, now: Instant, took: Duration) -> Duration {
        if now.saturating_duration_since(self.since) > BELIEVED {
            *self = Least { before: self.current, since: now, current: Duration::MAX };
        }
        self.current = self.current.min(took);
        self.before.min(self.current)
    }
}

impl Controller for PatientCubic {
    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        if self.is_to_wait(now, now.saturating_duration_since(sent)) {
            return;
        }
        // Packets of the handshake and of the first small answers count as well, whole, as they do in Linux' TCP:
        // an answer on a connection that was used before need not begin with less than over TCP.
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

    fn control(now: Instant) -> PatientCubic {
        let cubic = Cubic::new(Arc::new(CubicConfig::default()), now, 1200);
        PatientCubic { cubic, datagram_bytes: 1200, least: Least::new(now), waited: 0 }
    }

    #[test]
    fn one_in_many_that_waited_counts() {
        let now = Instant::now();
        let mut control = control(now);
        let quick = Duration::from_millis(600);
        assert!(!control.is_to_wait(now, quick));
        assert!(!control.is_to_wait(now, quick + quick / 2));
        let long = 2 * quick;
        let counted = (0..PATIENT_SHARE).filter(|_| !control.is_to_wait(now, long)).count();
        assert_eq!(counted, 1);
    }

    #[test]
    fn a_short_wait_in_a_shallow_queue_is_not_long() {
        let now = Instant::now();
        let mut control = control(now);
        let path = Duration::from_millis(4);
        assert!(!control.is_to_wait(now, path));
        assert!(!control.is_to_wait(now, path + NOT_LONG));
        assert!(control.is_to_wait(now, path + NOT_LONG + path));
    }

    #[test]
    fn a_path_that_became_longer_is_believed_after_a_while() {
        let begun = Instant::now();
        let mut control = control(begun);
        assert!(!control.is_to_wait(begun, Duration::from_millis(20)));
        let longer = Duration::from_millis(400);
        assert!(control.is_to_wait(begun + BELIEVED / 2, longer));
        let second = Duration::from_secs(1);
        assert!(control.is_to_wait(begun + BELIEVED + second, longer));
        assert!(!control.is_to_wait(begun + 2 * BELIEVED + 2 * second, longer));
    }
}
