//! One network connection of a client: bytes in, bytes out, by the rules of MQTT.
//!
//! The transport feeds [`Connection::receive`] and takes [`Connection::output`]; a connection knows
//! neither sockets nor clocks. `connect` lets the client in, `packets` handles what it sends then,
//! `output` hands out what it is sent, `end` closes; `streams` has its further QUIC streams,
//! `transport` the state of its path. What belongs to the client rather than to the connection is in
//! its [`Session`].

mod auth;
mod connect;
mod control;
mod end;
mod memory;
mod output;
mod packets;
mod pause;
mod stall;
mod streams;
mod subscriptions;
mod throttle;
mod transport;
mod waiting;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use fulmar_auth::{PeerIdentity, Timestamp};
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::codec::peek_frame;
use fulmar_mqtt::session::TopicAliases;
use fulmar_mqtt::{PacketId, ReasonCode, Version};
use smallvec::SmallVec;

use crate::deferred_ops::TurnNumber;
use crate::event::{BrokerEvent, CloseOrder};
use crate::limits::MAX_CONNECT_BYTES;
use crate::mailbox::Attachment;
use crate::memory::Charge;
use crate::peer::{Peer, StreamKey, Token};
use crate::rate_limiter::Attempt;
use crate::session::Session;
use crate::shard::Shard;
use crate::storage::FlowId;
use crate::transports::SharedHere;
use crate::waiting::{WaitCause, WaitCauses};

pub use pause::grace_after_pause;

use auth::{Method, ScramExchange};
use connect::{PendingConnect, is_connect};
use throttle::Throttle;

/// How long a connection whose client has closed its side may wait to be read.
const MAX_UNREAD: Duration = Duration::from_secs(90);

/// The result of [`Connection::receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes consumed. The rest is an incomplete packet, or waits because of `state`.
    pub consumed: usize,
    /// What the transport is to do next.
    pub state: ReadState,
}

/// What a stream wants from its transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadState {
    /// More bytes, together with those not consumed.
    More,
    /// Nothing until an event; then call [`Connection::receive`] again with the bytes not consumed, even if there are none.
    Blocked,
    /// Nothing any more.
    Closed,
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// The peer finished it.
    Finished,
    /// The peer reset it with this code.
    Reset(u64),
}

/// Why a transport lost its connection; for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostCause {
    /// The peer closed it.
    PeerClosed,
    /// It was reset or failed.
    Failed,
    /// Nothing was received for the transport's idle timeout.
    IdleTimeout,
    /// The transport closed it because the broker requested that.
    Closed,
}

impl LostCause {
    fn text(self) -> &'static str {
        match self {
            LostCause::PeerClosed => "the connection was closed without DISCONNECT",
            LostCause::Failed => "the connection failed",
            LostCause::IdleTimeout => "no packet within the idle timeout",
            LostCause::Closed => "closed",
        }
    }
}

/// How to end the transport connection once all output is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closing {
    /// QUIC application error code; 0 for an orderly end.
    pub quic_code: u64,
    /// Why, for the log.
    pub reason: &'static str,
}

/// Output of one stream.
#[derive(Debug, Default)]
pub struct Output {
    /// Bytes to send; hand the buffer back with [`Shard::recycle`] when they are written.
    pub bytes: Vec<u8>,
    /// There is more already: ask again when these are written.
    pub more: bool,
}

/// What the core wants done to a QUIC stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamAction {
    /// Reset the sending and stop the receiving side with this code.
    Abort(StreamKey, u64),
    /// Finish the sending side.
    Finish(StreamKey),
}

/// The connection limit is reached: close the connection without sending anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

#[derive(Debug)]
enum State {
    /// No CONNECT yet.
    New,
    /// CONNECT is here and its credentials are being checked.
    Authenticating(Box<PendingConnect>),
    /// CONNECT is here and the client was asked for its token, or for the next message of SCRAM.
    Challenged(Box<PendingConnect>),
    Connected(Arc<Session>),
    /// Closing or closed; input is ignored.
    Ended,
}

#[derive(Debug)]
struct Stream {
    key: StreamKey,
    /// The flow it carries; `None` before its first byte.
    flow: Option<FlowId>,
    /// Replies, written by this connection's own worker.
    out: Vec<u8>,
    aliases: Option<Box<TopicAliases>>,
    waits_for: Option<WaitCause>,
    /// The peer has finished its side; this one ends when every answer is out.
    finished: bool,
}

impl Stream {
    fn new(key: StreamKey, flow: Option<FlowId>) -> Stream {
        Stream { key, flow, out: Vec::new(), aliases: None, waits_for: None, finished: false }
    }
}

