//! What a QUIC transport tells of the connection's path: into the counters, and into the list that
//! operators read ([`crate::transports`]).

use super::{Connection, State};
use crate::peer::TransportStats;
use crate::shard::Shard;

impl Connection {
    /// The path's state, as the transport knows it. To be told every few seconds while the
    /// connection is in use, and before [`Connection::lost`].
    pub fn set_transport_stats(&mut self, shard: &Shard, stats: TransportStats) {
        let shared = self.stats.get_or_insert_default();
        let old = std::mem::replace(&mut *shared.lock(), stats);
        shard.metrics().count_path(&old, &stats);
        if let (State::Connected(session), None) = (&self.state, self.listed) {
            shard.broker().transport_list().list(session, shared);
            self.listed = Some(session.key().0);
        }
    }

    /// Nobody is to be told of it any more.
    pub(super) fn unlist(&mut self, shard: &Shard) {
        if let (Some(session), Some(stats)) = (self.listed.take(), self.stats.take()) {
            shard.broker().transport_list().forget(session, &stats);
        }
    }
}
