//! CUBIC's window (RFC 9438) in packets, for sharing a full queue with TCP.

use std::time::{Duration, Instant};

/// RFC 9438: C scales the growth of the window, BETA is its factor after a loss.
const C: f64 = 0.4;
pub(crate) const BETA: f64 = 0.7;
/// The smallest window.
const MIN_WINDOW: f64 = 4.0;

/// A window that grows by CUBIC's function. Fields and variables have RFC 9438's names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cubic {
    /// W_max: the window before the last reduction.
    w_max: f64,
    /// cwnd_epoch: the window after it.
    cwnd_epoch: f64,
    /// t_epoch: when it was.
    epoch_start: Instant,
}

impl Cubic {
    /// Starts with a window in packets.
    pub(crate) fn new(now: Instant, window: f64) -> Cubic {
        let window = window.max(MIN_WINDOW);
        Cubic { w_max: window, cwnd_epoch: window, epoch_start: now }
    }

    /// A packet was lost with this window.
    pub(crate) fn lost(&mut self, now: Instant, window: f64) {
        let window = window.max(MIN_WINDOW);
        // Fast convergence: a window below the last one leaves room for other flows.
        self.w_max = if window < self.w_max { window * (1.0 + BETA) / 2.0 } else { window };
        (self.cwnd_epoch, self.epoch_start) = ((window * BETA).max(MIN_WINDOW), now);
    }

    /// The window now, in packets.
    pub(crate) fn window(&self, now: Instant, rtt: Duration) -> f64 {
        let time = now.saturating_duration_since(self.epoch_start).as_secs_f64();
        let rtt = rtt.as_secs_f64().max(1e-3);
        let k = ((self.w_max - self.cwnd_epoch).max(0.0) / C).cbrt();
        let w_cubic = self.w_max.max(self.cwnd_epoch) + C * (time + rtt - k).powi(3);
        let w_est = self.cwnd_epoch + 3.0 * (1.0 - BETA) / (1.0 + BETA) * time / rtt;
        w_cubic.max(w_est)
    }
}
