//! The queue in which submitted batches wait for the writer, in chunks of whole batches.
//!
//! Submitting is the broker's hot path: one short lock, operations moved, and a wake-up only when
//! the writer sleeps. The writer puts one chunk into one transaction.

use std::collections::VecDeque;
use std::time::Instant;

use fulmar_broker::storage::{Op, Seq};
use parking_lot::{Condvar, Mutex};

/// Chunk buffers kept for reuse hold at most this many operations (about 1 MiB).
const SPARE_OPS: usize = 16_384;

/// Whole batches, in order, for one transaction.
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    /// Their operations.
    pub(crate) ops: Vec<Op>,
    /// Number of the last batch.
    pub(crate) last: Seq,
    /// Number of batches.
    pub(crate) batches: u64,
    /// Their share of the backlog.
    pub(crate) weight: usize,
}

/// The event for which the writer waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Asleep {
    /// It does not wait.
    #[default]
    No,
    /// The next batch wakes it.
    UntilBatch,
    /// A full chunk wakes it, before its own timeout does.
    UntilFull,
    /// Only closing wakes it, before its own timeout does.
    UntilClosing,
}

#[derive(Default)]
struct State {
    chunks: VecDeque<Chunk>,
    spare: Vec<Op>,
    submitted: Seq,
    asleep: Asleep,
    closing: bool,
    refusing: bool,
    nudged: bool,
}

/// The queue between the broker's workers and the writer.
pub(crate) struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
    chunk_ops: usize,
}

/// Why [`Inbox::wait`] returned.
pub(crate) enum InboxEvent {
    /// Batches to write.
    Chunk(Chunk),
    /// No batch arrived until the given time.
    Quiet,
    /// Somebody has called [`Inbox::nudge`].
    Nudged,
    /// Closed, and no batch is left.
    Closed,
}

impl Inbox {
    /// An empty inbox. A chunk with `chunk_ops` operations or more accepts no further batch.
    pub(crate) fn new(chunk_ops: usize) -> Inbox {
        Inbox { state: Mutex::default(), changed: Condvar::new(), chunk_ops: chunk_ops.max(1) }
    }

    /// Takes the operations out of `batch`, and returns its number. After [`Inbox::refuse`] the operations are dropped,
    /// so that a failed store does not use up the memory, and the number is never reached.
    pub(crate) fn push(&self, batch: &mut Vec<Op>, weight: usize) -> Seq {
        let mut state = self.state.lock();
        if batch.is_empty() {
            return state.submitted;
        }
        state.submitted.0 += 1;
        let seq = state.submitted;
        if state.refusing {
            batch.clear();
            return seq;
        }
        if state.chunks.back().is_none_or(|c| c.ops.len() >= self.chunk_ops) {
            let ops = std::mem::take(&mut state.spare);
            state.chunks.push_back(Chunk { ops, ..Chunk::default() });
        }
        let mut full = false;
        if let Some(chunk) = state.chunks.back_mut() {
            chunk.ops.append(batch);
            chunk.last = seq;
            chunk.batches += 1;
            chunk.weight += weight;
            full = chunk.ops.len() >= self.chunk_ops;
        }
        let wake = match state.asleep {
            Asleep::UntilBatch => true,
            Asleep::UntilFull => full,
            Asleep::No | Asleep::UntilClosing => false,
        };
        if wake {
            state.asleep = Asleep::No;
            drop(state);
            self.changed.notify_one();
        }
        seq
    }

    /// Number of the newest batch.
    pub(crate) fn submitted(&self) -> Seq {
        self.state.lock().submitted
    }

    /// Whether no batch waits and the writer sleeps until one arrives.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.chunks.is_empty() && !state.nudged && state.asleep == Asleep::UntilBatch
    }

    /// Waits for a chunk, but not before `not_before` unless one is full; reports quiet at
    /// `quiet_at` if one is given and nothing has come.
    pub(crate) fn wait(&self, not_before: Instant, quiet_at: Option<Instant>) -> InboxEvent {
        let mut state = self.state.lock();
        loop {
            let now = Instant::now();
            if std::mem::take(&mut state.nudged) {
                return InboxEvent::Nudged;
            }
            if let Some(front) = state.chunks.front() {
                let full = front.ops.len() >= self.chunk_ops;
                if (full || state.closing || now >= not_before)
                    && let Some(chunk) = state.chunks.pop_front()
                {
                    return InboxEvent::Chunk(chunk);
                }
                state.asleep = Asleep::UntilFull;
                self.changed.wait_until(&mut state, not_before);
            } else if state.closing {
                return InboxEvent::Closed;
            } else if let Some(at) = quiet_at {
                if now >= at {
                    return InboxEvent::Quiet;
                }
                state.asleep = Asleep::UntilBatch;
                self.changed.wait_until(&mut state, at);
            } else {
                state.asleep = Asleep::UntilBatch;
                self.changed.wait(&mut state);
            }
            state.asleep = Asleep::No;
        }
    }

    /// Waits until `until` or until the store is being closed. Returns whether it is.
    pub(crate) fn pause(&self, until: Instant) -> bool {
        let mut state = self.state.lock();
        while !state.closing && Instant::now() < until {
            state.asleep = Asleep::UntilClosing;
            self.changed.wait_until(&mut state, until);
        }
        state.asleep = Asleep::No;
        state.closing
    }

    /// Wakes the writer although there is nothing to write.
    pub(crate) fn nudge(&self) {
        self.state.lock().nudged = true;
        self.changed.notify_one();
    }

    /// All batches in the queue, without waiting.
    pub(crate) fn drain(&self) -> VecDeque<Chunk> {
        std::mem::take(&mut self.state.lock().chunks)
    }

    /// Takes a chunk's buffer for reuse; `ops` must be empty.
    pub(crate) fn recycle(&self, ops: Vec<Op>) {
        let mut state = self.state.lock();
        if ops.capacity() <= SPARE_OPS && ops.capacity() > state.spare.capacity() {
            state.spare = ops;
        }
    }

    /// Requests that the writer writes the batches in the queue and ends.
    pub(crate) fn close(&self) {
        self.state.lock().closing = true;
        self.changed.notify_one();
    }

    /// From now on batches are dropped.
    pub(crate) fn refuse(&self) {
        let mut state = self.state.lock();
        state.refusing = true;
        state.chunks = VecDeque::new();
        state.spare = Vec::new();
    }
}
