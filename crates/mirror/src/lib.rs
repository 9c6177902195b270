//! SQLite databases whose rows several nodes share: users, bans, whatever a broker keeps beside its own state.
//!
//! One node at a time changes such a database. A [`Mirror`] notes which rows a transaction changes, by temporary triggers,
//! gives them to a [`Share`] as keys and contents, and commits the transaction when that has them. A node that takes over
//! replaces what its own file has by all rows that are shared. So there is no moment at which a node shows a change that
//! another one could lack.
//!
//! A row is shared whole, under the names of its columns: a version that adds a column with a default still reads rows
//! without it.
#![forbid(unsafe_code)]

mod codec;
mod mirror;
mod rows;

pub use mirror::{CommitError, Mirror};
pub use rows::{all, replace};

use std::fmt;
use std::sync::Arc;

/// All rows of a database, each with its key.
pub type Rows = Vec<(Vec<u8>, Vec<u8>)>;

/// Key and contents of a row that has changed; `None` if it is gone.
pub type RowChange = (Box<[u8]>, Option<Arc<[u8]>>);

/// Why changes are not known to be shared, in words for the person who asked for them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotShared(pub String);

/// What shares the rows of one database.
pub trait Share: Send + Sync + fmt::Debug {
    /// Shares changes, all or none. When it returns, every node that takes over later has them.
    ///
    /// # Errors
    /// They are not shared, or that is not known because this node ends.
    fn share(&self, changes: Vec<RowChange>) -> Result<(), NotShared>;

    /// Changes are shared that this node's own file does not have: it must stop serving.
    fn lags_behind(&self, why: &str);
}

/// What a node gets when it takes over.
#[derive(Debug)]
pub struct Shared {
    /// All rows.
    pub rows: Rows,
    /// For changes.
    pub with: Arc<dyn Share>,
}
