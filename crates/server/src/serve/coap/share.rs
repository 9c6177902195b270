//! A part of the listener's one thread for one kind of work, so that there is time for all else. No clock of its own.

use std::time::{Duration, Instant};

/// See the module's words.
#[derive(Debug)]
pub(super) struct Share {
    /// The divisor: one part in this many of the time.
    part: u32,
    /// What is saved up while there is no such work, at most; and what one piece of work can owe.
    most: Duration,
    saved: Duration,
    owed: Duration,
    reckoned: Instant,
}

impl Share {
    /// One part of `part`, with `most` saved up.
    pub(super) fn new(part: u32, most: Duration, now: Instant) -> Share {
        Share { part, most, saved: most, owed: Duration::ZERO, reckoned: now }
    }

    /// Whether there is time for more of it.
    pub(super) fn has_time(&mut self, now: Instant) -> bool {
        let more = now.saturating_duration_since(self.reckoned) / self.part;
        let left = more.saturating_sub(self.owed);
        self.owed = self.owed.saturating_sub(more);
        (self.saved, self.reckoned) = ((self.saved + left).min(self.most), now);
        !self.saved.is_zero()
    }

    /// It took so long. What was not saved up is owed.
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
            // Each piece takes longer than what is there, and is followed by the next at once.
            let took = if share.has_time(now) { 7 * MS } else { Duration::ZERO };
            share.spend(took);
            worked += took;
            now += took.max(MS);
        }
        assert!(worked >= 1000 * MS && worked <= 1064 * MS, "{worked:?}");
        // After a rest no more is there than may be saved.
        now += 3600 * 1000 * MS;
        assert!(share.has_time(now));
        share.spend(50 * MS);
        assert!(!share.has_time(now) && share.has_time(now + 2 * MS));
    }
}
