//! What other workers do during a publication.

use std::sync::Arc;

use fulmar_broker::Shard;
use parking_lot::Mutex;

use crate::schedule::{Amid, Aside};
use crate::world::World;

impl World {
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
                others.lock().take_asides(&amid);
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

    fn take_asides(&mut self, amid: &Amid) {
        for aside in amid.asides.iter().flatten() {
            match *aside {
                Aside::Read { line, stream } => {
                    let readable = self.readable();
                    if !readable.is_empty() {
                        self.read(readable[line % readable.len()], stream);
                    }
                }
                Aside::Exchange { worker } => drop(self.exchange(worker % self.workers())),
                Aside::EndTurn { worker } => self.end_turn(worker % self.workers()),
                Aside::Commit => drop(self.commit(usize::MAX)),
            }
        }
    }
}
