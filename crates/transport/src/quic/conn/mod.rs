//! One QUIC connection: its streams on one side, the broker core on the other.
//!
//! Here are its deadlines and quinn's events; `input` is what its streams bring, `output` what they
//! take, `stream` one of them, `setup` what it keeps until it is connected, `end` how it closes, `path` what it knows of the
//! way there. `super::silence`
//! has how long nothing need come.

mod end;
mod input;
mod output;
mod path;
mod setup;
mod stream;
mod unvalidated;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fulmar_broker::{
    Connection as Core, ListenerPolicy, LostCause, MemoryPressure, MemoryShare, PeerIdentity,
    Shard, Token, grace_after_pause,
};
use quinn_proto::{Connection, ConnectionHandle, Endpoint, Event, StreamEvent, VarInt};
use rustls_pki_types::CertificateDer;
use smallvec::SmallVec;

use super::config::QuicSettings;
use super::copies::ConnCopies;
use super::pieces;
use super::silence::{Silence, SilenceAction};
use super::timers::Armed;
use crate::clock::Clock;
use crate::connection::Io;
use crate::tls;
use crate::unread::Unread;
pub(in crate::quic) use setup::Setup;
use stream::Stream;
pub(in crate::quic) use unvalidated::{Arrival, Proof, Sending, UnvalidatedPath};

/// Bounds of the time that the end of a handshake waits for the client's first word. The lower one is
/// the granularity of QUIC's timers (RFC 9002 section 6.1.2): no client repeats itself sooner.
const HOLD: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(5)];

/// A connection: quinn's state machine, the core's, and the state between them.
pub(crate) struct QuicConn {
    pub(crate) inner: Connection,
    token: Token,
    policy: Arc<ListenerPolicy>,
    core: Option<Core>,
    streams: SmallVec<[Stream; 1]>,
    streams_opened: u32,
    /// By when the handshake must be over and the control stream open.
    begin_by: Option<Instant>,
    /// Until when the end of the handshake is held back, to be sent together with the response to CONNECT.
    held_until: Option<Instant>,
    silence: Silence,
    /// The client's name must be known before anything it sends is looked at.
    must_know_first: bool,
    /// Memory that its streams hold for incomplete packets, as counted by the worker.
    incomplete_bytes: usize,
    /// The receive window in bytes of a client that has been let in, until it is; less if its user has no memory for it.
    full_window: Option<u32>,
    /// Bytes that may be unacknowledged whatever the congestion window.
    min_send_window: u64,
    /// The client's address was proven before the handshake.
    is_proven: bool,
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
    unread: Unread,
    last_remote: std::net::SocketAddr,
    /// This machine's address to which the client sends now, if that has changed. Few connections need it.
    pub(in crate::quic) own_ip: Option<Box<IpAddr>>,
    /// The path to an address of the client that is not validated.
    pub(in crate::quic) unvalidated: Option<Box<UnvalidatedPath>>,
    /// Copies of what it sends, once something was lost, and when that was last looked at.
    pub(in crate::quic) copies: Option<Box<ConnCopies>>,
    pub(in crate::quic) looked_ms: u32,
    /// Until the client has answered what sets it up.
    pub(in crate::quic) setup: Option<Box<Setup>>,
    lost: Option<LostCause>,
    /// Memory that it counts for.
    _memory: Box<MemoryShare>,
}

