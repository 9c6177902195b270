//! Deadlines of QUIC connections, to the microsecond: loss detection and pacing need finer time
//! than the milliseconds of the stream connections' timers, which otherwise work the same way.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

/// Deadlines by key, as a rule one entry each.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, u64)>>,
}

impl Timers {
    /// Sees to it that `key` comes up by `at`, where `armed` is when it comes up already.
    pub(crate) fn arm(&mut self, key: u64, armed: &mut Option<Instant>, at: Option<Instant>) {
        let Some(at) = at else { return };
        if armed.is_some_and(|set| set <= at) {
            return;
        }
        *armed = Some(at);
        self.heap.push(Reverse((at, key)));
    }

    /// The next entry that is due at `now`. One whose time is not its owner's is superseded.
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
