//! Decides what each CoAP request does at the broker, and turns the broker's answers into CoAP responses.
//! `fulmar_coap::topics` has the mapping of topics; [`BrokerConnection`] sends the MQTT packets.
//!
//! Every user has one [`BrokerConnection`] for each of its networks; its observers of a topic share one subscription. All
//! peers without a name at a listener share one: bans of networks, which the broker asks about at CONNECT, are therefore
//! asked about at each request, and what it denies is logged here with the peer's address. Requests wait until
//! the broker has accepted the connection, and are refused if the broker refuses the connection.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use fulmar_broker::message::Message;
use fulmar_broker::{Broker, LogLimiter, Peer, Reader};
use fulmar_coap::{
    Code, Event, Exchange, Method, ObservationId, Observe, Request, Response, Server, code, links,
    topics,
};
use fulmar_mqtt::ReasonCode;
use fulmar_transport::{Clock, Handoff};
use tokio::sync::mpsc;

use super::Address;
use super::broker_connection::{
    BrokerConnection, BrokerEvent, Busy, InFlight, Publication, RequestId,
};
use super::listing::{Listed, Listing};

/// Requests that wait until a user's connection is accepted.
const MAX_WAITING: usize = 256;
/// Payload bytes of them, with which another one still waits.
const MAX_WAITING_BYTES: usize = 256 << 10;
/// Seconds after which a client should repeat what the broker could not accept (Max-Age).
const RETRY_AFTER_S: u32 = 10;

/// The user of a connection: a named user at a listener and in a network, or all peers without a name at the listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct UserId(pub(super) u64);

/// A user that sends requests.
pub(super) struct User {
    /// The user as the broker knows it.
    pub(super) peer: Peer,
    state: State,
    topics: BTreeMap<Box<str>, TopicState>,
}

enum State {
    /// Not connected until the next request.
    Away,
    Opening {
        connection: BrokerConnection,
        waiting: VecDeque<Request<Address>>,
    },
    Open {
        connection: BrokerConnection,
        client_id: Box<str>,
        /// The user that the broker's authentication has made of it.
        broker_user: Option<fulmar_broker::User>,
    },
}

#[derive(Default)]
struct TopicState {
    subscribed: bool,
    /// Requests to observe that wait for the answer to the subscription.
    waiting: Vec<Exchange<Address>>,
    observers: Vec<ObservationId>,
}

/// A request to the broker that waits for its answer.
enum Pending {
    Publish(Exchange<Address>, Code),
    Subscribe(Box<str>),
}

/// The CoAP server, and its users with their connections to the broker.
pub(super) struct CoapToMqtt {
    pub(super) server: Server<Address>,
    broker: Arc<Broker>,
    handoff: Handoff,
    clock: Clock,
    events: mpsc::Sender<(UserId, BrokerEvent)>,
    in_flight: InFlight,
    users: BTreeMap<UserId, User>,
    pending: BTreeMap<RequestId, Pending>,
    observed: BTreeMap<ObservationId, (UserId, Box<str>)>,
    listing: Listing,
    banned_log: LogLimiter,
    last_request_id: RequestId,
    last_user: u64,
}

impl CoapToMqtt {
    pub(super) fn new(
        server: Server<Address>,
        broker: Arc<Broker>,
        handoff: Handoff,
        clock: Clock,
        events: mpsc::Sender<(UserId, BrokerEvent)>,
        in_flight: InFlight,
    ) -> CoapToMqtt {
        CoapToMqtt {
            server,
            broker,
            handoff,
            clock,
            events,
            in_flight,
            users: BTreeMap::new(),
            pending: BTreeMap::new(),
            observed: BTreeMap::new(),
            listing: Listing::new(Instant::now()),
            banned_log: LogLimiter::default(),
            last_request_id: 0,
            last_user: 0,
        }
    }

    /// Adds a user, with a name if it has authenticated.
    pub(super) fn add_user(&mut self, peer: Peer) -> UserId {
        self.last_user += 1;
        let user_id = UserId(self.last_user);
        self.users.insert(user_id, User { peer, state: State::Away, topics: BTreeMap::new() });
        user_id
    }

    /// Removes a user for good.
    pub(super) fn remove_user(&mut self, user_id: UserId) {
        self.close(user_id, None);
        self.users.remove(&user_id);
    }

    /// Whether a ban is about the peer's network.
    pub(super) fn is_banned(&self, peer: Address) -> bool {
        self.broker.is_network_banned(peer.peer.ip(), self.clock.now())
    }

