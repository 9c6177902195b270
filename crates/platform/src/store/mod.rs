//! The platform's own database: one writer that commits in groups, readers that never wait for it.
//!
//! All SQL is in this folder, one file per subject; the rest of the crate calls these functions with a [`Db`]. `sql`
//! executes it. The SQL is the same for every engine and uses what they have in common: numbered parameters, `CAST(?1
//! AS TEXT) IS NULL` where nothing else determines a parameter's type, `IS NOT DISTINCT FROM` for `IS`, `NULLS FIRST`
//! where there can be nulls, a table's name before columns in `DO UPDATE`, `RETURNING` for generated numbers, and
//! booleans as 0 and 1.
//!
//! A change is answered after its commit is on the disk (SQLite: `journal_mode=WAL`, `synchronous=FULL`; PostgreSQL:
//! `synchronous_commit=on`). Waiting changes are committed together. In a cluster, `fulmar-mirror` shares the rows that a
//! transaction changes before it is committed.

pub(crate) mod alerts;
pub(crate) mod conflicts;
pub(crate) mod corrections;
pub(crate) mod device_names;
pub(crate) mod devices;
pub(crate) mod earlier_accounts;
pub(crate) mod filter;
pub(crate) mod frames;
pub(crate) mod homes;
pub(crate) mod measurements;
pub(crate) mod meters;
pub(crate) mod photos;
mod prelude;
mod readers;
pub(crate) mod readings;
pub(crate) mod removed;
pub(crate) mod reports;
pub(crate) mod retention;
mod schema;
pub(crate) mod sensors;
mod series_rows;
pub(crate) mod sql;
pub(crate) mod twins;
pub(crate) mod user_store;
pub(crate) mod webhooks;
pub(crate) mod work_lists;
mod writer;

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use fulmar_mirror::{Copy, Mirror, Share};

use crate::error::Error;
use crate::problem::{Problem, Result};
use readers::Readers;
pub(crate) use sql::Db;
use sql::{Address, Database, Purpose, Source};
use writer::{Job, Writer};

/// Name of SQLite's file in the data folder.
pub const DATABASE_FILE: &str = "platform.db";

/// A copy of the rows that the nodes of a cluster share, in the data folder's database, which is made if necessary.
///
/// # Errors
/// The database cannot be used.
pub fn copy(data: &Path) -> Result<Copy, Error> {
    let connection = sql::sqlite::open(&data.join(DATABASE_FILE))?;
    Ok(Copy::new(connection, schema::TABLES).map_err(sql::DatabaseError::from)?)
}

/// The database as one twin has it: functions that get this read and change the rows of no other twin.
#[derive(Clone, Copy)]
pub(crate) struct TwinDb<'a> {
    db: &'a Db,
    pub(crate) twin: &'a str,
}

impl Deref for TwinDb<'_> {
    type Target = Db;

    fn deref(&self) -> &Db {
        self.db
    }
}

impl Db {
    /// The database as this twin has it.
    pub(crate) fn within<'a>(&'a self, twin: &'a str) -> TwinDb<'a> {
        TwinDb { db: self, twin }
    }
}

/// A use of the database in one transaction.
pub(crate) trait DbTask<T>: FnOnce(&Db) -> Result<T> + Send + 'static {}

impl<T, F: FnOnce(&Db) -> Result<T> + Send + 'static> DbTask<T> for F {}

/// The same of one twin's rows.
pub(crate) trait TwinTask<T>: FnOnce(TwinDb<'_>) -> Result<T> + Send + 'static {}

impl<T, F: FnOnce(TwinDb<'_>) -> Result<T> + Send + 'static> TwinTask<T> for F {}

/// The open database.
#[derive(Debug)]
pub(crate) struct Store {
    writer: Writer,
    readers: Arc<Readers>,
}

impl Store {
    /// Opens the database: the data folder's, or the one of a server, for this purpose. Creates it if necessary.
    pub(crate) fn open(data: &Path, database: &Database, purpose: Purpose) -> sql::Result<Store> {
        let source = source(data, database, purpose, None);
        let writer = Writer::start(source.open()?, None);
        Ok(Store { writer, readers: Arc::new(Readers::new(source)) })
    }

    /// Opens the database of a node of a cluster. In the data folder it is a copy of what the nodes share, and changes are
    /// shared with `share` before they are committed; a server's is used while this node serves.
    pub(crate) fn open_shared(
        data: &Path,
        database: &Database,
        share: Arc<dyn Share>,
    ) -> sql::Result<Store> {
        let source = source(data, database, Purpose::Server, Some(Arc::clone(&share)));
        let db = source.open()?;
        let mirror =
            db.sqlite().map(|connection| Mirror::follow(connection, schema::TABLES, share));
        let writer = Writer::start(db, mirror.transpose()?);
        Ok(Store { writer, readers: Arc::new(Readers::new(source)) })
    }

    /// Runs `change` in the writer's next transaction and returns when it is durable. If it fails, it has no effect.
    pub(crate) async fn write<T: Send + 'static>(&self, change: impl DbTask<T>) -> Result<T> {
        self.write_and(change, |_| ()).await
    }

    /// The same, and calls `then` with the outcome on the writer's thread, even if nobody waits for it any more.
    pub(crate) async fn write_and<T: Send + 'static>(
        &self,
        change: impl DbTask<T>,
        then: impl FnOnce(&Result<T>) + Send + 'static,
    ) -> Result<T> {
        let (answer, waiting) = tokio::sync::oneshot::channel();
        let answer = |outcome| {
            then(&outcome);
            drop(answer.send(outcome));
        };
        self.writer.hand(Job::new(change, answer))?;
        waiting.await.unwrap_or_else(|_| Err(Problem::unavailable("nothing was stored; try again")))
    }

    /// Like [`Store::write`], for callers outside async tasks.
    pub(crate) fn write_now<T: Send + 'static>(&self, change: impl DbTask<T>) -> Result<T> {
        let (answer, waiting) = std::sync::mpsc::sync_channel(1);
        self.writer.hand(Job::new(change, move |outcome| drop(answer.send(outcome))))?;
        waiting
            .recv()
            .unwrap_or_else(|_| Err(Problem::unavailable("nothing was stored; try again")))
    }

    /// Runs `change` in the writer's next transaction, and calls `then` with the outcome on the writer's thread; neither, if
    /// too many others wait.
    pub(crate) fn write_later<T, F, A>(&self, change: F, then: A)
    where
        T: Send + 'static,
        F: FnOnce(&Db) -> Result<T> + Send + 'static,
        A: FnOnce(Result<T>) + Send + 'static,
    {
        drop(self.writer.hand(Job::new(change, then)));
    }

    /// Runs `look` on the committed state, off the runtime's thread.
    pub(crate) async fn read<T: Send + 'static>(&self, look: impl DbTask<T>) -> Result<T> {
        self.readers.run(look).await
    }

    /// Calls `changed` on the writer's thread whenever another process has changed the database.
    pub(crate) fn on_foreign_change(&self, changed: impl Fn(&Db) + Send + 'static) {
        self.writer.on_foreign_change(Box::new(changed));
    }

    /// Finishes queued changes and closes the database.
    pub(crate) fn close(&self) {
        self.writer.close();
    }
}

fn source(
    data: &Path,
    database: &Database,
    purpose: Purpose,
    node: Option<Arc<dyn Share>>,
) -> Source {
    match database {
        Database::File => Source::File(data.join(DATABASE_FILE)),
        Database::Postgres(address) => {
            Source::Server(Arc::new(Address::clone(address)), purpose, node)
        }
    }
}

#[cfg(test)]
mod shared_tests;