/// An acknowledgement that waits for storage.
#[derive(Debug)]
struct WaitingAck {
    turn: TurnNumber,
    stream: StreamKey,
    what: Waiting,
}

#[derive(Debug)]
enum Waiting {
    Ack(AckKind, PacketId, ReasonCode),
    /// Any other packet, already encoded (SUBACK, UNSUBACK, CONNACK).
    Packet(Box<[u8]>),
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    at: Attachment,
    peer: Peer,
    state: State,
    version: Version,
    /// Data so far came before the QUIC handshake was complete and could be a replay.
    early: bool,
    announced: bool,
    /// CONNACK is out; nothing of the session may go before it ([MQTT-3.2.0-1]).
    greeted: bool,
    lost: bool,
    keep_alive_s: u16,
    /// Those of its streams, as in the worker's table.
    waits: WaitCauses,
    /// What most connections never need.
    rare: Option<Box<Rare>>,
    opened: Timestamp,
    last_input: Timestamp,
    streams: SmallVec<[Stream; 1]>,
    waiting: VecDeque<WaitingAck>,
    actions: Vec<StreamAction>,
    closing: Option<Closing>,
    /// Topic the access rules allowed last; publishers repeat themselves.
    allowed_topic: Box<str>,
    /// Its entry in the list for operators, once the client is connected.
    here: Option<SharedHere>,
    /// The session under which they are listed.
    listed: Option<u64>,
}

/// The seldom used part of a connection.
#[derive(Debug)]
struct Rare {
    /// The client is another broker's bridge.
    bridge: bool,
    /// The client authenticated by a method, and may do so again.
    method: Option<Method>,
    /// It was asked to go on with doing so.
    challenged: bool,
    /// SCRAM waits for its last message.
    scram: Option<Box<ScramExchange>>,
    /// When what it showed expires, by the system's clock.
    admitted_until: Timestamp,
    /// It is another part of the program that says what the client may do.
    external_user: bool,
    /// What it showed, for that part to take back.
    credential: Option<Box<str>>,
    throttle: Option<Throttle>,
    /// What the client's topic aliases take, if that is much.
    aliases: Option<Charge>,
    /// What it may send before that is processed.
    input: Option<Charge>,
    /// A packet is left unread until then because storage is stalled.
    held_until: Option<Timestamp>,
    /// The client has closed its side while nothing is read from it: when the connection ends.
    gone_by: Option<Timestamp>,
}

impl Default for Rare {
    fn default() -> Self {
        let admitted_until = Timestamp::NEVER;
        Rare {
            bridge: false,
            method: None,
            challenged: false,
            scram: None,
            admitted_until,
            external_user: false,
            credential: None,
            throttle: None,
            aliases: None,
            input: None,
            held_until: None,
            gone_by: None,
        }
    }
}

impl Connection {
    /// A connection that has come in.
    ///
    /// # Errors
    /// The broker has reached its limit of connections.
    pub fn new(shard: &mut Shard, token: Token, peer: Peer) -> Result<Connection, Refused> {
        let broker = shard.broker();
        if broker.metrics().connections() >= broker.limits().max_connections as u64 {
            shard.refuse_connection(peer.address);
            return Err(Refused);
        }
        let per_s = broker.limits().max_connects_per_s_per_address;
        if let Attempt::TooMany { first } =
            broker.rate_limiter.attempt(peer.address.ip(), per_s, shard.now())
        {
            shard.metrics().connections_too_fast.add(1);
            if first {
                tracing::warn!(peer = %peer.address,
                    "connection refused: max_connects_per_s_per_address exceeded");
            }
            return Err(Refused);
        }
        if !peer.is_program() {
            let kind = peer.transport.index();
            shard.metrics().connections[kind].add(1);
            shard.metrics().connections_opened[kind].add(1);
        }
        Ok(Connection {
            at: shard.turn.attachment(token),
            peer,
            state: State::New,
            version: Version::V5,
            early: false,
            announced: false,
            greeted: false,
            lost: false,
            keep_alive_s: 0,
            waits: WaitCauses::default(),
            rare: Throttle::new(shard.broker().limits(), shard.now())
                .map(|throttle| Box::new(Rare { throttle: Some(throttle), ..Rare::default() })),
            opened: shard.now(),
            last_input: shard.now(),
            streams: SmallVec::from_buf([Stream::new(StreamKey::CONTROL, Some(FlowId::CONTROL))]),
            waiting: VecDeque::new(),
            actions: Vec::new(),
            closing: None,
            allowed_topic: Box::default(),
            here: None,
            listed: None,
        })
    }

    /// One whose first data comes before the QUIC handshake is complete.
    ///
    /// # Errors
    /// As [`Connection::new`].
    pub fn new_early(shard: &mut Shard, token: Token, peer: Peer) -> Result<Connection, Refused> {
        let mut connection = Connection::new(shard, token, peer)?;
        connection.early = true;
        Ok(connection)
    }

