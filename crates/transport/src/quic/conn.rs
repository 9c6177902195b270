//! One QUIC connection: its streams on one side, the broker core on the other.
//!
//! The client's first bidirectional stream is the control stream, further ones are data streams. A
//! stream that the core does not want to read is not read, so the peer's flow-control credit runs
//! out and it stops. A stream's output is asked for only when what it gave before is in quinn's
//! hands, and quinn's hands are kept small: what may be unacknowledged follows the congestion
//! window, or a slow path would hold seconds of messages in buffers nobody can reorder.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fulmar_broker::{
    Connection as Core, ListenerPolicy, LostCause, Notice, Peer, Shard, StreamAction, StreamEnd,
    StreamKey, Token, TransportKind, TransportStats,
};
use quinn_proto::{
    Connection, ConnectionError, ConnectionHandle, Dir, Endpoint, Event, ReadError, StreamEvent,
    StreamId, VarInt,
};
use rustls_pki_types::CertificateDer;
use smallvec::SmallVec;

use super::config::QuicSettings;
use super::stream::Stream;
use super::timers::Armed;
use crate::clock::Clock;
use crate::stream::Io;
use crate::tls;

/// Congestion windows' worth of bytes that may be unacknowledged or unsent.
const SEND_WINDOWS: u64 = 2;

/// Time a closing connection has to get its last bytes acknowledged.
const LINGER: Duration = Duration::from_secs(1);

/// Time after a loss during which streams do not share datagrams. Together they would be lost
/// together, and one lost packet would delay several topics; apart they cost a datagram each, which
/// a path that loses nothing need not pay.
const APART_AFTER_LOSS: Duration = Duration::from_secs(10);

/// Time between two looks at the path's state, while the connection is in use.
const STATS_INTERVAL: Duration = Duration::from_secs(5);

pub(crate) struct QuicConn {
    pub(crate) inner: Connection,
    token: Token,
    policy: Arc<ListenerPolicy>,
    core: Option<Core>,
    streams: SmallVec<[Stream; 1]>,
    /// By when the handshake must be over and the control stream open.
    begin_by: Option<Instant>,
    /// The client's name must be known before anything it sends is looked at.
    must_know_first: bool,
    /// Memory its streams hold for incomplete packets, as told to the worker's account.
    partial_bytes: usize,
    /// The receive window of a client that has been let in, until it is.
    full_window: Option<VarInt>,
    /// Bytes that may be unacknowledged whatever the congestion window.
    min_send_window: u64,
    /// Lost packets already taken note of, and until when streams are kept apart for them.
    losses_seen: u64,
    apart_until: Option<Instant>,
    /// Streams the client may have open once it uses more than one.
    max_streams: u32,
    pub(crate) counts_as_handshake: bool,
    pub(crate) dirty: bool,
    pub(crate) timer: Armed,
    close_at: Option<Instant>,
    /// Nothing follows on the control stream.
    goodbye_said: bool,
    drained: bool,
    migrations: u32,
    next_stats: Option<Instant>,
    last_remote: std::net::SocketAddr,
    lost: Option<LostCause>,
}

impl QuicConn {
    pub(crate) fn new(
        inner: Connection,
        token: Token,
        policy: Arc<ListenerPolicy>,
        begin_by: Instant,
        must_know_first: bool,
        settings: &QuicSettings,
    ) -> QuicConn {
        let last_remote = inner.remote_address();
        QuicConn {
            inner,
            token,
            policy,
            core: None,
            streams: SmallVec::new(),
            begin_by: Some(begin_by),
            must_know_first,
            partial_bytes: 0,
            full_window: Some(VarInt::from_u32(settings.connection_window_bytes)),
            min_send_window: settings.min_send_window_bytes,
            losses_seen: 0,
            apart_until: None,
            max_streams: settings.max_streams.max(1),
            counts_as_handshake: true,
            dirty: false,
            timer: Armed::default(),
            close_at: None,
            goodbye_said: false,
            drained: false,
            migrations: 0,
            next_stats: None,
            last_remote,
            lost: None,
        }
    }

    pub(crate) fn token(&self) -> Token {
        self.token
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.drained
    }

    /// Something may have come up since [`QuicConn::drive`].
    pub(crate) fn has_events(&self) -> bool {
        self.inner.is_drained() && !self.drained
    }

    pub(crate) fn deadline(&mut self, shard: &Shard, clock: &Clock) -> Option<Instant> {
        let core = self.core.as_ref().and_then(|core| clock.instant(core.deadline(shard)));
        let own = [self.inner.poll_timeout(), core, self.begin_by, self.close_at];
        own.into_iter().flatten().min()
    }

