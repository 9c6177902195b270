//! A TCP flow with CUBIC (RFC 9438) and HyStart's delay rule (RFC 9406), modelled as far as its share of a bottleneck
//! requires: whole packets, one acknowledgement each, no timeouts. It always has data to send.

use std::time::Duration;

/// A packet with its headers.
pub const PACKET_BYTES: usize = 1500;
/// RFC 9438: C scales the growth of the window, BETA is its factor after a loss.
const C: f64 = 0.4;
const BETA: f64 = 0.7;

#[derive(Debug)]
pub struct Cubic {
    window: f64,
    threshold: f64,
    in_flight: f64,
    /// The window at the last loss, and when it began to grow again.
    w_max: f64,
    epoch: Option<Duration>,
    /// Losses until then belong to the same congestion event.
    recovery_end: Duration,
    min_rtt: Duration,
    pub delivered_bytes: u64,
}

impl Default for Cubic {
    fn default() -> Cubic {
        Cubic {
            window: 10.0,
            threshold: f64::INFINITY,
            in_flight: 0.0,
            w_max: 0.0,
            epoch: None,
            recovery_end: Duration::ZERO,
            min_rtt: Duration::MAX,
            delivered_bytes: 0,
        }
    }
}

impl Cubic {
    /// Whether a packet may be sent.
    pub fn may_send(&self) -> bool {
        self.in_flight < self.window
    }

    pub fn sent(&mut self) {
        self.in_flight += 1.0;
    }

    pub fn acknowledged(&mut self, now: Duration, rtt: Duration) {
        self.in_flight -= 1.0;
        self.delivered_bytes += PACKET_BYTES as u64;
        self.min_rtt = self.min_rtt.min(rtt);
        if self.window < self.threshold {
            self.window += 1.0;
            let late =
                (self.min_rtt / 8).clamp(Duration::from_millis(4), Duration::from_millis(16));
            if self.window > 16.0 && rtt > self.min_rtt + late {
                self.threshold = self.window;
            }
            return;
        }
        let epoch = *self.epoch.get_or_insert(now);
        let elapsed = now.saturating_sub(epoch).as_secs_f64();
        let cwnd_epoch = if self.w_max > 0.0 { BETA * self.w_max } else { self.window };
        let k = ((self.w_max.max(cwnd_epoch) - cwnd_epoch) / C).cbrt();
        let target = C * (elapsed + rtt.as_secs_f64() - k).powi(3) + self.w_max.max(cwnd_epoch);
        let friendly = cwnd_epoch + 3.0 * (1.0 - BETA) / (1.0 + BETA) * elapsed / rtt.as_secs_f64();
        let target = target.max(friendly).min(1.5 * self.window);
        self.window += ((target - self.window) / self.window).max(0.01 / self.window);
    }

    pub fn lost(&mut self, now: Duration, rtt: Duration) {
        self.in_flight -= 1.0;
        if now < self.recovery_end {
            return;
        }
        self.recovery_end = now + rtt;
        // Fast convergence: a window below the last one leaves room for other flows.
        let fast = self.window < self.w_max;
        self.w_max = if fast { self.window * (1.0 + BETA) / 2.0 } else { self.window };
        self.window = (self.window * BETA).max(2.0);
        self.threshold = self.window;
        self.epoch = None;
    }
}