    /// The same, and logs that the peer is refused.
    pub(super) fn refuses(&mut self, peer: Address) -> bool {
        let banned = self.is_banned(peer);
        if banned && let Some(times) = self.banned_log.occurred(self.clock.now()) {
            tracing::info!(%peer, times, "CoAP refused: banned");
        }
        banned
    }

    /// Ends the observations of peers whose network is banned.
    pub(super) fn end_observations_of_banned(&mut self) {
        let observers = self.server.observers().filter(|(_, peer)| self.is_banned(*peer));
        let observations: Vec<ObservationId> = observers.map(|(id, _)| id).collect();
        let response = refusal(ReasonCode::Banned);
        self.server.notify(Instant::now(), &observations, &response);
    }

    /// Handles the CoAP server's events. `user_of` returns the user at an address.
    pub(super) fn handle_events(&mut self, user_of: impl Fn(Address) -> Option<UserId>) {
        while let Some(event) = self.server.poll_event() {
            match event {
                Event::Ended(observation) => self.unobserve(observation),
                Event::Request(request) if self.refuses(request.exchange.peer) => {
                    self.respond(request.exchange, refusal(ReasonCode::Banned));
                }
                Event::Request(request) => match user_of(request.exchange.peer) {
                    Some(user_id) => self.handle(user_id, request),
                    None => {
                        self.refuse(request.exchange, code::UNAUTHORIZED, "authentication required")
                    }
                },
            }
        }
    }

    fn handle(&mut self, user_id: UserId, request: Request<Address>) {
        let path: Vec<&str> = request.path.iter().map(String::as_str).collect();
        match path[..] {
            [".well-known", "core"] => self.discover(&request),
            [root, ..] if root == topics::ROOT => self.forward(user_id, request),
            _ => self.refuse(request.exchange, code::NOT_FOUND, "topics are below /ps"),
        }
    }

    fn discover(&mut self, request: &Request<Address>) {
        if request.method != Method::Get {
            return self.refuse(
                request.exchange,
                code::METHOD_NOT_ALLOWED,
                "only GET is allowed here",
            );
        }
        let root = links::Link {
            path: format!("/{}", topics::ROOT),
            attributes: vec![
                ("rt", "core.ps".to_owned()),
                ("ct", links::CONTENT_FORMAT.to_string()),
                ("title", "Topics: PUT, POST, GET, DELETE and observe /ps/TOPIC".to_owned()),
            ],
        };
        self.respond_links(request, &[root]);
    }

    fn respond_links(&mut self, request: &Request<Address>, all: &[links::Link]) {
        let response = Response {
            payload: links::document(all, &request.queries).into_bytes().into(),
            content_format: Some(links::CONTENT_FORMAT),
            ..Response::new(code::CONTENT)
        };
        self.respond(request.exchange, response);
    }

    /// Forwards a request to the broker, once the broker has accepted the user.
    fn forward(&mut self, user_id: UserId, request: Request<Address>) {
        let Some(user) = self.users.get_mut(&user_id) else { return };
        if matches!(user.state, State::Away) {
            match BrokerConnection::open(
                &self.handoff,
                &self.in_flight,
                user.peer.clone(),
                user_id,
                self.events.clone(),
            ) {
                Ok(connection) => {
                    user.state = State::Opening { connection, waiting: VecDeque::new() }
                }
                Err(error) => {
                    tracing::warn!(peer = %request.exchange.peer,
                        "cannot connect to the broker: {error}");
                    return self.unavailable(request.exchange, "the broker accepts no connections");
                }
            }
        }
        match &mut user.state {
            State::Opening { waiting, .. }
                if waiting.len() < MAX_WAITING
                    && waiting.iter().map(|one| one.payload.len()).sum::<usize>()
                        < MAX_WAITING_BYTES =>
            {
                waiting.push_back(request);
            }
            State::Open { .. } => self.execute(user_id, request),
            _ => self.unavailable(request.exchange, "too many requests are waiting"),
        }
    }

