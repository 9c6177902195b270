//! Storage operations on what another worker has stored in a turn that goes on. Handed over now they
//! would reach storage before what they change or remove, which would then come behind and stay.
//!
//! Two kinds wait. Most change a record and wait until the worker that stored it has handed its turn
//! over. Some store anew, as another flow's, a message of such a turn: stored now, it would outlive a
//! crash that takes its publisher's turn, and arrive twice when the publisher sends it again. Whatever
//! changes such a record later waits until that operation has left its worker ([`Stamp::moved`]). The
//! latter wait for no others, so that workers cannot wait for each other for ever.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::storage::Op;

/// When something was appended to a worker's batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stamp {
    pub(crate) shard: u16,
    pub(crate) turn: u64,
    /// It was not appended then, since it had to wait for another worker.
    pub(crate) moved: bool,
}

/// How far a worker is with storage, for the others.
#[derive(Debug, Default)]
pub(crate) struct HandedOver {
    /// Its last turn whose batch storage has.
    turn: AtomicU64,
    /// The last of which nothing that stores a message anew is kept back either.
    settled: AtomicU64,
}

impl HandedOver {
    /// Whether storage has what the worker appended then.
    pub(crate) fn covers(&self, stamp: Stamp) -> bool {
        let turn = if stamp.moved { &self.settled } else { &self.turn };
        turn.load(Ordering::Acquire) >= stamp.turn
    }

    /// Storage has the batch of `turn`.
    pub(crate) fn advance(&self, turn: u64, settled: u64) {
        self.turn.store(turn, Ordering::Release);
        self.settled.store(settled, Ordering::Release);
    }
}

/// What a worker keeps back. Operations on one record stay in order: they wait for the same, or first
/// for the turn of another worker and then for that to have been handed over here.
#[derive(Debug)]
pub(crate) struct Late {
    /// By the worker waited for, and whether for what it keeps back itself.
    queues: Box<[VecDeque<Waiting>]>,
    waiting: usize,
    /// The turn since which the oldest operation waits that stores a message anew.
    moving_since: Option<u64>,
}

#[derive(Debug)]
struct Waiting {
    stamp: Stamp,
    /// The turn since which it waits, if it stores a message anew.
    moves_since: Option<u64>,
    op: Op,
}

impl Late {
    pub(crate) fn new(workers: usize) -> Late {
        Late {
            queues: (0..workers * 2).map(|_| VecDeque::new()).collect(),
            waiting: 0,
            moving_since: None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Whether something waits that what is done after `stamp` must not overtake.
    pub(crate) fn holds(&self, stamp: Stamp) -> bool {
        self.waiting > 0 && !self.queues[place(stamp)].is_empty()
    }

    /// Keeps an operation back; `moves_since` is the turn in which it is kept back if it stores a
    /// message anew.
    pub(crate) fn push(&mut self, stamp: Stamp, moves_since: Option<u64>, op: Op) {
        self.waiting += 1;
        self.moving_since = self.moving_since.or(moves_since);
        self.queues[place(stamp)].push_back(Waiting { stamp, moves_since, op });
    }

    /// The newest turn, up to `turn`, of which nothing that stores a message anew waits any more.
    pub(crate) fn settled(&self, turn: u64) -> u64 {
        self.moving_since.map_or(turn, |since| since.saturating_sub(1).min(turn))
    }

    /// Appends what need not wait any longer to `batch`. `handed_over` answers for other workers'
    /// stamps; `own` is this worker.
    pub(crate) fn take(
        &mut self,
        own: u16,
        handed_over: impl Fn(Stamp) -> bool,
        batch: &mut Vec<Op>,
    ) {
        let own = place(Stamp { shard: own, moved: true, turn: 0 });
        for queue in (0..self.queues.len()).filter(|queue| *queue != own) {
            self.take_from(queue, &handed_over, batch);
        }
        let moves = || self.queues.iter().flatten().filter_map(|waiting| waiting.moves_since);
        self.moving_since = moves().min();
        let settled = self.settled(u64::MAX);
        self.take_from(own, &|stamp| stamp.turn <= settled, batch);
    }

    fn take_from(&mut self, queue: usize, may_go: &impl Fn(Stamp) -> bool, batch: &mut Vec<Op>) {
        while let Some(waiting) = self.queues[queue].pop_front_if(|front| may_go(front.stamp)) {
            self.waiting -= 1;
            batch.push(waiting.op);
        }
    }
}

fn place(stamp: Stamp) -> usize {
    usize::from(stamp.shard) * 2 + usize::from(stamp.moved)
}
