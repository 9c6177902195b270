//! In the place of `postgres` where this is built without the feature of that name: an address, of which
//! there is never a value, and which is refused.

use std::convert::Infallible;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use fulmar_mirror::Share;

use super::{Database, Db, Purpose, Result};
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

/// A connection, which there cannot be.
pub(super) fn connect(address: &Address, _: Purpose, _: Option<Arc<dyn Share>>) -> Result<Db> {
    match address.0 {}
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
