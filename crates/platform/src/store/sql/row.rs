//! A row, whatever its engine, and what is made of it column by column.

use super::error::{DatabaseError, Result};
use super::value::{FromSql, Mismatch, Value};

/// The columns of a row that was found.
pub(crate) trait Columns {
    /// The value of a column, counted from 0.
    fn value(&self, at: usize) -> Result<Value<'_>>;
}

/// A row that was found. Columns are read in their order.
pub(crate) struct Row<'a> {
    columns: &'a dyn Columns,
    next: usize,
}

impl<'a> Row<'a> {
    pub(super) fn new(columns: &'a dyn Columns) -> Row<'a> {
        Row { columns, next: 0 }
    }

    /// Reads the next column, or several if the value has several.
    pub(crate) fn read<T: FromRow>(&mut self) -> Result<T> {
        T::from_row(self)
    }
}

/// A value of one column or of several.
pub(crate) trait FromRow: Sized {
    /// Reads the next columns.
    fn from_row(row: &mut Row<'_>) -> Result<Self>;
}

impl<T: FromSql> FromRow for T {
    fn from_row(row: &mut Row<'_>) -> Result<T> {
        let at = row.next;
        row.next += 1;
        T::from_sql(row.columns.value(at)?).map_err(|Mismatch| DatabaseError::Column(at))
    }
}

/// Two columns that are set together.
impl<A: FromSql, B: FromSql> FromRow for Option<(A, B)> {
    fn from_row(row: &mut Row<'_>) -> Result<Self> {
        let (one, other): (Option<A>, Option<B>) = row.read()?;
        Ok(one.zip(other))
    }
}

macro_rules! tuples {
    ($(($($part:ident),+)),+ $(,)?) => {$(
        impl<$($part: FromRow),+> FromRow for ($($part,)+) {
            fn from_row(row: &mut Row<'_>) -> Result<Self> {
                Ok(($(row.read::<$part>()?,)+))
            }
        }
    )+};
}
tuples!((A, B), (A, B, C), (A, B, C, D), (A, B, C, D, E));

/// Implements [`FromRow`] for structs whose fields are the next columns, in this order, except those that get a value here;
/// with a method at the end, for what that makes of the struct.
macro_rules! from_row {
    ($($type:ident { $($field:ident $(= $value:expr)?),+ $(,)? } $(.$finish:ident)?)+) => {$(
        impl $crate::store::sql::FromRow for $type {
            fn from_row(row: &mut $crate::store::sql::Row<'_>) -> $crate::store::sql::Result<Self> {
                Ok($type { $($field: from_row!(@ row $($value)?)),+ } $(.$finish())?)
            }
        }
    )+};
    (@ $row:ident) => { $row.read()? };
    (@ $row:ident $value:expr) => { $value };
}
pub(crate) use from_row;
