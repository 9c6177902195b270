//! QUIC (RFC 9000) for a worker: quinn-proto's state machines, driven by the worker's own loop.
//!
//! There is no task and no lock a connection: datagrams are read in batches, each touched connection is asked once a turn
//! for what it has to send, and everything a connection holds when idle is in [`conn::QuicConn`]. `steering` keeps a
//! connection with its worker when the client's address changes; `conn` translates between streams and the broker core.

mod admission;
mod config;
mod conn;
mod copies;
mod extended_tls;
mod initial_rtt;
mod losses;
mod peek;
mod pieces;
mod sending;
mod server_id;
mod silence;
mod socket;
pub(crate) mod steering;
#[cfg(test)]
mod steering_tests;
mod timers;

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmar_broker::{
    BrokerEvent, ListenerPolicy, LogLimiter, MemoryPressure, MemoryShare, Token, TransportKind, Via,
};
use quinn_proto::{
    Connection, ConnectionHandle, DatagramEvent, Endpoint, Incoming, ServerConfig, Transmit,
};

pub use admission::HandshakePressure;
pub use config::{QuicKeys, QuicSettings, RetryPolicy};
pub use extended_tls::{ExtendedTls, HandshakeData};
pub use losses::Losses;
pub use pieces::has_suspicious_pieces;
pub use server_id::{NoServerId, ServerId};
pub use silence::{Silence, SilenceAction};

use crate::clock::Clock;
use crate::config::QuicListener;
use crate::connection::Io;
use crate::error::StartError;
use crate::tls::ClientAuth;
use admission::Admission;
use conn::{Arrival, Proof, QuicConn};
use copies::Waiting;
use initial_rtt::ByRoundTrip;
use peek::FirstPacket;
use sending::{Out, transmit};
use socket::{Datagram, Socket};
pub(crate) use steering::EndpointSlot;
use steering::FirstCid;
use timers::Timers;

/// Marks a [`Token`] as a QUIC connection's.
const QUIC_BIT: u64 = 1 << 63;

/// Bits of a token: index, endpoint, generation.
const INDEX_BITS: u32 = 28;
const ENDPOINT_BITS: u32 = 4;

/// Connections of one endpoint that get a qlog, at most: the disk is the operator's.
const MAX_QLOGS: usize = 1000;

/// Datagrams read from the socket in one turn, at most.
const DATAGRAMS_A_TURN: usize = 4096;

/// Rest of a socket that cannot be read.
const RECEIVE_PAUSE: Duration = Duration::from_millis(10);

/// The endpoint of its worker that a QUIC connection's token names; `None` for other tokens.
pub(crate) fn endpoint_of(token: Token) -> Option<usize> {
    let mask = (1 << ENDPOINT_BITS) - 1;
    (token.0 & QUIC_BIT != 0).then_some((token.0 >> INDEX_BITS & mask) as usize)
}

fn index_of(token: Token) -> usize {
    (token.0 & ((1 << INDEX_BITS) - 1)) as usize
}

/// One QUIC port of one worker.
pub(crate) struct QuicShard {
    endpoint: Endpoint,
    first_cid: FirstCid,
    socket: Socket,
    settings: QuicSettings,
    server: Arc<ServerConfig>,
    by_round_trip: ByRoundTrip,
    policy: Arc<ListenerPolicy>,
    client_auth: ClientAuth,
    place: EndpointSlot,
    clock: Clock,
    /// By connection handle.
    conns: Vec<Option<Box<QuicConn>>>,
    open: usize,
    handshakes: usize,
    generation: u32,
    /// Connections that may have something to send.
    dirty: Vec<usize>,
    timers: Timers,
    /// When to read on without an event: at once if reading stopped to let other connections have their turn, after a
    /// while if it failed. The poller is edge-triggered and does not repeat its event.
    read_again: Option<Instant>,
    /// Datagrams so far.
    received: u64,
    /// Datagrams that may begin a connection, and how many of them are handled.
    admission: Admission,
    /// Scratch for datagrams under construction.
    scratch: Vec<u8>,
    /// Datagrams that are sent again.
    copies: Waiting,
    qlogs_left: usize,
    /// Packets of another node's connections.
    misrouted: LogLimiter,
    closing: bool,
}

