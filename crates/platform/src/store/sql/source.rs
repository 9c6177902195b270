//! Where the database is, for whoever needs a connection.

use std::path::PathBuf;

use super::{Db, Result, sqlite};

/// Where the database is.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// In a file, made at first use.
    File(PathBuf),
}

impl Source {
    /// A connection that changes things, to tables as this version wants them.
    pub(crate) fn open(&self) -> Result<Db> {
        match self {
            Source::File(path) => sqlite::open(path).map(Db::Sqlite),
        }
    }

    /// A connection that looks only.
    pub(crate) fn open_to_read(&self) -> Result<Db> {
        match self {
            Source::File(path) => sqlite::open_to_read(path).map(Db::Sqlite),
        }
    }
}
