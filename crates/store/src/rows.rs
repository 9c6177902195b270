//! Rows of other parts of a server, which nodes of a cluster share: keys and contents that mean nothing here.
//!
//! They are in the log and in the database as the broker's own state is, and so in its snapshots. The part that has them
//! changes them with [`crate::SqliteStorage::share`], and gets all of them from [`crate::Follower::rows`] when its node takes
//! over. Only a database that belongs to a log has the tables.
//!
//! Those of a large database ([`FOLLOWED`]) are too many for that. Its part has a copy that follows them: for each row that
//! has changed or is gone, `shared_change` has the last record of the log with it, or a later one. The copy asks for the
//! changes behind the record up to which it has everything, and lets older ones be forgotten.

use rusqlite::{Connection, OptionalExtension as _, Result, params};

/// Databases with this number or a higher one are followed.
pub const FOLLOWED: u8 = 128;

/// Sees keys and contents of rows; `None` for one that is gone.
pub type SeeChange<'a> = &'a mut dyn FnMut(&[u8], Option<&[u8]>) -> Result<()>;
/// Sees keys and contents of rows, or takes them.
pub type SeeRow<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<()>;

/// All rows of a database, each with its key.
pub type Rows = Vec<(Vec<u8>, Vec<u8>)>;

const TABLE: &str = "
CREATE TABLE IF NOT EXISTS shared_row (
    database INTEGER NOT NULL,
    key BLOB NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (database, key)
) WITHOUT ROWID, STRICT;
CREATE TABLE IF NOT EXISTS shared_change (
    database INTEGER NOT NULL,
    key BLOB NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (database, key)
) WITHOUT ROWID, STRICT;
CREATE INDEX IF NOT EXISTS shared_change_number ON shared_change (database, number);
";
pub(crate) const PUT: &str = "INSERT OR REPLACE INTO shared_row VALUES (?1, ?2, ?3)";
pub(crate) const REMOVE: &str = "DELETE FROM shared_row WHERE database = ?1 AND key = ?2";
pub(crate) const NOTE: &str = "INSERT OR REPLACE INTO shared_change VALUES (?1, ?2, ?3)";
const FORGET: &str = "DELETE FROM shared_change WHERE database = ?1 AND number <= ?2";

pub(crate) fn exist(connection: &Connection) -> Result<bool> {
    let sql = "SELECT 1 FROM sqlite_schema WHERE name = 'shared_row'";
    Ok(connection.query_row(sql, [], |_| Ok(())).optional()?.is_some())
}

pub(crate) fn create(connection: &Connection) -> Result<()> {
    connection.execute_batch(TABLE)
}

pub(crate) fn drop_table(connection: &Connection) -> Result<()> {
    connection.execute_batch("DROP TABLE IF EXISTS shared_row; DROP TABLE IF EXISTS shared_change")
}

pub(crate) fn read_rows(connection: &Connection, database: u8) -> Result<Rows> {
    let sql = "SELECT key, value FROM shared_row WHERE database = ?1 ORDER BY key";
    let mut statement = connection.prepare(sql)?;
    let rows = statement.query_map([database], |row| Ok((row.get(0)?, row.get(1)?)))?;
    rows.collect()
}

/// Shows each row of a database, by key.
pub(crate) fn for_each_row(connection: &Connection, database: u8, see: SeeRow<'_>) -> Result<()> {
    let sql = "SELECT key, value FROM shared_row WHERE database = ?1 ORDER BY key";
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([database])?;
    while let Some(row) = rows.next()? {
        see(row.get_ref(0)?.as_blob()?, row.get_ref(1)?.as_blob()?)?;
    }
    Ok(())
}

/// Shows each row of a followed database that has changed behind record `after`.
pub(crate) fn changes(
    connection: &Connection,
    database: u8,
    after: u64,
    see: SeeChange<'_>,
) -> Result<()> {
    let sql = "SELECT c.key, r.value FROM shared_change c
               LEFT JOIN shared_row r ON r.database = c.database AND r.key = c.key
               WHERE c.database = ?1 AND c.number > ?2";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(params![database, after.cast_signed()])?;
    while let Some(row) = rows.next()? {
        see(row.get_ref(0)?.as_blob()?, row.get_ref(1)?.as_blob_or_null()?)?;
    }
    Ok(())
}

/// Forgets which rows have changed up to record `number`.
pub(crate) fn forget_changes(connection: &Connection, database: u8, number: u64) -> Result<()> {
    let mut statement = connection.prepare_cached(FORGET)?;
    statement.execute(params![database, number.cast_signed()]).map(drop)
}

/// Whether a database has a row whose key begins like this.
pub(crate) fn has(connection: &Connection, database: u8, prefix: &[u8]) -> Result<bool> {
    let sql = "SELECT key FROM shared_row WHERE database = ?1 AND key >= ?2 ORDER BY key LIMIT 1";
    let key: Option<Vec<u8>> =
        connection.query_row(sql, params![database, prefix], |row| row.get(0)).optional()?;
    Ok(key.is_some_and(|key| key.starts_with(prefix)))
}

/// Makes what `fill` gives all rows of a database.
pub(crate) fn fill(
    connection: &Connection,
    database: u8,
    fill: impl FnOnce(SeeRow<'_>) -> Result<()>,
) -> Result<()> {
    let transaction = connection.unchecked_transaction()?;
    transaction.execute("DELETE FROM shared_row WHERE database = ?1", [database])?;
    fill(&mut |key, value| {
        transaction.prepare_cached(PUT)?.execute(params![database, key, value]).map(drop)
    })?;
    transaction.commit()
}
