//! The window of somebody who shares a full queue with TCP: CUBIC's (RFC 9438), in packets.

use std::time::{Duration, Instant};

/// RFC 9438: how fast the window grows, and what of it stays after a loss.
const C: f64 = 0.4;
pub(crate) const BETA: f64 = 0.7;
/// Windows are no smaller.
const LEAST: f64 = 4.0;

/// A window that grows by CUBIC's curve.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cubic {
    /// The window at the last loss, and after it.
    most: f64,
    begun: f64,
    since: Instant,
}

impl Cubic {
    /// Begins with a window in packets.
    pub(crate) fn new(now: Instant, window: f64) -> Cubic {
        let window = window.max(LEAST);
        Cubic { most: window, begun: window, since: now }
    }

    /// Something was lost with this window.
    pub(crate) fn lost(&mut self, now: Instant, window: f64) {
        let window = window.max(LEAST);
        // Who has less than the last time leaves room for others.
        self.most = if window < self.most { window * (1.0 + BETA) / 2.0 } else { window };
        (self.begun, self.since) = ((window * BETA).max(LEAST), now);
    }

    /// The window now, in packets.
    pub(crate) fn window(&self, now: Instant, rtt: Duration) -> f64 {
        let time = now.saturating_duration_since(self.since).as_secs_f64();
        let rtt = rtt.as_secs_f64().max(1e-3);
        let turn = ((self.most - self.begun).max(0.0) / C).cbrt();
        let curve = self.most.max(self.begun) + C * (time + rtt - turn).powi(3);
        let line = self.begun + 3.0 * (1.0 - BETA) / (1.0 + BETA) * time / rtt;
        curve.max(line)
    }
}
