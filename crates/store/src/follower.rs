//! A database that follows a log which another process writes, until this one takes over.
//!
//! The follower checks that each record continues the log, and writes whole groups. What it has written, and up to
//! which record, is one transaction. It reads nothing itself, and writes when it has much, or when it is asked to.

use std::path::{Path, PathBuf};

use fulmar_broker::storage::Restored;
use rusqlite::Connection;
use rusqlite::wal::CheckpointMode;

use crate::error::Error;
use crate::group::Group;
use crate::handle::SqliteStorage;
use crate::journal::{Applied, Journal, LogEntry, LogPosition, LogReader, RecordError};
use crate::log::Log;
use crate::options::Options;
use crate::restore::{self, Counts};
use crate::rows::{self, Rows, SeeChange, SeeRow};
use crate::schema;
use crate::tables::Tables;
use crate::weight::weight;

/// After this many operations and KiB of messages, the database is written.
const FLUSH_WEIGHT: usize = 65_536;
/// Steps of SQLite's between two looks whether a snapshot goes on: about 30 rows, 16 MiB of the largest messages.
const SNAPSHOT_STEPS: i32 = 100;

/// A database behind a log.
pub struct Follower {
    connection: Connection,
    path: PathBuf,
    options: Options,
    counts: Counts,
    last_message_id: u64,
    last_session_key: u64,
    reader: LogReader,
    behind: Group,
}

fulmar_text::opaque_debug!(Follower { path, reader });

impl Follower {
    /// Opens the database at `path`, or creates it empty, before the first record.
    ///
    /// # Errors
    /// As [`SqliteStorage::open`]; and [`Error::NotOfLog`], if it has contents that came from no log.
    pub fn open(path: &Path, options: &Options) -> Result<Follower, Error> {
        let connection = schema::open(path, options)?;
        let failed = |source| Error::opening(path, source);
        if schema::position(&connection).map_err(failed)?.is_none() {
            if !schema::is_empty(&connection).map_err(failed)? {
                return Err(Error::NotOfLog(path.to_owned()));
            }
            schema::set_position(&connection, Some(LogPosition::default())).map_err(failed)?;
        }
        Follower::start(connection, path, options)
    }

    /// Makes the database of a broker without a log the first snapshot of one.
    ///
    /// # Errors
    /// As [`SqliteStorage::open`].
    pub fn adopt(path: &Path, options: &Options) -> Result<Follower, Error> {
        let connection = schema::open(path, options)?;
        let failed = |source| Error::opening(path, source);
        if schema::position(&connection).map_err(failed)?.is_some() {
            return Err(Error::BehindLog(path.to_owned()));
        }
        schema::set_position(&connection, Some(LogPosition::default())).map_err(failed)?;
        Follower::start(connection, path, options)
    }

    fn start(connection: Connection, path: &Path, options: &Options) -> Result<Follower, Error> {
        let failed = |source| Error::opening(path, source);
        // The log is what is durable. The database may be older after a power cut, and is still whole.
        connection.pragma_update(None, "synchronous", "NORMAL").map_err(failed)?;
        rows::create(&connection).map_err(failed)?;
        let read = schema::position(&connection).map_err(failed)?.unwrap_or_default();
        let (restored, counts) = restore::restore(&connection).map_err(failed)?;
        Ok(Follower {
            connection,
            path: path.to_owned(),
            options: options.clone(),
            counts,
            last_message_id: restored.last_message_id,
            last_session_key: restored.last_session_key,
            reader: LogReader::new(read),
            behind: Group::default(),
        })
    }

    /// The record that it has read last; the next one must follow it.
    pub fn position(&self) -> LogPosition {
        self.reader.position()
    }

    /// The last record that is in the database, after a [`Follower::flush`] at least the last whole group.
    ///
    /// # Errors
    /// SQLite's.
    pub fn stored(&self) -> Result<LogPosition, FollowError> {
        Ok(schema::position(&self.connection)?.unwrap_or_default())
    }

    /// All rows of a database that another part of the server shares, by key.
    ///
    /// # Errors
    /// SQLite's.
    pub fn rows(&mut self, database: u8) -> Result<Rows, FollowError> {
        self.flush()?;
        Ok(rows::read_rows(&self.connection, database)?)
    }

    /// Whether a database that another part of the server shares has a row whose key begins like this.
    ///
    /// # Errors
    /// SQLite's.
    pub fn has_row(&mut self, database: u8, prefix: &[u8]) -> Result<bool, FollowError> {
        self.flush()?;
        Ok(rows::has(&self.connection, database, prefix)?)
    }

    /// Shows each row of a database, by key, as of the record that is returned.
    ///
    /// # Errors
    /// SQLite's, and those of `see`.
    pub fn each_row(&mut self, database: u8, see: SeeRow<'_>) -> Result<u64, FollowError> {
        self.flush()?;
        rows::for_each_row(&self.connection, database, see)?;
        Ok(self.reader.whole().number)
    }

    /// Shows each row of a followed database that has changed or is gone behind record `after`, as of the record that is
    /// returned.
    ///
    /// # Errors
    /// SQLite's, and those of `see`.
    pub fn changes(
        &mut self,
        database: u8,
        after: u64,
        see: SeeChange<'_>,
    ) -> Result<u64, FollowError> {
        self.flush()?;
        rows::changes(&self.connection, database, after, see)?;
        Ok(self.reader.whole().number)
    }

