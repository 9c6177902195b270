//! One client's session as a state machine (section 4): packets in, packets and outcomes out.
//!
//! A session has a control flow and, over QUIC, may have further ones (`flow`, `stream_map`). There is no I/O and no
//! clock: the owner passes the time and the server's bytes, and takes the bytes to be sent. Everything unacknowledged
//! outlives a connection: messages in flight are sent again in their order, requests are made again, and if the
//! server has lost the session, subscriptions are restored and messages in flight are sent as new.
//!
//! `P` and `R` are the owner's handles of a publication and of a request, returned with the outcome. `incoming`
//! handles packets from the server.

#[cfg(test)]
mod alias_tests;
mod flow;
mod incoming;
mod sign_in;
mod stream_map;
#[cfg(test)]
mod stream_map_tests;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::packet::{Connect, Disconnect, LastWill, SubscribeOptions};
use fulmar_mqtt::{Packet, Property, PropertyBuf, ReasonCode, Version};

use crate::error::Error;
use crate::message::{Message, Receipt};
use crate::options::Options;

use flow::{Ask, Desk, Early, Flow, NO_LIMITS, Pending, Request};
use sign_in::SignIn;
use stream_map::{Accepted, StreamMap};

pub(crate) use flow::MAX_OUT_BYTES;
pub use stream_map::CONTROL;
pub(crate) use stream_map::StreamLoss;

/// Topic aliases the server may set.
const TOPIC_ALIAS_MAXIMUM: u16 = 16;

/// An outcome.
#[derive(Debug)]
pub enum Outcome<P, R> {
    /// The server has accepted the connection.
    Connected {
        /// Whether it had kept the session.
        session_present: bool,
    },
    /// A message was received.
    Message(Message),
    /// A publication is finished.
    Published(P, Result<ReasonCode, Error>),
    /// A request is answered, a reason code for each of its filters.
    Answered(R, Result<Vec<ReasonCode>, Error>),
    /// This many QoS 2 publications are sent as new although the server may have received them.
    MayRepeat {
        /// Number of these messages.
        messages: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Down,
    /// CONNECT was written, and packets may follow at once.
    Opening(Ahead),
    Up,
    /// DISCONNECT was written.
    Done,
}

/// The packets that follow CONNECT before it is answered (section 3.1.4). A first connection's requests always do; a
/// later one's must not overtake the subscriptions that are restored then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ahead {
    /// Nothing: a method of authentication allows nothing but its own packets ([MQTT-3.1.2-30]).
    Nothing,
    Requests,
    /// Also publications that every server accepts; the limits of this one are only known after CONNACK.
    Modest,
    /// Everything, in QUIC's early data: there was a CONNACK before.
    All,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Machine<P, R> {
    options: Arc<Options>,
    phase: Phase,
    connected_before: bool,
    closing: bool,
    /// Everything is delivered; data streams are to be finished before DISCONNECT, which would overtake them.
    finishing: bool,
    client_id: String,
    keep_alive: Option<Duration>,
    /// The control flow, and then those of the data streams.
    flows: Vec<Flow<P, R>>,
    stream_map: StreamMap,
    desk: Desk<P, R>,
    subscriptions: Vec<Accepted>,
    last_sent: Instant,
    last_received: Instant,
    ping_sent: Option<Instant>,
    sign_in: SignIn,
    /// Server to use instead, from the last packet of the last connection.
    reference: Option<Box<str>>,
    /// Number of the connection, which shows what belongs to an earlier one.
    connection: u64,
}

impl<P, R> Machine<P, R> {
    /// A session that has not connected yet.
    pub fn new(options: Arc<Options>, now: Instant) -> Machine<P, R> {
        let stream_map = StreamMap::new(&options);
        Machine {
            phase: Phase::Down,
            connected_before: false,
            closing: false,
            finishing: false,
            client_id: options.client_id.clone(),
            keep_alive: None,
            flows: (0..=stream_map.count()).map(|_| Flow::new()).collect(),
            stream_map,
            desk: Desk {
                version: options.version,
                limits: NO_LIMITS,
                up: false,
                early: Vec::new(),
                outcomes: VecDeque::new(),
                held_bytes: 0,
            },
            subscriptions: Vec::new(),
            last_sent: now,
            last_received: now,
            ping_sent: None,
            sign_in: SignIn::default(),
            reference: None,
            connection: 0,
            options,
        }
    }

    /// A connection is there: writes CONNECT. With `early`, the messages waiting on the control flow follow at once,
    /// unless something is in flight there whose state is only known after CONNACK; without, as much of them as the
    /// options allow. `streams` is whether there can be data streams.
    pub fn connect(&mut self, now: Instant, early: bool, streams: bool) {
        self.connection += 1;
        self.reference = None;
        self.prepare_streams(streams);
        let in_flight = self.flows[CONTROL].outbound.in_flight() > 0;
        self.phase = Phase::Opening(match () {
            () if self.options.scram => Ahead::Nothing,
            () if in_flight => Ahead::Requests,
            () if early => Ahead::All,
            () if self.options.publish_before_connack => Ahead::Modest,
            () => Ahead::Requests,
        });
        self.keep_alive = seconds(self.options.keep_alive_s);
        (self.last_sent, self.last_received, self.ping_sent) = (now, now, None);
        self.flows[CONTROL].out.clear();
        self.put_connect();
        self.pump();
    }

