//! Which database the platform uses, and for what.

use super::postgres::Address;

/// The database of the platform.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Database {
    /// In `platform.db` in the data folder.
    #[default]
    File,
    /// In a PostgreSQL server.
    Postgres(Box<Address>),
}

/// Purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Changes, by the one server that may make them.
    Server,
    /// Changes by a command, beside the server.
    Command,
    /// Looking.
    Look,
}
