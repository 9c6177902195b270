//! How much of what a sender sends gets here: by its sequence numbers, a window after the other.

use std::time::Duration;

/// A window ends after so many messages, or when it is this old with at least the fewer.
const MESSAGES: u32 = 256;
const FEW: u32 = 24;
const AGE: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub(crate) struct Meter {
    highest: Option<u16>,
    since: Duration,
    expected: u32,
    arrived: u32,
    bytes: u64,
    loss: Option<f64>,
    rate: f64,
}

impl Meter {
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
        if self.expected >= MESSAGES || age >= AGE && self.expected >= FEW {
            self.close(now, age);
        }
    }

    fn close(&mut self, now: Duration, age: Duration) {
        // Doubled messages may make up for lost ones; that cannot be told apart here.
        let share = 1.0 - f64::from(self.arrived.min(self.expected)) / f64::from(self.expected);
        self.loss = Some(self.loss.map_or(share, |loss| 0.75 * loss + 0.25 * share));
        if !age.is_zero() {
            self.rate = self.bytes as f64 / age.as_secs_f64();
        }
        (self.since, self.expected, self.arrived, self.bytes) = (now, 0, 0, 0);
    }

    /// The share that is missing, 0 to 1.
    pub(crate) fn loss(&self) -> f64 {
        self.loss.unwrap_or_else(|| {
            let expected = f64::from(self.expected.max(1));
            1.0 - f64::from(self.arrived).min(expected) / expected
        })
    }

    /// Bytes a second in the last window.
    pub(crate) fn rate(&self) -> f64 {
        self.rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_what_is_missing_whatever_the_order() {
        let mut meter = Meter::default();
        let at = |number: u64| Duration::from_millis(number);
        for number in 0..5000u64 {
            // Every fourth is lost; pairs come in the wrong order; numbers wrap.
            if number % 4 != 0 {
                meter.arrived(at(number), (65_000 + (number ^ 1)) as u16, 1000);
            }
        }
        assert!((meter.loss() - 0.25).abs() < 0.02, "{}", meter.loss());
        assert!((meter.rate() / 750_000.0 - 1.0).abs() < 0.05, "{}", meter.rate());
    }
}
