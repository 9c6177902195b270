//! The path's state, and whether the client has moved to another address.

use std::time::{Duration, Instant};

use fulmar_broker::TransportStats;
use fulmar_congestion::copies::Copied;

use super::QuicConn;
use crate::connection::Io;
use crate::quic::losses::Losses;

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
            if let Some(copies) = &mut self.copies {
                copies.moved(now);
            }
            if let Some(core) = &mut self.core {
                core.moved(remote);
            }
        }
        if moved || self.next_stats.is_none_or(|at| at <= now) {
            self.next_stats = Some(now + STATS_INTERVAL);
            let stats = self.stats(io);
            if let Some(core) = &mut self.core {
                core.set_transport_stats(&io.shard, stats);
            }
        }
    }

    /// Remembers what a connection that has ended lost, for others from its network. An address that is not validated
    /// may be forged.
    pub(in crate::quic) fn keep_losses(&mut self, losses: &Losses, now: Instant) {
        let is_forgeable = self.counts_as_handshake || self.unvalidated.is_some();
        if self.inner.is_closed()
            && !is_forgeable
            && let Some(copies) = &mut self.copies
        {
            let from = self.inner.remote_address().ip();
            copies.remember_losses(losses, from, self.inner.rtt(), now);
        }
    }

    pub(super) fn stats(&self, io: &Io) -> TransportStats {
        let stats = self.inner.stats();
        let path = &stats.path;
        let copied = self.copies.as_ref().map_or_else(Copied::default, |copies| copies.copied());
        TransportStats {
            measured_ms: io.shard.now().0,
            rtt_us: u64::try_from(path.rtt.as_micros()).unwrap_or(u64::MAX),
            cwnd_bytes: path.cwnd,
            mtu_bytes: path.current_mtu,
            congestion_events: path.congestion_events,
            sent_packets: path.sent_packets,
            lost_packets: path.lost_packets,
            sent_bytes: stats.udp_tx.bytes,
            copies: copied.datagrams,
            copied_bytes: copied.bytes,
            received_bytes: stats.udp_rx.bytes,
            streams: u32::try_from(self.streams.len()).unwrap_or(u32::MAX),
            streams_opened: self.streams_opened,
            migrations: self.migrations,
            // Not `accepted_0rtt`, which is for clients: a server has keys only if it accepts.
            early_data: self.inner.has_0rtt(),
        }
    }
}
