//! The rate of somebody who shares a full queue with TCP: what CUBIC (RFC 9438) would have, in packets a round trip.

use std::time::Duration;

/// A packet with its headers.
const PACKET_BYTES: f64 = 1500.0;
/// RFC 9438: how fast the window grows, and what of it stays after a loss.
const C: f64 = 0.4;
pub(super) const BETA: f64 = 0.7;
/// The growth of a latecomer's each round trip.
const LATE: f64 = 1.25;
/// Packets that the window grows by in a round trip at least.
const GROWTH: f64 = 1.25;
/// Windows are no smaller.
const LEAST: f64 = 4.0;

/// A window that grows by CUBIC's curve.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cubic {
    /// The window at the last loss, and after it.
    most: f64,
    begun: f64,
    since: Duration,
    /// Nothing was lost yet, so it may have much less than the others.
    late: bool,
}

impl Cubic {
    /// Begins at a rate in bytes a second; a latecomer goes fast until something is lost.
    pub(super) fn new(now: Duration, rate: f64, rtt: Duration, late: bool) -> Cubic {
        let window = (rate * rtt.as_secs_f64() / PACKET_BYTES).max(LEAST);
        Cubic { most: window, begun: window, since: now, late }
    }

    /// Something was lost at this rate.
    pub(super) fn lost(&mut self, now: Duration, rate: f64, rtt: Duration) {
        let window = (rate * rtt.as_secs_f64() / PACKET_BYTES).max(LEAST);
        // Who has less than the last time leaves room for others.
        self.most = if window < self.most { window * (1.0 + BETA) / 2.0 } else { window };
        self.late = false;
        (self.begun, self.since) = ((window * BETA).max(LEAST), now);
    }

    /// Bytes a second.
    pub(super) fn rate(&self, now: Duration, rtt: Duration) -> f64 {
        let (time, rtt) =
            (now.saturating_sub(self.since).as_secs_f64(), rtt.as_secs_f64().max(1e-3));
        if self.late {
            return self.begun * LATE.powf(time / rtt) * PACKET_BYTES / rtt;
        }
        let turn = ((self.most - self.begun).max(0.0) / C).cbrt();
        let curve = self.most.max(self.begun) + C * (time - turn).powi(3);
        // Where the curve is flat for long it grows as Reno's would. TCP's losses come in bursts and count once; ours are
        // spread by our even rate, and so rather meet us than TCP: therefore it grows by more than the
        // half a packet of RFC 9438.
        let line = self.begun + GROWTH * time / rtt;
        curve.max(line) * PACKET_BYTES / rtt
    }
}
