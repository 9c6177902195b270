//! The platform's own database: one writer that commits in groups, readers that never wait for it.
//!
//! Everything SQL is in this folder, a file a subject; the rest of the crate calls these functions with
//! a [`Db`] and knows no SQL. They keep to what SQLite and PostgreSQL share where that is possible, so
//! that another database is another folder, not another platform.
//!
//! An answer to a change is given after the commit that holds it is on the disk
//! (`journal_mode=WAL`, `synchronous=FULL`). Changes that wait together are committed together.

pub(crate) mod accounts;
pub(crate) mod alerts;
pub(crate) mod devices;
mod filter;
pub(crate) mod frames;
pub(crate) mod homes;
pub(crate) mod measurements;
pub(crate) mod meters;
pub(crate) mod photos;
mod readers;
pub(crate) mod readings;
pub(crate) mod reports;
pub(crate) mod retention;
mod schema;
pub(crate) mod sensors;
pub(crate) mod twins;
pub(crate) mod webhooks;
pub(crate) mod work_lists;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::problem::Problem;
use readers::Readers;
use writer::{Job, Writer};

/// A connection inside a transaction.
pub(crate) type Db = rusqlite::Connection;

/// The open database.
#[derive(Debug)]
pub(crate) struct Store {
    writer: Writer,
    readers: Arc<Readers>,
}

impl Store {
    /// Opens the database, making it if it is not there.
    pub(crate) fn open(path: &Path) -> rusqlite::Result<Store> {
        let connection = schema::open(path)?;
        let readers = Arc::new(Readers::new(PathBuf::from(path)));
        Ok(Store { writer: Writer::start(connection), readers })
    }

    /// Runs `change` in the writer's next transaction and returns when it is durable. When it fails,
    /// nothing of it remains.
    pub(crate) async fn write<T, F>(&self, change: F) -> Result<T, Problem>
    where
        T: Send + 'static,
        F: FnOnce(&Db) -> Result<T, Problem> + Send + 'static,
    {
        let (answer, waiting) = tokio::sync::oneshot::channel();
        self.writer.hand(Job::new(change, |outcome| drop(answer.send(outcome))))?;
        waiting.await.unwrap_or_else(|_| Err(Problem::unavailable("nothing was stored; try again")))
    }

    /// As [`Store::write`], for callers that are no tasks.
    pub(crate) fn write_now<T, F>(&self, change: F) -> Result<T, Problem>
    where
        T: Send + 'static,
        F: FnOnce(&Db) -> Result<T, Problem> + Send + 'static,
    {
        let (answer, waiting) = std::sync::mpsc::sync_channel(1);
        self.writer.hand(Job::new(change, move |outcome| drop(answer.send(outcome))))?;
        waiting
            .recv()
            .unwrap_or_else(|_| Err(Problem::unavailable("nothing was stored; try again")))
    }

    /// Runs `look` on what is committed, off the runtime's thread.
    pub(crate) async fn read<T, F>(&self, look: F) -> Result<T, Problem>
    where
        T: Send + 'static,
        F: FnOnce(&Db) -> Result<T, Problem> + Send + 'static,
    {
        self.readers.run(look).await
    }

    /// Calls `changed` on the writer's thread whenever another process has changed the database.
    pub(crate) fn on_foreign_change(&self, changed: impl Fn(&Db) + Send + 'static) {
        self.writer.on_foreign_change(Box::new(changed));
    }

    /// Finishes what was handed over and closes the database.
    pub(crate) fn close(&self) {
        self.writer.close();
    }
}
