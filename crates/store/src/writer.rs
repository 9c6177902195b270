//! The writer thread: takes submitted batches, commits them, publishes the number of the last durable one, and survives
//! a full disk.
//!
//! It sleeps until batches arrive, a retry is due, or, once after a busy period, the write-ahead log is to be copied
//! back while the disk is idle. It is the only user of the database.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fulmar_broker::storage::Restored;
use fulmar_mirror::{ClockRecord, Clocks};
use parking_lot::{Condvar, Mutex};
use rusqlite::wal::CheckpointMode;
use rusqlite::{Connection, ErrorCode};

use crate::group::Group;
use crate::inbox::{Inbox, InboxEvent};
use crate::log::Log;
use crate::options::Options;
use crate::restore::{self, Counts};
use crate::rows;
use crate::schema;
use crate::stats::Stats;
use crate::tables::Tables;

/// After this long without batches, the writer copies a log of [`IDLE_LOG_PAGES`] back into the database.
const QUIET: Duration = Duration::from_millis(100);
/// SQLite's own default threshold, 4 MiB.
const IDLE_LOG_PAGES: u64 = 1_000;

/// Shared by the handle and the writer.
pub(crate) struct Shared {
    pub(crate) inbox: Inbox,
    pub(crate) committed: AtomicU64,
    pub(crate) backlog: AtomicUsize,
    pub(crate) failure: Mutex<Option<String>>,
    pub(crate) stats: Mutex<Stats>,
    /// Held while the log is copied back, and while the files are copied elsewhere.
    pub(crate) checkpoints: Mutex<()>,
    /// For those that wait on their thread until a batch is durable; the broker does not.
    pub(crate) reported: Mutex<()>,
    pub(crate) changed: Condvar,
    /// The writer has ended.
    pub(crate) ended: AtomicBool,
    /// Nobody waits for a log that does not answer.
    pub(crate) abandoned: AtomicBool,
    /// The log may have a change that the part which has shared it does not.
    pub(crate) unknown: AtomicBool,
    /// Number of the last record that the log is known to have.
    pub(crate) tail: AtomicU64,
    /// Followed databases whose copies have everything up to a record, since that was last looked at.
    pub(crate) stored: Mutex<BTreeMap<u8, u64>>,
}

impl Shared {
    pub(crate) fn new(options: &Options) -> Shared {
        Shared {
            inbox: Inbox::new(options.commit_max_ops, options.removal_delay),
            committed: AtomicU64::new(0),
            backlog: AtomicUsize::new(0),
            failure: Mutex::new(None),
            stats: Mutex::new(Stats::default()),
            checkpoints: Mutex::new(()),
            reported: Mutex::new(()),
            changed: Condvar::new(),
            ended: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            unknown: AtomicBool::new(false),
            tail: AtomicU64::new(0),
            stored: Mutex::default(),
        }
    }

    /// Something has changed for those that wait.
    pub(crate) fn report(&self) {
        drop(self.reported.lock());
        self.changed.notify_all();
    }
}

/// The writer thread's state.
pub(crate) struct Writer {
    pub(crate) connection: Connection,
    pub(crate) clock: Option<ClockRecord>,
    pub(crate) counts: Counts,
    pub(crate) last_message_id: u64,
    pub(crate) last_session_key: u64,
    pub(crate) path: String,
    pub(crate) options: Options,
    /// Log that makes a group durable instead of the database.
    pub(crate) log: Option<Log>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) wake: Box<dyn Fn() + Send>,
}

impl Writer {
    /// Reads the stored state, and creates the writer that continues from it.
    pub(crate) fn restore(
        connection: Connection,
        path: String,
        options: &Options,
        shared: Arc<Shared>,
        log: Option<Log>,
        wake: Box<dyn Fn() + Send>,
    ) -> rusqlite::Result<(Writer, Restored)> {
        let clocks = options.clocks.as_ref().filter(|_| log.is_none());
        let clock = clocks.map(|clocks| begin_clock(&connection, clocks)).transpose()?;
        let (restored, counts) = restore::restore(&connection)?;
        let writer = Writer {
            connection,
            clock,
            counts,
            last_message_id: restored.last_message_id,
            last_session_key: restored.last_session_key,
            path,
            options: options.clone(),
            log,
            shared,
            wake,
        };
        Ok((writer, restored))
    }

    /// The thread's body; returns when the storage is closed or can never write again.
    pub(crate) fn run(self) {
        let shared = Arc::clone(&self.shared);
        let path = self.path.clone();
        let outcome = self.work();
        shared.inbox.refuse();
        let text = match outcome {
            Ok(()) => "the storage is closed".to_owned(),
            Err(GaveUp::Database(error)) => {
                tracing::error!(path, %error, "storage gave up");
                failure_text(&path, &error)
            }
            Err(GaveUp::Log(error)) => {
                tracing::error!(path, %error, "storage gave up");
                error
            }
        };
        shared.failure.lock().get_or_insert(text);
        shared.ended.store(true, Ordering::Release);
        shared.report();
    }

