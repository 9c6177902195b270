//! One client's session as a state machine (section 4): packets in, packets and outcomes out.
//!
//! No I/O and no clock: the owner says when it is, brings the server's bytes and takes what is to be
//! sent. Everything not acknowledged outlives a connection: in-flight messages are sent again in
//! their order, requests are made again, and where the server has lost the session its subscriptions
//! are restored and what was in flight goes out as new messages.
//!
//! `P` and `R` are the owner's handles of a publication and of a request, given back with the
//! outcome. Packets from the server are handled in `incoming`.

mod incoming;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmar_mqtt::packet::{
    Connect, Disconnect, FilterList, LastWill, Publish, Subscribe, SubscribeOptions, Unsubscribe,
};
use fulmar_mqtt::properties::Properties;
use fulmar_mqtt::publish::PublishHead;
use fulmar_mqtt::session::{Inbound, Outbound, Replay, TopicAliases};
use fulmar_mqtt::{Packet, PacketId, Property, PropertyBuf, QoS, ReasonCode, Version};

use crate::error::Error;
use crate::message::Message;
use crate::options::Options;

/// Bytes written ahead of the connection before publications wait their turn.
pub(crate) const MAX_OUT_BYTES: usize = 64 * 1024;

/// Topic aliases the server may set.
const TOPIC_ALIAS_MAXIMUM: u16 = 16;

/// Filters of one SUBSCRIBE when subscriptions are restored.
const FILTERS_PER_PACKET: usize = 64;

/// The largest MQTT packet there is (section 2.1.4), in bytes.
const MAX_MQTT_PACKET: u32 = 268_435_460;

/// What happened.
#[derive(Debug)]
pub(crate) enum Outcome<P, R> {
    /// The server has accepted the connection.
    Connected { session_present: bool },
    /// A message came.
    Message(Message),
    /// A publication is over.
    Published(P, Result<ReasonCode, Error>),
    /// A request is answered, a reason code for each of its filters.
    Answered(R, Result<Vec<ReasonCode>, Error>),
}

#[derive(Debug)]
struct Pending<P> {
    message: Arc<Message>,
    token: P,
}

/// A publication in early data.
#[derive(Debug)]
enum Early<P> {
    Unacknowledged(Pending<P>),
    InFlight(PacketId),
}

#[derive(Debug)]
enum Ask {
    Subscribe(Vec<(String, SubscribeOptions)>),
    Unsubscribe(Vec<String>),
}

#[derive(Debug)]
struct Request<R> {
    ask: Ask,
    /// `None` for the machine's own, when it restores subscriptions.
    token: Option<R>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Down,
    /// CONNECT is sent; in early data requests and publications may follow at once.
    Opening {
        early: bool,
    },
    Up,
    /// DISCONNECT is sent.
    Done,
}

/// What CONNACK says the server takes.
#[derive(Clone, Copy, Debug)]
struct ServerLimits {
    max_packet_bytes: u32,
    max_qos: QoS,
    retain: bool,
}

const NO_LIMITS: ServerLimits =
    ServerLimits { max_packet_bytes: MAX_MQTT_PACKET, max_qos: QoS::ExactlyOnce, retain: true };

#[derive(Debug)]
pub(crate) struct Machine<P, R> {
    options: Arc<Options>,
    phase: Phase,
    connected_before: bool,
    closing: bool,
    client_id: String,
    keep_alive: Option<Duration>,
    limits: ServerLimits,
    /// Publications not sent yet.
    queue: VecDeque<Pending<P>>,
    outbound: Outbound<Pending<P>>,
    /// In flight since an earlier connection and not sent again on this one.
    replay: VecDeque<PacketId>,
    /// Sent in early data, which the server may still refuse as a whole; in order.
    early: Vec<Early<P>>,
    inbound: Inbound,
    aliases: TopicAliases,
    waiting: VecDeque<Request<R>>,
    asked: Vec<(PacketId, Request<R>)>,
    subscriptions: Vec<(String, SubscribeOptions)>,
    out: Vec<u8>,
    outcomes: VecDeque<Outcome<P, R>>,
    last_sent: Instant,
    last_received: Instant,
    ping_sent: Option<Instant>,
}

