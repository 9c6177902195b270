//! The path's state, and whether the client has moved to another address.

use std::time::{Duration, Instant};

use fulmar_broker::TransportStats;

use super::QuicConn;
use crate::stream::Io;

/// Time between two looks at the path's state, while the connection is in use.
const STATS_INTERVAL: Duration = Duration::from_secs(5);

impl QuicConn {
    pub(super) fn watch_path(&mut self, io: &mut Io, now: Instant) {
        let remote = self.inner.remote_address();
        let moved = remote != self.last_remote;
        if moved {
            tracing::info!(from = %self.last_remote, to = %remote, "QUIC client changed its address");
            self.last_remote = remote;
            self.migrations += 1;
        }
        if moved || self.next_stats.is_none_or(|at| at <= now) {
            self.next_stats = Some(now + STATS_INTERVAL);
            let stats = self.stats();
            if let Some(core) = &mut self.core {
                core.set_transport_stats(&io.shard, stats);
            }
        }
    }

    pub(super) fn stats(&self) -> TransportStats {
        let path = self.inner.stats().path;
        TransportStats {
            rtt_us: u64::try_from(path.rtt.as_micros()).unwrap_or(u64::MAX),
            cwnd_bytes: path.cwnd,
            sent_packets: path.sent_packets,
            lost_packets: path.lost_packets,
            migrations: self.migrations,
            // Not `accepted_0rtt`, which is for clients: a server has keys only if it accepts.
            early_data: self.inner.has_0rtt(),
        }
    }
}
