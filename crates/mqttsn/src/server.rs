//! All devices of a gateway: which session is at which address, how many there may be, and when each has a deadline.
//!
//! The caller passes in datagrams with their sender's address and the broker's events, and takes out datagrams and
//! [`Event`]s. A device is identified by its address; behind a forwarder (section 5.5), by the forwarder's address and
//! its own there. Addresses may be forged: the number of new devices per second, and of all devices, is bounded, and
//! the oldest of those that have sent only CONNECT make room.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fulmar_mqtt::QoS;

use crate::message::{DecodeError, Message, Publish, ReturnCode, TopicRef};
use crate::request::{BrokerEvent, Publication, Request};
use crate::session::{Again, Context, Hello, Session};
use crate::settings::Settings;
use crate::statistics::Statistics;
use crate::topics::{Predefined, Topics, short_name};

pub use crate::session::End;

/// Maximum number of bytes sent to a device, as a multiple of the bytes received from its address, until the address is
/// validated: forged datagrams must not flood the address's owner.
const AMPLIFICATION: usize = 3;
/// Bytes of a datagram's headers, IPv4 and UDP. With those of IPv6, more would be allowed.
const HEADERS: usize = 28;

/// After this time, a device that has sent only CONNECT makes room for another.
const NOBODY_AFTER: Duration = Duration::from_secs(10);

/// Identifies a session; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(u64);

/// Whether an address may be forged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Only its owner can send from it.
    Proven,
    /// It may be forged.
    Claimed,
}

/// An event for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<A> {
    /// A session has a request to the broker.
    Request {
        /// Session concerned.
        handle: Handle,
        /// The device's address.
        from: A,
        /// The request.
        request: Request,
    },
    /// A message at QoS −1, of a device without a session (section 6.8).
    Unconnected {
        /// The device's address.
        from: A,
        /// The message, at QoS 0.
        message: Publication,
    },
    /// A session has ended here. The requests to close its connection came before.
    Ended {
        /// Session concerned.
        handle: Handle,
        /// The device's address.
        from: A,
        /// Client identifier of the session.
        client_id: Box<str>,
        /// Why.
        why: End,
    },
    /// A device's session was refused.
    Refused {
        /// The device's address.
        from: A,
        /// Why.
        why: &'static str,
    },
}

/// An address, and behind a forwarder the device's address there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Peer<A> {
    address: A,
    node: Option<Box<[u8]>>,
}

struct Client<A> {
    peer: Peer<A>,
    session: Session,
    timer: Option<Instant>,
    /// Bytes received from its address, and sent there, before it was validated.
    came: usize,
    went: usize,
}

impl<A> Client<A> {
    /// Bytes of one datagram that it may be sent now.
    fn room(&self) -> usize {
        if self.session.is_proven() {
            return usize::MAX;
        }
        (AMPLIFICATION * self.came).saturating_sub(self.went + HEADERS)
    }

    /// Whether a datagram of this length may be sent; counts it. One that may not counts as lost: it is sent again when
    /// it is due, or when more has been received.
    fn may_be_sent(&mut self, length: usize) -> bool {
        let may = length <= self.room();
        if may && !self.session.is_proven() {
            self.went += length + HEADERS;
        }
        may
    }
}

/// The gateway's side of MQTT-SN for many devices.
pub struct Server<A> {
    settings: Settings,
    predefined: Predefined,
    clients: BTreeMap<Handle, Client<A>>,
    handles: BTreeMap<Peer<A>, Handle>,
    timers: BTreeSet<(Instant, Handle)>,
    transmits: VecDeque<(A, Vec<u8>)>,
    events: VecDeque<Event<A>>,
    statistics: Statistics,
    rng: fastrand::Rng,
    /// New clients that are allowed now, and since when.
    allowance: (f64, Instant),
    last_handle: u64,
}

