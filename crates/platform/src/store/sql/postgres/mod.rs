//! PostgreSQL: a connection that reconnects, and where its SQL and values differ from SQLite's.
//!
//! The driver is asynchronous; each connection has a runtime of its own that runs while somebody waits for
//! an answer, so that callers are threads that may block: the writer's and those that read, never a task.
//! Every wait has an end.

mod connection;
mod reconnecting;
mod tables;
mod values;

use std::path::Path;

use super::Database;
use crate::error::Error;
pub use fulmar_postgres::Address;
pub(super) use reconnecting::connect;

impl Database {
    /// From a URL as of [`Address::parse`], which is empty for the file.
    ///
    /// # Errors
    /// As there.
    pub fn parse(
        url: &str,
        password: Option<&str>,
        ca_file: Option<&Path>,
    ) -> Result<Database, Error> {
        if url.is_empty() {
            return Ok(Database::File);
        }
        let wrong = |what| Error::Refused(format!("the database's address: {what}"));
        let address = Address::parse(url, password, ca_file).map_err(wrong)?;
        Ok(Database::Postgres(Box::new(address)))
    }
}
