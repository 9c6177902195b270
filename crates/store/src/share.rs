//! The change of a row of another part of the server: it waits until the log has it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fulmar_broker::storage::{Op, Seq, Storage as _};

use crate::handle::SqliteStorage;

/// A change's outcome is looked at this often, besides whenever the writer reports something.
const LOOK: Duration = Duration::from_millis(100);

/// Key and contents; `None` removes a row.
pub type RowChange = (Box<[u8]>, Option<Arc<[u8]>>);

/// Why a change is not known to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShareError {
    /// This node may not acknowledge anything. Nothing was changed.
    #[error("this node does not serve any more; nothing was changed")]
    NotServing,
    /// The store ended before the log had answered.
    #[error(
        "this node stopped serving meanwhile; look at the node that serves whether the change was made"
    )]
    Unknown,
}

impl SqliteStorage {
    /// Changes rows of `database`, all or none, and returns when the log has them, with the number of a record that has
    /// them or comes later. It waits as long as the log does not answer, at most until
    /// [`SqliteStorage::abandon_shares`]. After [`ShareError::Unknown`], nothing is shared any more.
    ///
    /// # Errors
    /// See [`ShareError`].
    pub fn share(&self, database: u8, changes: Vec<RowChange>) -> Result<u64, ShareError> {
        let shared = self.shared();
        if changes.is_empty() {
            return Ok(shared.tail.load(Ordering::Acquire));
        }
        let unknown = shared.unknown.load(Ordering::Acquire);
        if unknown || !self.has_log() || !self.may_acknowledge() {
            return Err(ShareError::NotServing);
        }
        let op = |(key, value)| Op::Row { database, key, value };
        let seq = self.submit(&mut changes.into_iter().map(op).collect());
        self.wait_for(seq).inspect_err(|_| shared.unknown.store(true, Ordering::Release))?;
        Ok(shared.tail.load(Ordering::Acquire))
    }

    /// A copy that follows `database` ([`crate::FOLLOWED`]) has everything up to a record, durably.
    pub fn stored(&self, database: u8, number: u64) {
        self.shared().stored.lock().insert(database, number);
    }

    /// Changes whose outcome is not known because the log does not answer are waited for no longer: this node is about
    /// to end.
    pub fn abandon_shares(&self) {
        self.shared().abandoned.store(true, Ordering::Release);
        self.shared().report();
    }

    fn wait_for(&self, seq: Seq) -> Result<(), ShareError> {
        let shared = self.shared();
        let mut reported = shared.reported.lock();
        loop {
            if self.committed() >= seq {
                return Ok(());
            }
            let ended = shared.ended.load(Ordering::Acquire);
            let abandoned = shared.abandoned.load(Ordering::Acquire) && self.failure().is_some();
            if ended || abandoned {
                return Err(ShareError::Unknown);
            }
            shared.changed.wait_for(&mut reported, LOOK);
        }
    }
}
