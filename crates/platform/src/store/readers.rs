//! A few connections for reading, each used by one request at a time, with one transaction per read.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::sql::{Begin, Source};
use super::{Db, DbTask};
use crate::blocking;
use crate::problem::{Problem, Result};

/// Concurrent reads; more would compete for the same disk and cores.
const MAX_READS: usize = 4;
/// Longest wait of a read for a connection.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Readers {
    source: Source,
    idle: Mutex<Vec<Db>>,
    turns: Arc<Semaphore>,
}

impl Readers {
    pub(super) fn new(source: Source) -> Readers {
        let (idle, turns) = (Mutex::default(), Arc::new(Semaphore::new(MAX_READS)));
        Readers { source, idle, turns }
    }

    pub(super) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        look: impl DbTask<T>,
    ) -> Result<T> {
        let turn = tokio::time::timeout(PATIENCE, Arc::clone(&self.turns).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else {
            return Err(Problem::unavailable("the server is busy"));
        };
        let readers = Arc::clone(self);
        blocking::run(turn, move || readers.query(look)).await?
    }

    fn query<T>(&self, look: impl DbTask<T>) -> Result<T> {
        let idle = self.idle.lock().pop();
        let db = idle.map_or_else(|| self.source.open_to_read(), Ok)?;
        db.begin(Begin::Read)?;
        let outcome = look(&db);
        // A connection that cannot end its transaction is not used again.
        if db.roll_back().is_ok() {
            self.idle.lock().push(db);
        }
        outcome
    }
}
