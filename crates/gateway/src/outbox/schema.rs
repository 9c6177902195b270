//! The outbox's file: opened for this process alone, checked, brought to the newest schema.

use std::path::Path;
use std::time::Duration;

use fulmar_mirror::{Header, limit_file, make_durable, prepare_file};
use rusqlite::{Connection, OpenFlags, Result};

use crate::error::Error;

/// Marks the file as an outbox in SQLite's header ("FULO").
const APPLICATION_ID: i64 = 0x4655_4c4f;
const VERSION: i64 = 1;

/// Memory for SQLite's page cache. A gateway is a small computer, and most messages are read once.
const CACHE_KIB: i64 = 1024;
/// Size that the write-ahead log keeps on the disk, so that messages acknowledged upstream can be removed even if the
/// disk is full.
const LOG_BYTES: i64 = 4 << 20;

const SCHEMA: &str = "
CREATE TABLE message (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    priority INTEGER NOT NULL,
    topic TEXT NOT NULL,                     -- name upstream
    payload BLOB NOT NULL,
    properties BLOB NOT NULL,                -- MQTT 5.0 encoding, as it is sent
    qos INTEGER NOT NULL,
    retain INTEGER NOT NULL,
    id TEXT NOT NULL,
    at TEXT NOT NULL,
    entered INTEGER NOT NULL,                -- ms since the Unix epoch, by the clock of meta
    expires INTEGER,                         -- the same
    size INTEGER NOT NULL
) STRICT;
CREATE INDEX message_lane ON message (priority, seq);
CREATE TABLE seen (
    mark INTEGER PRIMARY KEY,                -- of an identifier or of what a device sent
    seq INTEGER NOT NULL
) STRICT;
CREATE TABLE meta (
    name TEXT PRIMARY KEY NOT NULL,
    value TEXT NOT NULL
) WITHOUT ROWID, STRICT;
";

pub(super) fn open(path: &Path, max_file_bytes: Option<u64>) -> Result<Connection, Error> {
    prepare_file(path).map_err(|source| Error::File { path: path.to_owned(), source })?;
    let failed = |source| Error::from_sqlite(path, source);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    connection.busy_timeout(Duration::ZERO).map_err(failed)?;
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE").map_err(failed)?;
    let header = Header::read(&connection).map_err(failed)?;
    let version = header.user_version;
    check_owner(path, version, header.application_id)?;
    if version == 0 && !header.is_new() {
        return Err(Error::Foreign(path.to_owned()));
    }
    configure(&connection, max_file_bytes).map_err(failed)?;
    if version == 0 {
        let create = format!(
            "BEGIN EXCLUSIVE; {SCHEMA} PRAGMA user_version = {VERSION}; \
             PRAGMA application_id = {APPLICATION_ID}; COMMIT;"
        );
        connection.execute_batch(&create).map_err(failed)?;
    }
    let found: String =
        connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(failed)?;
    if found != "ok" {
        return Err(Error::Damaged { path: path.to_owned(), detail: found });
    }
    Ok(connection)
}

/// Refuses a file of another program or of a newer version; `version` and `owner` are what SQLite calls user version and
/// application id, in the header of its file.
///
/// # Errors
/// [`Error::Foreign`].
pub fn check_owner(path: &Path, version: i64, owner: i64) -> Result<(), Error> {
    match (version, owner) {
        (0, 0) | (VERSION, APPLICATION_ID) => Ok(()),
        _ => Err(Error::Foreign(path.to_owned())),
    }
}

fn configure(connection: &Connection, max_file_bytes: Option<u64>) -> Result<()> {
    make_durable(connection, LOG_BYTES)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    if let Some(bytes) = max_file_bytes {
        limit_file(connection, bytes, 16)?;
    }
    Ok(())
}