impl<A: Clone + Ord> Server<A> {
    /// A server without devices. `seed` should not be known to others.
    #[must_use]
    pub fn new(mut settings: Settings, seed: u64, now: Instant) -> Server<A> {
        let predefined = Arc::new(std::mem::take(&mut settings.predefined));
        Server {
            allowance: (f64::from(settings.max_new_clients_per_s), now),
            settings,
            predefined,
            clients: BTreeMap::new(),
            handles: BTreeMap::new(),
            timers: BTreeSet::new(),
            transmits: VecDeque::new(),
            events: VecDeque::new(),
            statistics: Statistics::default(),
            rng: fastrand::Rng::with_seed(seed),
            last_handle: 0,
        }
    }

    /// Handles a datagram.
    ///
    /// # Errors
    /// The datagram is not a message; nothing has changed.
    pub fn receive(
        &mut self,
        now: Instant,
        from: A,
        trust: Trust,
        datagram: &[u8],
    ) -> Result<(), DecodeError> {
        let opened = open(datagram).inspect_err(|_| self.statistics.malformed += 1);
        let (node, message) = opened?;
        let peer = Peer { address: from, node };
        let handle = self.handles.get(&peer).copied();
        let came = datagram.len() + HEADERS;
        if let Some(client) = handle.and_then(|handle| self.clients.get_mut(&handle)) {
            client.came += came;
        }
        match (message, handle) {
            (Message::SearchGw { .. }, _) => {
                let gateway_id = self.settings.gateway_id;
                self.answer(&peer, &Message::GwInfo { gateway_id, address: &[] });
            }
            // Messages of other gateways to devices.
            (Message::Advertise { .. } | Message::GwInfo { .. }, _) => self.statistics.ignored += 1,
            (Message::Connect { will, clean, keep_alive_s, client_id }, _) => {
                let keep_alive = Duration::from_secs(keep_alive_s.into());
                let hello = Hello { client_id: client_id.into(), clean, will, keep_alive };
                self.connect(now, peer, trust, came, hello);
            }
            (message, Some(handle)) => {
                self.with(now, handle, |session, cx| session.receive(cx, &message));
            }
            (message, None) => self.stranger(peer, &message),
        }
        Ok(())
    }

    /// Passes an event from the broker to a session.
    pub fn on_broker_event(&mut self, now: Instant, handle: Handle, event: BrokerEvent) {
        self.with(now, handle, |session, cx| session.on_broker_event(cx, event));
    }

    /// Handles the deadlines at `now`.
    pub fn on_deadline(&mut self, now: Instant) {
        while let Some(&(at, handle)) = self.timers.first()
            && at <= now
        {
            self.with(now, handle, |session, cx| session.on_deadline(cx));
        }
    }

    /// When [`Server::on_deadline`] is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// The next datagram to send, and its destination.
    pub fn poll_transmit(&mut self) -> Option<(A, Vec<u8>)> {
        self.transmits.pop_front()
    }

    /// The next event, in order.
    pub fn poll_event(&mut self) -> Option<Event<A>> {
        self.events.pop_front()
    }

    /// Sends DISCONNECT to every device, when the gateway stops. Sessions and wills stay with the broker.
    pub fn say_goodbye(&mut self) {
        let peers: Vec<Peer<A>> = self.handles.keys().cloned().collect();
        for peer in peers {
            self.answer(&peer, &Message::Disconnect { duration_s: None });
        }
    }

    /// Devices with a session here.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// The counters.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Handles a message from an address without a session.
    fn stranger(&mut self, peer: Peer<A>, message: &Message<'_>) {
        match message {
            Message::Publish(publish) if publish.qos.is_none() => self.unconnected(peer, publish),
            // DISCONNECT, so that the device knows that it has no session. It is not larger than the message.
            Message::Publish(_)
            | Message::Register { .. }
            | Message::Subscribe { .. }
            | Message::Unsubscribe { .. }
            | Message::Pubrel(_)
            | Message::Pingreq(_)
            | Message::WillTopicUpd(_)
            | Message::WillMsgUpd(_)
            | Message::Disconnect { .. } => {
                self.answer(&peer, &Message::Disconnect { duration_s: None });
            }
            _ => self.statistics.ignored += 1,
        }
    }

