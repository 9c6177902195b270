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
    Connection as Core, ListenerPolicy, LostCause, Notice, Peer, ReadState, Shard, StreamAction,
    StreamEnd, StreamKey, Token, TransportKind, TransportStats,
};
use quinn_proto::{
    Connection, ConnectionError, ConnectionHandle, Dir, Endpoint, Event, ReadError, StreamEvent,
    StreamId, VarInt, WriteError,
};
use rustls_pki_types::CertificateDer;
use smallvec::SmallVec;

use super::config::QuicSettings;
use super::timers::Armed;
use crate::clock::Clock;
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

struct Stream {
    id: StreamId,
    /// Received bytes that the core could not use yet.
    tail: Vec<u8>,
    /// Output that quinn did not take, from `pending_at` on.
    pending: Vec<u8>,
    pending_at: usize,
    blocked: bool,
    /// The peer has finished or reset its side; to be told to the core when all is read.
    ended: Option<StreamEnd>,
    /// The core has said its last on it: to be finished when `pending` is out.
    finish: bool,
}

impl Stream {
    fn new(id: StreamId) -> Stream {
        let (tail, pending) = (Vec::new(), Vec::new());
        Stream { id, tail, pending, pending_at: 0, blocked: false, ended: None, finish: false }
    }

    fn key(&self) -> StreamKey {
        StreamKey(u64::from(VarInt::from(self.id)))
    }
}

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

    pub(crate) fn on_timeout(&mut self, shard: &mut Shard, now: Instant) {
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
            core.on_deadline(shard);
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
        shard: &mut Shard,
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
            self.on_event(shard, event);
        }
        self.watch_path(shard, now);
    }

    fn on_event(&mut self, shard: &mut Shard, event: Event) {
        match event {
            Event::Connected => self.on_connected(shard),
            Event::ConnectionLost { reason } => self.on_lost(shard, &reason),
            Event::Stream(StreamEvent::Opened { dir: Dir::Bi }) => self.accept_streams(shard),
            Event::Stream(StreamEvent::Readable { id }) => self.read(shard, id),
            Event::Stream(StreamEvent::Finished { id }) => {
                if u64::from(VarInt::from(id)) == 0 && self.goodbye_said {
                    // The last bytes have arrived; no need to linger.
                    self.close_at = Some(Instant::now());
                }
            }
            Event::Stream(StreamEvent::Stopped { id, error_code }) => {
                self.on_stopped(shard, id, error_code);
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
    fn on_stopped(&mut self, shard: &mut Shard, id: StreamId, code: VarInt) {
        let _ = self.inner.send_stream(id).reset(code);
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.id == id) else { return };
        stream.pending = Vec::new();
        stream.pending_at = 0;
        if stream.key() == StreamKey::CONTROL && stream.ended.is_none() {
            stream.ended = Some(StreamEnd::Reset(code.into_inner()));
            self.read(shard, id);
        }
    }

    fn on_connected(&mut self, shard: &mut Shard) {
        self.counts_as_handshake = false;
        let identity = self.identity();
        if let Some(core) = &mut self.core {
            core.handshake_confirmed(shard, identity);
        }
        self.accept_streams(shard);
    }

    /// The name in the client's certificate.
    fn identity(&self) -> Option<Box<str>> {
        let chain = self.inner.crypto_session().peer_identity()?;
        let chain = chain.downcast::<Vec<CertificateDer<'static>>>().ok()?;
        tls::client_name(chain.first()?)
    }

    fn accept_streams(&mut self, shard: &mut Shard) {
        if self.must_know_first && self.inner.is_handshaking() {
            return;
        }
        while let Some(id) = self.inner.streams().accept(Dir::Bi) {
            if self.core.is_none() && !self.begin(shard) {
                return;
            }
            let stream = Stream::new(id);
            if let (Some(core), true) = (&mut self.core, stream.key() != StreamKey::CONTROL) {
                core.stream_opened(shard, stream.key());
                // Asked again it does nothing.
                self.inner.set_max_concurrent_streams(Dir::Bi, VarInt::from_u32(self.max_streams));
            }
            self.streams.push(stream);
            self.read(shard, id);
        }
    }

    fn begin(&mut self, shard: &mut Shard) -> bool {
        let peer = Peer {
            address: self.inner.remote_address(),
            transport: TransportKind::Quic,
            identity: self.identity(),
            listener: Arc::clone(&self.policy),
        };
        let core = if self.inner.is_handshaking() {
            Core::new_early(shard, self.token, peer)
        } else {
            Core::new(shard, self.token, peer)
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
    fn read(&mut self, shard: &mut Shard, id: StreamId) {
        let Some(core) = &mut self.core else { return };
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.id == id) else { return };
        if stream.ended.is_none() && !stream.blocked {
            let mut receiver = self.inner.recv_stream(id);
            if let Ok(mut chunks) = receiver.read(true) {
                loop {
                    match chunks.next(usize::MAX) {
                        Ok(Some(chunk)) => feed(core, shard, stream, &chunk.bytes),
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
        if stream.ended.is_some() && !stream.blocked {
            self.end_stream(shard, id);
        }
    }

    fn end_stream(&mut self, shard: &mut Shard, id: StreamId) {
        let Some(at) = self.streams.iter().position(|stream| stream.id == id) else { return };
        let key = self.streams[at].key();
        let end = self.streams[at].ended.unwrap_or(StreamEnd::Finished);
        if let Some(core) = &mut self.core {
            core.stream_ended(shard, key, end);
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

    pub(crate) fn notice(&mut self, shard: &mut Shard, notice: Notice) {
        let Some(core) = &mut self.core else { return };
        core.notice(shard, notice);
        let blocked = self.streams.iter().filter(|stream| stream.blocked);
        for id in blocked.map(|stream| stream.id).collect::<SmallVec<[StreamId; 4]>>() {
            if let (Some(core), Some(stream)) =
                (&mut self.core, self.streams.iter_mut().find(|stream| stream.id == id))
            {
                stream.blocked = false;
                feed(core, shard, stream, &[]);
            }
            self.read(shard, id);
        }
    }

    /// Moves the core's output into quinn's streams. `send` puts what they hold on the wire; it is
    /// called between streams that are to share no datagram.
    pub(crate) fn write(
        &mut self,
        shard: &mut Shard,
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
            if !is_ready && stream.pending.is_empty() {
                continue;
            }
            if apart && unsent {
                send(&mut self.inner);
            }
            write_stream(&mut self.inner, core, shard, stream, is_ready);
            unsent = true;
        }
        for action in core.stream_actions() {
            self.act(action);
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
            let over = stream.finish && stream.pending.is_empty();
            if over && inner.send_stream(stream.id).finish().is_err() {
                // The peer has stopped it, and waits to hear that it is so.
                let _ = inner.send_stream(stream.id).reset(VarInt::from_u32(0));
            }
            !over
        });
    }

    fn act(&mut self, action: StreamAction) {
        let (StreamAction::Abort(key, _) | StreamAction::Finish(key)) = action;
        match action {
            StreamAction::Abort(_, code) => {
                let Ok(id) = VarInt::from_u64(key.0).map(StreamId::from) else { return };
                let code = VarInt::from_u64(code).unwrap_or(VarInt::MAX);
                // Errors say that the stream is gone already, which is what is wanted.
                let _ = self.inner.send_stream(id).reset(code);
                let _ = self.inner.recv_stream(id).stop(code);
                self.streams.retain(|stream| stream.id != id);
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
        let said = self.streams.iter().all(|stream| stream.pending.is_empty());
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

    fn on_lost(&mut self, shard: &mut Shard, reason: &ConnectionError) {
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
        self.lost(shard);
        // Only quinn's part lives on, until late packets can no longer come.
        self.streams = SmallVec::new();
        self.begin_by = None;
        self.close_at = None;
    }

    /// Tells the core, once, that the connection is gone.
    pub(crate) fn lost(&mut self, shard: &mut Shard) {
        if let Some(mut core) = self.core.take() {
            core.set_transport_stats(shard, self.stats());
            core.lost(shard, self.lost.unwrap_or(LostCause::Closed));
        }
    }

    fn watch_path(&mut self, shard: &mut Shard, now: Instant) {
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
                core.set_transport_stats(shard, stats);
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

/// Hands received bytes to the core, behind what it could not use before.
fn feed(core: &mut Core, shard: &mut Shard, stream: &mut Stream, data: &[u8]) {
    let key = stream.key();
    let received = if stream.tail.is_empty() {
        let received = core.receive(shard, key, data);
        stream.tail.extend_from_slice(&data[received.consumed..]);
        received
    } else {
        stream.tail.extend_from_slice(data);
        let received = core.receive(shard, key, &stream.tail);
        if received.consumed >= stream.tail.len() {
            stream.tail = Vec::new();
        } else {
            stream.tail.drain(..received.consumed);
        }
        received
    };
    stream.blocked = received.state == ReadState::Blocked;
    if received.state == ReadState::Closed {
        stream.tail = Vec::new();
    }
}

/// Writes what waits on a stream, then what the core has for it, for as long as quinn takes it.
fn write_stream(
    inner: &mut Connection,
    core: &mut Core,
    shard: &mut Shard,
    stream: &mut Stream,
    ready: bool,
) {
    let mut more = ready;
    while write_pending(inner, stream) && more {
        let output = core.output(shard, stream.key());
        more = output.more && !output.bytes.is_empty();
        stream.pending = output.bytes;
        stream.pending_at = 0;
    }
}

/// Offers a stream's waiting output to quinn; true when none is left.
fn write_pending(inner: &mut Connection, stream: &mut Stream) -> bool {
    while stream.pending_at < stream.pending.len() {
        let left = &stream.pending[stream.pending_at..];
        match inner.send_stream(stream.id).write(left) {
            Ok(written) => stream.pending_at += written,
            Err(WriteError::Blocked) => return false,
            // The peer does not want it, or the stream is gone: so is its output.
            Err(WriteError::Stopped(_) | WriteError::ClosedStream) => {
                stream.pending_at = stream.pending.len();
            }
        }
    }
    stream.pending = Vec::new();
    stream.pending_at = 0;
    true
}
