//! A row, whatever its engine.

use super::error::{DatabaseError, Result};
use super::value::{FromSql, Mismatch};
use super::{postgres, sqlite};

/// A row that was found.
#[cfg_attr(
    not(feature = "postgres"),
    allow(dead_code, reason = "there is no server to find it in")
)]
pub(crate) enum Row<'a> {
    Sqlite(&'a rusqlite::Row<'a>),
    Postgres(&'a postgres::Row),
}

impl Row<'_> {
    /// The value of a column, counted from 0.
    pub(crate) fn get<T: FromSql>(&self, at: usize) -> Result<T> {
        let value = match self {
            Row::Sqlite(row) => sqlite::value(row, at)?,
            Row::Postgres(row) => postgres::value(row, at)?,
        };
        T::from_sql(value).map_err(|Mismatch| DatabaseError::Column(at))
    }
}
