//! What the platform's SQL is said to: a connection, whatever its engine, with what all of them have.
//!
//! The SQL is the same for all engines; it keeps to what they share (`store/mod.rs` has the rules). Results
//! are taken whole, so that statements inside the function that reads a row harm nobody: how many rows
//! there can be is for the statement's `LIMIT` to say.

mod database;
mod error;
#[cfg_attr(not(feature = "postgres"), path = "no_postgres.rs")]
mod postgres;
mod row;
mod source;
pub(crate) mod sqlite;
mod transaction_kind;
mod value;

use fulmar_mirror::Mirror;

pub use database::Database;
pub(crate) use database::Purpose;
pub use error::DatabaseError;
pub(crate) use error::{OptionalExtension, Result};
pub use postgres::Address;
pub(crate) use row::Row;
pub(crate) use source::Source;
pub(super) use transaction_kind::Begin;
pub(crate) use value::{FromSql, Mismatch, Params, ToSql, Value, params, params_from_iter};

/// A connection; changes belong to the transaction that was begun.
#[derive(Debug)]
pub(crate) enum Db {
    Sqlite(rusqlite::Connection),
    Postgres(Box<postgres::ReconnectingConnection>),
}

/// Names what a transaction can go back to.
const SAVEPOINT: &str = "job";

impl Db {
    /// The statement, prepared before if it was needed before.
    pub(crate) fn prepare_cached(&self, sql: &str) -> Result<Statement<'_>> {
        match self {
            Db::Sqlite(connection) => Ok(Statement::Sqlite(connection.prepare_cached(sql)?)),
            Db::Postgres(connection) => Ok(Statement::Postgres(connection.prepare(sql)?)),
        }
    }

    /// Runs a statement without rows; how many rows it changed.
    pub(crate) fn execute(&self, sql: &str, params: impl Params) -> Result<usize> {
        self.prepare_cached(sql)?.execute(params)
    }

    /// What `read` makes of the statement's first row.
    pub(crate) fn query_row<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> Result<T>,
    ) -> Result<T> {
        self.prepare_cached(sql)?.query_row(params, read)
    }

    /// Begins a transaction.
    pub(super) fn begin(&self, kind: Begin) -> Result<()> {
        match (self, kind) {
            (Db::Sqlite(connection), Begin::Read) => batch(connection, "BEGIN"),
            (Db::Sqlite(connection), Begin::Write) => batch(connection, "BEGIN IMMEDIATE"),
            (Db::Postgres(connection), kind) => connection.begin(kind),
        }
    }

    /// Marks what [`Db::go_back`] goes back to.
    pub(super) fn mark(&self) -> Result<()> {
        self.batch(&format!("SAVEPOINT {SAVEPOINT}"))
    }

    /// Keeps the changes since the mark.
    pub(super) fn keep(&self) -> Result<()> {
        self.batch(&format!("RELEASE {SAVEPOINT}"))
    }

    /// Undoes the changes since the mark.
    pub(super) fn go_back(&self) -> Result<()> {
        self.batch(&format!("ROLLBACK TO {SAVEPOINT}; RELEASE {SAVEPOINT}"))
    }

    /// Commits the transaction; its changes are durable when this returns, and `mirror` has shared them.
    pub(super) fn commit(&self, mirror: Option<&Mirror>) -> Result<()> {
        match (self, mirror) {
            (Db::Sqlite(connection), None) => batch(connection, "COMMIT"),
            (Db::Sqlite(connection), Some(mirror)) => Ok(mirror.commit_open(connection)?),
            (Db::Postgres(connection), _) => connection.commit(),
        }
    }

    /// Ends the transaction, if there is one, and takes all of it back.
    pub(super) fn roll_back(&self) -> Result<()> {
        match self {
            Db::Sqlite(connection) if connection.is_autocommit() => Ok(()),
            Db::Sqlite(connection) => batch(connection, "ROLLBACK"),
            Db::Postgres(connection) => connection.roll_back(),
        }
    }

    /// Whether a statement has failed since the mark in a way that lets nothing of it be kept.
    pub(super) fn is_spoilt(&self) -> bool {
        match self {
            Db::Sqlite(_) => false,
            Db::Postgres(connection) => connection.is_spoilt(),
        }
    }

    /// What is another when another process has committed: how many connections there were, and a number.
    pub(super) fn foreign_changes(&self) -> Result<(u64, i64)> {
        match self {
            Db::Sqlite(connection) => Ok((1, sqlite::foreign_changes(connection)?)),
            Db::Postgres(connection) => connection.foreign_changes(),
        }
    }

    /// Limits the size of the database, if it is a file.
    pub(crate) fn limit_to(&self, bytes: u64) -> Result<()> {
        match self {
            Db::Sqlite(connection) => sqlite::limit_to(connection, bytes),
            Db::Postgres(_) => Ok(()),
        }
    }

    fn batch(&self, sql: &str) -> Result<()> {
        match self {
            Db::Sqlite(connection) => batch(connection, sql),
            Db::Postgres(connection) => connection.batch(sql),
        }
    }
}

fn batch(connection: &rusqlite::Connection, sql: &str) -> Result<()> {
    Ok(connection.execute_batch(sql)?)
}

/// A prepared statement.
pub(crate) enum Statement<'a> {
    Sqlite(rusqlite::CachedStatement<'a>),
    Postgres(postgres::Prepared<'a>),
}

impl Statement<'_> {
    /// Runs it; how many rows it changed.
    pub(crate) fn execute(&mut self, params: impl Params) -> Result<usize> {
        let values = storable(&params)?;
        match self {
            Statement::Sqlite(statement) => sqlite::execute(statement, &values),
            Statement::Postgres(statement) => statement.execute(&values),
        }
    }

    /// What `read` makes of the first row.
    pub(crate) fn query_row<T>(
        &mut self,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut read = Some(read);
        let mut first = None;
        self.each(&params, &mut |row| {
            if let Some(read) = read.take() {
                first = Some(read(row));
            }
            Ok(false)
        })?;
        first.unwrap_or(Err(DatabaseError::NoRow))
    }

    /// What `read` makes of each row.
    pub(crate) fn query_map<T>(
        &mut self,
        params: impl Params,
        mut read: impl FnMut(&Row<'_>) -> Result<T>,
    ) -> Result<std::vec::IntoIter<Result<T>>> {
        let mut rows = Vec::new();
        self.each(&params, &mut |row| {
            rows.push(read(row));
            Ok(true)
        })?;
        Ok(rows.into_iter())
    }

    /// Whether there is a row.
    pub(crate) fn exists(&mut self, params: impl Params) -> Result<bool> {
        Ok(self.query_row(params, |_| Ok(())).optional()?.is_some())
    }

    /// Shows the rows to `see`, until that says that it has seen enough.
    fn each(
        &mut self,
        params: &impl Params,
        see: &mut dyn FnMut(&Row<'_>) -> Result<bool>,
    ) -> Result<()> {
        let values = storable(params)?;
        match self {
            Statement::Sqlite(statement) => sqlite::each(statement, &values, see),
            Statement::Postgres(statement) => statement.each(&values, see),
        }
    }
}

/// The values, if every engine can hold them.
fn storable(params: &impl Params) -> Result<Vec<Value<'_>>> {
    let values = params.bind();
    let zero = |value: &Value<'_>| matches!(value, Value::Text(text) if text.contains('\0'));
    if values.iter().any(zero) { Err(DatabaseError::ZeroCharacter) } else { Ok(values) }
}