    /// The connection was lost.
    pub fn disconnected(&mut self) {
        // At most once: they may have arrived.
        self.early_data_sent();
        self.down();
    }

    /// The server has refused early data: it has processed none of it, so all of it is sent again.
    pub(crate) fn early_data_rejected(&mut self) {
        let control = &mut self.flows[CONTROL];
        for sent in std::mem::take(&mut self.desk.early).into_iter().rev() {
            let unsent = match sent {
                Early::Unacknowledged(pending) => Some(pending),
                Early::InFlight(id) => control.outbound.abandon(id),
            };
            if let Some(pending) = unsent {
                control.queue.push_front(pending);
            }
        }
        self.down();
    }

    /// Early data counts as sent.
    fn early_data_sent(&mut self) {
        for sent in std::mem::take(&mut self.desk.early) {
            if let Early::Unacknowledged(pending) = sent {
                self.desk.published(pending, Ok(ReasonCode::Success));
            }
        }
    }

    fn down(&mut self) {
        if self.phase != Phase::Done {
            self.phase = Phase::Down;
        }
        self.desk.up = false;
        self.finishing = false;
        self.stream_map.down();
        for flow in 0..self.flows.len() {
            self.flow_down(flow);
        }
    }

    /// Publishes as soon as connection, order and window allow.
    pub fn publish(&mut self, message: Message, token: P) {
        self.desk.held_bytes += message.size();
        let flow = self.stream_map.of_message(&message);
        self.flows[flow].queue.push_back(Pending { message: Arc::new(message), token });
        self.pump();
    }

    /// Subscribes when connected; the outcome has `token`.
    pub fn subscribe(&mut self, filters: Vec<(String, SubscribeOptions)>, token: R) {
        self.request(Ask::Subscribe(filters), token);
    }

    /// Unsubscribes when connected; the outcome has `token`.
    pub fn unsubscribe(&mut self, filters: Vec<String>, token: R) {
        self.request(Ask::Unsubscribe(filters), token);
    }

    fn request(&mut self, ask: Ask, token: R) {
        let flow = self.stream_map.of_ask(&ask, &self.subscriptions);
        self.flows[flow].waiting.push_back(Request { ask, token: Some(token) });
        self.pump();
    }

