//! `admin.db` in the data folder: bans, and the log of all changes.
//!
//! A change is in the log before it is made, and its result is added afterwards: without a result, the server ended in
//! between. A change that cannot be logged is not made. `fulmar audit` reads the same file, with the server running or
//! not.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fulmar_identity::{ChangeLog, NewEntry};
use fulmar_mirror::{CommitError, Mirror, NotShared, Rows, Shared, prepare_file};
use parking_lot::Mutex;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, Row, params};
use serde::Serialize;
use utoipa::ToSchema;

use crate::local::LocalCaller;

/// The file in the data folder.
pub const DATABASE_FILE: &str = "admin.db";

/// Entries of the log at most; the oldest are removed.
const MAX_ENTRIES: u64 = 100_000;
/// Time for which entries are kept, in milliseconds.
const MAX_AGE_MS: u64 = 400 * 86_400_000;
/// Bytes of an entry's detail at most, and of its other texts: anybody can send a long name with a wrong password.
const MAX_DETAIL_BYTES: usize = 4096;
pub(crate) const MAX_TEXT_BYTES: usize = 512;
/// Bytes of all entries at most; beyond that, the oldest are removed.
const MAX_BYTES: u64 = 32 << 20;
/// Entries between two removals of old ones.
const PRUNE_EVERY: i64 = 100;

/// Why a change is not made.
pub(crate) const NOT_LOGGED: &str =
    "the log of changes cannot be written: nothing was changed; see the server's log";

/// The version of the tables, as SQLite's user version.
const VERSION: i64 = 1;

/// Tables that nodes of a cluster share.
const SHARED: [&str; 2] = ["ban", "audit"];

const TABLES: &str = "
CREATE TABLE ban (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    value TEXT NOT NULL,
    until_ms INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    reason TEXT NOT NULL
) STRICT;
CREATE TABLE audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms INTEGER NOT NULL,
    who TEXT NOT NULL,
    origin TEXT NOT NULL,
    action TEXT NOT NULL,
    object TEXT NOT NULL,
    detail TEXT NOT NULL,
    result TEXT
) STRICT;
CREATE INDEX audit_at ON audit (at_ms);
";

/// Removes entries older than the newest ones that fit into a number of bytes; each counts 100 for itself.
const BEYOND_BYTES: &str = "
DELETE FROM audit WHERE id <= (SELECT max(id) FROM (
    SELECT id, sum(100 + octet_length(who) + octet_length(origin) + octet_length(action) + octet_length(object)
        + octet_length(detail) + ifnull(octet_length(result), 0)) OVER (ORDER BY id DESC) AS bytes FROM audit
) WHERE bytes > ?1)";

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It cannot be created or opened.
    #[error("{path}: {source}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// SQLite cannot read or write it.
    #[error("{DATABASE_FILE}: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// Another program's.
    #[error(
        "{DATABASE_FILE} is another program's database: move it away, or choose another data folder"
    )]
    Foreign,
    /// This node has not shared a change with the others of its cluster.
    #[error("{0}")]
    NotShared(#[from] NotShared),
    /// A newer version wrote it.
    #[error(
        "{DATABASE_FILE} is of a newer version of Fulmar ({0}): use that, or move the file away"
    )]
    Newer(i64),
}

/// A ban that is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct BanRow {
    /// Number, to lift it.
    pub(crate) id: i64,
    /// `client`, `user` or `network`.
    pub(crate) kind: String,
    /// The client identifier, user, or network as ADDRESS/BITS.
    pub(crate) value: String,
    /// When it ends, in milliseconds since the Unix epoch.
    pub(crate) until_ms: i64,
    /// When it began.
    pub(crate) created_ms: i64,
    /// Who made it.
    pub(crate) created_by: String,
    /// Why.
    pub(crate) reason: String,
}

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct AuditEntry {
    /// Number; later entries have higher ones.
    pub id: i64,
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// The user; `local:UID` for a user of the server's machine.
    pub who: String,
    /// The address, or `local`.
    pub from: String,
    /// Action, such as `client.disconnect`.
    pub action: String,
    /// To what: a client, a user, a topic.
    pub object: String,
    /// Values before and after, without secrets.
    pub detail: String,
    /// `ok`, or why it was refused; absent if the server ended before it was known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
}