    /// The other end.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Takes bytes of one stream, in order.
    pub fn receive(&mut self, shard: &mut Shard, stream: StreamKey, data: &[u8]) -> Received {
        self.last_input = shard.now();
        let actions = self.actions.len();
        let mut consumed = 0;
        let mut waits_for = None;
        let state = loop {
            if self.closing.is_some() || matches!(self.state, State::Ended) {
                break ReadState::Closed;
            }
            let Some(stream_index) = self.streams.iter().position(|open| open.key == stream) else {
                break ReadState::Closed;
            };
            waits_for = self.cause_to_wait(shard, stream_index);
            if waits_for.is_some() {
                break ReadState::Blocked;
            }
            let rest = &data[consumed..];
            if self.streams[stream_index].flow.is_none() {
                match self.begin_data_stream(shard, stream_index, rest) {
                    Some(used) => consumed += used,
                    None => break ReadState::More,
                }
                continue;
            }
            if matches!(self.state, State::New) && rest.first().is_some_and(|&b| !is_connect(b)) {
                let why = "the first packet is not CONNECT";
                self.refuse_packet(shard, ReasonCode::ProtocolError, &why);
                continue;
            }
            match peek_frame(rest, self.max_packet_bytes(shard)) {
                Ok(Some(frame)) => {
                    waits_for = self.cause_to_leave(shard, stream_index, &frame);
                    if waits_for.is_some() {
                        break ReadState::Blocked;
                    }
                    consumed += frame.len;
                    self.handle_frame(shard, stream_index, &frame);
                }
                Ok(None) => break ReadState::More,
                Err(error) => self.refuse_packet(shard, error.reason(), &error),
            }
        };
        if consumed > 0 {
            // A wait has ended, although the next may have the same cause.
            self.set_wait(shard, stream, None);
        }
        self.set_wait(shard, stream, waits_for);
        shard.metrics().bytes_received.add(consumed as u64);
        // A blocked stream is offered again at every event. Were output that still waits for a slow
        // reader announced by that, each event would bring the next.
        if consumed > 0 || self.closing.is_some() || self.actions.len() > actions {
            self.announce_output(shard);
        }
        Received { consumed, state }
    }

    /// Largest packet taken now. A stranger is not held a megabyte for.
    fn max_packet_bytes(&self, shard: &Shard) -> usize {
        let most = shard.broker().limits().max_packet_bytes;
        match &self.state {
            State::Connected(_) => most,
            State::New | State::Authenticating(_) | State::Challenged(_) | State::Ended => {
                most.min(MAX_CONNECT_BYTES)
            }
        }
    }

