//! One connection over a byte stream: TCP, with TLS and WebSocket framing between the socket and the core
//! if the listener has them.
//!
//! It owns no buffer while idle. Input is decoded in the worker's buffer. Output is taken from the core
//! only when all previous output is written, so that a slow reader's messages wait in the session's
//! bounded queue and not in the transport.

mod io_context;

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use fulmar_broker::{
    BrokerEvent, Connection, LostCause, MemoryPressure, MemoryShare, Peer, PeerIdentity, ReadState,
    Shard, StreamKey, Timestamp, Token, TransportKind, Via, grace_after_pause,
};
use tracing::debug;

pub(crate) use io_context::{After, Io};

use crate::config::ListenerConfig;
use crate::handoff::{AllowedSilence, Framing, Handed};
use crate::incomplete_packet::{IncompletePacket, PacketIntake};
use crate::layers::{Decoded, Layers};
use crate::socket::Socket;
use crate::timer::Armed;
use crate::unread::Unread;

/// Bytes a connection is given in one flush before others have their turn.
const FLUSH_BYTES: usize = 128 * 1024;

#[derive(Debug, PartialEq, Eq)]
enum Phase {
    /// A proxy's header, TLS handshake or WebSocket upgrade.
    Opening,
    /// MQTT flows.
    Open,
    /// The last bytes are being sent; then the sending side is shut down.
    Closing,
    /// Everything is sent; waiting for the peer to close, so that no reset overtakes the reason.
    Lingering,
}

/// A connection and where it stands.
#[derive(Debug)]
pub(crate) struct StreamConn {
    socket: Socket,
    token: Token,
    phase: Phase,
    /// The socket may have bytes: an edge was seen that no short read has answered.
    may_read: bool,
    /// The peer has shut down its sending side: read on to the end of the stream.
    read_closed: bool,
    /// The socket takes no more until its next writable edge.
    write_blocked: bool,
    /// The core takes no bytes until an event says so.
    core_blocked: bool,
    /// The core has more to say, and has given way to others.
    unflushed: bool,
    /// In the worker's list of connections to flush.
    pub(crate) flush_listed: bool,
    /// In the worker's list of connections to read from again.
    pub(crate) again_listed: bool,
    /// The worker's listener it came through.
    pub(crate) listener: u16,
    pub(crate) armed: Armed,
    /// End of the handshake or of lingering; the core has its own deadline.
    own_deadline: Timestamp,
    incomplete: IncompletePacket,
    pending: Vec<u8>,
    /// Of `pending`, which is a packet (256 MiB at most) and an outbox at most: small here, so that a connection is.
    written: u32,
    unread: Unread,
    layers: Option<Box<Layers>>,
    mqtt: Option<Connection>,
    /// Memory that it counts for.
    memory: Option<Box<MemoryShare>>,
    /// Where to store how long the client may be silent.
    silence: Option<Arc<AllowedSilence>>,
}

impl StreamConn {
    fn new(socket: Socket, token: Token, listener: u16) -> StreamConn {
        StreamConn {
            socket,
            token,
            phase: Phase::Opening,
            may_read: false,
            read_closed: false,
            write_blocked: false,
            core_blocked: false,
            unflushed: false,
            flush_listed: false,
            again_listed: false,
            listener,
            armed: Armed::default(),
            own_deadline: Timestamp::NEVER,
            incomplete: IncompletePacket::default(),
            pending: Vec::new(),
            written: 0,
            unread: Unread::default(),
            layers: None,
            mqtt: None,
            memory: None,
            silence: None,
        }
    }

