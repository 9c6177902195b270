//! Deadlines of QUIC connections, to the microsecond: loss detection and pacing need finer time
//! than the milliseconds of the stream connections' timers, which otherwise work the same way.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

/// Deadlines by key, as a rule at most two entries each.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, u64)>>,
}

/// The entry of the heap for one connection. A busy connection's deadline swings between
/// milliseconds (loss, pacing) and the idle timeout; without `after` every swing back would leave
/// one more entry behind for as long as that timeout.
#[derive(Debug, Default)]
pub(crate) struct Armed {
    next: Option<Instant>,
    /// The entry that `next` was put before.
    after: Option<Instant>,
}

impl Armed {
    /// Whether an entry that came up at `at` is the one waited for; it is used up then.
    pub(crate) fn disarm_if(&mut self, at: Instant) -> bool {
        let is_next = self.next == Some(at);
        if is_next {
            self.next = self.after.take();
        }
        is_next
    }
}

impl Timers {
    /// Sees to it that `key` comes up by `at`, where `armed` says when it comes up already.
    pub(crate) fn arm(&mut self, key: u64, armed: &mut Armed, at: Option<Instant>) {
        let Some(at) = at else { return };
        if armed.next.is_some_and(|set| set <= at) {
            return;
        }
        // Of two entries later than `at` the last is kept in mind: the other is gone sooner.
        armed.after = armed.after.or(armed.next);
        armed.next = Some(at);
        self.heap.push(Reverse((at, key)));
    }

    /// The next entry that is due at `now`. One that its owner does not wait for is superseded.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<(Instant, u64)> {
        let Reverse((at, _)) = self.heap.peek()?;
        if *at > now {
            return None;
        }
        self.heap.pop().map(|Reverse(due)| due)
    }

    /// When the next entry comes up.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_swinging_deadline_leaves_no_entries_behind() {
        let (mut timers, mut armed) = (Timers::default(), Armed::default());
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        for turn in 0..1000 {
            timers.arm(7, &mut armed, Some(after(turn + 30_000)));
            timers.arm(7, &mut armed, Some(after(turn)));
            let (at, key) = timers.pop_due(after(turn)).expect("the near deadline");
            assert_eq!((at, key), (after(turn), 7));
            assert!(armed.disarm_if(at));
            assert!(timers.heap.len() <= 2, "{} entries", timers.heap.len());
        }
        let (at, _) = timers.pop_due(after(60_000)).expect("the far deadline");
        assert!(armed.disarm_if(at));
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn a_deadline_that_moves_closer_is_not_missed() {
        let (mut timers, mut armed) = (Timers::default(), Armed::default());
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        for ms in [300, 200, 100] {
            timers.arm(1, &mut armed, Some(after(ms)));
        }
        let due = std::iter::from_fn(|| timers.pop_due(after(300)));
        let taken: Vec<bool> = due.map(|(at, _)| armed.disarm_if(at)).collect();
        // 200 was superseded by 100; 300 is the one kept in mind.
        assert_eq!(taken, [true, false, true]);
    }
}
