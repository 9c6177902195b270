//! A token bucket: a rate per second, and a burst of one second's worth.
//!
//! A single withdrawal of any size may overdraw it; the next one then waits until the debt is paid. The size of a
//! withdrawal therefore needs no limit of its own, and none is too large ever to pass.

use fulmar_auth::Timestamp;

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    per_s: f64,
    level: f64,
    at: Timestamp,
}

impl Bucket {
    /// A full bucket; `None` for a rate of 0, which stands for no limit.
    pub(crate) fn new(per_s: u32, now: Timestamp) -> Option<Bucket> {
        let per_s = f64::from(per_s);
        (per_s > 0.0).then_some(Bucket { per_s, level: per_s, at: now })
    }

    /// Takes `amount`.
    pub(crate) fn take(&mut self, amount: f64, now: Timestamp) {
        self.level = self.level_at(now) - amount;
        self.at = now;
    }

    /// When the debt is paid; `None` if there is none at `now`.
    pub(crate) fn free_at(&self, now: Timestamp) -> Option<Timestamp> {
        let level = self.level_at(now);
        // Less than a unit below zero is no debt: with a limit of one per second, one passes.
        let wait_ms = (-level / self.per_s * 1000.0).ceil();
        (wait_ms > 0.0).then(|| Timestamp(now.0.saturating_add(wait_ms as u64)))
    }

    /// Whether it is full again: forgetting it changes nothing.
    pub(crate) fn is_full(&self, now: Timestamp) -> bool {
        self.level_at(now) >= self.per_s
    }

    fn level_at(&self, now: Timestamp) -> f64 {
        let passed = now.since(self.at).as_secs_f64();
        (self.level + passed * self.per_s).min(self.per_s)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_second_at_once_and_then_the_rate() {
        let now = Timestamp(5_000);
        let mut bucket = Bucket::new(10, now).unwrap();
        for _ in 0..10 {
            assert_eq!(bucket.free_at(now), None);
            bucket.take(1.0, now);
        }
        assert_eq!(bucket.free_at(now), None, "ten are allowed at once");
        bucket.take(1.0, now);
        assert_eq!(bucket.free_at(now), Some(Timestamp(5_100)));
        assert_eq!(bucket.free_at(Timestamp(5_100)), None);
        assert!(!bucket.is_full(Timestamp(5_999)) && bucket.is_full(Timestamp(6_100)));
    }

    #[test]
    fn a_large_taking_passes_and_is_paid_for() {
        let mut bucket = Bucket::new(1000, Timestamp(0)).unwrap();
        bucket.take(5000.0, Timestamp(0));
        assert_eq!(bucket.free_at(Timestamp(0)), Some(Timestamp(4_000)));
        assert!(Bucket::new(0, Timestamp(0)).is_none());
    }
}
