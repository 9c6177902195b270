//! When the broker may refuse: derived from what storage was given and when, without the broker's own view of it.

use std::collections::VecDeque;
use std::time::Duration;

use fulmar_broker::Timestamp;
use fulmar_broker::storage::Seq;

use crate::volume::Volume;

/// Counts the calls of the core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tick(pub(crate) u64);

/// Batches that storage was given and has not committed, and when.
#[derive(Debug)]
pub(crate) struct Overdue {
    /// After which a batch is overdue; `Duration::MAX` for never.
    timeout: Duration,
    given: VecDeque<(Timestamp, Seq)>,
}

impl Overdue {
    pub(crate) fn new(timeout: Duration) -> Overdue {
        Overdue { timeout, given: VecDeque::new() }
    }

    /// Whether a batch can be overdue at all.
    pub(crate) fn is_possible(&self) -> bool {
        self.timeout != Duration::MAX
    }

    pub(crate) fn turn_ended(&mut self, disk: &dyn Volume, now: Timestamp) {
        if self.is_possible() {
            let last = disk.submit(&mut Vec::new());
            if self.given.back().is_none_or(|(_, seq)| *seq < last) {
                self.given.push_back((now, last));
            }
        }
    }

    /// Whether a batch is overdue.
    pub(crate) fn lasts(&mut self, disk: &dyn Volume, now: Timestamp) -> bool {
        if self.given.is_empty() {
            return false;
        }
        let committed = disk.committed();
        while self.given.pop_front_if(|(_, seq)| *seq <= committed).is_some() {}
        self.given.front().is_some_and(|(at, _)| *at + self.timeout <= now)
    }
}