impl<P, R> Machine<P, R> {
    pub(crate) fn new(options: Arc<Options>, now: Instant) -> Machine<P, R> {
        Machine {
            phase: Phase::Down,
            connected_before: false,
            closing: false,
            client_id: options.client_id.clone(),
            keep_alive: None,
            limits: NO_LIMITS,
            queue: VecDeque::new(),
            outbound: Outbound::new(u16::MAX),
            replay: VecDeque::new(),
            early: Vec::new(),
            inbound: Inbound::new(),
            aliases: TopicAliases::default(),
            waiting: VecDeque::new(),
            asked: Vec::new(),
            subscriptions: Vec::new(),
            out: Vec::new(),
            outcomes: VecDeque::new(),
            last_sent: now,
            last_received: now,
            ping_sent: None,
            options,
        }
    }

    /// A connection is there: CONNECT goes out. With `early` what waits follows at once, unless
    /// something is in flight, whose fate only CONNACK can tell.
    pub(crate) fn connect(&mut self, now: Instant, early: bool) {
        let early = early && self.outbound.in_flight() == 0;
        self.phase = Phase::Opening { early };
        self.keep_alive = seconds(self.options.keep_alive_s);
        (self.last_sent, self.last_received, self.ping_sent) = (now, now, None);
        self.aliases = TopicAliases::default();
        self.out.clear();
        self.put_connect();
        self.pump();
    }

    /// The connection is gone.
    pub(crate) fn disconnected(&mut self) {
        // At most once: they may have arrived.
        self.early_data_sent();
        self.down();
    }

    /// The server has refused early data: nothing of it was seen, all of it goes out again.
    pub(crate) fn early_data_rejected(&mut self) {
        for sent in std::mem::take(&mut self.early).into_iter().rev() {
            let unsent = match sent {
                Early::Unacknowledged(pending) => Some(pending),
                Early::InFlight(id) => self.outbound.abandon(id),
            };
            if let Some(pending) = unsent {
                self.queue.push_front(pending);
            }
        }
        self.down();
    }

    /// What went out in early data is as good as sent.
    fn early_data_sent(&mut self) {
        for sent in std::mem::take(&mut self.early) {
            if let Early::Unacknowledged(Pending { token, .. }) = sent {
                self.outcomes.push_back(Outcome::Published(token, Ok(ReasonCode::Success)));
            }
        }
    }

    fn down(&mut self) {
        if self.phase != Phase::Done {
            self.phase = Phase::Down;
        }
        self.out.clear();
        self.replay.clear();
        for (id, request) in std::mem::take(&mut self.asked).into_iter().rev() {
            self.outbound.unreserve(id);
            // The machine's own are made anew from the list of subscriptions.
            if request.token.is_some() {
                self.waiting.push_front(request);
            }
        }
        self.waiting.retain(|request| request.token.is_some());
    }

    /// Publishes as soon as connection, order and window allow.
    pub(crate) fn publish(&mut self, message: Message, token: P) {
        self.queue.push_back(Pending { message: Arc::new(message), token });
        self.pump();
    }

    pub(crate) fn subscribe(&mut self, filters: Vec<(String, SubscribeOptions)>, token: R) {
        self.request(Ask::Subscribe(filters), token);
    }

    pub(crate) fn unsubscribe(&mut self, filters: Vec<String>, token: R) {
        self.request(Ask::Unsubscribe(filters), token);
    }

    fn request(&mut self, ask: Ask, token: R) {
        self.waiting.push_back(Request { ask, token: Some(token) });
        self.pump();
    }

    /// Sends DISCONNECT once everything is delivered and answered.
    pub(crate) fn close(&mut self) {
        self.closing = true;
        self.pump();
    }

    /// Sends DISCONNECT now, whatever is not done yet.
    pub(crate) fn close_now(&mut self) {
        if self.phase == Phase::Up {
            self.put_disconnect(ReasonCode::Success);
        }
        self.phase = Phase::Done;
    }

    /// Gives up whatever is not done.
    pub(crate) fn abandon(&mut self, error: &Error) {
        self.disconnected();
        self.phase = Phase::Done;
        let in_flight: Vec<_> = self.outbound.drain().map(|(_, pending)| pending).collect();
        for pending in in_flight.into_iter().chain(std::mem::take(&mut self.queue)) {
            self.outcomes.push_back(Outcome::Published(pending.token, Err(error.clone())));
        }
        for request in std::mem::take(&mut self.waiting) {
            let answer = |token| Outcome::Answered(token, Err(error.clone()));
            self.outcomes.extend(request.token.map(answer));
        }
    }

    /// Whether DISCONNECT is sent.
    pub(crate) fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// Whether the server has accepted the connection.
    pub(crate) fn is_up(&self) -> bool {
        self.phase == Phase::Up
    }

