//! Storage of a node that serves: batches that its writer takes, and a lease.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use fulmar_broker::storage::{Op, Restored, Seq, Storage};
use fulmar_simulator::{Disk, Tables, Volume};
use parking_lot::Mutex;

/// A node's own clock.
pub(crate) type Clock = Arc<Mutex<Instant>>;

pub(crate) struct NodeStorage {
    clock: Clock,
    state: Mutex<State>,
}

struct State {
    waiting: VecDeque<Vec<Op>>,
    submitted: u64,
    committed: u64,
    until: Instant,
    /// Whether the lease counts.
    leased: bool,
    /// Whether the broker is to be woken.
    news: bool,
}

impl NodeStorage {
    pub(crate) fn new(clock: Clock, until: Instant, leased: bool) -> NodeStorage {
        let (waiting, submitted, committed, news) = (VecDeque::new(), 0, 0, false);
        let state = State { waiting, submitted, committed, until, leased, news };
        NodeStorage { clock, state: Mutex::new(state) }
    }

    /// All batches that wait, and the number of the last.
    pub(crate) fn take(&self) -> (u64, Vec<Op>) {
        let mut state = self.state.lock();
        let ops = state.waiting.drain(..).flatten().collect();
        (state.submitted, ops)
    }

    pub(crate) fn committed(&self, seq: u64) {
        let mut state = self.state.lock();
        state.committed = state.committed.max(seq);
        state.news = true;
    }

    /// The lease ends at `until`.
    pub(crate) fn set_lease(&self, until: Instant) {
        let mut state = self.state.lock();
        state.until = until;
        state.news = true;
    }
}

impl Storage for NodeStorage {
    fn submit(&self, batch: &mut Vec<Op>) -> Seq {
        let mut state = self.state.lock();
        if !batch.is_empty() {
            state.waiting.push_back(std::mem::take(batch));
            state.submitted += 1;
        }
        Seq(state.submitted)
    }

    fn committed(&self) -> Seq {
        Seq(self.state.lock().committed)
    }

    fn backlog(&self) -> usize {
        self.state.lock().waiting.iter().map(Vec::len).sum()
    }

    fn failure(&self) -> Option<String> {
        None
    }

    fn may_acknowledge(&self) -> bool {
        let state = self.state.lock();
        !state.leased || *self.clock.lock() < state.until
    }
}

/// Only [`Volume::commit`] is used: it tells the world whether the broker is to be woken.
impl Volume for NodeStorage {
    fn commit(&self, _most: usize) -> usize {
        usize::from(std::mem::take(&mut self.state.lock().news))
    }

    fn set_failing(&self, _failing: bool) {}

    fn waiting(&self) -> usize {
        self.state.lock().waiting.len()
    }

    fn durable(&self) -> Tables {
        Tables::default()
    }

    fn crash(&self) -> (Arc<dyn Volume>, Restored) {
        (Arc::new(Disk::default()), Restored::default())
    }
}