impl QuicConn {
    pub(crate) fn new(
        inner: Connection,
        token: Token,
        policy: Arc<ListenerPolicy>,
        (must_know_first, proof, memory): (bool, Proof, Box<MemoryShare>),
        settings: &QuicSettings,
        now: Instant,
    ) -> QuicConn {
        let last_remote = inner.remote_address();
        let unvalidated = match proof {
            Proof::Shown => None,
            Proof::Owed(bytes) => {
                Some(Box::new(UnvalidatedPath::new(last_remote, last_remote, bytes as u64)))
            }
        };
        QuicConn {
            inner,
            token,
            policy,
            core: None,
            streams: SmallVec::new(),
            streams_opened: 0,
            begin_by: Some(now + settings.handshake_timeout),
            held_until: None,
            silence: Silence::new(now, settings.idle_timeout),
            must_know_first,
            incomplete_bytes: 0,
            full_window: Some(settings.connection_window_bytes),
            min_send_window: settings.min_send_window_bytes,
            is_proven: unvalidated.is_none(),
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
            unread: Unread::default(),
            last_remote,
            own_ip: None,
            unvalidated,
            copies: settings
                .copies
                .then(|| ConnCopies::expected(&settings.losses, last_remote.ip(), now))
                .flatten(),
            looked_ms: 0,
            setup: Some(Box::new(Setup::new(settings, now))),
            lost: None,
            _memory: memory,
        }
    }

    pub(crate) fn token(&self) -> Token {
        self.token
    }

    /// Whether a token proved the client's address.
    pub(crate) fn was_proven(&self) -> bool {
        self.is_proven
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.drained
    }

    /// Whether nothing is to be sent yet, see [`QuicConn::on_connected`].
    pub(crate) fn is_held(&mut self, now: Instant) -> bool {
        let over = self.core.is_some() || self.inner.is_closed();
        self.held_until = self.held_until.filter(|until| now < *until && !over);
        self.held_until.is_some()
    }

    /// Something may have come up since [`QuicConn::drive`].
    pub(crate) fn has_events(&self) -> bool {
        self.inner.is_drained() && !self.drained
    }

    pub(crate) fn deadline(&mut self, shard: &Shard, clock: &Clock) -> Option<Instant> {
        let core = self.core.as_ref().and_then(|core| clock.instant(core.deadline(shard)));
        let silence = self.next_of_silence().map(|(at, _)| at);
        let quinns = self.inner.poll_timeout();
        let repetition = self.next_repetition();
        let own =
            [quinns, core, self.begin_by, self.held_until, self.close_at, silence, repetition];
        own.into_iter().flatten().min()
    }

    /// A datagram was received.
    pub(crate) fn heard(&mut self, now: Instant) {
        self.silence.heard(now);
    }

    fn next_of_silence(&self) -> Option<(Instant, SilenceAction)> {
        // One that is closing has a time of its own for that.
        let closing = self.core.as_ref().is_some_and(|core| core.closing().is_some());
        if closing || self.inner.is_closed() {
            return None;
        }
        let allowed = self.core.as_ref().and_then(Core::allowed_silence);
        self.silence.next(allowed, self.inner.rtt())
    }

    pub(crate) fn on_timeout(&mut self, io: &mut Io, now: Instant) {
        self.inner.handle_timeout(now);
        let missed = self.begin_by.take_if(|by| *by <= now).map(|by| now - by);
        if let Some(grace) = missed.and_then(grace_after_pause) {
            self.begin_by = Some(now + grace);
        } else if missed.is_some() {
            tracing::info!(peer = %self.inner.remote_address(),
                "QUIC connection without a control stream in time");
            self.inner.close(now, VarInt::from_u32(0), Bytes::from_static(b"no control stream"));
        }
        if self.close_at.is_some_and(|at| at <= now) {
            self.close(now);
        }
        match self.next_of_silence().filter(|(at, _)| *at <= now) {
            Some((_, SilenceAction::Ask)) => {
                self.inner.ping();
                self.silence.has_asked();
            }
            Some((at, SilenceAction::GiveUp)) if !self.silence.excuse_pause(now - at) => {
                self.give_up(io, now)
            }
            _ => {}
        }
        if let Some(core) = &mut self.core {
            core.excuse_pause(&io.shard);
            core.on_deadline(&mut io.shard);
        }
    }