    /// Forgets which rows of a followed database have changed up to a record: its copy has them.
    ///
    /// # Errors
    /// SQLite's.
    pub fn forget_changes(&mut self, database: u8, up_to: u64) -> Result<(), FollowError> {
        Ok(rows::forget_changes(&self.connection, database, up_to)?)
    }

    /// Makes `rows` all of a database's, before there is a log that has them.
    ///
    /// # Errors
    /// SQLite's.
    pub fn replace_rows(&mut self, database: u8, rows: &Rows) -> Result<(), FollowError> {
        self.fill_rows(database, |put| rows.iter().try_for_each(|(key, value)| put(key, value)))
    }

    /// The same with the rows that `fill` gives.
    ///
    /// # Errors
    /// SQLite's, and those of `fill`; nothing has changed.
    pub fn fill_rows(
        &mut self,
        database: u8,
        fill: impl FnOnce(SeeRow<'_>) -> rusqlite::Result<()>,
    ) -> Result<(), FollowError> {
        Ok(rows::fill(&self.connection, database, fill)?)
    }

    /// Takes what the log has next.
    ///
    /// # Errors
    /// The record does not continue the log, or is damaged, or the database cannot be written: nothing of the record
    /// was taken.
    pub fn apply(&mut self, entry: LogEntry<'_>) -> Result<Applied, FollowError> {
        if self.behind.is_heavy(FLUSH_WEIGHT) {
            self.flush()?;
        }
        let mut ops = Vec::new();
        let applied = self.reader.read(entry, &mut ops)?;
        if !ops.is_empty() {
            let weight = weight(&ops);
            self.behind.add_all(ops, weight);
        }
        Ok(applied)
    }

    /// Writes what was read to the database.
    ///
    /// # Errors
    /// SQLite's; what was read is kept.
    pub fn flush(&mut self) -> Result<(), FollowError> {
        let whole = self.reader.whole();
        if self.stored()? == whole {
            return Ok(());
        }
        let (message, session) = (self.last_message_id, self.last_session_key);
        let mut tables = Tables::new(&self.connection, Counts::default(), message, session)?;
        tables.continue_counts(std::mem::take(&mut self.counts));
        let written = tables.write(&self.behind, Some(whole));
        (self.last_message_id, self.last_session_key) = tables.highest();
        self.counts = tables.into_counts();
        written?;
        self.behind.clear();
        self.checkpoint()
    }

    /// Copies SQLite's write-ahead log back when it has become long.
    fn checkpoint(&self) -> Result<(), FollowError> {
        let pages = |mode| self.connection.wal_checkpoint_v2(None::<&str>, mode);
        let (all, copied) = pages(CheckpointMode::NOOP)?;
        if u64::try_from(all - copied).unwrap_or(0) >= self.options.log_pages {
            pages(CheckpointMode::PASSIVE)?;
        }
        Ok(())
    }

    /// Writes a copy of the database, up to the last whole group, into a new file, and returns its position: a
    /// snapshot. Opening the file with [`Follower::open`] continues from there.
    ///
    /// # Errors
    /// SQLite's; the file exists, or cannot be written.
    pub fn snapshot(&mut self, to: &Path) -> Result<LogPosition, FollowError> {
        self.snapshot_while(to, || true)
    }

    /// The same, and gives it up when `goes_on` denies: it is asked all the time. The file is then to be removed.
    ///
    /// # Errors
    /// As [`Follower::snapshot`]; and SQLite's that it was interrupted.
    pub fn snapshot_while(
        &mut self,
        to: &Path,
        goes_on: impl Fn() -> bool + Send + 'static,
    ) -> Result<LogPosition, FollowError> {
        self.flush()?;
        self.connection.progress_handler(SNAPSHOT_STEPS, Some(move || !goes_on()))?;
        let copied = self.connection.execute("VACUUM INTO ?1", [to.to_string_lossy()]);
        self.connection.progress_handler(0, None::<fn() -> bool>)?;
        copied?;
        Ok(self.reader.whole())
    }

    /// Makes it the storage of a broker that writes to `journal`, behind the last record read. That must be the claim
    /// of `incarnation`, this process.
    ///
    /// # Errors
    /// As [`SqliteStorage::open`]; and [`Error::Unclaimed`].
    pub fn take_over(
        mut self,
        incarnation: u64,
        journal: Box<dyn Journal>,
        wake: Box<dyn Fn() + Send>,
    ) -> Result<(SqliteStorage, Restored), Error> {
        if self.reader.claimed_by() != Some(incarnation) {
            return Err(Error::Unclaimed(self.path));
        }
        match self.flush() {
            Ok(()) => {}
            Err(FollowError::Database(source)) => return Err(Error::opening(&self.path, source)),
            Err(FollowError::Record(error)) => {
                return Err(Error::Damaged { path: self.path, detail: error.to_string() });
            }
        }
        let log = Log::new(journal, self.reader.position());
        SqliteStorage::start(self.connection, &self.path, &self.options, Some(log), wake)
    }

    /// Makes it the database of a broker without a log again.
    ///
    /// # Errors
    /// SQLite's.
    pub fn leave(mut self) -> Result<(), FollowError> {
        self.flush()?;
        // From here on, the database is what is durable.
        self.connection.pragma_update(None, "synchronous", "FULL")?;
        schema::set_position(&self.connection, None)?;
        rows::drop_table(&self.connection)?;
        Ok(schema::mark_clean(&self.connection, true)?)
    }
}

/// Why a follower cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// The record.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The database.
    #[error(transparent)]
    Database(#[from] rusqlite::Error),
}
