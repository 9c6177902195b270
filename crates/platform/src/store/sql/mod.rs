//! What the platform's SQL is said to: a connection, whatever its engine, with what all of them have.
//!
//! The SQL is the same for all engines; it keeps to what they share (`store/mod.rs` has the rules). Results
//! are taken whole, so that statements inside the function that reads a row harm nobody: how many rows
//! there can be is for the statement's `LIMIT` to say. Engines keep statements prepared that were needed before.

mod database;
mod error;
#[cfg_attr(not(feature = "postgres"), path = "no_postgres.rs")]
mod postgres;
mod row;
mod source;
pub(crate) mod sqlite;
mod value;

use std::fmt::Debug;
use std::ops::Deref;

use fulmar_mirror::{Mirror, limit_file};
use rusqlite::Connection;

pub use database::Database;
pub(crate) use database::Purpose;
pub use error::DatabaseError;
pub(crate) use error::Result;
pub use postgres::Address;
pub(crate) use row::Columns;
pub(crate) use row::{FromRow, Row, from_row};
pub(crate) use source::Source;
pub(crate) use value::{FromSql, Mismatch, Params, ToSql, Value, params, stored_as};

/// A transaction's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    /// Looks at one state of the database, whatever is committed meanwhile.
    Read,
    /// Nobody else writes until it ends.
    Write,
}

/// An engine: the parts in which SQLite and PostgreSQL differ.
pub(crate) trait Engine: Debug + Send {
    /// Runs a statement without rows; how many rows it changed.
    fn execute(&self, sql: &str, values: &[Value<'_>]) -> Result<usize>;

    /// Shows a statement's rows to `see`, until that says that it has seen enough.
    fn for_each_row(
        &self,
        sql: &str,
        values: &[Value<'_>],
        see: &mut dyn FnMut(&dyn Columns) -> Result<bool>,
    ) -> Result<()>;

    /// Runs statements without parameters.
    fn batch(&self, sql: &str) -> Result<()>;

    /// Begins a transaction.
    fn begin(&self, kind: Begin) -> Result<()>;

    /// Commits the transaction; its changes are durable when this returns.
    fn commit(&self) -> Result<()>;

    /// Ends the transaction, if there is one, and takes all of it back.
    fn roll_back(&self) -> Result<()>;

    /// True if a statement has failed since the mark in a way that lets nothing of it be kept.
    fn is_spoilt(&self) -> bool;

    /// Returns another value when another process has committed: how many connections there were, and a number.
    fn foreign_changes(&self) -> Result<(u64, i64)>;

    /// SQLite's connection, if it is one.
    fn sqlite(&self) -> Option<&Connection> {
        None
    }
}

/// A connection; changes belong to the transaction that was begun.
#[derive(Debug)]
pub(crate) struct Db(Box<dyn Engine>);

/// Names what a transaction can go back to.
const SAVEPOINT: &str = "job";

impl Deref for Db {
    type Target = dyn Engine;

    fn deref(&self) -> &(dyn Engine + 'static) {
        &*self.0
    }
}

impl Db {
    fn new(engine: impl Engine + 'static) -> Db {
        Db(Box::new(engine))
    }

    /// Runs a statement without rows; how many rows it changed.
    pub(crate) fn execute(&self, sql: &str, params: impl Params) -> Result<usize> {
        self.0.execute(sql, &storable(&params)?)
    }

    /// Returns all rows.
    pub(crate) fn list<T: FromRow>(&self, sql: &str, params: impl Params) -> Result<Vec<T>> {
        self.list_with(sql, params, T::from_row)
    }

    /// Returns what `read` makes of each row.
    pub(crate) fn list_with<T>(
        &self,
        sql: &str,
        params: impl Params,
        mut read: impl FnMut(&mut Row<'_>) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut rows = Vec::new();
        self.0.for_each_row(sql, &storable(&params)?, &mut |columns| {
            rows.push(read(&mut Row::new(columns)));
            Ok(true)
        })?;
        rows.into_iter().collect()
    }

    /// Returns the first row, if there is one.
    pub(crate) fn find<T: FromRow>(&self, sql: &str, params: impl Params) -> Result<Option<T>> {
        self.find_with(sql, params, T::from_row)
    }

    /// Returns what `read` makes of the first row, if there is one.
    pub(crate) fn find_with<T>(
        &self,
        sql: &str,
        params: impl Params,
        mut read: impl FnMut(&mut Row<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        let mut first = None;
        self.0.for_each_row(sql, &storable(&params)?, &mut |columns| {
            first = Some(read(&mut Row::new(columns)));
            Ok(false)
        })?;
        first.transpose()
    }

    /// Returns the first row, which there has to be.
    pub(crate) fn get<T: FromRow>(&self, sql: &str, params: impl Params) -> Result<T> {
        self.find(sql, params)?.ok_or(DatabaseError::NoRow)
    }

    /// True if there is a row.
    pub(crate) fn exists(&self, sql: &str, params: impl Params) -> Result<bool> {
        Ok(self.find_with(sql, params, |_| Ok(()))?.is_some())
    }

    /// Marks what [`Db::go_back`] goes back to.
    pub(super) fn mark(&self) -> Result<()> {
        self.batch(&format!("SAVEPOINT {SAVEPOINT}"))
    }

    /// Keeps the changes since the mark.
    pub(super) fn release_mark(&self) -> Result<()> {
        self.batch(&format!("RELEASE {SAVEPOINT}"))
    }

    /// Undoes the changes since the mark.
    pub(super) fn go_back(&self) -> Result<()> {
        self.batch(&format!("ROLLBACK TO {SAVEPOINT}; RELEASE {SAVEPOINT}"))
    }

    /// Commits the transaction; its changes are durable when this returns, and `mirror` has shared them.
    pub(super) fn commit(&self, mirror: Option<&Mirror>) -> Result<()> {
        match (self.sqlite(), mirror) {
            (Some(connection), Some(mirror)) => Ok(mirror.commit_open(connection)?),
            _ => self.0.commit(),
        }
    }

    /// Limits the size of the database, if it is a file.
    pub(crate) fn limit_to(&self, bytes: u64) -> Result<()> {
        let file = self.sqlite();
        Ok(file.map_or(Ok(()), |file| limit_file(file, bytes, 1))?)
    }
}

/// The values, if every engine can hold them.
fn storable(params: &impl Params) -> Result<Vec<Value<'_>>> {
    let values = params.bind();
    let zero = |value: &Value<'_>| matches!(value, Value::Text(text) if text.contains('\0'));
    if values.iter().any(zero) { Err(DatabaseError::ZeroCharacter) } else { Ok(values) }
}
