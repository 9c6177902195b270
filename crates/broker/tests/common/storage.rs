//! Storage whose commits the test decides on: what is not committed is lost in a crash.

use std::sync::Arc;

use fulmar_broker::storage::{Op, Restored, Seq, Storage};
use fulmar_simulator::Tables;
use parking_lot::Mutex;

/// Batches handed over, of which a prefix is committed.
#[derive(Debug, Default)]
pub struct SimStorage {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    batches: Vec<Vec<Op>>,
    committed: usize,
    backlog: usize,
    /// Whether nothing may be acknowledged.
    silent: bool,
}

impl SimStorage {
    /// Sets whether [`Storage::may_acknowledge`] is false.
    pub fn set_silent(&self, silent: bool) {
        self.state.lock().silent = silent;
    }

    /// Sets what [`Storage::backlog`] returns.
    pub fn set_backlog(&self, backlog: usize) {
        self.state.lock().backlog = backlog;
    }

    /// Batches handed over so far.
    pub fn batches(&self) -> usize {
        self.state.lock().batches.len()
    }

    /// Operations of the largest batch handed over so far.
    pub fn largest_batch(&self) -> usize {
        self.state.lock().batches.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Makes everything handed over so far durable.
    pub fn commit(&self) {
        let mut state = self.state.lock();
        state.committed = state.batches.len();
    }

    /// What a broker finds that starts after a crash now.
    pub fn crash(&self) -> (Arc<SimStorage>, Restored) {
        let state = self.state.lock();
        let survived = state.batches[..state.committed].to_vec();
        let mut tables = Tables::default();
        survived.iter().flatten().for_each(|op| tables.apply(op));
        let restored = tables.restored();
        let committed = survived.len();
        let state = Mutex::new(State { batches: survived, committed, ..State::default() });
        (Arc::new(SimStorage { state }), restored)
    }
}

impl Storage for SimStorage {
    fn submit(&self, batch: &mut Vec<Op>) -> Seq {
        let mut state = self.state.lock();
        if !batch.is_empty() {
            state.batches.push(std::mem::take(batch));
        }
        Seq(state.batches.len() as u64)
    }

    fn committed(&self) -> Seq {
        Seq(self.state.lock().committed as u64)
    }

    fn backlog(&self) -> usize {
        self.state.lock().backlog
    }

    fn failure(&self) -> Option<String> {
        None
    }

    fn may_acknowledge(&self) -> bool {
        !self.state.lock().silent
    }
}