    /// The application acknowledges the message of this receipt.
    pub fn acknowledge(&mut self, receipt: &Receipt) {
        let now = receipt.connection == self.connection && self.phase == Phase::Up;
        if now && self.stream_map.is_open(receipt.flow) {
            self.put_ack(receipt.flow, AckKind::Puback, receipt.id, ReasonCode::Success);
        }
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

    /// Gives up everything unfinished.
    pub(crate) fn abandon(&mut self, error: &Error) {
        self.disconnected();
        self.phase = Phase::Done;
        for flow in &mut self.flows {
            flow.abandon(&mut self.desk, error);
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

    /// The server that the last one has named when it ended the connection or refused it.
    pub(crate) fn take_reference(&mut self) -> Option<Box<str>> {
        self.reference.take()
    }

    /// Whether nothing waits for the server.
    pub fn is_idle(&self) -> bool {
        self.desk.early.is_empty() && self.flows.iter().all(Flow::is_idle)
    }

    /// Whether another publication may be queued.
    pub(crate) fn has_room(&self) -> bool {
        let queued: usize = self.flows.iter().map(|flow| flow.queue.len()).sum();
        queued < self.options.max_queued_messages
            && self.desk.held_bytes < self.options.max_queued_bytes
    }

    /// The bytes to be sent on a flow; the owner removes them from the front.
    pub fn output(&self, flow: usize) -> &[u8] {
        &self.flows[flow].out
    }

    /// Whether more of the server's bytes may be received on a flow. If not, its output has to be sent first.
    pub(crate) fn may_receive(&self, flow: usize) -> bool {
        self.flows[flow].may_receive()
    }

    /// This many bytes of a flow's output were sent.
    pub fn sent(&mut self, flow: usize, bytes: usize, now: Instant) {
        self.flows[flow].out.drain(..bytes);
        self.last_sent = now;
        self.pump();
    }

    /// The next outcome.
    pub fn poll_event(&mut self) -> Option<Outcome<P, R>> {
        self.desk.outcomes.pop_front()
    }

    /// When [`Machine::on_deadline`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let keep_alive = self.keep_alive.filter(|_| self.phase == Phase::Up)?;
        let give_up = self.give_up_at(keep_alive);
        let ping = match self.ping_sent {
            Some(at) => at + keep_alive / 2,
            None => {
                // What waits to be sent is a sign of life as well as PINGREQ would be.
                let quiet_since = match give_up {
                    Some(_) => self.last_received,
                    None => self.last_sent.min(self.last_received),
                };
                // A little early, because of the network's delay and late timers ([MQTT-3.1.2-20]).
                quiet_since + keep_alive - keep_alive / 8
            }
        };
        Some(give_up.map_or(ping, |at| at.min(ping)))
    }

    /// When a server that does not read what waits for it is given up: when it has to give up this client, from which it
    /// has read nothing for so long ([MQTT-3.1.2-22]).
    fn give_up_at(&self, keep_alive: Duration) -> Option<Instant> {
        let waiting = !self.flows[CONTROL].out.is_empty();
        let at = self.last_sent + keep_alive + keep_alive / 2;
        // After a late timer, PINGREQ has the time for its answer, too.
        waiting.then(|| self.ping_sent.map_or(at, |ping| at.max(ping + keep_alive / 2)))
    }

    /// Handles the passing of time. `listening`: the owner has read all received bytes. Fails if the server does not
    /// answer.
    pub(crate) fn on_deadline(&mut self, now: Instant, listening: bool) -> Result<(), Error> {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return Ok(());
        }
        let give_up = self.keep_alive.and_then(|keep_alive| self.give_up_at(keep_alive));
        if give_up.is_some_and(|at| at <= now) {
            return Err(Error::KeepAlive);
        }
        if self.ping_sent.is_some() && listening && self.may_receive(CONTROL) {
            return Err(Error::KeepAlive);
        }
        self.ping_sent = Some(now);
        Packet::Pingreq.encode(self.options.version, &mut self.flows[CONTROL].out);
        Ok(())
    }

    /// Has the server show that it is there, unless it is asked already. Its answer is not waited for: the transport
    /// notices a server that is silent.
    pub(crate) fn ask_for_sign_of_life(&mut self) {
        if self.phase == Phase::Up && self.flows[CONTROL].out.is_empty() {
            Packet::Pingreq.encode(self.options.version, &mut self.flows[CONTROL].out);
        }
    }

    /// Writes whatever may be written, up to a bound.
    fn pump(&mut self) {
        match self.phase {
            Phase::Up => {}
            Phase::Opening(Ahead::Nothing) => return,
            Phase::Opening(Ahead::All) => {
                return self.flows[CONTROL].pump(&mut self.desk, true);
            }
            Phase::Opening(ahead) => {
                let control = &mut self.flows[CONTROL];
                if !self.connected_before {
                    control.pump_requests(&mut self.desk);
                }
                if ahead == Ahead::Modest {
                    control.pump_modestly(&mut self.desk);
                }
                return;
            }
            _ => return,
        }
        for (index, flow) in self.flows.iter_mut().enumerate() {
            if self.stream_map.is_open(index) {
                flow.pump(&mut self.desk, self.stream_map.may_publish(index));
            }
        }
        if self.closing && self.is_idle() && !self.finishing {
            self.finishing = true;
            if !self.stream_map.any_open() {
                self.streams_finished();
            }
        }
    }

    /// Whether the owner is to finish all data streams now, wait until their bytes have arrived, and
    /// call [`Machine::streams_finished`].
    pub(crate) fn is_finishing(&self) -> bool {
        self.finishing && self.phase == Phase::Up
    }

    pub(crate) fn streams_finished(&mut self) {
        if self.phase == Phase::Up {
            self.put_disconnect(ReasonCode::Success);
            self.phase = Phase::Done;
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
        let mut login = (options.username.as_deref(), options.password.as_deref());
        if let (true, (Some(username), Some(password))) = (options.scram, login) {
            self.sign_in.begin(username, password, &mut properties);
            login = (None, None);
        }
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
            bridge: options.bridge && options.version == Version::V311,
            clean_start: self.clean_start(),
            keep_alive_s: options.keep_alive_s,
            client_id: &self.client_id,
            properties: properties.as_properties(),
            will,
            username: login.0,
            password: login.1,
        };
        connect.encode(&mut self.flows[CONTROL].out);
    }

    fn clean_start(&self) -> bool {
        match self.options.version {
            Version::V311 => self.options.is_clean_v311(),
            Version::V5 => self.options.clean_start && !self.connected_before,
        }
    }

    fn put_disconnect(&mut self, reason: ReasonCode) {
        let properties = PropertyBuf::new();
        let properties = properties.as_properties();
        self.flows[CONTROL].put_waiting_acks();
        let out = &mut self.flows[CONTROL].out;
        Disconnect { reason, properties }.encode(self.options.version, out);
    }
}

fn seconds(seconds: u16) -> Option<Duration> {
    (seconds > 0).then(|| Duration::from_secs(u64::from(seconds)))
}
