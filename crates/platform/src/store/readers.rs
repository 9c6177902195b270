//! Connections that read: a few, lent to one request at a time, each look in a transaction of its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rusqlite::{Connection, OpenFlags};
use tokio::sync::Semaphore;

use super::Db;
use crate::problem::Problem;

/// Reads that run at once; more would wait for the same disk and cores.
const MAX_READS: usize = 4;
/// How long a read waits for its turn.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    turns: Arc<Semaphore>,
}

impl Readers {
    pub(super) fn new(path: PathBuf) -> Readers {
        let (idle, turns) = (Mutex::default(), Arc::new(Semaphore::new(MAX_READS)));
        Readers { path, idle, turns }
    }

    pub(super) async fn run<T, F>(self: &Arc<Self>, look: F) -> Result<T, Problem>
    where
        T: Send + 'static,
        F: FnOnce(&Db) -> Result<T, Problem> + Send + 'static,
    {
        let turn = tokio::time::timeout(PATIENCE, Arc::clone(&self.turns).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else {
            return Err(Problem::unavailable("the server is busy"));
        };
        let readers = Arc::clone(self);
        let read = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            readers.look(look)
        });
        read.await.unwrap_or_else(|error| Err(Problem::internal(&error)))
    }

    fn look<T>(&self, look: impl FnOnce(&Db) -> Result<T, Problem>) -> Result<T, Problem> {
        let idle = self.idle.lock().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => self.open()?,
        };
        let seen = connection.unchecked_transaction()?;
        let outcome = look(&seen);
        drop(seen);
        self.idle.lock().push(connection);
        outcome
    }

    fn open(&self) -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(PATIENCE)?;
        connection.set_prepared_statement_cache_capacity(64);
        Ok(connection)
    }
}