    /// Handles all of quinn's events.
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
            self.on_event(io, event, now);
        }
        self.refuse_fragments(now);
        self.watch_path(io, now);
    }

    /// Closes a connection whose client sends very many pieces before it is let in: a CONNECT of the largest size has a
    /// hundred.
    fn refuse_fragments(&mut self, now: Instant) {
        let is_unknown = self.full_window.is_some() && !self.inner.is_closed();
        if is_unknown && self.inner.stats().frame_rx.stream > pieces::FEW {
            tracing::info!(peer = %self.inner.remote_address(), most = pieces::FEW,
                "QUIC connection closed: too many pieces of streams before CONNECT");
            self.inner.close(now, VarInt::from_u32(0), Bytes::from_static(b"too many pieces"));
        }
    }

    /// Closes the connection if it may be the reason that memory is short. Returns whether it did.
    pub(crate) fn give_way(&mut self, io: &mut Io, pressure: MemoryPressure, now: Instant) -> bool {
        let stats = self.inner.stats();
        let (frames, datagrams) = (stats.frame_rx.stream, stats.udp_rx.datagrams);
        if self.inner.is_closed() {
            return false;
        }
        let unread = self.streams.iter().map(Stream::unread_bytes).sum();
        if self.unread.gives_way(pressure, unread) {
            tracing::info!(peer = %self.inner.remote_address(), unread,
                "QUIC connection closed: memory is short, and this client reads nothing of what is being sent to it");
            io.shard.metrics().partial_refused.add(1);
            self.inner.close(now, VarInt::from_u32(0), Bytes::from_static(b"reads nothing"));
            self.streams.iter_mut().for_each(Stream::forget_pending);
            return true;
        }
        if !pieces::has_suspicious_pieces(pressure, frames, datagrams, self.streams.len()) {
            return false;
        }
        tracing::info!(peer = %self.inner.remote_address(), frames, datagrams,
            "QUIC connection closed: memory is short, and this client has sent very many pieces of streams");
        io.shard.metrics().partial_refused.add(1);
        self.inner.close(now, VarInt::from_u32(0), Bytes::from_static(b"too many pieces"));
        true
    }

    fn on_event(&mut self, io: &mut Io, event: Event, now: Instant) {
        match event {
            Event::Connected => self.on_connected(io, now),
            Event::ConnectionLost { reason } => self.on_lost(io, &reason),
            Event::Stream(StreamEvent::Opened { .. }) => self.accept_streams(io),
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
            | Event::HandshakeDataReady
            | Event::DatagramReceived
            | Event::DatagramsUnblocked => {}
        }
    }

    /// A client says CONNECT right behind the end of its handshake, mostly in a datagram of its own.
    /// What the server has to say to the first (HANDSHAKE_DONE, a ticket, a token) can wait for what
    /// it has to say to the second: half a round trip, which is sooner than the client repeats itself
    /// (three round trips, RFC 9002 section 6.2.2).
    fn on_connected(&mut self, io: &mut Io, now: Instant) {
        self.counts_as_handshake = false;
        self.held_until = Some(now + (self.inner.rtt() / 2).clamp(HOLD[0], HOLD[1]));
        if let Ok(Some(parameters)) = self.inner.crypto_session().transport_parameters() {
            self.silence.learn(&parameters);
        }
        let identity = self.identity();
        if let Some(core) = &mut self.core {
            core.handshake_confirmed(&mut io.shard, identity);
        }
        self.accept_streams(io);
    }

    /// The name in the client's certificate.
    fn identity(&self) -> Option<PeerIdentity> {
        let chain = self.inner.crypto_session().peer_identity()?;
        let chain = chain.downcast::<Vec<CertificateDer<'static>>>().ok()?;
        tls::client_name(&chain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Next to some 20 KiB that quinn and rustls hold for a connection, the broker's own part stays
    /// small: what few connections need is boxed, and buffers exist only while there is something
    /// in them.
    #[test]
    fn an_idle_connection_adds_little_to_quinns_part() {
        let own = size_of::<QuicConn>() - size_of::<Connection>();
        assert!(own <= 704, "{own} bytes, {} of them the core's", size_of::<Core>());
    }
}
