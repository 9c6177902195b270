//! What passes between a worker and its connections.

use std::sync::Arc;

use fulmar_broker::Shard;

use crate::config::TransportLimits;
use crate::incomplete_bytes::IncompleteBytes;
use crate::layers::MAX_KEPT_BYTES;
use crate::origin::Origins;

/// Bytes asked of one read. A read that brings fewer has emptied the socket.
pub(super) const READ_BYTES: usize = 64 * 1024;

/// The part of a worker that it lends its connections for a call.
#[derive(Debug)]
pub(crate) struct Io {
    pub(crate) shard: Shard,
    pub(crate) limits: TransportLimits,
    /// Pages that may open WebSockets.
    pub(super) origins: Arc<Origins>,
    /// Reads go here.
    pub(super) read: Box<[u8]>,
    /// Decrypted bytes; empty between calls.
    pub(super) plain: Vec<u8>,
    /// Bytes that all connections of this worker hold for incomplete packets.
    pub(crate) incomplete_bytes: IncompleteBytes,
}

impl Io {
    pub(crate) fn new(shard: Shard, limits: TransportLimits, origins: Arc<Origins>) -> Io {
        let read = vec![0; MAX_KEPT_BYTES + READ_BYTES].into_boxed_slice();
        let incomplete_bytes = IncompleteBytes::new(limits.max_partial_bytes_per_worker);
        Io { shard, limits, origins, read, plain: Vec::new(), incomplete_bytes }
    }
}

/// The worker's next step with a connection after a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// Wait for the next event.
    Wait,
    /// Call [`StreamConn::readable`] again next turn: its share of this one is used up.
    Again,
    /// Remove it.
    Gone,
}