    /// A connection just accepted; `None` when it is refused.
    pub(crate) fn accept(
        socket: Socket,
        address: SocketAddr,
        token: Token,
        index: u16,
        listener: &ListenerConfig,
        io: &mut Io,
    ) -> Option<StreamConn> {
        if listener.proxies.as_ref().is_some_and(|proxies| !proxies.admits(address)) {
            return None;
        }
        let mut conn = StreamConn::new(socket, token, index);
        // One through a proxy counts for its client, who is not known yet.
        if listener.proxies.is_none() {
            let kind = listener.carrier.kind();
            conn.memory = Some(io.shard.count_connection(address, kind, Via::Socket, None)?);
        }
        match Layers::new(listener, &io.origins, address) {
            Ok(None) => {
                let peer = peer(address, listener, None);
                conn.open(io, peer).then_some(conn)
            }
            Ok(layers) => {
                conn.layers = layers;
                conn.own_deadline = io.shard.now() + io.limits.handshake_timeout;
                Some(conn)
            }
            Err(error) => {
                tracing::error!(%error, "TLS cannot be started with this configuration");
                None
            }
        }
    }

    /// A connection whose handshakes another part of the program has done; `None` when it is
    /// refused.
    pub(crate) fn handed(
        handed: Handed,
        token: Token,
        listener: u16,
        io: &mut Io,
    ) -> Option<StreamConn> {
        let Handed { socket, peer, framing, silence } = handed;
        let mut conn = StreamConn::new(Socket::Local(socket), token, listener);
        // Those of clients come through HTTP, others are of this program.
        let via = match peer.transport {
            TransportKind::Wss | TransportKind::WebTransport => Via::Tunnel,
            _ => Via::Socket,
        };
        let (kind, identity) = (peer.transport, peer.identity.as_ref());
        let counted = io.shard.count_connection(peer.address, kind, via, identity);
        conn.memory = Some(counted?);
        conn.silence = silence;
        conn.layers = match framing {
            Framing::Bytes => None,
            Framing::WebSocket => Some(Layers::upgraded(peer.address)),
        };
        conn.open(io, peer).then_some(conn)
    }

    /// Begins MQTT; false when the core refuses the connection.
    fn open(&mut self, io: &mut Io, peer: Peer) -> bool {
        let address = peer.address;
        if self.memory.is_none() {
            self.memory = io.shard.count_connection(address, peer.transport, Via::Socket, None);
            if self.memory.is_none() {
                return false;
            }
        }
        let Ok(mqtt) = Connection::new(&mut io.shard, self.token, peer) else {
            debug!(%address, "refused: too many connections");
            return false;
        };
        self.mqtt = Some(mqtt);
        self.phase = Phase::Open;
        self.own_deadline = Timestamp::NEVER;
        true
    }

    pub(crate) fn token(&self) -> Token {
        self.token
    }

    pub(crate) fn socket(&mut self) -> &mut Socket {
        &mut self.socket
    }

    /// When [`StreamConn::on_deadline`] is to be called.
    pub(crate) fn deadline(&self, shard: &Shard) -> Timestamp {
        let core = self.mqtt.as_ref().map_or(Timestamp::NEVER, |mqtt| mqtt.deadline(shard));
        core.min(self.own_deadline)
    }

    /// The poller saw bytes, or the end of the stream with `read_closed`.
    pub(crate) fn note_readable(&mut self, read_closed: bool) {
        self.may_read = true;
        self.read_closed |= read_closed;
    }

    /// The poller saw room to write.
    pub(crate) fn note_writable(&mut self) {
        self.write_blocked = false;
    }

    /// Whether [`StreamConn::flush`] is to be called without the core asking for it.
    pub(crate) fn wants_flush(&self) -> bool {
        // While the socket takes nothing, its next writable edge is waited for.
        !self.write_blocked
            && (self.phase == Phase::Closing || self.unflushed || !self.pending.is_empty())
    }

    /// Whether it is closing.
    pub(crate) fn is_closing(&self) -> bool {
        matches!(self.phase, Phase::Closing | Phase::Lingering)
    }

    /// Whether the handshake is not over yet.
    pub(crate) fn is_opening(&self) -> bool {
        self.phase == Phase::Opening
    }