/// Filter of entries.
#[derive(Clone, Copy, Debug)]
pub struct AuditQuery {
    /// From this time on, in milliseconds since the Unix epoch.
    pub since_ms: i64,
    /// Only entries with a lower number.
    pub before: i64,
    /// Maximum number; the newest are chosen.
    pub most: usize,
}

impl From<CommitError> for StoreError {
    fn from(error: CommitError) -> StoreError {
        match error {
            CommitError::NotShared(error) => StoreError::NotShared(error),
            CommitError::Sqlite(error) => StoreError::Sqlite(error),
        }
    }
}

/// The open file.
#[derive(Clone, Debug)]
pub struct Store(Arc<Mutex<File>>);

#[derive(Debug)]
struct File {
    connection: Connection,
    /// With which other nodes of a cluster get every change.
    mirror: Option<Mirror>,
}

impl Store {
    /// Opens the file, and creates it if it is missing.
    ///
    /// # Errors
    /// It cannot be used.
    pub fn open(data: &Path) -> Result<Store, StoreError> {
        Store::new(open(data)?, None)
    }

    /// Opens that of a node that has taken over, with everything that is shared and nothing else.
    ///
    /// # Errors
    /// Those of [`Store::open`].
    pub fn open_shared(data: &Path, shared: Shared) -> Result<Store, StoreError> {
        Store::new(open(data)?, Some(shared))
    }

    #[cfg(test)]
    pub(crate) fn in_memory() -> Store {
        Connection::open_in_memory()
            .map_err(StoreError::from)
            .and_then(|connection| Store::new(connection, None))
            .unwrap_or_else(|error| panic!("{error}"))
    }

    fn new(mut connection: Connection, shared: Option<Shared>) -> Result<Store, StoreError> {
        prepare(&mut connection)?;
        let attach = |shared| Mirror::attach(&mut connection, &SHARED, shared);
        let mirror = shared.map(attach).transpose()?;
        Ok(Store(Arc::new(Mutex::new(File { connection, mirror }))))
    }

