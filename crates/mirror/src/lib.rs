//! SQLite databases whose rows several nodes share: users, bans, whatever a broker keeps beside its own state.
//!
//! One node at a time changes such a database. A [`Mirror`] notes which rows a transaction changes, by temporary triggers,
//! gives them to a [`Share`] as keys and contents, and commits the transaction when that has them. A node that takes over
//! replaces what its own file has by all rows that are shared. So there is no moment at which a node shows a change that
//! another one could lack.
//!
//! A large database is not replaced: while its node stands by, a [`struct@Copy`] follows the rows that change, and knows up to
//! which record of the log it has them.
//!
//! A row is shared whole, under the names of its columns: a version that adds a column with a default still reads rows
//! without it.
#![forbid(unsafe_code)]

mod clock;
mod codec;
mod copy;
mod file;
mod mirror;
mod rows;

pub use clock::{ClockRecord, Clocks, Reading};
pub use copy::{Changes, Copy};
pub use file::{Header, limit_file, make_durable, prepare_file};
pub use mirror::{CommitError, Mirror};
pub use rows::{SeeRow, for_each_row, key_prefix, read_rows, replace};

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

/// Channel that shares the rows of one database.
pub trait Share: Send + Sync + fmt::Debug {
    /// Shares changes, all or none. When it returns, every node that takes over later has them. Returns the number of a
    /// record of the log that has them or comes later.
    ///
    /// # Errors
    /// They are not shared, or that is not known because this node ends; then it shares nothing any more.
    fn share(&self, changes: Vec<RowChange>) -> Result<u64, NotShared>;

    /// Whether this node serves: nothing that others could contradict is answered, and nothing elsewhere changed, without
    /// that.
    fn serves(&self) -> bool;

    /// A [`struct@Copy`] has everything up to this record, durably.
    fn stored(&self, number: u64);

    /// Changes are shared that this node's own file does not have: it must stop serving.
    fn lags_behind(&self, why: &str);
}

/// Rows that a node gets when it takes over, and the channel for changes.
pub struct Shared {
    /// All rows.
    pub rows: Rows,
    /// For changes.
    pub with: Arc<dyn Share>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Rows have secrets.
        f.debug_struct("Shared").field("with", &self.with).finish_non_exhaustive()
    }
}