    /// Reads until the socket is empty, the core is busy or this turn's share is used up.
    pub(crate) fn readable(&mut self, io: &mut Io, listener: &ListenerConfig) -> After {
        let mut share = io.limits.max_read_bytes_per_turn;
        while self.may_read && !self.core_blocked && self.phase != Phase::Closing {
            if share == 0 {
                return After::Again;
            }
            let kept = self.layers.as_ref().map_or(0, |layers| layers.put_kept(&mut io.read));
            match self.socket.read(&mut io.read[kept..kept + io_context::READ_BYTES]) {
                Ok(0) => return self.lost(io, LostCause::PeerClosed),
                Ok(n) => {
                    share = share.saturating_sub(n);
                    self.may_read = n == io_context::READ_BYTES || self.read_closed;
                    if self.handle_bytes(io, kept + n, listener) == After::Gone {
                        return After::Gone;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.may_read = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return self.lost(io, LostCause::Failed),
            }
        }
        if self.core_blocked
            && self.read_closed
            && let Some(mqtt) = &mut self.mqtt
        {
            mqtt.peer_closed(&io.shard);
        }
        After::Wait
    }

    /// Handles the `len` bytes at the start of the worker's buffer.
    fn handle_bytes(&mut self, io: &mut Io, len: usize, listener: &ListenerConfig) -> After {
        if self.phase == Phase::Lingering {
            return After::Wait;
        }
        let before = self.incomplete_bytes();
        // The core takes `io` while it is shown the bytes, so the buffers change hands meanwhile.
        let mut buffer = std::mem::take(&mut io.read);
        let after = if self.layers.is_some() {
            self.take_layered(io, &mut buffer[..len], listener)
        } else {
            self.feed(io, &buffer[..len]);
            After::Wait
        };
        io.read = buffer;
        io.incomplete_bytes.change(before, self.incomplete_bytes());
        if after == After::Gone {
            return after;
        }
        if io.incomplete_bytes.is_exceeded() && before < self.incomplete_bytes() {
            return self.refuse_incomplete(io);
        }
        self.see_changes();
        After::Wait
    }

    /// Closes because incomplete packets exceed their bound.
    fn refuse_incomplete(&mut self, io: &mut Io) -> After {
        tracing::warn!(
            peer = ?self.mqtt.as_ref().map(|mqtt| mqtt.peer().address),
            bytes = io.incomplete_bytes.held(),
            "closing: incomplete packets of all connections exceed the bound"
        );
        let Some(mqtt) = &mut self.mqtt else { return self.lost(io, LostCause::Closed) };
        mqtt.refuse_incomplete(&mut io.shard);
        let before = self.incomplete_bytes();
        self.incomplete.clear();
        io.incomplete_bytes.change(before, self.incomplete_bytes());
        self.see_closing();
        After::Wait
    }

    fn take_layered(&mut self, io: &mut Io, input: &mut [u8], listener: &ListenerConfig) -> After {
        let Some(mut layers) = self.layers.take() else { return After::Wait };
        // The sink below needs the whole of `self` and `io`, so their buffers step aside.
        let mut plain = std::mem::take(&mut io.plain);
        let mut out = std::mem::take(&mut self.pending);
        let mut refused = false;
        let settings = listener.carrier.tls.as_ref();
        let result =
            layers.receive(settings, input, &mut plain, &mut out, &mut |decoded| match decoded {
                Decoded::Opened(address, identity) => {
                    refused = !self.open(io, peer(address, listener, identity));
                }
                Decoded::Data(bytes) => self.feed(io, bytes),
            });
        plain.clear();
        plain.shrink_to(io_context::READ_BYTES);
        io.plain = plain;
        self.pending = out;
        let address = layers.address();
        // What a proxy's header was needed for is known; MQTT follows.
        self.layers = (!layers.are_done()).then_some(layers);
        if refused {
            return After::Gone;
        }
        if let Err(reason) = result {
            debug!(peer = %address, reason, "closing");
            self.drop_core(io, LostCause::Closed);
            self.phase = Phase::Closing;
        }
        After::Wait
    }

    /// Shows MQTT bytes to the core.
    fn feed(&mut self, io: &mut Io, bytes: &[u8]) {
        if self.core_blocked {
            self.incomplete.append(bytes);
            return;
        }
        let Some(mqtt) = &mut self.mqtt else { return };
        let blocked = &mut self.core_blocked;
        self.incomplete.feed(bytes, |data| offer(mqtt, &mut io.shard, data, blocked));
    }

    /// Passes on an event, and the bytes held back while the core was busy.
    pub(crate) fn on_broker_event(
        &mut self,
        io: &mut Io,
        event: BrokerEvent,
        listener: &ListenerConfig,
    ) -> After {
        let Some(mqtt) = &mut self.mqtt else { return After::Wait };
        mqtt.on_event(&mut io.shard, event);
        if !self.core_blocked {
            self.see_changes();
            return After::Wait;
        }
        let before = self.incomplete.capacity();
        let blocked = &mut self.core_blocked;
        self.incomplete.offer_kept(|data| offer(mqtt, &mut io.shard, data, blocked));
        io.incomplete_bytes.change(before, self.incomplete.capacity());
        self.see_changes();
        self.readable(io, listener)
    }

    /// Passes a deadline on.
    pub(crate) fn on_deadline(&mut self, io: &mut Io) -> After {
        let now = io.shard.now();
        if self.own_deadline <= now {
            if let Some(grace) = grace_after_pause(now.since(self.own_deadline)) {
                self.own_deadline = now + grace;
                return After::Wait;
            }
            if let (Phase::Opening, Some(layers)) = (&self.phase, &self.layers) {
                layers.time_out();
            }
            return self.lost(io, LostCause::Closed);
        }
        if let Some(mqtt) = &mut self.mqtt
            && mqtt.deadline(&io.shard) <= now
        {
            mqtt.excuse_pause(&io.shard);
            mqtt.on_deadline(&mut io.shard);
            self.see_closing();
        }
        After::Wait
    }

    /// What the core may have changed by what it was shown.
    fn see_changes(&mut self) {
        if let Some(silence) = &self.silence {
            silence.set(self.mqtt.as_ref().and_then(Connection::allowed_silence));
        }
        self.see_closing();
    }

    fn see_closing(&mut self) {
        if self.phase == Phase::Open
            && self.mqtt.as_ref().is_some_and(|mqtt| mqtt.closing().is_some())
        {
            self.phase = Phase::Closing;
        }
    }

    /// Writes what there is, asking the core for more as long as the socket takes it and others need not
    /// wait for long.
    pub(crate) fn flush(&mut self, io: &mut Io) -> After {
        self.unflushed = false;
        let mut said = 0;
        let mut said_something = !self.pending.is_empty();
        // Pending bytes may be older than the core's current output.
        let mut more = true;
        loop {
            if !self.pending.is_empty() {
                match self.write_pending(io) {
                    Ok(true) if more => {}
                    Ok(true) => break,
                    Ok(false) => return self.wait_to_close(io),
                    Err(_) => return self.lost(io, LostCause::Failed),
                }
            }
            let Some(mqtt) = &mut self.mqtt else { break };
            if said >= FLUSH_BYTES || (said > 0 && io.shard.is_turn_over()) {
                self.unflushed = true;
                return After::Wait;
            }
            let output = mqtt.output(&mut io.shard, StreamKey::CONTROL);
            if output.bytes.is_empty() {
                break;
            }
            said_something = true;
            said += output.bytes.len();
            more = output.more;
            if !self.encode(io, output.bytes) {
                return self.lost(io, LostCause::Failed);
            }
        }
        self.see_closing();
        if self.phase == Phase::Closing {
            self.say_goodbye(io, said_something)
        } else {
            After::Wait
        }
    }

    /// Puts `output`, dressed as the layers want it, into the empty `pending`.
    fn encode(&mut self, io: &mut Io, output: Vec<u8>) -> bool {
        let Some(layers) = &mut self.layers else {
            self.pending = output;
            return true;
        };
        let mut framed = io.shard.buffer();
        let encoded = layers.encode(&output, &mut framed, &mut io.plain);
        io.shard.recycle(output);
        self.pending = framed;
        encoded.is_ok()
    }

    /// Writes `pending`; false when the socket took only a part.
    fn write_pending(&mut self, io: &mut Io) -> io::Result<bool> {
        while !self.write_blocked {
            let written = self.written as usize;
            match self.socket.write(&self.pending[written..]) {
                Ok(n) if written + n == self.pending.len() => {
                    self.written = 0;
                    io.shard.recycle(std::mem::take(&mut self.pending));
                    return Ok(true);
                }
                Ok(n) => {
                    self.written += n as u32;
                    self.write_blocked = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.write_blocked = true;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// A peer that does not read must not keep a closing connection.
    fn wait_to_close(&mut self, io: &mut Io) -> After {
        self.see_closing();
        if self.phase == Phase::Closing && self.own_deadline == Timestamp::NEVER {
            self.own_deadline = io.shard.now() + io.limits.linger;
        }
        After::Wait
    }

    /// Everything of a closing connection is written: says goodbye in each layer, then lingers.
    fn say_goodbye(&mut self, io: &mut Io, said_something: bool) -> After {
        self.drop_core(io, LostCause::Closed);
        if let Some(layers) = &mut self.layers {
            layers.say_goodbye(&mut self.pending);
            if !self.pending.is_empty() && self.write_pending(io).is_err() {
                return After::Gone;
            }
        } else if !said_something {
            // The peer said goodbye and waits for nothing.
            return After::Gone;
        }
        if !self.pending.is_empty() {
            return self.wait_to_close(io);
        }
        if self.socket.shutdown_write().is_err() {
            return After::Gone;
        }
        self.phase = Phase::Lingering;
        self.own_deadline = io.shard.now() + io.limits.linger;
        self.may_read = true;
        After::Again
    }

    /// Whether to close the connection because memory is short and its client reads nothing.
    pub(crate) fn gives_way(&mut self, pressure: MemoryPressure) -> bool {
        self.unread.gives_way(pressure, self.pending.len() - self.written as usize)
    }

    /// Closes it for that.
    pub(crate) fn give_way(&mut self, io: &mut Io) -> After {
        let peer = self.mqtt.as_ref().map(|mqtt| mqtt.peer().address);
        tracing::info!(
            ?peer,
            unread = self.pending.len(),
            "connection closed: memory is short, and this client reads nothing of what is being sent to it"
        );
        io.shard.metrics().partial_refused.add(1);
        self.lost(io, LostCause::Failed)
    }

    /// The transport has failed or ended: notifies the core, once.
    pub(crate) fn lost(&mut self, io: &mut Io, cause: LostCause) -> After {
        self.drop_core(io, cause);
        After::Gone
    }

    /// Gives back what it counts for in the worker's bound, before it is dropped.
    pub(crate) fn forget(&mut self, io: &mut Io) {
        io.incomplete_bytes.change(self.incomplete_bytes(), 0);
    }

    fn drop_core(&mut self, io: &mut Io, cause: LostCause) {
        if let Some(mut mqtt) = self.mqtt.take() {
            mqtt.lost(&mut io.shard, cause);
        }
        if let Some(silence) = &self.silence {
            silence.set(None);
        }
        let before = self.incomplete_bytes();
        self.incomplete.clear();
        self.core_blocked = false;
        io.incomplete_bytes.change(before, self.incomplete_bytes());
    }

    fn incomplete_bytes(&self) -> usize {
        self.incomplete.capacity() + self.layers.as_ref().map_or(0, |layers| layers.held())
    }
}

/// The peer of a connection that `listener` accepted.
fn peer(address: SocketAddr, listener: &ListenerConfig, identity: Option<PeerIdentity>) -> Peer {
    let transport = listener.carrier.kind();
    Peer { address, transport, identity, listener: listener.policy.clone() }
}

fn offer(
    mqtt: &mut Connection,
    shard: &mut Shard,
    data: &[u8],
    blocked: &mut bool,
) -> PacketIntake {
    let received = mqtt.receive(shard, StreamKey::CONTROL, data);
    *blocked = received.state == ReadState::Blocked;
    PacketIntake { consumed: received.consumed, go_on: received.state == ReadState::More }
}

#[cfg(test)]
mod tests;
