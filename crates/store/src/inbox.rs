//! The queue in which submitted batches wait for the writer, in chunks of whole batches.
//!
//! Submitting is the broker's hot path: one short lock, operations moved, and a wake-up only when
//! the writer sleeps. The writer puts one chunk into one transaction.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use fulmar_broker::storage::{Op, Seq};
use parking_lot::{Condvar, Mutex};

/// As many removals are written although nobody waits for them: they count for the backlog.
const MANY_REMOVALS: usize = 1_024;
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
    /// A batch that hurries wakes it, or many that don't, before its own timeout does.
    UntilHurried,
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
    /// The last batch that hurries.
    hurried: Seq,
    /// When what waits is to be written although nothing of it hurries.
    removals_due: Option<Instant>,
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
    removal_delay: Duration,
}

/// Whether somebody waits for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hurry {
    /// It is written as soon as the writer can.
    Yes,
    /// It is written with the next one that hurries, or after the delay.
    No,
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
    /// An empty inbox. A chunk with `chunk_ops` operations or more accepts no further batch; what does not hurry waits
    /// for `removal_delay` at most.
    pub(crate) fn new(chunk_ops: usize, removal_delay: Duration) -> Inbox {
        let chunk_ops = chunk_ops.max(1);
        Inbox { state: Mutex::default(), changed: Condvar::new(), chunk_ops, removal_delay }
    }

    /// Takes the operations out of `batch`, and returns its number. After [`Inbox::refuse`] the operations are dropped,
    /// so that a failed store does not use up the memory, and the number is never reached.
    pub(crate) fn push(&self, batch: &mut Vec<Op>, weight: usize, hurry: Hurry) -> Seq {
        let mut state = self.state.lock();
        if batch.is_empty() {
            return state.hurried;
        }
        state.submitted.0 += 1;
        let seq = state.submitted;
        if hurry == Hurry::Yes {
            (state.hurried, state.removals_due) = (seq, None);
        } else if state.chunks.is_empty() && !self.removal_delay.is_zero() {
            state.removals_due = Some(Instant::now() + self.removal_delay);
        }
        if state.refusing {
            batch.clear();
            return seq;
        }
        if state.chunks.back().is_none_or(|c| c.ops.len() >= self.chunk_ops) {
            let ops = std::mem::take(&mut state.spare);
            state.chunks.push_back(Chunk { ops, ..Chunk::default() });
        }
        let mut ops = 0;
        if let Some(chunk) = state.chunks.back_mut() {
            chunk.ops.append(batch);
            chunk.last = seq;
            chunk.batches += 1;
            chunk.weight += weight;
            ops = chunk.ops.len();
        }
        if ops >= MANY_REMOVALS.min(self.chunk_ops) {
            state.removals_due = None;
        }
        let wake = match state.asleep {
            Asleep::UntilBatch => true,
            Asleep::UntilHurried => state.removals_due.is_none(),
            Asleep::UntilFull => ops >= self.chunk_ops,
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
                let until = state.removals_due.map_or(not_before, |due| due.max(not_before));
                if (full || state.closing || now >= until)
                    && let Some(chunk) = state.chunks.pop_front()
                {
                    return InboxEvent::Chunk(chunk);
                }
                let hurries = state.removals_due.is_none();
                state.asleep = if hurries { Asleep::UntilFull } else { Asleep::UntilHurried };
                self.changed.wait_until(&mut state, until);
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
