//! [`ReceptionStats`] measures the share of a sender's messages that is lost, by their sequence numbers, and the rate at
//! which they arrive. It measures in windows, one after another.

use std::time::Duration;

/// A window ends after this many messages.
const WINDOW_MESSAGES: u32 = 256;
/// It also ends at this age, if it has this many messages.
const WINDOW_AGE: Duration = Duration::from_millis(500);
const MIN_MESSAGES: u32 = 24;

#[derive(Debug, Default)]
pub(crate) struct ReceptionStats {
    highest: Option<u16>,
    since: Duration,
    expected: u32,
    arrived: u32,
    bytes: u64,
    loss: Option<f64>,
    rate: f64,
}

impl ReceptionStats {
    pub(crate) fn arrived(&mut self, now: Duration, sequence: u16, bytes: usize) {
        let ahead = match self.highest {
            None => {
                self.since = now;
                1
            }
            Some(highest) => sequence.wrapping_sub(highest),
        };
        self.arrived += 1;
        self.bytes += bytes as u64;
        if (1..0x8000).contains(&ahead) {
            self.highest = Some(sequence);
            self.expected += u32::from(ahead);
        }
        let age = now.saturating_sub(self.since);
        if self.expected >= WINDOW_MESSAGES || age >= WINDOW_AGE && self.expected >= MIN_MESSAGES {
            self.end_window(now, age);
        }
    }

    fn end_window(&mut self, now: Duration, age: Duration) {
        // Duplicates may hide losses: the two cannot be distinguished here.
        let share = 1.0 - f64::from(self.arrived.min(self.expected)) / f64::from(self.expected);
        self.loss = Some(self.loss.map_or(share, |loss| 0.75 * loss + 0.25 * share));
        if !age.is_zero() {
            self.rate = self.bytes as f64 / age.as_secs_f64();
        }
        (self.since, self.expected, self.arrived, self.bytes) = (now, 0, 0, 0);
    }

    /// The share of messages that is lost, 0 to 1.
    pub(crate) fn loss(&self) -> f64 {
        self.loss.unwrap_or_else(|| {
            let expected = f64::from(self.expected.max(1));
            1.0 - f64::from(self.arrived).min(expected) / expected
        })
    }

    /// Bytes per second in the last window.
    pub(crate) fn rate(&self) -> f64 {
        self.rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_counted_in_any_order() {
        let mut reception = ReceptionStats::default();
        let at = |number: u64| Duration::from_millis(number);
        for number in 0..5000u64 {
            // Every fourth is lost; pairs come in the wrong order; numbers wrap.
            if number % 4 != 0 {
                reception.arrived(at(number), (65_000 + (number ^ 1)) as u16, 1000);
            }
        }
        assert!((reception.loss() - 0.25).abs() < 0.02, "{}", reception.loss());
        assert!((reception.rate() / 750_000.0 - 1.0).abs() < 0.05, "{}", reception.rate());
    }
}