    /// Whether the client has been let in.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        matches!(self.state, State::Connected(_))
    }

    /// Closes because the transport holds more of the client's incomplete packets than it may.
    pub fn refuse_incomplete(&mut self, shard: &mut Shard) {
        shard.metrics().partial_refused.add(1);
        self.disconnect(shard, ReasonCode::QuotaExceeded, "incomplete packets exceed the bound");
        self.announce_output(shard);
    }

    /// Handles an event from the core. The transport asks for output after it, so none is announced.
    pub fn on_event(&mut self, shard: &mut Shard, event: BrokerEvent) {
        match event {
            BrokerEvent::Ready | BrokerEvent::ReadyLarge => {
                self.announced = false;
                self.end_hold(shard);
                self.go_on(shard);
            }
            BrokerEvent::WaitsLong(cause) => self.log_wait(cause),
            BrokerEvent::Durable => self.release_waiting(shard),
            BrokerEvent::Overdue => self.refuse_overdue(shard),
            BrokerEvent::TakenOver => {
                self.disconnect(shard, ReasonCode::SessionTakenOver, "session taken over");
            }
            BrokerEvent::Expired => self.expire_flows(shard),
            BrokerEvent::Overflowed => {
                self.disconnect(shard, ReasonCode::QuotaExceeded, "session queue overflowed");
            }
            BrokerEvent::Close(CloseOrder::ShuttingDown) => {
                self.disconnect(shard, ReasonCode::ServerShuttingDown, "server shutting down");
            }
            BrokerEvent::Close(CloseOrder::Administrative) => {
                self.disconnect(shard, ReasonCode::AdministrativeAction, "closed by operator");
            }
            BrokerEvent::Close(CloseOrder::SessionDeleted) => {
                self.end_session();
                self.disconnect(shard, ReasonCode::AdministrativeAction, "session deleted");
            }
            BrokerEvent::Recheck => self.recheck(shard),
            BrokerEvent::ControlResponse(payload) => self.control_response(shard, &payload),
            BrokerEvent::Authenticated(reply) => self.authenticated(shard, reply),
        }
    }

    /// Whether a stream waits for an event.
    #[must_use]
    pub fn is_blocked(&self, stream: StreamKey) -> bool {
        self.streams.iter().any(|open| open.key == stream && open.waits_for.is_some())
    }

    /// When [`Connection::on_deadline`] is to be called; may have moved after any other call.
    #[must_use]
    pub fn deadline(&self, shard: &Shard) -> Timestamp {
        match &self.state {
            // It is not the client that is waited for.
            State::Authenticating(pending) if pending.gives_way.is_some() => Timestamp::NEVER,
            State::New | State::Authenticating(_) | State::Challenged(_) => {
                let refusal = self.late_refusal().map_or(Timestamp::NEVER, |(at, _)| at);
                refusal.min(self.opened + shard.broker().limits().connect_timeout)
            }
            State::Connected(_) => {
                let excused = self.waits.excuse_silence();
                let silent_at = if excused { self.gone_by() } else { self.silent_at() };
                let own = self.throttled_until().or(self.held_until()).unwrap_or(silent_at);
                own.min(shard.broker().at_wall(self.admitted_until()))
            }
            State::Ended => Timestamp::NEVER,
        }
    }

    fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// The peer has closed its side, and what it sent before is not read yet because it has to wait. The connection ends
    /// after its Keep Alive, a minute and a half at most, if that takes so long.
    pub fn peer_closed(&mut self, shard: &Shard) {
        let by = self.silent_at().min(shard.now() + MAX_UNREAD);
        self.rare().gone_by.get_or_insert(by);
    }

    fn gone_by(&self) -> Timestamp {
        self.rare.as_ref().and_then(|rare| rare.gone_by).unwrap_or(Timestamp::NEVER)
    }

    fn admitted_until(&self) -> Timestamp {
        self.rare.as_ref().map_or(Timestamp::NEVER, |rare| rare.admitted_until)
    }

    /// When a failed login is to be answered, and how.
    fn late_refusal(&self) -> Option<(Timestamp, ReasonCode)> {
        match &self.state {
            State::Authenticating(pending) => pending.late_refusal,
            _ => None,
        }
    }

    /// How long the client may be silent, by its Keep Alive; `None` before CONNECT or if it has none. The connection
    /// closes itself after that.
    #[must_use]
    pub fn allowed_silence(&self) -> Option<Duration> {
        let seconds = u64::from(self.keep_alive_s);
        (self.is_connected() && seconds > 0).then(|| Duration::from_millis(seconds * 1500))
    }

    /// When the keep alive runs out: after one and a half times as long ([MQTT-3.1.2-22]).
    fn silent_at(&self) -> Timestamp {
        match self.keep_alive_s {
            0 => Timestamp::NEVER,
            seconds => Timestamp(self.last_input.0 + u64::from(seconds) * 1500),
        }
    }

    /// Time is up for something.
    pub fn on_deadline(&mut self, shard: &mut Shard) {
        if self.deadline(shard) > shard.now() {
            return;
        }
        if let Some((_, reason)) = self.late_refusal().filter(|(at, _)| *at <= shard.now()) {
            self.refuse(shard, reason);
        }
        match &self.state {
            State::Connected(_) if self.admitted_until() <= shard.wall() => {
                tracing::info!(peer = %self.peer.address, client = self.client_id(),
                    "closed: the client's token or certificate has expired");
                self.disconnect(shard, ReasonCode::NotAuthorized, "token or certificate expired");
            }
            State::Connected(_) if self.throttled_until().is_some() => self.end_throttle(shard),
            State::Connected(_) if self.held_until().is_some() => self.hold_is_over(shard),
            State::Connected(_) => {
                shard.metrics().keep_alive_timeouts.add(1);
                self.disconnect(shard, ReasonCode::KeepAliveTimeout, "keep alive timeout");
            }
            State::New | State::Authenticating(_) | State::Challenged(_) => {
                self.end(shard, "no CONNECT in time", 0);
            }
            State::Ended => {}
        }
        self.announce_output(shard);
    }

    /// The QUIC handshake is complete: data received from now on is not a replay.
    pub fn handshake_confirmed(&mut self, shard: &mut Shard, identity: Option<PeerIdentity>) {
        self.early = false;
        if self.peer.identity.is_none() {
            self.peer.identity = identity;
        }
        shard.turn.ready(self.at);
    }

    fn client_id(&self) -> &str {
        match &self.state {
            State::Connected(session) => session.client_id(),
            State::Authenticating(pending) | State::Challenged(pending) => pending.client_id(),
            State::New | State::Ended => "",
        }
    }
}
