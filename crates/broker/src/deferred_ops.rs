//! Deferred storage operations: they concern records that another worker has stored in a turn that has not ended.
//! Submitted at once, such an operation would reach storage before the record that it changes or removes, and the
//! record would then remain.
//!
//! There are two kinds. Most operations change a record; they wait until the worker that stored it has submitted its
//! turn. Others store a message of such a turn again, for another flow: stored at once, the message would survive a
//! crash that loses its publisher's turn, and would arrive twice when the publisher sends it again. Later changes of
//! such a record wait until that operation has left its worker ([`TurnStamp::moved`]). Operations of the second kind
//! never wait for each other, so workers cannot deadlock.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::storage::Op;

/// Numbers the turns of one worker; something durable waits for the end of its turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TurnNumber(pub(crate) u64);

/// The worker and turn in which something was appended to a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TurnStamp {
    pub(crate) shard: u16,
    pub(crate) turn: u64,
    /// It was deferred instead, because it has to wait for another worker.
    pub(crate) moved: bool,
}

/// The last of a worker's turns that storage has received; read by the other workers.
#[derive(Debug, Default)]
pub(crate) struct HandedOver {
    /// The last turn whose batch was submitted.
    turn: AtomicU64,
    /// The last turn of which no operation that moves a message is deferred either.
    settled: AtomicU64,
}

impl HandedOver {
    /// Whether storage has what the worker appended in that turn.
    pub(crate) fn covers(&self, stamp: TurnStamp) -> bool {
        let turn = if stamp.moved { &self.settled } else { &self.turn };
        turn.load(Ordering::Acquire) >= stamp.turn
    }

    /// The batch of `turn` was submitted.
    pub(crate) fn advance(&self, turn: u64, settled: u64) {
        self.turn.store(turn, Ordering::Release);
        self.settled.store(settled, Ordering::Release);
    }
}

/// A worker's deferred operations. Operations on one record stay in order: all wait for the same worker, or first for
/// another worker's turn and then until the first of them is submitted here.
#[derive(Debug)]
pub(crate) struct DeferredOps {
    /// By the worker that they wait for, and whether for its turn or for its deferred operations.
    queues: Box<[VecDeque<DeferredOp>]>,
    waiting: usize,
    /// The turn in which the oldest operation that moves a message was deferred.
    moving_since: Option<u64>,
}

#[derive(Debug)]
struct DeferredOp {
    stamp: TurnStamp,
    /// The turn in which it was deferred, if it moves a message.
    moves_since: Option<u64>,
    op: Op,
}

impl DeferredOps {
    pub(crate) fn new(workers: usize) -> DeferredOps {
        DeferredOps {
            queues: (0..workers * 2).map(|_| VecDeque::new()).collect(),
            waiting: 0,
            moving_since: None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Whether an operation is deferred that a new one after `stamp` must not overtake.
    pub(crate) fn holds(&self, stamp: TurnStamp) -> bool {
        self.waiting > 0 && !self.queues[place(stamp)].is_empty()
    }

    /// Defers an operation; `moves_since` is the current turn if the operation moves a message.
    pub(crate) fn push(&mut self, stamp: TurnStamp, moves_since: Option<u64>, op: Op) {
        self.waiting += 1;
        self.moving_since = self.moving_since.or(moves_since);
        self.queues[place(stamp)].push_back(DeferredOp { stamp, moves_since, op });
    }

    /// The newest turn, up to `turn`, of which no operation that moves a message is deferred any more.
    pub(crate) fn settled(&self, turn: u64) -> u64 {
        self.moving_since.map_or(turn, |since| since.saturating_sub(1).min(turn))
    }

    /// Appends the operations that need not wait any longer to `batch`. `handed_over` decides for other workers'
    /// stamps; `own` is this worker.
    pub(crate) fn move_ready(
        &mut self,
        own: u16,
        handed_over: impl Fn(TurnStamp) -> bool,
        batch: &mut Vec<Op>,
    ) {
        let own = place(TurnStamp { shard: own, moved: true, turn: 0 });
        for queue in (0..self.queues.len()).filter(|queue| *queue != own) {
            self.take_from(queue, &handed_over, batch);
        }
        let moves = || self.queues.iter().flatten().filter_map(|waiting| waiting.moves_since);
        self.moving_since = moves().min();
        let settled = self.settled(u64::MAX);
        self.take_from(own, &|stamp| stamp.turn <= settled, batch);
    }

    fn take_from(
        &mut self,
        queue: usize,
        may_go: &impl Fn(TurnStamp) -> bool,
        batch: &mut Vec<Op>,
    ) {
        while let Some(waiting) = self.queues[queue].pop_front_if(|front| may_go(front.stamp)) {
            self.waiting -= 1;
            batch.push(waiting.op);
        }
    }
}

fn place(stamp: TurnStamp) -> usize {
    usize::from(stamp.shard) * 2 + usize::from(stamp.moved)
}
