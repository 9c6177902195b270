//! Rows of other parts of a server, which nodes of a cluster share: keys and contents that mean nothing here.
//!
//! They are in the log and in the database as the broker's own state is, and so in its snapshots. The part that has them
//! changes them with [`crate::SqliteStorage::share`], and gets all of them from [`crate::Follower::rows`] when its node takes
//! over. Only a database that belongs to a log has the table.

use rusqlite::{Connection, OptionalExtension as _, Result, params};

/// All rows of a database, each with its key.
pub type Rows = Vec<(Vec<u8>, Vec<u8>)>;

const TABLE: &str = "
CREATE TABLE IF NOT EXISTS shared_row (
    database INTEGER NOT NULL,
    key BLOB NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (database, key)
) WITHOUT ROWID, STRICT;
";
pub(crate) const PUT: &str = "INSERT OR REPLACE INTO shared_row VALUES (?1, ?2, ?3)";
pub(crate) const REMOVE: &str = "DELETE FROM shared_row WHERE database = ?1 AND key = ?2";

pub(crate) fn exist(connection: &Connection) -> Result<bool> {
    let sql = "SELECT 1 FROM sqlite_schema WHERE name = 'shared_row'";
    Ok(connection.query_row(sql, [], |_| Ok(())).optional()?.is_some())
}

pub(crate) fn create(connection: &Connection) -> Result<()> {
    connection.execute_batch(TABLE)
}

pub(crate) fn drop_table(connection: &Connection) -> Result<()> {
    connection.execute_batch("DROP TABLE IF EXISTS shared_row")
}

pub(crate) fn all(connection: &Connection, database: u8) -> Result<Rows> {
    let sql = "SELECT key, value FROM shared_row WHERE database = ?1 ORDER BY key";
    let mut statement = connection.prepare(sql)?;
    let rows = statement.query_map([database], |row| Ok((row.get(0)?, row.get(1)?)))?;
    rows.collect()
}

/// Makes `rows` all of a database's.
pub(crate) fn replace(connection: &Connection, database: u8, rows: &Rows) -> Result<()> {
    let transaction = connection.unchecked_transaction()?;
    transaction.execute("DELETE FROM shared_row WHERE database = ?1", [database])?;
    for (key, value) in rows {
        transaction.prepare_cached(PUT)?.execute(params![database, key, value])?;
    }
    transaction.commit()
}
