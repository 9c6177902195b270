//! Steps of a broker's workers and its storage, also those of other workers during a publication.

use std::sync::Arc;

use fulmar_broker::Shard;
use parking_lot::Mutex;

use crate::world::World;

/// A step of a worker or of storage. Numbers choose among the possibilities: a `line` among the connections with input, a
/// `stream` among the streams of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkStep {
    /// A worker reads one input of a connection.
    Read { line: usize, stream: usize },
    /// A worker takes its events and sends.
    Exchange { worker: usize },
    /// A worker ends its turn.
    EndTurn { worker: usize },
    /// Timers fire on a worker.
    Timers { worker: usize },
    /// Storage commits up to `most` batches.
    Commit { most: usize },
}

/// Steps of other workers during a publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amid {
    /// Before which of its receivers.
    pub(crate) before: usize,
    /// The steps.
    pub(crate) asides: [Option<WorkStep>; 3],
}

impl World {
    /// Takes a step. Returns whether a worker has read something.
    pub(crate) fn work(&mut self, work: WorkStep) -> bool {
        match work {
            WorkStep::Read { line, stream } => return self.read_any(line, stream, None),
            WorkStep::Exchange { worker } => drop(self.exchange(worker % self.workers())),
            WorkStep::EndTurn { worker } => self.end_turn(worker % self.workers()),
            WorkStep::Timers { worker } => self.fire_timers(worker % self.workers()),
            WorkStep::Commit { most } => drop(self.commit(most)),
        }
        false
    }

    /// A worker reads one input of the connection that `line` chooses; during a publication, others act as in `amid`.
    pub(crate) fn read_any(&mut self, line: usize, stream: usize, amid: Option<Amid>) -> bool {
        let readable = self.readable();
        !readable.is_empty() && self.read_amid(readable[line % readable.len()], stream, amid)
    }

    /// All workers do what is due. Returns whether there were events.
    pub(crate) fn turns(&mut self) -> bool {
        let mut moved = false;
        for worker in 0..self.workers() {
            self.fire_timers(worker);
            moved |= self.exchange(worker) > 0;
            self.end_turn(worker);
        }
        moved
    }

    /// Everything that has arrived is read, workers do what is due, and storage commits up to `most` batches. Returns
    /// whether anything happened.
    pub(crate) fn round(&mut self, most: usize) -> bool {
        let mut moved = false;
        for line in self.readable() {
            while self.read(line, 0) {
                moved = true;
            }
        }
        moved |= self.turns();
        moved | (most > 0 && self.commit(most) > 0)
    }

    /// Runs a part of a worker's turn; during a publication, others act as in `amid`.
    pub(crate) fn with_others<R>(
        &mut self,
        amid: Option<Amid>,
        shard: &mut Shard,
        act: impl FnOnce(&mut Shard) -> R,
    ) -> R {
        let Some(amid) = amid else { return act(shard) };
        let nobody = self.without_anybody();
        let rest = Arc::new(Mutex::new(std::mem::replace(self, nobody)));
        let others = Arc::clone(&rest);
        let mut before = 0;
        let meanwhile = move || {
            if before == amid.before {
                let mut others = others.lock();
                for aside in amid.asides.into_iter().flatten() {
                    others.work(aside);
                }
            }
            before += 1;
        };
        shard.set_test_hook(Some(Box::new(meanwhile)));
        let result = act(shard);
        shard.set_test_hook(None);
        if let Some(rest) = Arc::into_inner(rest) {
            *self = rest.into_inner();
        }
        result
    }
}
