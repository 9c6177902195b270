//! What a platform needs to be one of a cluster's.

use std::sync::Arc;

use fulmar_mirror::{Share, Shared};

/// State that the platforms of a cluster's nodes share.
#[derive(Debug)]
pub struct SharedPlatform {
    /// Shares changes of SQLite's tables ([`crate::copy`]); with PostgreSQL, says whether this node serves.
    pub rows: Arc<dyn Share>,
    /// Files of the data folder by name: [`crate::KEY_FILE`].
    pub files: Shared,
}