    pub(crate) fn on_timeout(&mut self, io: &mut Io, now: Instant) {
        self.inner.handle_timeout(now);
        if self.begin_by.is_some_and(|by| by <= now) {
            self.begin_by = None;
            tracing::info!(peer = %self.inner.remote_address(),
                "QUIC connection without a control stream in time");
            self.inner.close(now, VarInt::from_u32(0), Bytes::from_static(b"no control stream"));
        }
        if self.close_at.is_some_and(|at| at <= now) {
            self.close(now);
        }
        if let Some(core) = &mut self.core {
            core.on_deadline(&mut io.shard);
        }
    }

    pub(crate) fn begin_close(&mut self, now: Instant) {
        if self.core.is_none() {
            self.inner.close(now, VarInt::from_u32(0), Bytes::from_static(b"shutting down"));
        } else {
            self.close_at.get_or_insert(now + LINGER);
        }
    }

    /// Acts on everything quinn has to tell.
    pub(crate) fn drive(
        &mut self,
        endpoint: &mut Endpoint,
        handle: ConnectionHandle,
        io: &mut Io,
        now: Instant,
    ) {
        loop {
            while let Some(event) = self.inner.poll_endpoint_events() {
                self.drained |= event.is_drained();
                if let Some(answer) = endpoint.handle_event(handle, event) {
                    self.inner.handle_event(answer);
                }
            }
            let Some(event) = self.inner.poll() else { break };
            self.on_event(io, event);
        }
        self.watch_path(io, now);
    }

    fn on_event(&mut self, io: &mut Io, event: Event) {
        match event {
            Event::Connected => self.on_connected(io),
            Event::ConnectionLost { reason } => self.on_lost(io, &reason),
            Event::Stream(StreamEvent::Opened { dir: Dir::Bi }) => self.accept_streams(io),
            Event::Stream(StreamEvent::Readable { id }) => self.read(io, id),
            Event::Stream(StreamEvent::Finished { id }) => {
                if u64::from(VarInt::from(id)) == 0 && self.goodbye_said {
                    // The last bytes have arrived; no need to linger.
                    self.close_at = Some(Instant::now());
                }
            }
            Event::Stream(StreamEvent::Stopped { id, error_code }) => {
                self.on_stopped(io, id, error_code);
            }
            // Every flush tries to write whatever waits.
            Event::Stream(StreamEvent::Writable { .. } | StreamEvent::Available { .. })
            | Event::Stream(StreamEvent::Opened { dir: Dir::Uni })
            | Event::HandshakeDataReady
            | Event::DatagramReceived
            | Event::DatagramsUnblocked => {}
        }
    }

