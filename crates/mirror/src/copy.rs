//! A database of a node that stands by: it follows the rows that another node shares, so that little is left to do when
//! its own node takes over.
//!
//! It knows up to which record of the log it has all rows, in the same transaction as the rows. [`crate::Mirror::follow`]
//! goes on from there.

use rusqlite::{Connection, OptionalExtension as _, Result, Transaction};

use crate::rows::{self, SeeRow, Table};

const POSITION: &str = "CREATE TABLE IF NOT EXISTS shared_position (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    number INTEGER NOT NULL
) STRICT";
const SET_POSITION: &str = "INSERT OR REPLACE INTO shared_position VALUES (1, ?1)";

/// A database that follows shared rows.
#[derive(Debug)]
pub struct Copy {
    connection: Connection,
    names: &'static [&'static str],
    tables: Vec<Table>,
}

/// A transaction of a [`struct@Copy`].
#[derive(Debug)]
pub struct Changes<'a> {
    transaction: Transaction<'a>,
    names: &'static [&'static str],
    tables: &'a [Table],
}

impl Copy {
    /// A copy in this database, which has these tables. Commits must be durable when they return.
    ///
    /// # Errors
    /// SQLite's.
    pub fn new(connection: Connection, names: &'static [&'static str]) -> Result<Copy> {
        // Rows arrive in any order; the node that changed them has checked references and followed them.
        connection.pragma_update(None, "foreign_keys", false)?;
        connection.execute_batch(POSITION)?;
        let tables =
            names.iter().map(|name| Table::read(&connection, name)).collect::<Result<_>>()?;
        Ok(Copy { connection, names, tables })
    }

    /// The record of the log up to which it has all rows; `None` if what it has is no copy.
    ///
    /// # Errors
    /// SQLite's.
    pub fn position(&self) -> Result<Option<u64>> {
        let sql = "SELECT number FROM shared_position";
        let number: Option<i64> =
            self.connection.query_row(sql, [], |row| row.get(0)).optional()?;
        Ok(number.map(i64::cast_unsigned))
    }

    /// Begins to change it.
    ///
    /// # Errors
    /// SQLite's.
    pub fn change(&mut self) -> Result<Changes<'_>> {
        let transaction = self.connection.transaction()?;
        Ok(Changes { transaction, names: self.names, tables: &self.tables })
    }

    /// Shows each row, as it would be shared, to `see`.
    ///
    /// # Errors
    /// SQLite's, and those of `see`.
    pub fn for_each_row(&self, see: SeeRow<'_>) -> Result<()> {
        rows::for_each_row(&self.connection, self.names, see)
    }

    /// Forgets its position: what it has is to be replaced.
    ///
    /// # Errors
    /// SQLite's.
    pub fn start_over(&self) -> Result<()> {
        self.connection.execute("DELETE FROM shared_position", []).map(drop)
    }

    /// Makes it a database of its own.
    ///
    /// # Errors
    /// SQLite's.
    pub fn leave(self) -> Result<()> {
        self.connection.execute_batch("DROP TABLE shared_position")
    }
}

#[cfg(test)]
impl Copy {
    pub(crate) fn connection(self) -> Connection {
        self.connection
    }
}

impl Changes<'_> {
    /// Removes all rows.
    ///
    /// # Errors
    /// SQLite's.
    pub fn clear(&mut self) -> Result<()> {
        rows::clear(&self.transaction, self.names)
    }

    /// Stores a row, or removes it.
    ///
    /// # Errors
    /// SQLite's; the row is of a newer version's table.
    pub fn set(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        match value {
            Some(value) => rows::replace_row(&self.transaction, self.names, key, value),
            None => rows::remove(&self.transaction, self.tables, key),
        }
    }

    /// Commits: from here on, it has everything up to record `number`.
    ///
    /// # Errors
    /// SQLite's; nothing has changed.
    pub fn commit(self, number: u64) -> Result<()> {
        set_position(&self.transaction, number)?;
        self.transaction.commit()
    }
}

/// Notes up to which record a database has all rows.
pub(crate) fn set_position(connection: &Connection, number: u64) -> Result<()> {
    connection.prepare_cached(SET_POSITION)?.execute([number.cast_signed()]).map(drop)
}
