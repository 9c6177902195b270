//! When housekeeping has something to do ([`crate::housekeeping`]).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use crate::session::Session;
use crate::time::Timestamp;

/// The deadlines.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    pub(crate) sessions: BinaryHeap<Reverse<Due>>,
    pub(crate) next_sys: Timestamp,
    pub(crate) next_sweep: Timestamp,
}

/// A session, and when it is to be examined.
#[derive(Debug)]
pub(crate) struct Due {
    pub(crate) at: Timestamp,
    pub(crate) session: Arc<Session>,
}

impl PartialEq for Due {
    fn eq(&self, other: &Due) -> bool {
        self.at == other.at
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Due) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Due) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}