    fn work(mut self) -> Result<(), GaveUp> {
        let (mut log, mut clock) = (self.log.take(), self.clock.take());
        let counts = std::mem::take(&mut self.counts);
        let mut tables =
            Tables::new(&self.connection, counts, self.last_message_id, self.last_session_key)?;
        let mut group = Group::default();
        let mut not_before = Instant::now();
        let mut log_pages = 0;
        loop {
            let quiet_at = (log_pages >= IDLE_LOG_PAGES).then(|| Instant::now() + QUIET);
            let quiet_at = log.as_ref().and_then(Log::due_at).into_iter().chain(quiet_at).min();
            match self.shared.inbox.wait(not_before, quiet_at) {
                InboxEvent::Chunk(mut chunk) => {
                    group.absorb(&mut chunk);
                    self.shared.inbox.recycle(chunk.ops);
                    not_before = Instant::now() + self.options.commit_interval;
                    match &mut log {
                        None => self.commit(&mut tables, &mut group)?,
                        Some(log) => self.append(log, &mut tables, &mut group)?,
                    }
                    if let Some(clock) = clock.as_mut().filter(|clock| clock.is_due()) {
                        write_clock(clock, &self.connection);
                    }
                    log_pages = self.log_pages();
                    if log_pages >= self.options.log_pages {
                        log_pages = self.checkpoint();
                    }
                }
                InboxEvent::Quiet => match &mut log {
                    Some(log) if log.is_due() => {
                        self.write_behind(log, &mut tables)?;
                        log_pages = self.log_pages();
                    }
                    _ => log_pages = self.checkpoint(),
                },
                InboxEvent::Nudged => {
                    clock.iter_mut().for_each(|clock| write_clock(clock, &self.connection));
                    (self.wake)();
                }
                InboxEvent::Closed => break,
            }
        }
        if let Some(log) = &mut log {
            log.release(&self.shared, &self.options);
            self.write_behind(log, &mut tables)?;
        }
        tables.write_highest()?;
        drop(tables);
        clock.iter_mut().for_each(|clock| write_clock(clock, &self.connection));
        schema::mark_clean(&self.connection, true)?;
        let Writer { connection, shared, .. } = self;
        let _no_copy = shared.checkpoints.lock();
        // This copies the log back and removes it.
        drop(connection);
        Ok(())
    }

    /// Appends `group` to the log, publishes its number, and leaves it to be written to the database.
    fn append(
        &self,
        log: &mut Log,
        tables: &mut Tables<'_>,
        group: &mut Group,
    ) -> Result<(), GaveUp> {
        if group.live() > 0 {
            let start = Instant::now();
            let report = |error: &str| {
                self.shared.stats.lock().failed_commits += 1;
                self.publish_failure(format!("cannot append to the cluster's log: {error}"));
            };
            if let Err(error) = log.append(group, &self.shared, &self.options, report) {
                self.publish_failure(format!("cannot append to the cluster's log: {error}"));
                return Err(GaveUp::Log(error));
            }
            self.shared.stats.lock().record_commit(start.elapsed());
        }
        self.shared.tail.store(log.tail().number, Ordering::Release);
        self.publish(group);
        if log.is_due() { self.write_behind(log, tables) } else { Ok(()) }
    }

    /// Brings the database to the end of the log, or leaves that for later, unless too much is left already.
    fn write_behind(&self, log: &mut Log, tables: &mut Tables<'_>) -> Result<(), GaveUp> {
        let mut pause = self.options.retry_first;
        let mut closing = false;
        let mut reported = false;
        while let Err(error) = log.write_behind(tables) {
            tracing::warn!(path = self.path, %error, "the database does not follow the cluster's log");
            if closing || !is_transient(&error) {
                return Err(GaveUp::Database(error));
            }
            if !log.is_full() {
                return Ok(());
            }
            self.report_failure(&error);
            reported = true;
            closing = self.shared.inbox.pause(Instant::now() + pause);
            pause = (pause * 2).min(self.options.retry_last);
            self.checkpoint();
        }
        if reported {
            self.shared.failure.lock().take();
            (self.wake)();
        }
        let stored = std::mem::take(&mut *self.shared.stored.lock());
        for (database, number) in stored {
            // What is not forgotten now is forgotten when this node stands by.
            if let Err(error) = rows::forget_changes(&self.connection, database, number) {
                tracing::warn!(path = self.path, %error, "changes that are stored are not forgotten");
            }
        }
        Ok(())
    }