    fn unconnected(&mut self, peer: Peer<A>, publish: &Publish<'_>) {
        let topic = match publish.topic {
            TopicRef::Predefined(id) => self.predefined.get(&id).cloned(),
            TopicRef::Short(name) => short_name(name).map(Into::into),
            TopicRef::Normal(_) => None,
        };
        let fits = publish.payload.len() <= self.settings.max_message_bytes;
        let Some(topic) = topic.filter(|_| fits) else {
            self.statistics.ignored += 1;
            return;
        };
        self.statistics.received += 1;
        let message = Publication {
            topic,
            payload: Bytes::copy_from_slice(publish.payload),
            qos: QoS::AtMostOnce,
            retain: publish.retain,
            dup: false,
            packet_id: None,
        };
        self.events.push_back(Event::Unconnected { from: peer.address, message });
    }

    /// CONNECT, in a datagram of `came` bytes.
    fn connect(&mut self, now: Instant, peer: Peer<A>, trust: Trust, came: usize, hello: Hello) {
        let known = self.handles.get(&peer).copied();
        if let Some(handle) = known {
            let again = self.with(now, handle, |session, cx| session.connect_again(cx, &hello));
            if again == Some(Again::Repeated) {
                return;
            }
        }
        let length = hello.client_id.len();
        if length == 0 || length > self.settings.max_client_id_bytes {
            let why = "its client identifier is empty or too long";
            return self.refuse(peer, ReturnCode::NotSupported, why);
        }
        if known.is_none() && !self.allow(now) {
            let why = "max_new_clients_per_s exceeded";
            return self.refuse(peer, ReturnCode::Congestion, why);
        }
        if known.is_none() && !self.make_room(now) {
            return self.refuse(peer, ReturnCode::Congestion, "max_clients exceeded");
        }
        self.begin(now, peer, known, trust, came, hello);
    }

    /// Begins a session; replaces an earlier one at its address.
    fn begin(
        &mut self,
        now: Instant,
        peer: Peer<A>,
        known: Option<Handle>,
        trust: Trust,
        came: usize,
        hello: Hello,
    ) {
        let handle = known.unwrap_or_else(|| {
            self.last_handle += 1;
            Handle(self.last_handle)
        });
        let old = known.and_then(|handle| self.clients.remove(&handle));
        let limits = &self.settings;
        let new_topics =
            || Topics::new(Arc::clone(&self.predefined), limits.max_topics, limits.max_topic_bytes);
        let mut cx = Context {
            now,
            settings: &self.settings,
            rng: &mut self.rng,
            statistics: &mut self.statistics,
            room: 0,
            datagrams: Vec::new(),
            requests: Vec::new(),
        };
        let timer = old.as_ref().and_then(|old| old.timer);
        let topics = old.and_then(|old| old.session.give_way(&mut cx, &hello));
        let topics = topics.unwrap_or_else(new_topics);
        let near = trust == Trust::Proven;
        let session = Session::begin(&mut cx, hello, topics, near);
        let (datagrams, requests) = (cx.datagrams, cx.requests);
        self.handles.insert(peer.clone(), handle);
        self.clients.insert(handle, Client { peer, session, timer, came, went: 0 });
        self.settle(handle, datagrams, requests);
    }

    fn refuse(&mut self, peer: Peer<A>, code: ReturnCode, why: &'static str) {
        self.statistics.refused += 1;
        self.answer(&peer, &Message::Connack(code));
        self.events.push_back(Event::Refused { from: peer.address, why });
    }

