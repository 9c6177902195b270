//! Deadlines of a worker's connections: a heap with, as a rule, one entry per connection.
//!
//! A keep alive moves its deadline with every packet. Moving a heap entry each time would cost more
//! than the packet, so an entry stays where it is: when it comes up, its owner says whether the
//! deadline is really due and is entered again if not. Only a deadline *earlier* than the entry
//! makes a second one; the first is then recognised as superseded because its time is no longer
//! the one its owner remembers ([`Armed`]).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fulmar_broker::Timestamp;

/// When the entry of a connection comes up; kept in the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Armed(Timestamp);

impl Default for Armed {
    fn default() -> Self {
        Armed(Timestamp::NEVER)
    }
}

/// Deadlines, each with the token of its owner.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Timestamp, u64)>>,
}

impl Timers {
    /// Makes sure that `token` comes up by `deadline`.
    #[inline]
    pub(crate) fn arm(&mut self, armed: &mut Armed, deadline: Timestamp, token: u64) {
        if deadline < armed.0 {
            armed.0 = deadline;
            self.heap.push(Reverse((deadline, token)));
        }
    }

    /// When the next entry comes up.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        self.heap.peek().map(|Reverse((deadline, _))| *deadline)
    }

    /// Takes an entry that has come up: its time and its owner.
    pub(crate) fn pop(&mut self, now: Timestamp) -> Option<(Timestamp, u64)> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }

    /// Whether the entry taken for `at` is its owner's current one; it is then no longer armed.
    pub(crate) fn disarm_if(armed: &mut Armed, at: Timestamp) -> bool {
        let current = armed.0 == at;
        if current {
            armed.0 = Timestamp::NEVER;
        }
        current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_deadline_adds_no_entry() {
        let mut timers = Timers::default();
        let mut armed = Armed::default();
        timers.arm(&mut armed, Timestamp(10), 7);
        for later in 11..1000 {
            timers.arm(&mut armed, Timestamp(later), 7);
        }
        assert_eq!(timers.heap.len(), 1);
        assert_eq!(timers.pop(Timestamp(9)), None);
        assert_eq!(timers.pop(Timestamp(10)), Some((Timestamp(10), 7)));
        assert!(Timers::disarm_if(&mut armed, Timestamp(10)));
        timers.arm(&mut armed, Timestamp(999), 7);
        assert_eq!(timers.next(), Some(Timestamp(999)));
    }

    #[test]
    fn an_earlier_deadline_supersedes_the_entry() {
        let mut timers = Timers::default();
        let mut armed = Armed::default();
        timers.arm(&mut armed, Timestamp(100), 7);
        timers.arm(&mut armed, Timestamp(50), 7);
        assert_eq!(timers.pop(Timestamp(200)), Some((Timestamp(50), 7)));
        assert!(Timers::disarm_if(&mut armed, Timestamp(50)));
        assert_eq!(timers.pop(Timestamp(200)), Some((Timestamp(100), 7)));
        assert!(!Timers::disarm_if(&mut armed, Timestamp(100)));
    }

    #[test]
    fn never_is_not_entered() {
        let mut timers = Timers::default();
        timers.arm(&mut Armed::default(), Timestamp::NEVER, 1);
        assert_eq!(timers.next(), None);
    }
}