fulmar_text::opaque_debug!(QuicShard { open });

impl QuicShard {
    pub(crate) fn new(
        socket: UdpSocket,
        listener: &QuicListener,
        place: EndpointSlot,
        clock: Clock,
    ) -> Result<QuicShard, StartError> {
        let settings = &listener.settings;
        let server = Arc::new(settings.server(&listener.tls)?);
        let socket = Socket::new(socket)?;
        let first_cid = FirstCid::default();
        let endpoint_config = settings.endpoint(place.index, place.workers, first_cid.clone());
        let endpoint_config = Arc::new(endpoint_config);
        let mtud = !socket.may_fragment();
        Ok(QuicShard {
            endpoint: Endpoint::new(endpoint_config, Some(Arc::clone(&server)), mtud, None),
            first_cid,
            socket,
            settings: settings.clone(),
            server,
            by_round_trip: ByRoundTrip::default(),
            policy: Arc::clone(&listener.policy),
            client_auth: listener.tls.client_auth,
            place,
            clock,
            conns: Vec::new(),
            open: 0,
            handshakes: 0,
            generation: 0,
            dirty: Vec::new(),
            timers: Timers::default(),
            read_again: None,
            received: 0,
            admission: Admission::default(),
            scratch: Vec::new(),
            copies: Waiting::new(),
            qlogs_left: MAX_QLOGS,
            misrouted: LogLimiter::default(),
            closing: false,
        })
    }

    pub(crate) fn register(
        &mut self,
        registry: &mio::Registry,
        token: mio::Token,
    ) -> std::io::Result<()> {
        self.socket.register(registry, token)
    }

