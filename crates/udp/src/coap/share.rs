//! Bounds one kind of work to a share of the listener's only thread, so that there is time for the rest. It has no
//! clock.

use std::time::{Duration, Instant};

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Share {
    /// The divisor of the share.
    part: u32,
    /// The most time that accumulates without such work.
    most: Duration,
    saved: Duration,
    owed: Duration,
    reckoned: Instant,
}

impl Share {
    /// A share of one `part`th, with `most` accumulated.
    pub(super) fn new(part: u32, most: Duration, now: Instant) -> Share {
        Share { part, most, saved: most, owed: Duration::ZERO, reckoned: now }
    }

    /// Whether time is left for more of the work.
    pub(super) fn has_time(&mut self, now: Instant) -> bool {
        let more = now.saturating_duration_since(self.reckoned) / self.part;
        let left = more.saturating_sub(self.owed);
        self.owed = self.owed.saturating_sub(more);
        (self.saved, self.reckoned) = ((self.saved + left).min(self.most), now);
        !self.saved.is_zero()
    }

    /// Records the duration of a piece of work. Time beyond the accumulated share is a debt.
    pub(super) fn spend(&mut self, time: Duration) {
        self.owed = (self.owed + time.saturating_sub(self.saved)).min(self.most);
        self.saved = self.saved.saturating_sub(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn work_that_never_ends_has_its_part_of_the_time() {
        let begin = Instant::now();
        let mut share = Share::new(2, 50 * MS, begin);
        let (mut now, mut worked) = (begin, Duration::ZERO);
        while now < begin + 2000 * MS {
            // Each piece takes longer than the accumulated time, and the next follows at once.
            let took = if share.has_time(now) { 7 * MS } else { Duration::ZERO };
            share.spend(took);
            worked += took;
            now += took.max(MS);
        }
        assert!(worked >= 1000 * MS && worked <= 1064 * MS, "{worked:?}");
        // After a pause, no more has accumulated than may.
        now += 3600 * 1000 * MS;
        assert!(share.has_time(now));
        share.spend(50 * MS);
        assert!(!share.has_time(now) && share.has_time(now + 2 * MS));
    }
}
