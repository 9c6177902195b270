//! The database's address, for all code that needs a connection.

use std::path::PathBuf;
use std::sync::Arc;

use fulmar_mirror::Share;

use super::database::Purpose;
use super::postgres::{Address, connect};
use super::{Db, Result, sqlite};

/// Where the database is.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// In a file, made at first use.
    File(PathBuf),
    /// In a server, used as the server of its tables or as a command beside it; by which node, if it is one of a
    /// cluster's.
    Server(Arc<Address>, Purpose, Option<Arc<dyn Share>>),
}

impl Source {
    /// A connection that changes things, to tables as this version wants them.
    pub(crate) fn open(&self) -> Result<Db> {
        match self {
            Source::File(path) => sqlite::open(path).map(Db::new),
            Source::Server(address, purpose, node) => connect(address, *purpose, node.clone()),
        }
    }

    /// A connection that looks only.
    pub(crate) fn open_to_read(&self) -> Result<Db> {
        match self {
            Source::File(path) => sqlite::open_to_read(path).map(Db::new),
            Source::Server(address, ..) => connect(address, Purpose::Look, None),
        }
    }
}
