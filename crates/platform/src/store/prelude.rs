//! Names that the files about rows use: the database as a twin has it, statements and their values, filters, and those of
//! [`crate::values`].

pub(super) use super::filter::{self, Filter, changes, columns};
pub(super) use super::sql::{
    FromRow, FromSql, Mismatch, Result, Row, ToSql, Value, from_row, params,
};
pub(super) use super::{Db, TwinDb};
pub(super) use crate::values::*;