    /// Makes a change in one transaction.
    fn change<T>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let File { connection, mirror } = &mut *self.0.lock();
        let transaction = connection.transaction()?;
        let done = work(&transaction)?;
        match mirror {
            Some(mirror) => mirror.commit(transaction)?,
            None => transaction.commit()?,
        }
        Ok(done)
    }

    /// Bans that have not ended.
    pub(crate) fn bans(&self, now_ms: i64) -> Result<Vec<BanRow>, StoreError> {
        self.change(|connection| {
            connection.execute("DELETE FROM ban WHERE until_ms <= ?1", [now_ms])?;
            let mut statement = connection.prepare_cached(
                "SELECT id, kind, value, until_ms, created_ms, created_by, reason FROM ban ORDER BY id",
            )?;
            let rows = statement.query_map([], ban)?;
            rows.collect()
        })
    }

    /// Adds a ban, in place of an earlier one of the same client, user or network; returns its number.
    pub(crate) fn add_ban(&self, row: &BanRow) -> Result<i64, StoreError> {
        self.change(|connection| {
            let same = "DELETE FROM ban WHERE kind = ?1 AND value = ?2";
            connection.execute(same, [&row.kind, &row.value])?;
            connection.execute(
                "INSERT INTO ban (kind, value, until_ms, created_ms, created_by, reason) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                params![row.kind, row.value, row.until_ms, row.created_ms, row.created_by, row.reason],
            )?;
            Ok(connection.last_insert_rowid())
        })
    }

    /// Removes a ban; returns what it was.
    pub(crate) fn remove_ban(&self, id: i64) -> Result<Option<BanRow>, StoreError> {
        let sql = "DELETE FROM ban WHERE id = ?1 RETURNING id, kind, value, until_ms, created_ms, created_by, reason";
        self.change(|connection| connection.query_row(sql, [id], ban).optional())
    }

    /// Adds an entry whose result is not known yet; returns its number.
    pub(crate) fn begin(&self, entry: &NewEntry, now_ms: i64) -> Result<i64, StoreError> {
        self.change(|connection| add(connection, entry, now_ms))
    }

    /// Adds entries of changes that are about to be made; returns their numbers.
    fn begin_all(&self, entries: &[NewEntry]) -> Result<Vec<i64>, StoreError> {
        let now_ms = now_ms();
        self.change(|connection| {
            entries.iter().map(|entry| add(connection, entry, now_ms)).collect()
        })
    }

    /// Adds the result of an entry.
    pub(crate) fn end(&self, id: i64, result: &str) -> Result<(), StoreError> {
        self.end_all([(id, result)])
    }

    /// Adds the results of entries.
    fn end_all<'a>(
        &self,
        results: impl IntoIterator<Item = (i64, &'a str)>,
    ) -> Result<(), StoreError> {
        let sql = "UPDATE audit SET result = ?2 WHERE id = ?1";
        self.change(|connection| {
            for (id, result) in results {
                connection.execute(sql, params![id, cut(result, MAX_DETAIL_BYTES)])?;
            }
            Ok(())
        })
    }

    /// Logs a change, makes it, and adds the result.
    ///
    /// # Errors
    /// Those of the change; or it cannot be logged, and was not made.
    pub fn logged<T, E: std::fmt::Display + From<StoreError>>(
        &self,
        entry: NewEntry,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let ids = self.begin_all(&[entry])?;
        let made = make();
        let result = made.as_ref().map_or_else(ToString::to_string, |_| "ok".to_owned());
        // What was made is reported as made.
        if let Err(error) = self.end_all(ids.into_iter().map(|id| (id, &*result))) {
            tracing::error!("the log of changes lacks a result: {error}");
        }
        made
    }

    pub(crate) fn entries(&self, query: AuditQuery) -> Result<Vec<AuditEntry>, StoreError> {
        Ok(entries(&self.0.lock().connection, query)?)
    }
}

impl ChangeLog for Store {
    fn begin(&self, changes: &[NewEntry]) -> Result<Vec<i64>, String> {
        self.begin_all(changes).map_err(|error| {
            tracing::error!("the log of changes: {error}");
            NOT_LOGGED.to_owned()
        })
    }

    fn end(&self, results: &[(i64, &str)]) {
        if let Err(error) = self.end_all(results.iter().copied()) {
            tracing::error!("the log of changes: {error}");
        }
    }
}

fn add(connection: &Connection, entry: &NewEntry, now_ms: i64) -> rusqlite::Result<i64> {
    let detail = cut(&entry.detail, MAX_DETAIL_BYTES);
    let [who, object] = [&entry.who, &entry.object].map(|text| cut(text, MAX_TEXT_BYTES));
    connection.execute(
        "INSERT INTO audit (at_ms, who, origin, action, object, detail) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        params![now_ms, who, entry.from, entry.action, object, detail],
    )?;
    let id = connection.last_insert_rowid();
    if id % PRUNE_EVERY == 0 {
        let oldest = now_ms - MAX_AGE_MS.cast_signed();
        let last = id - MAX_ENTRIES.cast_signed();
        let old = "DELETE FROM audit WHERE id <= ?1 OR at_ms < ?2";
        connection.execute(old, [last, oldest])?;
        connection.execute(BEYOND_BYTES, [MAX_BYTES.cast_signed()])?;
    }
    Ok(id)
}

/// The time, in milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Logs a change that a command makes in a data folder, with the server running or not: see [`Store::logged`]. Where there
/// is no such folder, as beside a database on another machine, there is no log.
///
/// # Errors
/// Those of the change; or it cannot be logged, and was not made.
pub fn logged_locally<T, E: std::fmt::Display + From<StoreError>>(
    data: &Path,
    action: &'static str,
    object: &str,
    detail: &serde_json::Value,
    make: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    if !data.is_dir() {
        return make();
    }
    let uid = rustix::process::getuid().as_raw();
    let who = LocalCaller { uid: Some(uid) }.name();
    let entry = NewEntry::local(&who, action, object, detail.to_string());
    Store::open(data)?.logged(entry, make)
}