    /// Datagrams received so far.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.open == 0
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        let others = [self.timers.next(), self.copies.next()].into_iter().flatten();
        self.read_again.into_iter().chain(others).min()
    }

    /// The socket is readable, writable or both.
    pub(crate) fn on_event(&mut self, io: &mut Io, readable: bool, now: Instant) {
        self.socket.retry();
        if !readable {
            return;
        }
        self.read(io, now);
        self.admit(io, now);
    }

    /// Reads what has come. Datagrams of known connections are handled at once; what may begin a new one
    /// waits for its share of the turn.
    fn read(&mut self, io: &mut Io, now: Instant) {
        let mut left = DATAGRAMS_A_TURN;
        while left > 0 {
            let mut batch = match self.socket.receive() {
                Ok(Some(batch)) => batch,
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!("UDP receive failed: {error}");
                    self.read_again = Some(now + RECEIVE_PAUSE);
                    return;
                }
            };
            left = left.saturating_sub(batch.len().max(1));
            self.received += batch.len() as u64;
            for datagram in batch.drain(..) {
                if let Some(datagram) = self.admission.sort(datagram, now) {
                    self.on_datagram(io, datagram, now);
                }
            }
            self.socket.give_back(batch);
        }
        self.read_again = Some(now);
    }

    /// Works on what may begin new connections, within bounds; the rest waits for a later turn.
    fn admit(&mut self, io: &mut Io, now: Instant) {
        let begun = Instant::now();
        while let Some(datagram) = self.admission.next(begun.elapsed(), now) {
            self.on_datagram(io, datagram, now);
        }
        self.admission.spent(begun.elapsed());
        let again = self.admission.next_turn(now);
        self.read_again = self.read_again.into_iter().chain(again).min();
    }

    fn on_datagram(&mut self, io: &mut Io, datagram: Datagram, now: Instant) {
        let Datagram { remote, local_ip, ecn, bytes } = datagram;
        let length = bytes.len();
        let first = peek::first(&bytes);
        if first == FirstPacket::Short && self.is_misrouted(io, remote, &bytes) {
            return;
        }
        self.scratch.clear();
        match self.endpoint.handle(now, remote, local_ip, ecn, bytes, &mut self.scratch) {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                let Some(conn) = self.conns.get_mut(handle.0).and_then(Option::as_mut) else {
                    return;
                };
                conn.heard(now);
                conn.receive(event, Arrival { remote, local_ip, length, first }, now);
                self.drive(io, handle.0, now);
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                self.on_incoming(io, incoming, length, now);
            }
            Some(DatagramEvent::Response(transmit)) => self.send_scratch(&transmit),
            None => {}
        }
    }

    /// Whether a packet is one of another node's connections. It gets no answer: clients accept a reset of that node only.
    fn is_misrouted(&mut self, io: &mut Io, peer: SocketAddr, datagram: &[u8]) -> bool {
        let Some(own) = self.settings.server_id else { return false };
        let Some(other) = ServerId::of_short_packet(datagram).filter(|id| *id != own) else {
            return false;
        };
        io.shard.metrics().quic_other_node_packets.add(1);
        if let Some(times) = self.misrouted.occurred(io.shard.now()) {
            tracing::warn!(%peer, %other, %own, times,
                "QUIC packet of a connection of another node, which `fulmar cluster status` names by its server ID: \
                 that node has ended, or a load balancer does not read server IDs");
        }
        true
    }

    fn on_incoming(&mut self, io: &mut Io, incoming: Incoming, length: usize, now: Instant) {
        let peer = incoming.remote_address();
        // The core counts those that have a control stream; here all count, or only their deadline bounded the others.
        let full = self.handshakes >= self.settings.max_handshakes
            || self.open >= io.shard.broker().limits().max_connections;
        if self.closing || full {
            tracing::debug!(%peer, full, "QUIC connection ignored: too many, or draining");
            self.endpoint.ignore(incoming);
            return;
        }
        let wants_proof = match self.settings.retry {
            RetryPolicy::Always => true,
            RetryPolicy::Never => false,
            RetryPolicy::Auto => {
                self.handshakes >= self.settings.retry_above || self.admission.is_pressed(now)
            }
        };
        // A token of an earlier connection saves the round trip (RFC 9000 8.1.3).
        let is_proven = incoming.remote_address_validated();
        if is_proven {
            self.admission.proven(now);
        }
        self.scratch.clear();
        if wants_proof && !is_proven && incoming.may_retry() {
            match self.endpoint.retry(incoming, &mut self.scratch) {
                Ok(transmit) => {
                    self.admission.asked_for_proof(now);
                    self.send_scratch(&transmit);
                }
                Err(error) => self.endpoint.ignore(error.into_incoming()),
            }
            return;
        }
        // Not before a proof was asked for: an address that may be forged would take another network's share.
        let Some(memory) = io.shard.count_connection(peer, TransportKind::Quic, Via::Socket, None)
        else {
            self.endpoint.ignore(incoming);
            return;
        };
        let config = self.config_for_next().or_else(|| {
            // An address that is not validated may be forged.
            let losses = is_proven.then_some(&self.settings.losses)?;
            let known = losses.expected(peer.ip(), now)?;
            self.by_round_trip.config(known.round_trip, &self.settings, &self.server)
        });
        self.first_cid.take_id();
        match self.endpoint.accept(incoming, now, &mut self.scratch, config) {
            Ok((handle, inner)) => {
                let proof = if is_proven { Proof::Shown } else { Proof::Owed(length) };
                self.begin(io, handle, inner, proof, memory, now);
            }
            Err(error) => {
                self.admission.failed(peer, is_proven, now);
                tracing::info!(%peer, "QUIC: TLS handshake failed: {}", error.cause);
                if let Some(transmit) = error.response {
                    self.send_scratch(&transmit);
                }
            }
        }
    }

    /// A configuration of its own for a connection that is to be logged.
    fn config_for_next(&mut self) -> Option<Arc<ServerConfig>> {
        let folder = self.settings.qlog_dir.as_ref()?;
        self.qlogs_left = self.qlogs_left.checked_sub(1)?;
        if self.qlogs_left == 0 {
            tracing::warn!("{MAX_QLOGS} qlog files written; no more until the next start");
        }
        let EndpointSlot { index, endpoint, .. } = self.place;
        let name = format!("{}-{endpoint}-{index}-{}.qlog", std::process::id(), self.generation);
        let file = match std::fs::File::create(folder.join(&name)) {
            Ok(file) => file,
            Err(error) => {
                tracing::warn!("cannot write qlog {}/{name}: {error}", folder.display());
                return None;
            }
        };
        let mut qlog = quinn_proto::QlogConfig::default();
        qlog.writer(Box::new(std::io::BufWriter::new(file))).title(Some(name));
        let mut transport = self.settings.transport();
        transport.qlog_stream(qlog.into_stream());
        let mut config = (*self.server).clone();
        config.transport_config(Arc::new(transport));
        Some(Arc::new(config))
    }

    fn begin(
        &mut self,
        io: &mut Io,
        handle: ConnectionHandle,
        inner: quinn_proto::Connection,
        proof: Proof,
        memory: Box<MemoryShare>,
        now: Instant,
    ) {
        let at = handle.0;
        if at >= self.conns.len() {
            self.conns.resize_with(at + 1, || None);
        }
        self.generation = (self.generation + 1) & 0x7FFF_FFFF;
        let endpoint = (self.place.endpoint as u64) << INDEX_BITS;
        let generation = u64::from(self.generation) << (INDEX_BITS + ENDPOINT_BITS);
        let token = Token(QUIC_BIT | generation & !QUIC_BIT | endpoint | at as u64);
        let must_know_first = self.client_auth == ClientAuth::Required;
        let policy = Arc::clone(&self.policy);
        let settings = &self.settings;
        let terms = (must_know_first, proof, memory);
        let conn = QuicConn::new(inner, token, policy, terms, settings, now);
        if let Some(cid) = self.first_cid.take_id() {
            self.admission.begun(at, cid);
        }
        self.conns[at] = Some(Box::new(conn));
        self.open += 1;
        self.handshakes += 1;
        self.drive(io, at, now);
    }

    /// Lets a connection act on what has happened to it, and marks it for sending.
    fn drive(&mut self, io: &mut Io, at: usize, now: Instant) {
        let Some(conn) = self.conns.get_mut(at).and_then(Option::as_mut) else { return };
        let was_handshaking = conn.counts_as_handshake;
        conn.drive(&mut self.endpoint, ConnectionHandle(at), io, now);
        if was_handshaking && (!conn.counts_as_handshake || conn.is_drained()) {
            self.handshakes -= 1;
            self.admission.ended(at);
        }
        conn.keep_losses(&self.settings.losses, now);
        if conn.is_drained() {
            if conn.counts_as_handshake {
                self.admission.failed(conn.inner.remote_address(), conn.was_proven(), now);
            }
            conn.lost(io);
            self.conns[at] = None;
            self.open -= 1;
            return;
        }
        if !conn.dirty {
            conn.dirty = true;
            self.dirty.push(at);
        }
    }

    pub(crate) fn on_broker_event(&mut self, io: &mut Io, token: Token, event: BrokerEvent) {
        let at = index_of(token);
        let Some(conn) = self.conns.get_mut(at).and_then(Option::as_mut) else { return };
        if conn.token() != token {
            return;
        }
        conn.on_broker_event(io, event);
        if !conn.dirty {
            conn.dirty = true;
            self.dirty.push(at);
        }
    }

    /// Whether [`QuicShard::flush`] would do something.
    pub(crate) fn has_work(&self) -> bool {
        !self.dirty.is_empty() && !self.socket.is_blocked()
    }

    /// Moves output into streams and datagrams onto the wire.
    pub(crate) fn flush(&mut self, io: &mut Io, now: Instant) {
        if !self.has_work() {
            return;
        }
        let mut dirty = std::mem::take(&mut self.dirty);
        for at in dirty.drain(..) {
            let Some(conn) = self.conns.get_mut(at).and_then(Option::as_mut) else { continue };
            conn.dirty = false;
            if conn.is_held(now) {
                self.drive_quietly(io, at, now);
                continue;
            }
            let mut emptied = true;
            let mut unvalidated = conn.unvalidated.take();
            if self.settings.copies {
                let now_ms = io.shard.now().0 as u32;
                copies::update_losses(
                    &mut conn.copies,
                    &mut conn.looked_ms,
                    &conn.inner,
                    now_ms,
                    now,
                );
            }
            let (mut copies, mut setup) = (conn.copies.take(), conn.setup.take());
            let mut out = Out {
                socket: &mut self.socket,
                scratch: &mut self.scratch,
                copies: copies.as_deref_mut().map(|copies| (copies, &mut self.copies)),
                setup: setup.as_deref_mut(),
                own_ip: conn.own_ip.as_deref().copied(),
                now,
            };
            let mut send = |inner: &mut Connection| {
                emptied = transmit(inner, &mut unvalidated, &mut out);
            };
            conn.write(io, now, &mut send);
            send(&mut conn.inner);
            conn.unvalidated = unvalidated;
            (conn.copies, conn.setup) = (copies, setup);
            if !emptied {
                // The kernel is full; goes on when the socket is writable.
                conn.dirty = true;
                self.dirty.push(at);
            }
            self.drive_quietly(io, at, now);
        }
        // What became dirty meanwhile has its turn in the next round.
        dirty.append(&mut self.dirty);
        self.dirty = dirty;
    }

    /// Handles what sending brought about and sets the timer.
    fn drive_quietly(&mut self, io: &mut Io, at: usize, now: Instant) {
        let Some(conn) = self.conns.get_mut(at).and_then(Option::as_mut) else { return };
        if conn.has_events() {
            self.drive(io, at, now);
        }
        let Some(conn) = self.conns.get_mut(at).and_then(Option::as_mut) else { return };
        let deadline = conn.deadline(&io.shard, &self.clock);
        let key = at as u64;
        self.timers.arm(key, &mut conn.timer, deadline);
    }

    fn send_scratch(&mut self, transmit: &Transmit) {
        self.socket.send(transmit, &self.scratch[..transmit.size]);
    }

    /// Closes connections that may be the reason that memory is short.
    pub(crate) fn give_way(&mut self, io: &mut Io, pressure: MemoryPressure, now: Instant) {
        for at in 0..self.conns.len() {
            let conn = self.conns[at].as_mut();
            if conn.is_some_and(|conn| conn.give_way(io, pressure, now)) {
                self.drive(io, at, now);
            }
        }
    }

    /// Fires what is due.
    pub(crate) fn on_timeout(&mut self, io: &mut Io, now: Instant) {
        if self.read_again.take_if(|at| *at <= now).is_some() {
            self.on_event(io, true, now);
        }
        self.copies.send_due(&mut self.socket, now);
        while let Some((at, key)) = self.timers.pop_due(now) {
            let Ok(index) = usize::try_from(key) else { continue };
            let Some(conn) = self.conns.get_mut(index).and_then(Option::as_mut) else { continue };
            if !conn.timer.disarm_if(at) {
                continue;
            }
            conn.on_timeout(io, now);
            conn.repeat_first_flights(&mut self.socket, now);
            self.drive(io, index, now);
        }
    }

    /// The worker is draining: nothing new is accepted, and who has said nothing yet is let go.
    pub(crate) fn begin_close(&mut self, io: &mut Io, now: Instant) {
        self.closing = true;
        for at in 0..self.conns.len() {
            if let Some(conn) = self.conns[at].as_mut() {
                conn.begin_close(now);
                self.drive(io, at, now);
            }
        }
    }
}
