//! Storage that makes no progress: a full disk, I/O errors, a commit that takes very long.
//!
//! A short stall only delays acknowledgements. When a batch is not durable after
//! [`Limits::storage_stall_timeout`](crate::Limits), storage counts as stalled until that batch is. Meanwhile the broker
//! refuses what it would have to store, before it has any effect, wherever the protocol has an answer for that
//! (`connection/stall.rs`); everything else goes on. What waits for an overdue batch is refused or disconnected: it may
//! become durable later.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::storage::{Seq, Storage};

/// Whether storage is stalled; all workers share it.
#[derive(Debug, Default)]
pub(crate) struct Stall {
    /// The newest overdue batch; 0 for none.
    overdue: AtomicU64,
}

impl Stall {
    /// This batch is overdue. Returns whether storage was not stalled before.
    pub(crate) fn begin(&self, overdue: Seq) -> bool {
        self.overdue.fetch_max(overdue.0, Ordering::AcqRel) == 0
    }

    /// Whether an overdue batch is not durable.
    pub(crate) fn lasts(&self, storage: &dyn Storage) -> bool {
        let overdue = self.overdue.load(Ordering::Acquire);
        overdue > 0 && !is_over(storage, Seq(overdue))
    }

    /// Ends a stall whose batches are durable. True for the one caller that has ended it.
    pub(crate) fn end(&self, storage: &dyn Storage) -> bool {
        let overdue = self.overdue.load(Ordering::Acquire);
        let over = overdue > 0 && is_over(storage, Seq(overdue));
        let (set, relaxed) = (Ordering::AcqRel, Ordering::Relaxed);
        over && self.overdue.compare_exchange(overdue, 0, set, relaxed).is_ok()
    }
}

fn is_over(storage: &dyn Storage, overdue: Seq) -> bool {
    storage.committed() >= overdue && storage.may_acknowledge()
}
