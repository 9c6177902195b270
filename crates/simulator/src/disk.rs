//! Storage whose commits are steps of the schedule: a crash loses uncommitted batches.

use std::collections::VecDeque;
use std::sync::Arc;

use fulmar_broker::storage::{Op, Restored, Seq, Storage};
use fulmar_mirror::Reading;
use parking_lot::Mutex;

use crate::clock::{BEGIN, Moved};
use crate::tables::Tables;

/// Storage of a simulated world. It does nothing by itself: the schedule decides when it commits, fails and crashes.
pub trait Volume: Storage {
    /// Commits up to `most` batches; returns how many. None while the disk fails.
    fn commit(&self, most: usize) -> usize;

    /// Makes every write fail from now on, or lets them succeed again.
    fn set_failing(&self, failing: bool);

    /// Batches that were handed over and are not committed.
    fn waiting(&self) -> usize;

    /// The durable state.
    fn durable(&self) -> Tables;

    /// The storage after a crash now, and the state that the next process reads from it.
    fn crash(&self) -> (Arc<dyn Volume>, Restored);

    /// The same; the next process starts when clocks show this, and stored moments are moved.
    fn crash_at(&self, _clocks: Reading, _moved: Moved) -> (Arc<dyn Volume>, Restored) {
        self.crash()
    }

    /// Clocks show this from now on.
    fn set_clocks(&self, _clocks: Reading) {}
}

/// Batches that were handed over; a prefix of them is committed.
#[derive(Debug, Default)]
pub struct Disk {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    durable: Tables,
    committed: u64,
    waiting: VecDeque<Vec<Op>>,
    failure: Option<String>,
}

impl Disk {
    /// A disk that holds what an earlier one has committed.
    pub fn new(durable: Tables) -> Disk {
        Disk { state: Mutex::new(State { durable, ..State::default() }) }
    }
}

impl Volume for Disk {
    fn commit(&self, most: usize) -> usize {
        let mut state = self.state.lock();
        if state.failure.is_some() {
            return 0;
        }
        let batches = most.min(state.waiting.len());
        for _ in 0..batches {
            let Some(batch) = state.waiting.pop_front() else { break };
            batch.iter().for_each(|op| state.durable.apply(op));
            state.committed += 1;
        }
        batches
    }

    fn set_failing(&self, failing: bool) {
        self.state.lock().failure = failing.then(|| "no space left on device".to_owned());
    }

    fn waiting(&self) -> usize {
        self.state.lock().waiting.len()
    }

    fn durable(&self) -> Tables {
        self.state.lock().durable.clone()
    }

    fn crash(&self) -> (Arc<dyn Volume>, Restored) {
        self.crash_at(BEGIN, (0, 0, 0))
    }

    fn crash_at(&self, _clocks: Reading, (by, ..): Moved) -> (Arc<dyn Volume>, Restored) {
        let durable = self.durable().moved(by);
        let restored = durable.restored();
        (Arc::new(Disk::new(durable)), restored)
    }
}

impl Storage for Disk {
    fn submit(&self, batch: &mut Vec<Op>) -> Seq {
        let mut state = self.state.lock();
        if !batch.is_empty() {
            state.waiting.push_back(std::mem::take(batch));
        }
        Seq(state.committed + state.waiting.len() as u64)
    }

    fn committed(&self) -> Seq {
        Seq(self.state.lock().committed)
    }

    fn backlog(&self) -> usize {
        self.state.lock().waiting.iter().map(Vec::len).sum()
    }

    fn failure(&self) -> Option<String> {
        self.state.lock().failure.clone()
    }
}
