//! To which topics everybody may publish: what a worker remembers of [`super::AccessControl`], so that a message takes no
//! lock for it and writes to no memory that workers share.

use std::sync::Arc;

use super::IdentityTable;
use crate::access::EXTERNAL_TOPICS;

/// The topics that have no rules, as of one generation of [`super::AccessControl`].
#[derive(Debug, Default)]
pub struct OpenTopics {
    /// Of the rules; 0 is before the first.
    pub generation: u64,
    pub(crate) open: bool,
    /// External users' topics are theirs.
    pub(crate) apart: bool,
    /// May come to use at any time.
    pub(crate) identities: Option<Arc<IdentityTable>>,
}

impl OpenTopics {
    /// True if this topic is one of them.
    #[inline]
    pub fn contain(&self, topic: &str) -> bool {
        let apart = self.apart && topic.starts_with(EXTERNAL_TOPICS);
        let stored = || self.identities.as_ref().is_some_and(|table| table.is_in_use());
        self.open && !topic.starts_with('$') && !apart && !stored()
    }
}
