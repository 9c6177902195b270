//! What tests put where other workers can come between the steps of one publication. A running broker has nothing
//! there.

use std::fmt;

use crate::shard::Shard;

/// Called between finding a publication's receivers and handing it to each. No lock is held then, so that it may
/// do with other workers' shards what they could do at that moment.
#[derive(Default)]
pub(crate) struct Interlude(Option<Box<dyn FnMut() + Send>>);

impl Interlude {
    pub(crate) fn pass(&mut self) {
        if let Some(others) = &mut self.0 {
            others();
        }
    }
}

impl fmt::Debug for Interlude {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Interlude").field(&self.0.is_some()).finish()
    }
}

impl Shard {
    /// For tests: `others` is called within this worker's publications, between finding the receivers and handing
    /// over to each, until this is called again.
    pub fn set_interlude(&mut self, others: Option<Box<dyn FnMut() + Send>>) {
        self.interlude = Interlude(others);
    }
}
