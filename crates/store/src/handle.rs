//! The broker's interface to the store: submits batches, reports which are durable, closes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};

use fulmar_broker::storage::{Op, Restored, Seq, Storage};
use parking_lot::Mutex;
use rusqlite::Connection;

use crate::error::Error;
use crate::inbox::Hurry;
use crate::lease::Lease;
use crate::log::Log;
use crate::options::Options;
use crate::schema;
use crate::snapshot::DatabaseFile;
use crate::stats::Stats;
use crate::weight::weight;
use crate::writer::{Shared, Writer};

/// Durable storage in one SQLite file. Owns its writer thread: [`SqliteStorage::close`] or dropping the handle writes
/// the submitted batches and ends the thread.
pub struct SqliteStorage {
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<()>>>,
    path: PathBuf,
    has_log: bool,
    /// Without it, nothing is acknowledged; `None` if nobody else could serve.
    lease: Option<Arc<Lease>>,
    /// Dropped after the writer has ended.
    file: DatabaseFile,
}

impl SqliteStorage {
    /// Opens or creates the database file at `path`, and reads all of it. The folder must exist; only the owner gets
    /// access to the file.
    ///
    /// `wake` is called on the writer's thread after each commit, and when writing begins to fail;
    /// it must not block.
    ///
    /// # Errors
    ///
    /// See [`Error`]: folder missing, in use by another process, newer schema, another program's
    /// database, one that belongs to a cluster's log, damaged, or not accessible.
    pub fn open(
        path: &Path,
        options: &Options,
        wake: Box<dyn Fn() + Send>,
    ) -> Result<(SqliteStorage, Restored), Error> {
        let connection = schema::open(path, options)?;
        let failed = |source| Error::opening(path, source);
        if schema::position(&connection).map_err(failed)?.is_some() {
            return Err(Error::BehindLog(path.to_owned()));
        }
        SqliteStorage::start(connection, path, options, None, wake)
    }

    /// Reads all of the database, and starts the writer.
    pub(crate) fn start(
        connection: Connection,
        path: &Path,
        options: &Options,
        log: Option<Log>,
        wake: Box<dyn Fn() + Send>,
    ) -> Result<(SqliteStorage, Restored), Error> {
        let shared = Arc::new(Shared::new(options));
        let (lease, has_log) = (log.as_ref().and_then(Log::lease), log.is_some());
        if let Some(lease) = &lease {
            let shared = Arc::downgrade(&shared);
            lease.on_return(Box::new(move || {
                shared.upgrade().iter().for_each(|shared| shared.inbox.nudge());
            }));
        }
        let name = path.display().to_string();
        let (writer, restored) =
            Writer::restore(connection, name, options, Arc::clone(&shared), log, wake)
                .map_err(|source| Error::opening(path, source))?;
        let thread = thread::Builder::new()
            .name("fulmar-store".into())
            .spawn(move || writer.run())
            .map_err(Error::Thread)?;
        let (writer, path, file) =
            (Mutex::new(Some(thread)), path.to_owned(), DatabaseFile::default());
        let storage = SqliteStorage { shared, writer, path, has_log, lease, file };
        Ok((storage, restored))
    }

    /// Writes all submitted batches, then ends the writer. If the disk fails, it tries once more. Batches submitted
    /// afterwards are dropped and never reported durable.
    ///
    /// # Errors
    ///
    /// [`Error::Unwritten`] if not everything became durable.
    pub fn close(&self) -> Result<(), Error> {
        self.shared.inbox.close();
        let ended = self.writer.lock().take().map(JoinHandle::join);
        let missing = self.shared.inbox.submitted().0 - self.committed().0;
        if missing == 0 && !matches!(ended, Some(Err(_))) {
            return Ok(());
        }
        let reason = self.failure().unwrap_or_else(|| "the writer ended early".to_owned());
        Err(Error::Unwritten { batches: missing, reason })
    }

    /// Whether all submitted batches are written and the writer waits for more. Batches that are being submitted may or
    /// may not count.
    pub fn is_idle(&self) -> bool {
        self.shared.inbox.is_idle()
    }

    fn push(&self, batch: &mut Vec<Op>, hurry: Hurry) -> Seq {
        let weight = weight(&*batch);
        // Before the push: the writer may finish the batch before this returns.
        self.shared.backlog.fetch_add(weight, Ordering::Relaxed);
        self.shared.inbox.push(batch, weight, hurry)
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Whether a log makes batches durable.
    pub(crate) fn has_log(&self) -> bool {
        self.has_log
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&self) -> &DatabaseFile {
        &self.file
    }

    /// Counters since the store was opened.
    pub fn stats(&self) -> Stats {
        self.shared.stats.lock().clone()
    }
}

impl Storage for SqliteStorage {
    fn submit(&self, batch: &mut Vec<Op>) -> Seq {
        self.push(batch, Hurry::Yes)
    }

    fn submit_removals(&self, batch: &mut Vec<Op>) {
        self.push(batch, Hurry::No);
    }

    fn committed(&self) -> Seq {
        Seq(self.shared.committed.load(Ordering::Acquire))
    }

    /// In operations; one with a message counts one more for each whole KiB of the message.
    fn backlog(&self) -> usize {
        self.shared.backlog.load(Ordering::Relaxed)
    }

    fn failure(&self) -> Option<String> {
        self.shared.failure.lock().clone()
    }

    fn clock_was_set(&self) {
        self.shared.inbox.nudge();
    }

    fn may_acknowledge(&self) -> bool {
        self.lease.as_ref().is_none_or(|lease| lease.lasts())
    }
}

impl Drop for SqliteStorage {
    fn drop(&mut self) {
        // The writer's own call of `wake` may drop the last owner. The writer cannot wait for itself; it ends because
        // the inbox is closed.
        let writer = self.writer.get_mut();
        if writer.as_ref().is_some_and(|writer| writer.thread().id() == thread::current().id()) {
            *writer = None;
            self.shared.inbox.close();
        } else if writer.is_some()
            && let Err(error) = self.close()
        {
            tracing::error!(%error, "storage dropped");
        }
    }
}
