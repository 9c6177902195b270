//! The file with the tickets, and when its content is trusted.
//!
//! A taken ticket must not return. Deleting it with an fsync would make every returning client wait for the disk, on
//! the thread that serves all others too. So nothing is fsynced, and the store is trusted only where that is enough:
//!
//! - The process died, the machine continued: written data is in the kernel's cache, and the next process reads it.
//!   The store contains the kernel's boot ID to recognize this case.
//! - The broker stopped in order: `Store::close` has fsynced the store and then written so into
//!   the file beside it, which the next opening empties, durably, before anything else. That
//!   file is also the lock that keeps a second process out from before the one to after the other.
//! - Otherwise the machine went down under a running broker: the disk may hold any older state,
//!   in parts even. The store is dropped, and every client's next connection is a full handshake.
//!
//! A data folder that is set back to a copy made after an ordered stop (a backup, a machine image) cannot be
//! detected. There TLS's own check remains: rustls refuses early data whose ticket age is more than 60 s off, so only
//! a first flight recorded within that time can be repeated.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, Result as SqlResult};

use super::TicketError;

/// Version of the layout below; a store of another version is dropped, as tickets are no loss.
const VERSION: i64 = 1;

/// Largest size of the file: 65,536 sessions of 1 KiB; without client certificates they take a
/// third of that.
const MAX_BYTES: i64 = 64 << 20;

/// Content of the file beside the store after an ordered stop; empty otherwise.
const CLOSED: &[u8] = b"closed\n";

const PAGE_BYTES: i64 = 4096;

/// The log is copied back after this many pages, 1 MiB, in well under a millisecond.
const LOG_PAGES: i64 = 256;

/// Decides whether to trust a store that was not closed: only within the same boot of the machine.
#[derive(Clone, Debug)]
pub(super) struct Trust {
    /// `None` if the kernel does not report it; then only an ordered stop is trusted.
    boot: Option<String>,
}

impl Trust {
    /// Linux gives every run of the machine a random identifier.
    pub(super) fn of_this_boot() -> Trust {
        let read = fs::read_to_string("/proc/sys/kernel/random/boot_id");
        Trust { boot: read.ok().map(|id| id.trim().to_owned()).filter(|id| !id.is_empty()) }
    }

    #[cfg(test)]
    pub(super) fn of_boot(id: &str) -> Trust {
        Trust { boot: Some(id.to_owned()) }
    }
}

/// An open store: the database and the hold on it.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) connection: Connection,
    /// Path and the locked file beside it; `None` for a store in memory.
    hold: Option<(PathBuf, File)>,
}

impl Store {
    /// Opens or makes the store; gives the number of tickets in it, too.
    pub(super) fn open(path: &Path, trust: &Trust) -> Result<(Store, usize), TicketError> {
        let database = |source| TicketError::Database { path: path.to_owned(), source };
        let (lock, closed) = lock(path)?;
        let connection = match existing(path, closed, trust)? {
            Some(connection) => connection,
            None => {
                remove(path)?;
                create(path)?;
                connect(path).map_err(database)?
            }
        };
        let boot = [&trust.boot];
        connection.execute("INSERT OR REPLACE INTO run VALUES (1, ?1)", boot).map_err(database)?;
        let count = "SELECT count(*) FROM ticket";
        let held: i64 = connection.query_row(count, [], |row| row.get(0)).map_err(database)?;
        let store = Store { connection, hold: Some((path.to_owned(), lock)) };
        Ok((store, usize::try_from(held).unwrap_or(0)))
    }

    /// A store without a file.
    pub(super) fn in_memory() -> SqlResult<Store> {
        let connection = Connection::open_in_memory()?;
        connection.pragma_update(None, "max_page_count", MAX_BYTES / PAGE_BYTES)?;
        create_tables(&connection)?;
        Ok(Store { connection, hold: None })
    }

    /// Makes the store durable, then says so in the file beside it.
    pub(super) fn close(self) -> Result<(), TicketError> {
        let Some((path, mut lock)) = self.hold else { return Ok(()) };
        let database = |source| TicketError::Database { path: path.clone(), source };
        self.connection.flush_prepared_statement_cache();
        // Copies the log back and removes it.
        self.connection.close().map_err(|(_, source)| database(source))?;
        let log = beside(&path, "-wal");
        if log.exists() {
            return Err(file_error(&log, io::Error::other("the log could not be copied back")));
        }
        File::open(&path)
            .and_then(|file| file.sync_all())
            .and_then(|()| sync_folder(&path))
            .and_then(|()| lock.write_all(CLOSED))
            .and_then(|()| lock.sync_all())
            .map_err(|source| file_error(&path, source))
    }
}