    /// Carries out a request; the user's connection is open.
    fn execute(&mut self, user_id: UserId, request: Request<Address>) {
        let exchange = request.exchange;
        let segments = request.path.get(1..).unwrap_or_default();
        if segments.iter().all(String::is_empty) {
            return match request.method {
                Method::Get => self.list(user_id, &request),
                _ => self.refuse(exchange, code::METHOD_NOT_ALLOWED, "name a topic: /ps/TOPIC"),
            };
        }
        let topic = match topics::topic(segments) {
            Ok(topic) => topic,
            Err(why) => return self.refuse(exchange, code::BAD_REQUEST, &why),
        };
        match request.method {
            Method::Get if request.observe == Some(Observe::Register) => {
                self.observe(user_id, exchange, topic.into());
            }
            Method::Get => {
                let response = self.last_value(user_id, &topic).unwrap_or_else(|| {
                    Response::error(code::NOT_FOUND, "the topic has no retained value")
                });
                let unacceptable = request.accept.is_some_and(|wanted| {
                    response.code == code::CONTENT
                        && response.content_format.is_some_and(|format| format != wanted)
                });
                match unacceptable {
                    true => self.refuse(
                        exchange,
                        code::NOT_ACCEPTABLE,
                        "the retained value has another Content-Format",
                    ),
                    false => self.respond(exchange, response),
                }
            }
            Method::Put => self.publish(user_id, &request, &topic, true, code::CHANGED),
            Method::Post => self.publish(user_id, &request, &topic, false, code::CHANGED),
            Method::Delete => {
                let empty = Request { payload: Bytes::new(), content_format: None, ..request };
                self.publish(user_id, &empty, &topic, true, code::DELETED);
            }
        }
    }

    /// PUT, POST or DELETE: publishes to `topic`. The broker's acknowledgement completes the exchange with
    /// `success_code`.
    fn publish(
        &mut self,
        user_id: UserId,
        request: &Request<Address>,
        topic: &str,
        retain: bool,
        success_code: Code,
    ) {
        let content_type = match request.content_format {
            None => None,
            Some(format) => match topics::content_type(format) {
                Some(name) => Some(name),
                None => {
                    let why = "this Content-Format is not supported";
                    return self.refuse(request.exchange, code::UNSUPPORTED_FORMAT, why);
                }
            },
        };
        let request_id = self.register_request(Pending::Publish(request.exchange, success_code));
        let Some(connection) = self.connection(user_id) else { return };
        let outgoing = Publication { topic, payload: &request.payload, content_type, retain };
        if connection.publish(request_id, &outgoing).is_err() {
            self.pending.remove(&request_id);
            self.unavailable(request.exchange, "the broker is busy");
        }
    }

    fn observe(&mut self, user_id: UserId, exchange: Exchange<Address>, topic: Box<str>) {
        let Some(user) = self.users.get_mut(&user_id) else { return };
        let topic_state = user.topics.entry(topic.clone()).or_default();
        if topic_state.subscribed {
            return self.start_observation(user_id, exchange, &topic);
        }
        topic_state.waiting.push(exchange);
        if topic_state.waiting.len() > 1 {
            return;
        }
        let request_id = self.register_request(Pending::Subscribe(topic.clone()));
        let Some(connection) = self.connection(user_id) else { return };
        if let Err(Busy) = connection.subscribe(request_id, &topic) {
            self.pending.remove(&request_id);
            self.on_suback(user_id, &topic, ReasonCode::ServerBusy);
        }
    }

    /// Handles the broker's answer to a subscription, which may be a refusal.
    fn on_suback(&mut self, user_id: UserId, topic: &str, reason: ReasonCode) {
        let Some(user) = self.users.get_mut(&user_id) else { return };
        let Some(topic_state) = user.topics.get_mut(topic) else { return };
        let waiting = std::mem::take(&mut topic_state.waiting);
        if reason.is_error() {
            user.topics.remove(topic);
            for exchange in waiting {
                self.deny(exchange, reason);
            }
            return;
        }
        topic_state.subscribed = true;
        for exchange in waiting {
            self.start_observation(user_id, exchange, topic);
        }
        self.forget_unobserved(user_id, topic);
    }

    /// Begins an observation with the topic's last value, or with an empty value.
    fn start_observation(&mut self, user_id: UserId, exchange: Exchange<Address>, topic: &str) {
        let response = self.last_value(user_id, topic);
        let response = response.unwrap_or_else(|| Response::new(code::CONTENT));
        let now = Instant::now();
        let Some(observation) = self.server.observe(now, exchange, response) else {
            return self.forget_unobserved(user_id, topic);
        };
        self.observed.insert(observation, (user_id, topic.into()));
        let topic_state = self.users.get_mut(&user_id).and_then(|user| user.topics.get_mut(topic));
        if let Some(topic_state) = topic_state {
            topic_state.observers.push(observation);
        }
    }

