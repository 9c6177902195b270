//! In the place of `postgres` where this is built without the feature of that name: its types, of which there is
//! never a value, and an address that is refused.

use std::convert::Infallible;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use fulmar_mirror::Share;

use super::{Begin, Database, Purpose, Result, Value};
use crate::error::Error;

/// A PostgreSQL server.
#[derive(Clone, Debug, PartialEq)]
pub struct Address(Infallible);

impl Database {
    /// From a URL, which is empty for the file.
    ///
    /// # Errors
    /// It is not empty.
    pub fn parse(url: &str, _: Option<&str>, _: Option<&Path>) -> std::result::Result<Self, Error> {
        if url.is_empty() {
            return Ok(Database::File);
        }
        let text = "database: this program was built without PostgreSQL (feature `postgres`)";
        Err(Error::Refused(text.to_owned()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {}
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct ReconnectingConnection(Infallible);

/// A prepared statement.
pub(crate) struct Prepared<'a>(Infallible, std::marker::PhantomData<&'a ()>);

/// A row that was found.
pub(crate) struct Row(Infallible);

impl ReconnectingConnection {
    pub(super) fn open(
        address: &Arc<Address>,
        _: Purpose,
        _: Option<Arc<dyn Share>>,
    ) -> Result<ReconnectingConnection> {
        match address.0 {}
    }

    pub(super) fn prepare(&self, _: &str) -> Result<Prepared<'_>> {
        match self.0 {}
    }

    pub(super) fn begin(&self, _: Begin) -> Result<()> {
        match self.0 {}
    }

    pub(super) fn batch(&self, _: &str) -> Result<()> {
        match self.0 {}
    }

    pub(super) fn commit(&self) -> Result<()> {
        match self.0 {}
    }

    pub(super) fn roll_back(&self) -> Result<()> {
        match self.0 {}
    }

    pub(super) fn is_spoilt(&self) -> bool {
        match self.0 {}
    }

    pub(super) fn foreign_changes(&self) -> Result<(u64, i64)> {
        match self.0 {}
    }
}

impl Prepared<'_> {
    pub(super) fn execute(&self, _: &[Value<'_>]) -> Result<usize> {
        match self.0 {}
    }

    pub(super) fn each(
        &self,
        _: &[Value<'_>],
        _: &mut dyn FnMut(&super::Row<'_>) -> Result<bool>,
    ) -> Result<()> {
        match self.0 {}
    }
}

pub(super) fn value(row: &Row, _: usize) -> Result<Value<'_>> {
    match row.0 {}
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_refused_with_what_is_missing() {
        assert_eq!(Database::parse("", None, None).unwrap(), Database::File);
        let error = Database::parse("postgres://ann:geheim@h/f", None, None).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("feature `postgres`") && !error.contains("geheim"), "{error}");
    }
}
