//! The store's log in JetStream.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use fulmar_cluster_nats::{self as nats, LogStream};
use fulmar_store::Lease;
use fulmar_store::journal::{Append, AppendError, Journal, MAX_RECORD_BYTES};

use super::replica;
use fulmar_part::cluster_status::ClusterStatus;

// Or the stream would refuse what the store appends.
const _: () = assert!(MAX_RECORD_BYTES <= nats::MAX_RECORD_BYTES);

/// The log, for the store's writer.
pub(super) struct StreamJournal {
    log: LogStream,
    lease: Arc<Lease>,
    refused: Arc<AtomicBool>,
    status: Arc<ClusterStatus>,
}

impl StreamJournal {
    /// A journal, and what becomes true when the log has refused a record: another node has claimed it.
    pub(super) fn new(
        log: LogStream,
        lease: Arc<Lease>,
        status: Arc<ClusterStatus>,
    ) -> (StreamJournal, Arc<AtomicBool>) {
        let refused = Arc::new(AtomicBool::new(false));
        (StreamJournal { log, lease, refused: Arc::clone(&refused), status }, refused)
    }
}

impl Journal for StreamJournal {
    fn append(&mut self, record: &Append<'_>) -> Result<(), AppendError> {
        let begun = Instant::now();
        match self.log.append(record.position.number, &record.id(), record.bytes) {
            Ok(()) => {
                self.status.appended(record.position.number, begun.elapsed());
                Ok(())
            }
            Err(nats::AppendError::Unknown(error)) => Err(AppendError::Unknown(error)),
            Err(nats::AppendError::Displaced(found)) => {
                let why = record.displaced_by(replica::entry(&found));
                self.refused.fetch_or(why != AppendError::Displaced, Ordering::AcqRel);
                Err(why)
            }
            Err(nats::AppendError::Refused(error)) => {
                self.refused.store(true, Ordering::Release);
                Err(AppendError::Refused(error))
            }
        }
    }

    fn lease(&self) -> Option<Arc<Lease>> {
        Some(Arc::clone(&self.lease))
    }
}
