//! How a connection ends: a last packet first, and one notification of the core.

use std::time::{Duration, Instant};

use bytes::Bytes;
use fulmar_broker::{Connection as Core, LostCause};
use quinn_proto::{ConnectionError, VarInt};
use smallvec::SmallVec;

use super::QuicConn;
use super::stream::Stream;
use crate::connection::Io;

/// Time a closing connection has to get its last bytes acknowledged.
const LINGER: Duration = Duration::from_secs(1);

impl QuicConn {
    pub(crate) fn begin_close(&mut self, now: Instant) {
        if self.core.is_none() {
            self.inner.close(now, VarInt::from_u32(0), Bytes::from_static(b"shutting down"));
        } else {
            self.close_at.get_or_insert(now + LINGER);
        }
    }

    /// Once the core wants to close, gives everything a moment to be written and acknowledged,
    /// because a close frame overtakes data, and a peer that does not read may never let it out.
    pub(super) fn close_when_said(&mut self, now: Instant) {
        if self.core.as_ref().is_none_or(|core| core.closing().is_none()) {
            return;
        }
        let close_at = *self.close_at.get_or_insert(now + LINGER);
        let said = self.streams.iter().all(Stream::is_written);
        if said && !self.goodbye_said {
            self.goodbye_said = true;
            if let Some(control) = self.streams.first() {
                let _ = self.inner.send_stream(control.id).finish();
            }
        }
        if close_at <= now {
            self.close(now);
        }
    }

    pub(super) fn close(&mut self, now: Instant) {
        self.close_at = None;
        let closing = self.core.as_ref().and_then(Core::closing);
        let code = closing.map_or(0, |closing| closing.quic_code);
        let reason = closing.map_or("", |closing| closing.reason);
        let code = VarInt::from_u64(code).unwrap_or(VarInt::MAX);
        self.inner.close(now, code, Bytes::from_static(reason.as_bytes()));
        self.lost.get_or_insert(LostCause::Closed);
    }

    /// Nothing was received for too long.
    pub(super) fn give_up(&mut self, io: &mut Io, now: Instant) {
        self.on_lost(io, &ConnectionError::TimedOut);
        self.inner.close(now, VarInt::from_u32(0), Bytes::from_static(b"idle timeout"));
    }

    pub(super) fn on_lost(&mut self, io: &mut Io, reason: &ConnectionError) {
        let cause = match reason {
            ConnectionError::TimedOut => LostCause::IdleTimeout,
            ConnectionError::ApplicationClosed(_) | ConnectionError::ConnectionClosed(_) => {
                LostCause::PeerClosed
            }
            ConnectionError::LocallyClosed => LostCause::Closed,
            _ => LostCause::Failed,
        };
        let peer = self.inner.remote_address();
        match (self.counts_as_handshake, reason) {
            // What ends them here says so itself.
            (true, ConnectionError::LocallyClosed) | (false, _) => {
                tracing::debug!(%peer, "QUIC connection ended: {reason}");
            }
            (true, _) => tracing::info!(%peer, "QUIC: TLS handshake failed: {reason}"),
        }
        self.lost = Some(cause);
        self.lost(io);
        self.begin_by = None;
        self.close_at = None;
    }

    /// Notifies the core, once, that the connection is gone.
    pub(crate) fn lost(&mut self, io: &mut Io) {
        if let Some(mut core) = self.core.take() {
            core.set_transport_stats(&io.shard, self.stats(io));
            core.lost(&mut io.shard, self.lost.unwrap_or(LostCause::Closed));
        }
        // Only quinn's part lives on, until late packets can no longer come.
        self.streams = SmallVec::new();
        self.account(io);
    }
}
