//! Input of a connection's streams: streams are opened, read and ended, and their unread bytes limited.
//!
//! The client's first bidirectional stream is the control stream, further ones and unidirectional ones
//! are data streams. A stream that the core does not want to read is not read, so the peer's flow-control credit runs
//! out and it stops.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use fulmar_broker::{BrokerEvent, Connection as Core, Peer, StreamEnd, StreamKey, TransportKind};
use quinn_proto::{Dir, ReadError, StreamId, VarInt};
use smallvec::SmallVec;

use super::QuicConn;
use super::stream::Stream;
use crate::connection::Io;

impl QuicConn {
    pub(super) fn accept_streams(&mut self, io: &mut Io) {
        if self.must_know_first && self.inner.is_handshaking() {
            return;
        }
        while let Some(id) = self.inner.streams().accept(Dir::Bi) {
            if self.core.is_none() && !self.begin(io) {
                return;
            }
            let stream = Stream::new(id);
            if let (Some(core), true) = (&mut self.core, stream.key() != StreamKey::CONTROL) {
                core.stream_opened(&mut io.shard, stream.key());
                // Asked again it does nothing.
                self.inner.set_max_concurrent_streams(Dir::Bi, VarInt::from_u32(self.max_streams));
            }
            self.take_stream(io, stream);
        }
        // Their packets are answered on the control stream.
        while let Some(core) = &mut self.core
            && let Some(id) = self.inner.streams().accept(Dir::Uni)
        {
            let stream = Stream::new(id);
            core.stream_opened(&mut io.shard, stream.key());
            self.inner.set_max_concurrent_streams(Dir::Uni, VarInt::from_u32(self.max_streams));
            self.take_stream(io, stream);
        }
    }

    fn take_stream(&mut self, io: &mut Io, stream: Stream) {
        let id = stream.id;
        self.streams.push(stream);
        self.streams_opened = self.streams_opened.saturating_add(1);
        self.read(io, id);
    }

    fn begin(&mut self, io: &mut Io) -> bool {
        let peer = Peer {
            address: self.inner.remote_address(),
            transport: TransportKind::Quic,
            identity: self.identity(),
            listener: Arc::clone(&self.policy),
        };
        let core = if self.inner.is_handshaking() {
            Core::new_early(&mut io.shard, self.token, peer)
        } else {
            Core::new(&mut io.shard, self.token, peer)
        };
        self.begin_by = None;
        match core {
            Ok(core) => self.core = Some(core),
            Err(_) => {
                let reason = Bytes::from_static(b"connection limit");
                // Quota exceeded, in MQTT's words.
                self.inner.close(Instant::now(), VarInt::from_u32(0x97), reason);
            }
        }
        self.core.is_some()
    }

    /// Reads a stream until it is empty or the core has enough.
    pub(super) fn read(&mut self, io: &mut Io, id: StreamId) {
        let Some(core) = &mut self.core else { return };
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.id == id) else { return };
        let before = stream.incomplete_bytes();
        if stream.ended.is_none() && !stream.blocked {
            let mut receiver = self.inner.recv_stream(id);
            if let Ok(mut chunks) = receiver.read(true) {
                loop {
                    match chunks.next(usize::MAX) {
                        Ok(Some(chunk)) => stream.feed(core, &mut io.shard, &chunk.bytes),
                        Ok(None) => stream.ended = Some(StreamEnd::Finished),
                        Err(ReadError::Reset(code)) => {
                            stream.ended = Some(StreamEnd::Reset(code.into_inner()));
                        }
                        Err(ReadError::Blocked) => break,
                    }
                    if stream.blocked || stream.ended.is_some() {
                        break;
                    }
                }
                // The connection is flushed at the end of the turn in any case.
                let _ = chunks.finalize();
            }
        }
        let (over, after) = (stream.ended.is_some() && !stream.blocked, stream.incomplete_bytes());
        if over {
            self.end_stream(io, id);
        } else if after != before {
            self.account(io);
            if after > before {
                self.bound_incomplete_bytes(io);
            }
        }
    }

    /// The peer has stopped reading a stream (STOP_SENDING). Its own data on the stream still counts: a client that
    /// only publishes stops the other direction at once. MQTT does not work without reading the control stream, so if
    /// that is stopped, the connection ends.
    pub(super) fn on_stopped(&mut self, io: &mut Io, id: StreamId, code: VarInt) {
        let _ = self.inner.send_stream(id).reset(code);
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.id == id) else { return };
        stream.forget_pending();
        if stream.key() == StreamKey::CONTROL && stream.ended.is_none() {
            stream.ended = Some(StreamEnd::Reset(code.into_inner()));
            self.read(io, id);
        }
    }

    fn end_stream(&mut self, io: &mut Io, id: StreamId) {
        let Some(at) = self.streams.iter().position(|stream| stream.id == id) else { return };
        let key = self.streams[at].key();
        let end = self.streams[at].ended.unwrap_or(StreamEnd::Finished);
        // What it ended with is no packet.
        self.streams[at].forget_input();
        self.account(io);
        if let Some(core) = &mut self.core {
            core.stream_ended(&mut io.shard, key, end);
        }
        // A finished stream stays open for outstanding answers, the control stream in any case. A reset stream is
        // closed in both directions: while one is open, it counts as one of the streams that the client may have.
        if key.is_unidirectional() {
            self.streams.remove(at);
        } else if key != StreamKey::CONTROL && end != StreamEnd::Finished {
            self.streams.remove(at);
            let _ = self.inner.send_stream(id).reset(VarInt::from_u32(0));
            let _ = self.inner.recv_stream(id).stop(VarInt::from_u32(0));
        }
    }

    pub(crate) fn on_broker_event(&mut self, io: &mut Io, event: BrokerEvent) {
        let Some(core) = &mut self.core else { return };
        core.on_event(&mut io.shard, event);
        let blocked = self.streams.iter().filter(|stream| stream.blocked);
        for id in blocked.map(|stream| stream.id).collect::<SmallVec<[StreamId; 4]>>() {
            if let (Some(core), Some(stream)) =
                (&mut self.core, self.streams.iter_mut().find(|stream| stream.id == id))
            {
                stream.blocked = false;
                stream.feed(core, &mut io.shard, &[]);
                self.account(io);
            }
            self.read(io, id);
        }
    }

    /// Brings the worker's account of incomplete packets up to date.
    pub(super) fn account(&mut self, io: &mut Io) {
        let held = self.streams.iter().map(Stream::incomplete_bytes).sum();
        io.incomplete_bytes.change(self.incomplete_bytes, held);
        self.incomplete_bytes = held;
    }

    /// Closes a connection that holds more memory for incomplete packets than it may.
    fn bound_incomplete_bytes(&mut self, io: &mut Io) {
        let packet = io.shard.broker().limits().max_packet_bytes;
        let most = io.limits.max_partial_bytes_per_connection.max(packet.saturating_mul(2));
        let own = self.incomplete_bytes > most;
        if !own && !io.incomplete_bytes.is_exceeded() {
            return;
        }
        tracing::warn!(
            peer = %self.inner.remote_address(),
            bytes = if own { self.incomplete_bytes } else { io.incomplete_bytes.held() },
            "closing: incomplete packets of {} exceed the bound",
            if own { "the connection" } else { "all connections" }
        );
        if let Some(core) = &mut self.core {
            core.refuse_incomplete(&mut io.shard);
        }
        self.streams.iter_mut().for_each(Stream::forget_input);
        self.account(io);
    }
}