/// Takes the lock and says whether the store was closed in order; it is no longer once this returns.
fn lock(path: &Path) -> Result<(File, bool), TicketError> {
    let beside = beside(path, ".lock");
    let failed = |source| file_error(&beside, source);
    let mut options = OpenOptions::new();
    let mut file =
        options.read(true).write(true).create(true).mode(0o600).open(&beside).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(TicketError::InUse(path.to_owned())),
        Err(TryLockError::Error(source)) => return Err(failed(source)),
    }
    let mut content = Vec::new();
    (&mut file).take(CLOSED.len() as u64 + 1).read_to_end(&mut content).map_err(failed)?;
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| file.sync_all())
        .and_then(|()| sync_folder(path))
        .map_err(failed)?;
    Ok((file, content == CLOSED))
}

/// The existing store, if it can be trusted.
fn existing(path: &Path, closed: bool, trust: &Trust) -> Result<Option<Connection>, TicketError> {
    if !path.exists() {
        return Ok(None);
    }
    let opened = connect(path).and_then(|connection| {
        let boot = recorded_boot(&connection)?;
        Ok((connection, boot))
    });
    match opened {
        Ok((connection, boot)) => {
            let same_run = trust.boot.is_some() && boot == trust.boot;
            if !closed && !same_run {
                let path = path.display();
                tracing::info!(%path, "TLS tickets dropped: the machine went down under them");
            }
            Ok((closed || same_run).then_some(connection))
        }
        Err(error) if is_busy(&error) => Err(TicketError::InUse(path.to_owned())),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "TLS tickets dropped: damaged store");
            Ok(None)
        }
    }
}

/// Tables of a new store; of an old one when they are missing.
fn create_tables(connection: &Connection) -> SqlResult<()> {
    connection.execute_batch(
        "CREATE TABLE IF NOT EXISTS run (
             one INTEGER PRIMARY KEY CHECK (one = 1),
             boot TEXT                            -- of the machine's run that wrote last
         ) STRICT;
         CREATE TABLE IF NOT EXISTS ticket (
             number INTEGER PRIMARY KEY,          -- in the order of issue
             id BLOB NOT NULL UNIQUE,             -- a digest of the ticket
             born INTEGER NOT NULL,               -- s since the Unix epoch
             session BLOB NOT NULL
         ) STRICT;",
    )
}

fn connect(path: &Path) -> SqlResult<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(Duration::ZERO)?;
    // Never released: no other process may use a ticket or restore one.
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    connection.pragma_update(None, "page_size", PAGE_BYTES)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "OFF")?;
    connection.pragma_update(None, "secure_delete", "ON")?;
    connection.pragma_update(None, "wal_autocheckpoint", LOG_PAGES)?;
    connection.pragma_update(None, "max_page_count", MAX_BYTES / PAGE_BYTES)?;
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if version == 0 {
        create_tables(&connection)?;
        connection.pragma_update(None, "user_version", VERSION)?;
    } else if version != VERSION {
        return Err(rusqlite::Error::InvalidQuery);
    }
    Ok(connection)
}

fn recorded_boot(connection: &Connection) -> SqlResult<Option<String>> {
    let mut select = connection.prepare("SELECT boot FROM run")?;
    let mut rows = select.query([])?;
    rows.next()?.map_or(Ok(None), |row| row.get(0))
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// SQLite gives its log the rights of the file it belongs to.
fn create(path: &Path) -> Result<(), TicketError> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(file_error(path, error)),
    }
}

fn remove(path: &Path) -> Result<(), TicketError> {
    for file in [path.to_owned(), beside(path, "-wal"), beside(path, "-shm")] {
        match fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(file_error(&file, error));
            }
            _ => {}
        }
    }
    Ok(())
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    PathBuf::from(name)
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all())
}

fn file_error(path: &Path, source: io::Error) -> TicketError {
    TicketError::File { path: path.to_owned(), source }
}
