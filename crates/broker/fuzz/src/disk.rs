//! Storage that commits on request, and knows which of the witness's messages are durable.

use std::sync::Arc;

use fulmar_broker::storage::{Op, Restored, Seq, Storage};
use parking_lot::Mutex;

use crate::storage::SimStorage;

/// Something an acknowledgement to the witness promises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Promise {
    /// A message with this payload is queued for somebody.
    Queued(Box<[u8]>),
    /// A subscription to this filter is kept.
    Subscribed(Box<str>),
    /// A session of this client is kept.
    Session(Box<str>),
}

#[derive(Debug, Default)]
pub(crate) struct Disk {
    sim: Arc<SimStorage>,
    log: Mutex<Vec<(Seq, Promise)>>,
}

impl Disk {
    pub(crate) fn commit(&self) {
        self.sim.commit();
    }

    /// Whether something promised would survive a crash now.
    pub(crate) fn holds(&self, promise: &Promise) -> bool {
        let committed = self.sim.committed();
        self.log.lock().iter().any(|(seq, kept)| kept == promise && *seq <= committed)
    }

    /// What is left after a crash.
    pub(crate) fn crash(&self) -> (Arc<Disk>, Restored) {
        let (sim, restored) = self.sim.crash();
        let committed = sim.committed();
        let log = self.log.lock().iter().filter(|(seq, _)| *seq <= committed).cloned().collect();
        (Arc::new(Disk { sim, log: Mutex::new(log) }), restored)
    }
}

impl Storage for Disk {
    fn submit(&self, batch: &mut Vec<Op>) -> Seq {
        let promises: Vec<Promise> = batch.iter().filter_map(promise).collect();
        let seq = self.sim.submit(batch);
        self.log.lock().extend(promises.into_iter().map(|promise| (seq, promise)));
        seq
    }

    fn committed(&self) -> Seq {
        self.sim.committed()
    }

    fn backlog(&self) -> usize {
        self.sim.backlog()
    }

    fn failure(&self) -> Option<String> {
        None
    }
}

fn promise(op: &Op) -> Option<Promise> {
    match op {
        Op::Enqueue { message, .. } if message.topic().starts_with("witness/") => {
            Some(Promise::Queued(message.payload().into()))
        }
        Op::SubscriptionPut(record) if record.filter.starts_with("witness/") => {
            Some(Promise::Subscribed(record.filter.clone()))
        }
        Op::SessionPut(record) if record.client_id.starts_with("witness-") => {
            Some(Promise::Session(record.client_id.clone()))
        }
        _ => None,
    }
}