    fn unobserve(&mut self, observation: ObservationId) {
        let Some((user_id, topic)) = self.observed.remove(&observation) else { return };
        let topic_state = self.users.get_mut(&user_id).and_then(|user| user.topics.get_mut(&topic));
        if let Some(topic_state) = topic_state {
            topic_state.observers.retain(|other| *other != observation);
            self.forget_unobserved(user_id, &topic);
        }
    }

    fn forget_unobserved(&mut self, user_id: UserId, topic: &str) {
        let Some(user) = self.users.get_mut(&user_id) else { return };
        let Some(topic_state) = user.topics.get(topic) else { return };
        if topic_state.subscribed && topic_state.observers.is_empty() {
            user.topics.remove(topic);
            if let State::Open { connection, .. } = &mut user.state {
                connection.unsubscribe(topic);
            }
        }
    }

    /// The topic's last value; `None` if it has none. Access rules apply.
    fn last_value(&self, user_id: UserId, topic: &str) -> Option<Response> {
        let user = self.users.get(&user_id)?;
        match self.broker.read(user.reader()?, topic, self.clock.now()) {
            Ok(message) => message.map(|message| content(&message)),
            Err(fulmar_broker::Denied) => Some(refusal(ReasonCode::NotAuthorized)),
        }
    }

    /// The topics that have a last value.
    fn list(&mut self, user_id: UserId, request: &Request<Address>) {
        let reader = self.users.get(&user_id).and_then(User::reader);
        let Some(reader) = reader else { return };
        let now = Instant::now();
        match self.listing.topics(&self.broker, reader, request.proven, now) {
            Listed::Topics(topics) => {
                let all: Vec<links::Link> = topics.iter().map(|topic| link_to(topic)).collect();
                self.respond_links(request, &all);
            }
            Listed::Unproven => self.server.ask_for_proof(now, request.exchange),
            Listed::Busy => {
                self.unavailable(request.exchange, "topics are being listed too often");
            }
        }
    }

    /// Handles an event of a user's connection.
    pub(super) fn on_broker_event(&mut self, user_id: UserId, event: BrokerEvent) {
        match event {
            BrokerEvent::Opened { client_id, max_in_flight } => {
                self.on_connack(user_id, client_id, max_in_flight)
            }
            BrokerEvent::Closed(reason) => self.close(user_id, reason),
            BrokerEvent::Answer(packet_id, reason) => {
                let request_id = self
                    .connection(user_id)
                    .and_then(|connection| connection.take_answer(packet_id));
                match request_id.and_then(|request_id| self.pending.remove(&request_id)) {
                    Some(Pending::Publish(exchange, _)) if reason.is_error() => {
                        self.deny(exchange, reason);
                    }
                    Some(Pending::Publish(exchange, success_code)) => {
                        self.respond(exchange, Response::new(success_code));
                    }
                    Some(Pending::Subscribe(topic)) => self.on_suback(user_id, &topic, reason),
                    None => {}
                }
            }
            BrokerEvent::Message { topic, payload, content_type } => {
                let content_format = content_type.and_then(|name| topics::content_format(&name));
                let response = Response { payload, content_format, ..Response::new(code::CONTENT) };
                let user = self.users.get(&user_id);
                let observers = user.and_then(|user| user.topics.get(&topic));
                if let Some(state) = observers {
                    self.server.notify(Instant::now(), &state.observers, &response);
                }
            }
        }
    }

    fn on_connack(&mut self, user_id: UserId, client_id: Box<str>, max_in_flight: u16) {
        let Some(user) = self.users.get_mut(&user_id) else { return };
        // A login service may have given it another name than its certificate has. A session that is gone has a
        // connection that ends.
        let Some(session) = self.broker.session_details(&client_id, 0) else { return };
        let broker_user = session.summary.user.map(fulmar_broker::User::from_text);
        let state = std::mem::replace(&mut user.state, State::Away);
        let State::Opening { mut connection, waiting } = state else { return };
        connection.set_max_in_flight(max_in_flight);
        user.state = State::Open { connection, client_id, broker_user };
        for request in waiting {
            self.execute(user_id, request);
        }
    }

