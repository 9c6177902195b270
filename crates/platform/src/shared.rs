//! What a platform needs to be one of a cluster's.

use std::sync::Arc;

use fulmar_mirror::{Share, Shared};

/// What the platforms of a cluster's nodes share.
#[derive(Debug)]
pub struct SharedPlatform {
    /// Shares changes of SQLite's tables ([`crate::copy`]); unused with PostgreSQL.
    pub rows: Option<Arc<dyn Share>>,
    /// Files of the data folder by name: [`crate::KEY_FILE`].
    pub files: Shared,
}
