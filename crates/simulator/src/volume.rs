//! Storage whose commits are steps of the schedule: a crash loses uncommitted batches.

use std::collections::VecDeque;
use std::sync::Arc;

use fulmar_broker::storage::{Op, Restored, Seq, Storage};
use fulmar_mirror::Reading;
use parking_lot::Mutex;

use crate::clock::Moved;
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

    /// The storage after a crash now, and the state that the next process reads from it. That process starts when clocks
    /// show this, and stored moments are moved.
    fn crash(&self, clocks: Reading, moved: Moved) -> (Arc<dyn Volume>, Restored);

    /// Clocks show this from now on.
    fn set_clocks(&self, _clocks: Reading) {}
}

/// Batches that were handed over; a prefix of them is committed.
#[derive(Default)]
pub(crate) struct TableVolume {
    state: Mutex<State>,
    /// Decides if the broker may acknowledge now; it always may if there is nothing here.
    may_acknowledge: Option<Box<dyn Fn() -> bool + Send + Sync>>,
}

#[derive(Default)]
struct State {
    durable: Tables,
    submitted: u64,
    /// The last batch that somebody may wait for.
    awaited: u64,
    committed: u64,
    waiting: VecDeque<Vec<Op>>,
    failure: Option<String>,
}

impl TableVolume {
    /// Storage behind a log: batches are durable when [`TableVolume::logged`] says so. The broker may acknowledge while
    /// `may_acknowledge` returns true.
    #[cfg(feature = "worlds")]
    pub(crate) fn behind_log(
        may_acknowledge: impl Fn() -> bool + Send + Sync + 'static,
    ) -> TableVolume {
        TableVolume { may_acknowledge: Some(Box::new(may_acknowledge)), ..TableVolume::default() }
    }

    /// All batches that wait, for the log, and the number of the last.
    #[cfg(feature = "worlds")]
    pub(crate) fn take_waiting(&self) -> (u64, Vec<Op>) {
        let mut state = self.state.lock();
        let ops = state.waiting.drain(..).flatten().collect();
        (state.submitted, ops)
    }

    /// The log has the batches up to this one.
    #[cfg(feature = "worlds")]
    pub(crate) fn logged(&self, batch: u64) {
        let mut state = self.state.lock();
        state.committed = state.committed.max(batch);
    }
}

impl Volume for TableVolume {
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

    fn crash(&self, _clocks: Reading, (by, ..): Moved) -> (Arc<dyn Volume>, Restored) {
        let durable = self.durable().moved(by);
        let restored = durable.restored();
        let state = Mutex::new(State { durable, ..State::default() });
        (Arc::new(TableVolume { state, may_acknowledge: None }), restored)
    }
}

impl Storage for TableVolume {
    fn submit(&self, batch: &mut Vec<Op>) -> Seq {
        let mut state = self.state.lock();
        if !batch.is_empty() {
            state.waiting.push_back(std::mem::take(batch));
            state.submitted += 1;
            state.awaited = state.submitted;
        }
        Seq(state.awaited)
    }

    fn submit_removals(&self, batch: &mut Vec<Op>) {
        let mut state = self.state.lock();
        state.waiting.push_back(std::mem::take(batch));
        state.submitted += 1;
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

    fn may_acknowledge(&self) -> bool {
        self.may_acknowledge.as_ref().is_none_or(|may| may())
    }
}