    /// Whether another new client is allowed now.
    fn allow(&mut self, now: Instant) -> bool {
        let most = f64::from(self.settings.max_new_clients_per_s);
        let (left, since) = self.allowance;
        let gained = now.saturating_duration_since(since).as_secs_f64() * most;
        let left = (left + gained).min(most);
        let allowed = left >= 1.0;
        self.allowance = (if allowed { left - 1.0 } else { left }, now);
        allowed
    }

    /// Whether there is room for another client, whose address may be forged.
    fn make_room(&mut self, now: Instant) -> bool {
        if self.clients.len() < self.settings.max_clients {
            return true;
        }
        let nobody = |client: &Client<A>| client.session.may_be_nobody(now, NOBODY_AFTER);
        let Some((&handle, _)) = self.clients.iter().find(|(_, client)| nobody(client)) else {
            return false;
        };
        self.with(now, handle, |session, cx| session.lose(cx, End::Evicted));
        true
    }

    /// Calls a session and carries out the results. `None` if there is no such session.
    fn with<T>(
        &mut self,
        now: Instant,
        handle: Handle,
        act: impl FnOnce(&mut Session, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let client = self.clients.get_mut(&handle)?;
        let room = client.room();
        let mut cx = Context {
            now,
            settings: &self.settings,
            rng: &mut self.rng,
            statistics: &mut self.statistics,
            room,
            datagrams: Vec::new(),
            requests: Vec::new(),
        };
        let outcome = act(&mut client.session, &mut cx);
        let (datagrams, requests) = (cx.datagrams, cx.requests);
        self.settle(handle, datagrams, requests);
        Some(outcome)
    }

    fn settle(&mut self, handle: Handle, datagrams: Vec<Vec<u8>>, requests: Vec<Request>) {
        let Some(client) = self.clients.get_mut(&handle) else { return };
        for request in requests {
            let from = client.peer.address.clone();
            self.events.push_back(Event::Request { handle, from, request });
        }
        for datagram in datagrams {
            let datagram = wrapped(&client.peer, datagram);
            if client.may_be_sent(datagram.len()) {
                self.transmits.push_back((client.peer.address.clone(), datagram));
            }
        }
        let ended = client.session.ended();
        let due = client.session.deadline(&self.settings).filter(|_| ended.is_none());
        if client.timer != due {
            if let Some(at) = client.timer {
                self.timers.remove(&(at, handle));
            }
            self.timers.extend(due.map(|at| (at, handle)));
            client.timer = due;
        }
        if let Some(why) = ended {
            let (from, client_id) =
                (client.peer.address.clone(), client.session.client_id().into());
            if let Some(client) = self.clients.remove(&handle) {
                self.handles.remove(&client.peer);
            }
            self.events.push_back(Event::Ended { handle, from, client_id, why });
        }
    }

    fn answer(&mut self, peer: &Peer<A>, message: &Message<'_>) {
        if let Some(datagram) = message.encode() {
            self.transmits.push_back((peer.address.clone(), wrapped(peer, datagram)));
        }
    }
}

/// A message, and the node behind a forwarder from which it comes.
type Opened<'a> = (Option<Box<[u8]>>, Message<'a>);

/// The message in a datagram.
fn open(datagram: &[u8]) -> Result<Opened<'_>, DecodeError> {
    match Message::decode(datagram)? {
        // Nested forwarders are not supported.
        Message::Forwarded { message, .. } if message.get(1) == Some(&0xFE) => {
            Err(DecodeError::Type(0xFE))
        }
        Message::Forwarded { node, message, .. } => {
            Ok((Some(node.into()), Message::decode(message)?))
        }
        message => Ok((None, message)),
    }
}

/// A datagram for a device, inside one for its forwarder if it has one.
fn wrapped<A>(peer: &Peer<A>, datagram: Vec<u8>) -> Vec<u8> {
    match &peer.node {
        None => datagram,
        Some(node) => {
            Message::Forwarded { radius: 0, node, message: &datagram }.encode().unwrap_or_default()
        }
    }
}
