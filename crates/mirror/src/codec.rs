//! Keys and contents of rows as bytes.

use rusqlite::types::{ToSql, ToSqlOutput, Value as SqlValue, ValueRef};
use serde::{Deserialize, Serialize};

/// A value of SQLite.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Value {
    Null,
    Integer(i64),
    Real(f64),
    Text(String),
    Blob(Vec<u8>),
}

/// Names a row: its table, and the columns of its primary key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Key {
    pub(crate) table: String,
    pub(crate) columns: Vec<Value>,
}

/// All its columns by name.
pub(crate) type Columns = Vec<(String, Value)>;

impl TryFrom<ValueRef<'_>> for Value {
    type Error = rusqlite::Error;

    fn try_from(value: ValueRef<'_>) -> rusqlite::Result<Value> {
        Ok(match SqlValue::try_from(value)? {
            SqlValue::Null => Value::Null,
            SqlValue::Integer(it) => Value::Integer(it),
            // Zero has two forms, which SQLite takes for equal: as part of a key, they must not be two rows.
            SqlValue::Real(it) => Value::Real(it + 0.0),
            SqlValue::Text(it) => Value::Text(it),
            SqlValue::Blob(it) => Value::Blob(it),
        })
    }
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Value::Null => ValueRef::Null,
            Value::Integer(it) => ValueRef::Integer(*it),
            Value::Real(it) => ValueRef::Real(*it),
            Value::Text(it) => ValueRef::Text(it.as_bytes()),
            Value::Blob(it) => ValueRef::Blob(it),
        }))
    }
}

pub(crate) fn encode(it: &impl Serialize) -> rusqlite::Result<Vec<u8>> {
    let failed = |error: postcard::Error| rusqlite::Error::ToSqlConversionFailure(error.into());
    postcard::to_io(it, Vec::new()).map_err(failed)
}

pub(crate) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> rusqlite::Result<T> {
    let failed = |error: postcard::Error| rusqlite::Error::ToSqlConversionFailure(error.into());
    postcard::from_bytes(bytes).map_err(failed)
}
