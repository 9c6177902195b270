//! Output: the core's output is written to quinn's streams, as much as the path can use.
//!
//! A stream is asked for output only when quinn has all its earlier output, and quinn gets little: the limit of
//! unacknowledged bytes follows the congestion window. Otherwise, a slow path would have seconds of messages in buffers
//! that cannot be reordered.

use std::time::{Duration, Instant};

use fulmar_broker::StreamAction;
use quinn_proto::{Connection, StreamId, VarInt};
use smallvec::SmallVec;

use super::QuicConn;
use crate::connection::Io;
use crate::quic::config::FIRST_WINDOW_BYTES;

/// Congestion windows' worth of bytes that may be unacknowledged or unsent.
const SEND_WINDOWS: u64 = 2;

/// Bytes sent before the handshake is complete to a client whose address is not proven. It may be sent three times
/// what came from it (RFC 9000 section 8.1). Were that used up by what it cannot read yet, nothing would be left to
/// send the handshake again with if it was lost, and quinn's client stops asking for it.
const UNPROVEN_WINDOW_BYTES: u64 = 1500;

/// Time after a loss during which streams do not share datagrams. Together they would be lost
/// together, and one lost packet would delay several topics; apart they cost a datagram each, which
/// a path that loses nothing need not pay.
const APART_AFTER_LOSS: Duration = Duration::from_secs(10);

impl QuicConn {
    /// Moves the core's output into quinn's streams. `send` puts what they hold on the wire; it is
    /// called between streams that are to share no datagram.
    pub(crate) fn write(
        &mut self,
        io: &mut Io,
        now: Instant,
        mut send: impl FnMut(&mut Connection),
    ) {
        if self.inner.is_closed() {
            return;
        }
        let apart = self.keeps_streams_apart(now);
        let Some(core) = &mut self.core else { return };
        let window = self.inner.congestion_state().window();
        let window = if self.inner.is_handshaking() && !self.is_proven {
            UNPROVEN_WINDOW_BYTES
        } else {
            (window * SEND_WINDOWS).max(self.min_send_window)
        };
        self.inner.set_send_window(window);
        let mut ready = SmallVec::new();
        core.ready_streams(&mut ready);
        let mut unsent = false;
        for stream in &mut self.streams {
            let is_ready = ready.contains(&stream.key());
            if !is_ready && stream.is_written() {
                continue;
            }
            if apart && unsent {
                send(&mut self.inner);
            }
            stream.write(&mut self.inner, core, &mut io.shard, is_ready);
            unsent = true;
        }
        if core.is_connected()
            && let Some(window) = self.full_window.take()
        {
            let more = core.input_window(window.saturating_sub(FIRST_WINDOW_BYTES) as usize);
            let more = u32::try_from(more).unwrap_or(u32::MAX);
            let window = window.min(FIRST_WINDOW_BYTES).saturating_add(more);
            self.inner.set_receive_window(VarInt::from_u32(window));
            // Operators see it from now on.
            self.next_stats = None;
        }
        for action in core.stream_actions() {
            self.act(io, action);
        }
        self.finish_streams();
        self.close_when_said(now);
    }

    /// Whether the path has lost packets recently and there are several streams.
    fn keeps_streams_apart(&mut self, now: Instant) -> bool {
        if self.streams.len() < 2 {
            return false;
        }
        let lost = self.inner.stats().path.lost_packets;
        if lost > self.losses_seen {
            self.losses_seen = lost;
            self.apart_until = Some(now + APART_AFTER_LOSS);
        }
        self.apart_until.is_some_and(|until| now < until)
    }

    fn act(&mut self, io: &mut Io, action: StreamAction) {
        let (StreamAction::Abort(key, _) | StreamAction::Finish(key)) = action;
        match action {
            StreamAction::Abort(_, code) => {
                let Ok(id) = VarInt::from_u64(key.0).map(StreamId::from) else { return };
                let code = VarInt::from_u64(code).unwrap_or(VarInt::MAX);
                // An error means that the stream has ended already.
                let _ = self.inner.send_stream(id).reset(code);
                let _ = self.inner.recv_stream(id).stop(code);
                self.streams.retain(|stream| stream.id != id);
                self.account(io);
            }
            StreamAction::Finish(_) => {
                if let Some(stream) = self.streams.iter_mut().find(|stream| stream.key() == key) {
                    stream.finish = true;
                }
            }
        }
    }

    /// Finishes data streams on which everything is written.
    fn finish_streams(&mut self) {
        let QuicConn { streams, inner, .. } = self;
        streams.retain(|stream| {
            let over = stream.finish && stream.is_written();
            if over && inner.send_stream(stream.id).finish().is_err() {
                // The peer has stopped it, and expects a reset.
                let _ = inner.send_stream(stream.id).reset(VarInt::from_u32(0));
            }
            !over
        });
    }
}
