//! The database file: who may read it, its settings, its tables.
//!
//! A change of the tables is a new entry at the end of [`MIGRATIONS`]; entries are never edited.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;

/// Marks the file in SQLite's header ("FULP").
const APPLICATION_ID: i64 = 0x4655_4c50;

/// How long `fulmar user` and the server wait for one another.
const PATIENCE: Duration = Duration::from_secs(10);

/// The log's file is cut back to this size when it starts anew.
const WAL_KEEP_BYTES: i64 = 16 << 20;

/// Entry n brings version n to version n + 1. Times are milliseconds since 1970.
const MIGRATIONS: &[&str] =
    &[include_str!("schema.sql"), include_str!("field.sql"), include_str!("monitoring.sql")];

pub(super) fn open(path: &Path) -> rusqlite::Result<Connection> {
    // Meters' keys are in it. SQLite gives its log and shared memory the database's mode.
    let made = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
    made.map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
    let mut connection = Connection::open(path)?;
    connection.busy_timeout(PATIENCE)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "journal_size_limit", WAL_KEEP_BYTES)?;
    connection.set_prepared_statement_cache_capacity(128);
    let transaction = connection.transaction()?;
    let done: usize = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
    for migration in MIGRATIONS.iter().skip(done) {
        transaction.execute_batch(migration)?;
    }
    if done < MIGRATIONS.len() {
        transaction.pragma_update(None, "user_version", MIGRATIONS.len())?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    }
    transaction.commit()?;
    Ok(connection)
}
