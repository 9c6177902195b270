//! CUBIC's rate (RFC 9438) for sharing a full queue with TCP.

use std::time::Duration;

/// A packet with its headers.
const PACKET_BYTES: f64 = 1500.0;
/// RFC 9438: C scales the growth of the window, BETA is its factor after a loss.
const C: f64 = 0.4;
pub(super) const BETA: f64 = 0.7;
/// Growth per round trip of a latecomer.
const LATE: f64 = 1.25;
/// The least growth of the window, in packets per round trip.
const GROWTH: f64 = 1.25;
/// The smallest window.
const LEAST: f64 = 4.0;

/// A window that grows by CUBIC's curve.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cubic {
    /// The window at the last loss, and after it.
    most: f64,
    begun: f64,
    since: Duration,
    /// Nothing was lost yet, so the rate may be far below that of other flows.
    late: bool,
}

impl Cubic {
    /// Starts at a rate in bytes per second; a latecomer grows fast until a packet is lost.
    pub(super) fn new(now: Duration, rate: f64, rtt: Duration, late: bool) -> Cubic {
        let window = (rate * rtt.as_secs_f64() / PACKET_BYTES).max(LEAST);
        Cubic { most: window, begun: window, since: now, late }
    }

    /// A packet was lost at this rate.
    pub(super) fn lost(&mut self, now: Duration, rate: f64, rtt: Duration) {
        let window = (rate * rtt.as_secs_f64() / PACKET_BYTES).max(LEAST);
        // Fast convergence: a window below the last one leaves room for other flows.
        self.most = if window < self.most { window * (1.0 + BETA) / 2.0 } else { window };
        self.late = false;
        (self.begun, self.since) = ((window * BETA).max(LEAST), now);
    }

    /// The rate in bytes per second.
    pub(super) fn rate(&self, now: Duration, rtt: Duration) -> f64 {
        let (time, rtt) =
            (now.saturating_sub(self.since).as_secs_f64(), rtt.as_secs_f64().max(1e-3));
        if self.late {
            return self.begun * LATE.powf(time / rtt) * PACKET_BYTES / rtt;
        }
        let turn = ((self.most - self.begun).max(0.0) / C).cbrt();
        let curve = self.most.max(self.begun) + C * (time - turn).powi(3);
        // While the curve is flat, the window grows as Reno's would. TCP's losses come in bursts and count once; an
        // even rate spreads losses, and so has more of them than TCP. Therefore the growth is more than the half
        // packet of RFC 9438.
        let line = self.begun + GROWTH * time / rtt;
        curve.max(line) * PACKET_BYTES / rtt
    }
}