    /// Commits `group`, trying until it succeeds, and publishes its number.
    fn commit(&self, tables: &mut Tables<'_>, group: &mut Group) -> rusqlite::Result<()> {
        let mut pause = self.options.retry_first;
        let mut closing = false;
        while group.live() > 0 {
            let start = Instant::now();
            let Err(error) = tables.write(group, None) else {
                self.shared.stats.lock().record_commit(start.elapsed());
                break;
            };
            self.shared.stats.lock().failed_commits += 1;
            self.report_failure(&error);
            if closing || !is_transient(&error) {
                return Err(error);
            }
            closing = self.shared.inbox.pause(Instant::now() + pause);
            pause = (pause * 2).min(self.options.retry_last);
            // The log may have space again after it is copied back, and batches submitted meanwhile may cancel out
            // operations that do not fit.
            self.checkpoint();
            for mut chunk in self.shared.inbox.drain() {
                group.absorb(&mut chunk);
            }
        }
        self.publish(group);
        Ok(())
    }

    fn publish(&self, group: &mut Group) {
        let recovered = self.shared.failure.lock().take().is_some();
        if recovered {
            tracing::info!(path = self.path, "storage: writing resumed");
        }
        {
            let mut stats = self.shared.stats.lock();
            stats.batches += group.batches;
            stats.ops += group.ops;
            stats.cancelled_ops += group.ops - group.live() as u64;
        }
        self.shared.backlog.fetch_sub(group.weight, Ordering::Relaxed);
        self.shared.committed.store(group.last.0, Ordering::Release);
        self.shared.report();
        group.clear();
        (self.wake)();
    }

    /// Publishes a failure; logs it and wakes the broker only if it is new.
    fn report_failure(&self, error: &rusqlite::Error) {
        self.publish_failure(failure_text(&self.path, error));
    }

    fn publish_failure(&self, text: String) {
        let mut failure = self.shared.failure.lock();
        if failure.as_ref() == Some(&text) {
            return;
        }
        tracing::error!(
            path = self.path,
            error = text,
            "storage cannot write; acknowledgements wait"
        );
        *failure = Some(text);
        drop(failure);
        (self.wake)();
    }

    /// Pages in the write-ahead log.
    fn log_pages(&self) -> u64 {
        let pages = self
            .connection
            .wal_checkpoint_v2(None::<&str>, CheckpointMode::NOOP)
            .map_or(0, |(log, copied)| u64::try_from(log - copied).unwrap_or(0));
        self.shared.stats.lock().wal_pages = pages;
        pages
    }

    /// Copies the log back into the database, so that the next commit restarts it. Returns how many pages are left to
    /// copy; 0 also after a failure, so that a full disk does not cause a loop. If the failure lasts, the next commit
    /// has it too.
    fn checkpoint(&self) -> u64 {
        // Not while somebody copies the files; the next commit tries again.
        let Some(_no_copy) = self.shared.checkpoints.try_lock() else { return 0 };
        match self.connection.wal_checkpoint_v2(None::<&str>, CheckpointMode::PASSIVE) {
            Ok(_) => {
                self.shared.stats.lock().checkpoints += 1;
                0
            }
            Err(error) => {
                tracing::warn!(path = self.path, %error, "write-ahead log could not be copied back");
                0
            }
        }
    }
}

fn begin_clock(connection: &Connection, clocks: &Clocks) -> rusqlite::Result<ClockRecord> {
    let moments = [("session", "expires_at"), ("message", "expires_at"), ("will", "due")];
    let (clock, moved) = ClockRecord::begin(connection, clocks, &moments)?;
    if let Some(by) = moved {
        tracing::warn!(
            seconds = by / 1000,
            "the system's clock was set: sessions and messages keep the time that was left to them"
        );
    }
    Ok(clock)
}

fn write_clock(clock: &mut ClockRecord, connection: &Connection) {
    if let Err(error) = clock.write(connection) {
        tracing::warn!(%error, "the record of the clock was not written");
    }
}

/// Why the writer ends before the storage is closed.
enum GaveUp {
    Database(rusqlite::Error),
    Log(String),
}

impl From<rusqlite::Error> for GaveUp {
    fn from(error: rusqlite::Error) -> GaveUp {
        GaveUp::Database(error)
    }
}

/// Whether the same may succeed later without a repair of the database.
pub fn is_transient(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(
            ErrorCode::DiskFull
                | ErrorCode::SystemIoFailure
                | ErrorCode::OutOfMemory
                | ErrorCode::ReadOnly
                | ErrorCode::CannotOpen
                | ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
        )
    )
}

fn failure_text(path: &str, error: &rusqlite::Error) -> String {
    let advice = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => {
            "make room on the disk or raise the size limit; writing resumes by itself"
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            "the file is damaged: stop the broker and restore a backup"
        }
        _ if is_transient(error) => {
            "check the disk and the folder's permissions; writing resumes by itself"
        }
        _ => "this is a defect in Fulmar: please report it; restart the broker to continue",
    };
    format!("cannot write {path}: {error}; {advice}")
}