    /// The peer does not want to hear more on a stream. What it says there counts nevertheless: a
    /// client that only publishes lets go of the other direction at once. Nobody speaks MQTT
    /// without hearing the control stream, so that one ends.
    fn on_stopped(&mut self, io: &mut Io, id: StreamId, code: VarInt) {
        let _ = self.inner.send_stream(id).reset(code);
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.id == id) else { return };
        stream.forget_pending();
        if stream.key() == StreamKey::CONTROL && stream.ended.is_none() {
            stream.ended = Some(StreamEnd::Reset(code.into_inner()));
            self.read(io, id);
        }
    }

    fn on_connected(&mut self, io: &mut Io) {
        self.counts_as_handshake = false;
        let identity = self.identity();
        if let Some(core) = &mut self.core {
            core.handshake_confirmed(&mut io.shard, identity);
        }
        self.accept_streams(io);
    }

    /// The name in the client's certificate.
    fn identity(&self) -> Option<Box<str>> {
        let chain = self.inner.crypto_session().peer_identity()?;
        let chain = chain.downcast::<Vec<CertificateDer<'static>>>().ok()?;
        tls::client_name(chain.first()?)
    }

    fn accept_streams(&mut self, io: &mut Io) {
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
            self.streams.push(stream);
            self.read(io, id);
        }
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
    fn read(&mut self, io: &mut Io, id: StreamId) {
        let Some(core) = &mut self.core else { return };
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.id == id) else { return };
        let before = stream.partial_bytes();
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
        let (over, after) = (stream.ended.is_some() && !stream.blocked, stream.partial_bytes());
        if over {
            self.end_stream(io, id);
        } else if after != before {
            self.account(io);
            if after > before {
                self.bound_partial(io);
            }
        }
    }

    /// Brings the worker's account of incomplete packets up to date.
    fn account(&mut self, io: &mut Io) {
        let held = self.streams.iter().map(Stream::partial_bytes).sum();
        io.partial.change(self.partial_bytes, held);
        self.partial_bytes = held;
    }

    /// Closes a connection that has come to hold more for incomplete packets than it may.
    fn bound_partial(&mut self, io: &mut Io) {
        let packet = io.shard.broker().limits().max_packet_bytes;
        let most = io.limits.max_partial_bytes_per_connection.max(packet.saturating_mul(2));
        let own = self.partial_bytes > most;
        if !own && !io.partial.is_exceeded() {
            return;
        }
        tracing::warn!(
            peer = %self.inner.remote_address(),
            bytes = if own { self.partial_bytes } else { io.partial.held() },
            "closing: incomplete packets of {} exceed the bound",
            if own { "the connection" } else { "all connections" }
        );
        if let Some(core) = &mut self.core {
            core.refuse_partial(&mut io.shard);
        }
        self.streams.iter_mut().for_each(Stream::forget_input);
        self.account(io);
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
        // A finished stream stays for what is still to be said on it, the control stream in any
        // case. A reset one goes, and both of its directions with it: while one is open, it counts
        // against the streams the client may have.
        if key != StreamKey::CONTROL && end != StreamEnd::Finished {
            self.streams.remove(at);
            let _ = self.inner.send_stream(id).reset(VarInt::from_u32(0));
            let _ = self.inner.recv_stream(id).stop(VarInt::from_u32(0));
        }
    }

    pub(crate) fn notice(&mut self, io: &mut Io, notice: Notice) {
        let Some(core) = &mut self.core else { return };
        core.notice(&mut io.shard, notice);
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
        self.inner.set_send_window((window * SEND_WINDOWS).max(self.min_send_window));
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
            self.inner.set_receive_window(window);
        }
        for action in core.stream_actions() {
            self.act(io, action);
        }
        self.finish_streams();
        self.close_when_said(now);
    }

    /// Whether the path has lost packets lately and there are streams to tell apart.
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

    /// Finishes data streams on which everything is written.
    fn finish_streams(&mut self) {
        let QuicConn { streams, inner, .. } = self;
        streams.retain(|stream| {
            let over = stream.finish && stream.is_written();
            if over && inner.send_stream(stream.id).finish().is_err() {
                // The peer has stopped it, and waits to hear that it is so.
                let _ = inner.send_stream(stream.id).reset(VarInt::from_u32(0));
            }
            !over
        });
    }

    fn act(&mut self, io: &mut Io, action: StreamAction) {
        let (StreamAction::Abort(key, _) | StreamAction::Finish(key)) = action;
        match action {
            StreamAction::Abort(_, code) => {
                let Ok(id) = VarInt::from_u64(key.0).map(StreamId::from) else { return };
                let code = VarInt::from_u64(code).unwrap_or(VarInt::MAX);
                // Errors say that the stream is gone already, which is what is wanted.
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

    /// Once the core wants to close, gives everything a moment to be written and acknowledged,
    /// because a close frame overtakes data, and a peer that does not read may never let it out.
    fn close_when_said(&mut self, now: Instant) {
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

    fn close(&mut self, now: Instant) {
        self.close_at = None;
        let closing = self.core.as_ref().and_then(Core::closing);
        let code = closing.map_or(0, |closing| closing.quic_code);
        let reason = closing.map_or("", |closing| closing.reason);
        let code = VarInt::from_u64(code).unwrap_or(VarInt::MAX);
        self.inner.close(now, code, Bytes::from_static(reason.as_bytes()));
        self.lost.get_or_insert(LostCause::Closed);
    }

    fn on_lost(&mut self, io: &mut Io, reason: &ConnectionError) {
        let cause = match reason {
            ConnectionError::TimedOut => LostCause::IdleTimeout,
            ConnectionError::ApplicationClosed(_) | ConnectionError::ConnectionClosed(_) => {
                LostCause::PeerClosed
            }
            ConnectionError::LocallyClosed => LostCause::Closed,
            _ => LostCause::Failed,
        };
        tracing::debug!(peer = %self.inner.remote_address(), "QUIC connection ended: {reason}");
        self.lost = Some(cause);
        self.lost(io);
        self.begin_by = None;
        self.close_at = None;
    }

    /// Tells the core, once, that the connection is gone.
    pub(crate) fn lost(&mut self, io: &mut Io) {
        if let Some(mut core) = self.core.take() {
            core.set_transport_stats(&io.shard, self.stats());
            core.lost(&mut io.shard, self.lost.unwrap_or(LostCause::Closed));
        }
        // Only quinn's part lives on, until late packets can no longer come.
        self.streams = SmallVec::new();
        self.account(io);
    }

    fn watch_path(&mut self, io: &mut Io, now: Instant) {
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

    fn stats(&self) -> TransportStats {
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