    /// A connection has ended: its requests are answered, and observers notified. The next request opens another.
    fn close(&mut self, user_id: UserId, reason: Option<ReasonCode>) {
        let Some(user) = self.users.get_mut(&user_id) else { return };
        let response = refusal(reason.unwrap_or(ReasonCode::ServerShuttingDown));
        let connection = match std::mem::replace(&mut user.state, State::Away) {
            State::Away => return,
            State::Opening { connection, waiting } => {
                for request in waiting {
                    tracing::info!(peer = %request.exchange.peer,
                        code = code::text(response.code), "CoAP request refused");
                    let now = Instant::now();
                    self.server.respond(now, request.exchange, response.clone());
                }
                connection
            }
            State::Open { connection, .. } => connection,
        };
        let topics = std::mem::take(&mut user.topics);
        for request_id in connection.request_ids() {
            if let Some(Pending::Publish(exchange, _)) = self.pending.remove(&request_id) {
                self.respond(exchange, response.clone());
            }
        }
        for topic_state in topics.into_values() {
            for exchange in topic_state.waiting {
                self.respond(exchange, response.clone());
            }
            for observation in &topic_state.observers {
                self.observed.remove(observation);
            }
            self.server.notify(Instant::now(), &topic_state.observers, &response);
        }
    }

    fn connection(&mut self, user_id: UserId) -> Option<&mut BrokerConnection> {
        match &mut self.users.get_mut(&user_id)?.state {
            State::Open { connection, .. } => Some(connection),
            _ => None,
        }
    }

    /// Gives the request a number, under which it waits for the broker's answer.
    fn register_request(&mut self, pending: Pending) -> RequestId {
        self.last_request_id += 1;
        self.pending.insert(self.last_request_id, pending);
        self.last_request_id
    }

    fn respond(&mut self, exchange: Exchange<Address>, response: Response) {
        self.server.respond(Instant::now(), exchange, response);
    }

    /// Answers a request that the broker has refused, in whose log the peer may be one of many.
    fn deny(&mut self, exchange: Exchange<Address>, reason: ReasonCode) {
        tracing::info!(peer = %exchange.peer, %reason, "CoAP request refused");
        self.respond(exchange, refusal(reason));
    }

    fn refuse(&mut self, exchange: Exchange<Address>, code: Code, why: &str) {
        tracing::debug!(peer = %exchange.peer, code = code::text(code), "CoAP request refused: {why}");
        self.respond(exchange, Response::error(code, why));
    }

    fn unavailable(&mut self, exchange: Exchange<Address>, why: &str) {
        let response = Response { max_age_s: Some(2), ..Response::error(code::UNAVAILABLE, why) };
        self.respond(exchange, response);
    }
}

impl User {
    fn reader(&self) -> Option<Reader<'_>> {
        match &self.state {
            State::Open { client_id, broker_user, .. } => {
                Some(Reader { user: broker_user.as_ref(), client_id })
            }
            _ => None,
        }
    }
}

/// The broker's refusal as a CoAP response.
fn refusal(reason: ReasonCode) -> Response {
    let (code, why) = match reason {
        ReasonCode::NotAuthorized => (code::FORBIDDEN, "denied by the access rules"),
        ReasonCode::Banned => (code::FORBIDDEN, "banned"),
        ReasonCode::BadUserNameOrPassword => (code::UNAUTHORIZED, "authentication required"),
        ReasonCode::PacketTooLarge => (code::TOO_LARGE, "larger than the broker accepts"),
        ReasonCode::TopicNameInvalid | ReasonCode::TopicFilterInvalid => {
            (code::BAD_REQUEST, "invalid topic name")
        }
        ReasonCode::QuotaExceeded => (code::TOO_MANY_REQUESTS, "quota exceeded"),
        ReasonCode::ImplementationSpecificError => {
            (code::UNAVAILABLE, "storage fails: it may not have been stored")
        }
        _ => (code::UNAVAILABLE, "the broker cannot accept it now"),
    };
    let max_age_s = (code == code::UNAVAILABLE).then_some(RETRY_AFTER_S);
    Response { max_age_s, ..Response::error(code, why) }
}

fn content(message: &Message) -> Response {
    let properties = fulmar_mqtt::Properties::of_publish(message.properties());
    let content_format = properties.ok().and_then(|properties| {
        fulmar_mqtt::find_property!(properties, ContentType).and_then(topics::content_format)
    });
    let payload = Bytes::copy_from_slice(message.payload());
    Response { payload, content_format, ..Response::new(code::CONTENT) }
}

fn link_to(topic: &str) -> links::Link {
    links::Link {
        path: format!("/{}/{}", topics::ROOT, encoded(topic)),
        attributes: vec![("rt", "core.ps.data".to_owned()), ("obs", String::new())],
    }
}

/// A topic as a path, percent-encoded where necessary (RFC 3986 section 3.3).
fn encoded(topic: &str) -> String {
    let mut path = String::with_capacity(topic.len());
    for byte in topic.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                path.push(char::from(byte));
            }
            _ => path.push_str(&format!("%{byte:02X}")),
        }
    }
    path
}