/// The text, or its beginning.
pub(crate) fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(most)])
}

/// Refuses another program's database and a newer version's, before anything is changed.
fn check_owner(connection: &Connection, version: i64) -> Result<(), StoreError> {
    let count = |sql| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
    let tables = count("SELECT count(*) FROM sqlite_schema")?;
    let ours = count("SELECT count(*) FROM sqlite_schema WHERE name IN ('ban', 'audit')")?;
    match version {
        0 if tables == 0 => Ok(()),
        1.. if ours == 2 && version > VERSION => Err(StoreError::Newer(version)),
        1.. if ours == 2 => Ok(()),
        _ => Err(StoreError::Foreign),
    }
}

fn open(data: &Path) -> Result<Connection, StoreError> {
    let path = data.join(DATABASE_FILE);
    prepare_file(&path).map_err(|source| StoreError::File { path: path.clone(), source })?;
    Ok(Connection::open(path)?)
}

fn prepare(connection: &mut Connection) -> Result<(), StoreError> {
    connection.busy_timeout(std::time::Duration::from_secs(5))?;
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    check_owner(connection, version)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    if version == 0 {
        let transaction = connection.transaction()?;
        transaction.execute_batch(TABLES)?;
        transaction.pragma_update(None, "user_version", VERSION)?;
        transaction.commit()?;
    }
    Ok(())
}

/// Everything in the file of a data folder that nodes of a cluster would share; nothing without a file.
///
/// # Errors
/// It cannot be read.
pub fn shared_rows(data: &Path) -> Result<Rows, StoreError> {
    if !data.join(DATABASE_FILE).exists() {
        return Ok(Rows::new());
    }
    let mut connection = open(data)?;
    prepare(&mut connection)?;
    Ok(fulmar_mirror::read_rows(&connection, &SHARED)?)
}

/// Makes what nodes have shared everything that the file of a data folder has.
///
/// # Errors
/// It cannot be written.
pub fn replace_rows(data: &Path, rows: &Rows) -> Result<(), StoreError> {
    let mut connection = open(data)?;
    prepare(&mut connection)?;
    Ok(fulmar_mirror::replace(&mut connection, &SHARED, rows)?)
}

/// The log of changes of a data folder, newest first, with the server running or not.
///
/// # Errors
/// There is no such file, or it cannot be read.
pub fn read_audit(data: &Path, query: AuditQuery) -> Result<Vec<AuditEntry>, StoreError> {
    // Not read-only: a file of a server that has crashed has to be recovered first.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(data.join(DATABASE_FILE), flags)?;
    connection.busy_timeout(std::time::Duration::from_secs(5))?;
    Ok(entries(&connection, query)?)
}

fn entries(connection: &Connection, query: AuditQuery) -> rusqlite::Result<Vec<AuditEntry>> {
    let mut statement = connection.prepare_cached(
        "SELECT id, at_ms, who, origin, action, object, detail, result FROM audit
         WHERE at_ms >= ?1 AND id < ?2 ORDER BY id DESC LIMIT ?3",
    )?;
    let most = i64::try_from(query.most).unwrap_or(i64::MAX);
    let rows = statement.query_map([query.since_ms, query.before, most], |row| {
        Ok(AuditEntry {
            id: row.get(0)?,
            at_ms: row.get(1)?,
            who: row.get(2)?,
            from: row.get(3)?,
            action: row.get(4)?,
            object: row.get(5)?,
            detail: row.get(6)?,
            result: row.get(7)?,
        })
    })?;
    rows.collect()
}

fn ban(row: &Row<'_>) -> rusqlite::Result<BanRow> {
    Ok(BanRow {
        id: row.get(0)?,
        kind: row.get(1)?,
        value: row.get(2)?,
        until_ms: row.get(3)?,
        created_ms: row.get(4)?,
        created_by: row.get(5)?,
        reason: row.get(6)?,
    })
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
