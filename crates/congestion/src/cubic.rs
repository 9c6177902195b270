//! CUBIC's window (RFC 9438) in packets, for sharing a full queue with TCP.

use std::time::{Duration, Instant};

/// RFC 9438: C scales the growth of the window, BETA is its factor after a loss.
const C: f64 = 0.4;
pub(crate) const BETA: f64 = 0.7;
/// The smallest window.
const MIN_WINDOW: f64 = 4.0;

/// A window that grows by CUBIC's curve.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cubic {
    /// The window at the last loss, and after it.
    most: f64,
    begun: f64,
    since: Instant,
}

impl Cubic {
    /// Starts with a window in packets.
    pub(crate) fn new(now: Instant, window: f64) -> Cubic {
        let window = window.max(MIN_WINDOW);
        Cubic { most: window, begun: window, since: now }
    }

    /// A packet was lost with this window.
    pub(crate) fn lost(&mut self, now: Instant, window: f64) {
        let window = window.max(MIN_WINDOW);
        // Fast convergence: a window below the last one leaves room for other flows.
        self.most = if window < self.most { window * (1.0 + BETA) / 2.0 } else { window };
        (self.begun, self.since) = ((window * BETA).max(MIN_WINDOW), now);
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