    /// Whether nothing waits for the server.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty()
            && self.early.is_empty()
            && self.outbound.in_flight() == 0
            && self.waiting.is_empty()
            && self.asked.is_empty()
    }

    /// Whether another publication may be queued.
    pub(crate) fn has_room(&self) -> bool {
        self.queue.len() < self.options.max_queued_messages
    }

    /// What is to be sent; the owner takes it off the front.
    pub(crate) fn output(&self) -> &[u8] {
        &self.out
    }

    /// So much of the output is sent.
    pub(crate) fn sent(&mut self, bytes: usize, now: Instant) {
        self.out.drain(..bytes);
        self.last_sent = now;
        self.pump();
    }

    pub(crate) fn poll(&mut self) -> Option<Outcome<P, R>> {
        self.outcomes.pop_front()
    }

    /// When [`Machine::tick`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let keep_alive = self.keep_alive.filter(|_| self.phase == Phase::Up)?;
        Some(match self.ping_sent {
            Some(at) => at + keep_alive / 2,
            None => self.last_sent.min(self.last_received) + keep_alive,
        })
    }

    /// Time has passed. `listening` says whether the owner has read what there was to read.
    ///
    /// # Errors
    /// The server does not answer.
    pub(crate) fn tick(&mut self, now: Instant, listening: bool) -> Result<(), Error> {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return Ok(());
        }
        if self.ping_sent.is_some() && listening {
            return Err(Error::KeepAlive);
        }
        self.ping_sent = Some(now);
        Packet::Pingreq.encode(self.options.version, &mut self.out);
        Ok(())
    }

    /// Writes whatever may be written, up to a bound.
    fn pump(&mut self) {
        match self.phase {
            Phase::Up | Phase::Opening { early: true } => {}
            _ => return,
        }
        self.pump_replay();
        while self.out.len() < MAX_OUT_BYTES
            && let Some(id) = (!self.waiting.is_empty()).then(|| self.outbound.reserve()).flatten()
        {
            self.put_request(id);
        }
        // What is in flight comes before what is new ([MQTT-4.6.0-1]).
        while self.replay.is_empty() && self.out.len() < MAX_OUT_BYTES {
            let Some(pending) = self.queue.pop_front() else { break };
            if let Err(reason) = self.fits(&pending.message) {
                self.outcomes
                    .push_back(Outcome::Published(pending.token, Err(Error::Rejected(reason))));
            } else if pending.message.qos == QoS::AtMostOnce {
                put_publish(&mut self.out, self.options.version, &pending.message, None, false);
                if self.phase == Phase::Up {
                    let done = Outcome::Published(pending.token, Ok(ReasonCode::Success));
                    self.outcomes.push_back(done);
                } else {
                    self.early.push(Early::Unacknowledged(pending));
                }
            } else if self.outbound.is_full() {
                self.queue.push_front(pending);
                break;
            } else {
                self.put_in_flight(pending);
            }
        }
        if self.closing && self.phase == Phase::Up && self.is_idle() {
            self.put_disconnect(ReasonCode::Success);
            self.phase = Phase::Done;
        }
    }

    fn pump_replay(&mut self) {
        while self.out.len() < MAX_OUT_BYTES
            && let Some(id) = self.replay.front().copied()
        {
            match self.outbound.replay_of(id) {
                Some(Replay::Publish { .. })
                    if !self.outbound.has_room_beside(self.replay.len()) =>
                {
                    return;
                }
                Some(Replay::Publish { packet_id, message, .. }) => {
                    let version = self.options.version;
                    put_publish(&mut self.out, version, &message.message, Some(packet_id), true);
                }
                Some(Replay::Pubrel { packet_id }) => {
                    self.put_ack(fulmar_mqtt::ack::AckKind::Pubrel, packet_id, ReasonCode::Success);
                }
                None => {}
            }
            self.replay.pop_front();
        }
    }

    fn put_in_flight(&mut self, pending: Pending<P>) {
        let message = Arc::clone(&pending.message);
        if let Some(id) = self.outbound.push(message.qos, pending) {
            put_publish(&mut self.out, self.options.version, &message, Some(id), false);
            if self.phase != Phase::Up {
                self.early.push(Early::InFlight(id));
            }
        }
    }

    fn fits(&self, message: &Message) -> Result<(), ReasonCode> {
        if message.qos > self.limits.max_qos {
            return Err(ReasonCode::QosNotSupported);
        }
        if message.retain && !self.limits.retain {
            return Err(ReasonCode::RetainNotSupported);
        }
        let size = head(message, Some(PacketId::FIRST), false).encoded_len(self.options.version);
        match size > self.limits.max_packet_bytes as usize {
            true => Err(ReasonCode::PacketTooLarge),
            false => Ok(()),
        }
    }

    fn put_connect(&mut self) {
        let options = Arc::clone(&self.options);
        let mut properties = options.connect_properties.clone();
        if options.session_expiry_s > 0 {
            properties.push(Property::SessionExpiryInterval(options.session_expiry_s));
        }
        properties
            .push(Property::ReceiveMaximum(options.receive_maximum))
            .push(Property::MaximumPacketSize(options.max_packet_bytes.max(1)))
            .push(Property::TopicAliasMaximum(TOPIC_ALIAS_MAXIMUM));
        let will_properties = options.will.as_ref().map(|will| {
            let mut properties = will.message.properties.clone();
            if will.delay_s > 0 {
                properties.push(Property::WillDelayInterval(will.delay_s));
            }
            properties
        });
        let will = options.will.as_ref().zip(will_properties.as_ref());
        let will = will.map(|(will, properties)| LastWill {
            topic: &will.message.topic,
            payload: &will.message.payload,
            qos: will.message.qos,
            retain: will.message.retain,
            properties: properties.as_properties(),
        });
        let connect = Connect {
            version: options.version,
            clean_start: self.clean_start(),
            keep_alive_s: options.keep_alive_s,
            client_id: &self.client_id,
            properties: properties.as_properties(),
            will,
            username: options.username.as_deref(),
            password: options.password.as_deref(),
        };
        connect.encode(&mut self.out);
    }

    fn clean_start(&self) -> bool {
        match self.options.version {
            Version::V311 => self.options.is_clean_v311(),
            Version::V5 => self.options.clean_start && !self.connected_before,
        }
    }

    fn put_request(&mut self, id: PacketId) {
        let Some(request) = self.waiting.pop_front() else { return };
        let version = self.options.version;
        let mut filters = Vec::new();
        let with_options = match &request.ask {
            Ask::Subscribe(wanted) => {
                for (filter, options) in wanted {
                    FilterList::encode_one(
                        &mut filters,
                        filter,
                        Some(for_version(*options, version)),
                    );
                }
                true
            }
            Ask::Unsubscribe(unwanted) => {
                unwanted.iter().for_each(|f| FilterList::encode_one(&mut filters, f, None));
                false
            }
        };
        let properties = Properties::NONE;
        match FilterList::from_encoded(&filters, with_options, version) {
            Ok(filters) if with_options => {
                Subscribe { packet_id: id, properties, filters }.encode(version, &mut self.out);
            }
            Ok(filters) => {
                Unsubscribe { packet_id: id, properties, filters }.encode(version, &mut self.out);
            }
            Err(error) => {
                self.outbound.unreserve(id);
                let error = Error::Options(error.to_string());
                self.outcomes
                    .extend(request.token.map(|token| Outcome::Answered(token, Err(error))));
                return;
            }
        }
        self.asked.push((id, request));
    }

    fn put_ack(&mut self, kind: fulmar_mqtt::ack::AckKind, id: PacketId, reason: ReasonCode) {
        fulmar_mqtt::ack::encode(&mut self.out, self.options.version, kind, id, reason);
    }

    fn put_disconnect(&mut self, reason: ReasonCode) {
        let properties = PropertyBuf::new();
        let properties = properties.as_properties();
        Disconnect { reason, properties }.encode(self.options.version, &mut self.out);
    }
}

fn seconds(seconds: u16) -> Option<Duration> {
    (seconds > 0).then(|| Duration::from_secs(u64::from(seconds)))
}

/// 3.1.1 has no options but the quality of service.
fn for_version(options: SubscribeOptions, version: Version) -> SubscribeOptions {
    match version {
        Version::V5 => options,
        Version::V311 => SubscribeOptions { qos: options.qos, ..SubscribeOptions::default() },
    }
}

fn head(message: &Message, packet_id: Option<PacketId>, dup: bool) -> PublishHead<'_> {
    PublishHead {
        dup,
        qos: message.qos,
        retain: message.retain,
        topic: &message.topic,
        packet_id,
        message_expiry: None,
        topic_alias: None,
        subscription_ids: &[],
        raw_properties: message.properties.as_properties().raw(),
        payload_len: message.payload.len(),
    }
}

fn put_publish(
    out: &mut Vec<u8>,
    version: Version,
    message: &Message,
    packet_id: Option<PacketId>,
    dup: bool,
) {
    let publish = Publish {
        dup,
        qos: message.qos,
        retain: message.retain,
        topic: &message.topic,
        packet_id,
        properties: message.properties.as_properties(),
        payload: &message.payload,
    };
    publish.encode(version, out);
}
