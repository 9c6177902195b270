//! CONNECT: authenticates the client, opens its session, and agrees on the terms (sections 3.1 and 3.2).

use std::net::IpAddr;
use std::sync::Arc;

use fulmar_auth::access::Subject;
use fulmar_auth::{
    Admitted, Applicant, AuthReply, Because, Credentials, Decision, ReplyTo, Timestamp, User,
    WaitingLogin, text_of,
};
use fulmar_mqtt::codec::Frame;
use fulmar_mqtt::packet::{Connack, Connect, LastWill};
use fulmar_mqtt::topic::check_name;
use fulmar_mqtt::{DecodeError, Packet, Property, PropertyBuf, ReasonCode, Version};
use fulmar_text::network::site;

use super::auth::{BY_STORE, Exchange, Method, ScramExchange};
use super::refuse::largest;
use super::{Connection, State};
use crate::event::BrokerEvent;
use crate::lifecycle::{self, NotOpened, OpenRequest, Opened};
use crate::limits::Limits;
use crate::memory::{Account, MemoryShare};
use crate::peer::TransportKind;
use crate::shard::Shard;
use crate::will::{Testator, Will};

/// Bytes of a CONNECT that are not counted while its credentials are checked: most have no more.
const FREE_CONNECT: usize = 1024;

/// Bytes of the property Authentication Data with the last message of SCRAM: identifier, length, `v=`, 32 bytes in base64.
const SERVER_FINAL_BYTES: usize = 1 + 2 + 2 + 44;

/// Whether a packet may be handled before the QUIC handshake is complete (0-RTT data, which an attacker can record and
/// replay). The transport accepts each ticket only once, so that it is never handled twice. Saving the round trip
/// requires only these packets: CONNECT, PUBLISH and PUBREL.
pub(super) fn may_come_early(packet_type: u8) -> bool {
    matches!(packet_type, 1 | 3 | 6)
}

/// Whether a packet that begins with this byte is a CONNECT.
pub(super) fn is_connect(first: u8) -> bool {
    first >> 4 == 1
}

/// A CONNECT whose credentials are being checked.
#[derive(Debug)]
pub(super) struct PendingConnect {
    client_id: Box<str>,
    /// The broker has assigned it, as the client sent none.
    assigned: bool,
    clean_start: bool,
    keep_alive_s: u16,
    expiry_interval_s: u32,
    receive_maximum: u16,
    pub(super) max_packet_bytes: u32,
    topic_alias_maximum: u16,
    will: Option<Arc<Will>>,
    /// The name as the client sent it.
    pub(super) username: Option<Box<str>>,
    /// The client requested enhanced authentication by a method that this broker has.
    pub(super) method: Option<Method>,
    /// SCRAM waits for the client's last message.
    pub(super) scram: Option<Box<ScramExchange>>,
    /// The server's last message of SCRAM, for CONNACK.
    pub(super) server_final: Option<String>,
    /// Another worker's turn still used the session when it was requested.
    waited: bool,
    /// The session's earlier connection gets closed.
    took_over: bool,
    /// It waits because its will has many receivers; this is the result of its authentication.
    pub(super) gives_way: Option<Admitted>,
    /// It waits for its credentials to be checked; dropping this removes it from the queue.
    login: Option<WaitingLogin>,
    /// The login has failed; when to send the refusal.
    pub(super) late_refusal: Option<(Timestamp, ReasonCode)>,
    /// Memory that it takes until it is known whose it is.
    memory: Option<MemoryShare>,
}

impl PendingConnect {
    pub(super) fn username(&self) -> Option<&str> {
        self.username.as_deref()
    }

    pub(super) fn client_id(&self) -> &str {
        &self.client_id
    }

    /// Bytes that it takes in memory, without itself.
    fn bytes(&self) -> usize {
        let username = self.username.as_ref().map_or(0, |name| name.len());
        self.client_id.len() + username + self.will.as_deref().map_or(0, Will::bytes)
    }
}

impl Connection {
    /// The first packet of a connection.
    pub(super) fn handle_first(&mut self, shard: &mut Shard, frame: &Frame<'_>) {
        if matches!(self.state, State::Challenged(_)) {
            return self.handle_challenged(shard, frame);
        }
        match fulmar_mqtt::codec::decode(frame, Version::V5) {
            Ok(Packet::Connect(connect)) => self.handle_connect(shard, &connect),
            Ok(_) => {}
            Err(error) => {
                tracing::info!(peer = %self.peer.address, "bad CONNECT: {error}");
                shard.metrics().protocol_errors.add(1);
                match Connect::claimed_version(frame.body) {
                    Ok(Version::V5) => self.refuse(shard, error.reason()),
                    // 3.1.1 [MQTT-3.1.2-2] requires this answer, 5.0 allows it, and clients of any version understand it.
                    Err(DecodeError::ProtocolVersion(_)) => {
                        self.version = Version::V311;
                        self.refuse(shard, ReasonCode::UnsupportedProtocolVersion);
                    }
                    Ok(Version::V311) | Err(_) => self.turn_away(shard, error.reason()),
                }
            }
        }
    }

    fn handle_connect(&mut self, shard: &mut Shard, connect: &Connect<'_>) {
        self.version = connect.version;
        if connect.bridge {
            self.rare().bridge = true;
        }
        if shard.broker().redirect().is_some() {
            return self.redirect(shard, connect);
        }
        let mut pending = match pending(connect, shard.broker().limits(), self.at.token.0) {
            Ok(pending) => pending,
            // With the code that 3.1.1 has for the error, if any.
            Err(ReasonCode::TopicNameInvalid) if self.version == Version::V311 => {
                tracing::info!(peer = %self.peer.address, "bad CONNECT: will topic is not a topic name");
                shard.metrics().protocol_errors.add(1);
                return self.turn_away(shard, ReasonCode::TopicNameInvalid);
            }
            Err(reason) => {
                if connect.client_id.len() > shard.broker().limits().max_client_id_bytes {
                    let (bound, what) = ("max_client_id_bytes", format_args!("connection refused"));
                    shard.turn.log_bound(bound, connect.client_id, None, what);
                }
                return self.refuse_within(shard, reason, largest(connect));
            }
        };
        let limits = shard.broker().limits();
        let answer = connack_bytes(&pending, self.version, limits);
        if answer > pending.max_packet_bytes as usize {
            tracing::info!(peer = %self.peer.address, client = &*pending.client_id, answer,
                most = pending.max_packet_bytes,
                "CONNACK exceeds the client's Maximum Packet Size");
            let reason = ReasonCode::PacketTooLarge;
            return self.refuse_within(shard, reason, pending.max_packet_bytes);
        }
        if let Some(why) = self.fault_of_certificate(shard) {
            // The handshake was before, or resumed an earlier session.
            tracing::info!(peer = %self.peer.address, client = &*pending.client_id,
                "connection refused: {why}");
            return self.refuse_within(shard, ReasonCode::NotAuthorized, pending.max_packet_bytes);
        }
        if !self.has_memory_for(shard, &mut pending) {
            return self.refuse_unknown(shard, &pending.client_id);
        }
        let exchange = Exchange::read(connect.properties);
        if exchange.method.is_some() {
            return self.begin_exchange(shard, pending, exchange);
        }
        // Before the credentials are checked, which costs time. Parts of the program have their name from the start.
        let user = self.peer.identity.as_ref().map(|identity| identity.user().clone());
        if self.is_banned(shard, &pending.client_id, user.as_ref()) {
            return self.refuse_banned(shard, &pending.client_id, user.as_ref());
        }
        let broker = Arc::clone(shard.broker());
        let credentials = Credentials {
            username: connect.username,
            password: connect.password,
            identity: self.peer.identity.as_ref(),
            allow_anonymous: self.peer.listener.allow_anonymous,
            client_id: &pending.client_id,
            address: self.peer.address,
        };
        let (at, address, now) = (self.at, self.peer.address.ip(), shard.wall());
        let reply_to = || {
            let mailboxes = broker.mailboxes.clone();
            ReplyTo::new(move |reply| mailboxes.post(at, BrokerEvent::Authenticated(reply)))
        };
        let applicant = || Applicant { address, reply_to: reply_to() };
        let decision = broker.access_control().check(&credentials, now, applicant);
        let reply = match decision {
            Decision::Now(reply) => Some(reply),
            Decision::Later(login) => {
                pending.login = Some(login);
                None
            }
        };
        self.state = State::Authenticating(Box::new(pending));
        if let Some(reply) = reply {
            self.authenticated(shard, reply);
        }
    }

    /// Handles the result of the authentication.
    pub(super) fn authenticated(&mut self, shard: &mut Shard, reply: AuthReply) {
        let state = std::mem::replace(&mut self.state, State::New);
        let State::Authenticating(pending) = state else {
            self.state = state;
            return;
        };
        let admitted = match reply {
            Ok(admitted) => admitted,
            Err(ReasonCode::ServerBusy) => return self.refuse_for_now(shard),
            Err(ReasonCode::QuotaExceeded) => {
                return self.refuse_memory(shard, pending.client_id(), pending.username());
            }
            // Nothing is known about the credentials, so this is no failed login.
            Err(reason @ ReasonCode::ServerUnavailable) => return self.refuse(shard, reason),
            Err(reason) => return self.login_failed(shard, pending, reason),
        };
        if admitted.user.is_some() && !pending.waited {
            shard.broker().rate_limiter.login_succeeded(self.peer.address.ip());
        }
        self.admit(shard, *pending, admitted);
    }

    /// Refuses a failed login: at once, or later if many from this address have failed.
    fn login_failed(
        &mut self,
        shard: &mut Shard,
        mut pending: Box<PendingConnect>,
        reason: ReasonCode,
    ) {
        shard.metrics().authentication_failed.add(1);
        let now = shard.now();
        let delay = shard.broker().rate_limiter.login_failed(self.peer.address.ip(), now);
        tracing::info!(peer = %self.peer.address, client = &*pending.client_id,
            user = pending.username(), %reason, ?delay, "login refused");
        if delay.is_zero() {
            return self.refuse(shard, reason);
        }
        // All that is needed from now on.
        (pending.will, pending.scram, pending.memory) = (None, None, None);
        pending.late_refusal = Some((now + delay, reason));
        self.state = State::Authenticating(pending);
    }

    /// Whether the client has to wait because taking over the session could publish a will with many receivers, and
    /// other connections wait. The session's owner, and whether the will is due, are checked when its turn comes.
    fn must_give_way(&self, shard: &mut Shard, client_id: &str) -> bool {
        shard.turn.fan_out.must_wait(self.at.token)
            && shard
                .broker()
                .registry
                .will_of(client_id)
                .is_some_and(|will| shard.reaches_many(&will.topic, will.bytes()))
    }

    /// Continues a client that had to wait, if its turn has come.
    pub(super) fn go_on(&mut self, shard: &mut Shard) {
        let State::Authenticating(pending) = &mut self.state else { return };
        if shard.turn.fan_out.is_waiting(self.at.token) {
            return;
        }
        if let Some(admitted) = pending.gives_way.take() {
            self.authenticated(shard, Ok(admitted));
        }
    }

    fn admit(&mut self, shard: &mut Shard, mut pending: PendingConnect, admitted: Admitted) {
        if self.must_give_way(shard, &pending.client_id) {
            shard.turn.fan_out.wait(self.at.token);
            pending.gives_way = Some(admitted);
            self.state = State::Authenticating(Box::new(pending));
            return;
        }
        let user = admitted.user.clone();
        if self.is_banned(shard, &pending.client_id, user.as_ref()) {
            return self.refuse_banned(shard, &pending.client_id, user.as_ref());
        }
        let access_control = shard.broker().access_control();
        let subject = Subject { user: user.as_ref(), client_id: &pending.client_id };
        let until = admitted.until.min(self.certified_until());
        // It may have waited for its login, or for its session's earlier connection.
        let is_late = until <= shard.wall();
        if is_late || access_control.refuses(subject) {
            let why = if is_late { "the token or certificate has expired" } else { BY_STORE };
            return self.refuse_login(shard, subject, why);
        }
        let stored = || access_control.stored_credential(subject);
        let credential = admitted.credential.clone().or_else(stored);
        if let Some(will) = pending.will.as_mut().map(Arc::make_mut) {
            let Some(because) = self.may_leave(shard, &access_control, subject, &will.topic) else {
                return self.refuse(shard, ReasonCode::NotAuthorized);
            };
            will.testator = Testator {
                user: user.clone(),
                address: Some(self.peer.address.ip()),
                until,
                credential: credential.clone(),
                certificate: self.certificate().and_then(|certificate| certificate.number),
                by_login: because == Because::Login,
            };
        }
        let is_stored = pending.expiry_interval_s > 0;
        if Self::refuses_session(shard, &pending.client_id, is_stored, pending.will.is_some()) {
            return self.refuse(shard, ReasonCode::ServerUnavailable);
        }
        self.note_admission(subject.is_exempt(), credential, until, pending.method);
        let limits = shard.broker().limits().clone();
        let (terms, keep_alive_s) = connack_terms(&pending, self.version, &limits);
        self.keep_alive_s = keep_alive_s;
        let longest_s = longest_expiry_s(user.as_ref(), &limits);
        let request = OpenRequest {
            client_id: &pending.client_id,
            clean_start: pending.clean_start,
            version: self.version,
            user,
            site: self.site(),
            mqtt_sn: self.peer.transport == TransportKind::MqttSn,
            expiry_interval_s: pending.expiry_interval_s.min(longest_s),
            max_packet_bytes: pending.max_packet_bytes,
            topic_alias_maximum: pending.topic_alias_maximum,
            window: pending.receive_maximum,
            will: pending.will.clone(),
            attachment: self.at,
            streams: self.peer.transport == TransportKind::Quic,
            again: pending.waited,
        };
        let before = shard.turn.batch_len();
        let opened = match lifecycle::open(&mut shard.turn, request, access_control.session_owner) {
            Ok(opened) => opened,
            Err(why) => return self.not_opened(shard, pending, admitted, why),
        };
        let user = opened.session.lock().user.clone();
        tracing::info!(peer = %self.peer.address, client = opened.session.client_id(),
            user = text_of(user.as_ref()), transport = %self.peer.transport, present = opened.present,
            taken_over = opened.taken_over || pending.took_over, "connected");
        self.list(shard, &opened.session);
        let credential = self.rare.as_ref().and_then(|rare| rare.credential.as_deref());
        if credential.is_some_and(|credential| !access_control.is_good(credential)) {
            // Its change since it was checked may not have found this session.
            shard.turn.notify(self.at, BrokerEvent::Recheck);
        }
        // A session that outlives the connection must be durable before CONNACK promises that.
        let wait_for_storage = shard.turn.batch_len() > before;
        self.greet(shard, opened, &terms, wait_for_storage);
    }

    fn note_admission(
        &mut self,
        is_external: bool,
        credential: Option<Box<str>>,
        until: Timestamp,
        method: Option<Method>,
    ) {
        if is_external {
            self.rare().external_user = true;
        }
        if credential.is_some() {
            self.rare().credential = credential;
        }
        if method.is_some() || until != Timestamp::NEVER {
            let rare = self.rare();
            rare.admitted_until = until;
            rare.method = method;
        }
    }

    /// Answers a client whose session is open.
    fn greet(
        &mut self,
        shard: &mut Shard,
        opened: Opened,
        terms: &PropertyBuf,
        wait_for_storage: bool,
    ) {
        let connack = Connack {
            session_present: opened.present,
            reason: ReasonCode::Success,
            properties: terms.as_properties(),
        };
        let mut packet = Vec::new();
        connack.encode(self.version, &mut packet);
        self.state = State::Connected(opened.session.clone());
        self.greeted = !wait_for_storage;
        self.answer(shard, 0, wait_for_storage, super::Waiting::Packet(packet.into()));
        if let Some(will) = opened.due_will {
            let owner = opened.session.lock().memory_owner();
            crate::housekeeping::publish_will(shard, &opened.session, owner, &will);
        }
        // The credential may have been revoked, and the client banned, before this connection was registered.
        self.recheck(shard);
        self.recheck_ban(shard);
    }

    /// Refuses a client whose session cannot be opened, or lets it wait for its session.
    fn not_opened(
        &mut self,
        shard: &mut Shard,
        mut pending: PendingConnect,
        admitted: Admitted,
        why: NotOpened,
    ) {
        let user = admitted.user.as_ref();
        match why {
            NotOpened::Full => {
                let what = format_args!("connection refused");
                shard.turn.log_bound("max_sessions", &pending.client_id, user, what);
                self.refuse(shard, ReasonCode::QuotaExceeded);
            }
            NotOpened::NoMemory => {
                self.refuse_memory(shard, &pending.client_id, text_of(user));
            }
            NotOpened::Foreign(owner) => {
                self.refuse_foreign(shard, &pending.client_id, user, owner.as_ref());
            }
            NotOpened::Superseded => {
                self.state = State::New;
                let code = u64::from(ReasonCode::SessionTakenOver.as_u8());
                self.end(shard, "session taken over", code);
            }
            NotOpened::NotYet(took_over) => {
                // The other worker's turn ends soon: this worker checks again in its next one.
                pending.waited = true;
                pending.took_over |= took_over;
                self.state = State::Authenticating(Box::new(pending));
                shard.turn.notify(self.at, BrokerEvent::Authenticated(Ok(admitted)));
            }
        }
    }

    /// Counts what a CONNECT takes while it is not known whose it is. False if its address has no room for that.
    fn has_memory_for(&self, shard: &Shard, pending: &mut PendingConnect) -> bool {
        let bytes = pending.bytes();
        if bytes > FREE_CONNECT {
            let owner = shard.broker().memory.owner(None, self.site());
            pending.memory = MemoryShare::reserve(owner, Account::Logins, bytes);
        }
        bytes <= FREE_CONNECT || pending.memory.is_some()
    }

    pub(super) fn site(&self) -> IpAddr {
        site(self.peer.address.ip())
    }
}

/// Checks a CONNECT, and copies what is needed later.
fn pending(
    connect: &Connect<'_>,
    limits: &Limits,
    token: u64,
) -> Result<PendingConnect, ReasonCode> {
    let v5 = connect.version == Version::V5;
    let assigned = connect.client_id.is_empty();
    if assigned && !v5 && !connect.clean_start {
        // 3.1.1 [MQTT-3.1.3-8].
        return Err(ReasonCode::ClientIdentifierNotValid);
    }
    if connect.client_id.len() > limits.max_client_id_bytes {
        return Err(ReasonCode::ClientIdentifierNotValid);
    }
    let client_id = if assigned { assigned_id(token) } else { connect.client_id.into() };
    let kept_forever = if connect.clean_start { 0 } else { u32::MAX };
    let mut pending = PendingConnect {
        client_id,
        assigned,
        clean_start: connect.clean_start,
        keep_alive_s: connect.keep_alive_s,
        expiry_interval_s: if v5 { 0 } else { kept_forever },
        receive_maximum: u16::MAX,
        max_packet_bytes: u32::MAX,
        topic_alias_maximum: 0,
        will: connect.will.as_ref().map(will).transpose()?.map(Arc::new),
        username: connect.username.map(Into::into),
        method: None,
        scram: None,
        server_final: None,
        waited: false,
        took_over: false,
        gives_way: None,
        login: None,
        late_refusal: None,
        memory: None,
    };
    let (mut by_method, mut has_data) = (false, false);
    for property in connect.properties.iter() {
        match property {
            Property::SessionExpiryInterval(seconds) => pending.expiry_interval_s = seconds,
            Property::ReceiveMaximum(most) => pending.receive_maximum = most,
            Property::MaximumPacketSize(most) => pending.max_packet_bytes = most,
            Property::TopicAliasMaximum(most) => pending.topic_alias_maximum = most,
            Property::AuthenticationMethod(name) => {
                by_method = true;
                pending.method = Method::from_name(name);
            }
            Property::AuthenticationData(_) => has_data = true,
            _ => {}
        }
    }
    if has_data && !by_method {
        // Section 3.1.2.11.10.
        return Err(ReasonCode::ProtocolError);
    }
    Ok(pending)
}

fn will(will: &LastWill<'_>) -> Result<Will, ReasonCode> {
    check_name(will.topic).map_err(|_| ReasonCode::TopicNameInvalid)?;
    let mut properties = Vec::new();
    let (mut delay_s, mut message_expiry_s) = (0, None);
    let mut kept = PropertyBuf::new();
    for property in will.properties.iter() {
        match property {
            Property::WillDelayInterval(seconds) => delay_s = seconds,
            Property::MessageExpiryInterval(seconds) => message_expiry_s = Some(seconds),
            other => {
                kept.push(other);
            }
        }
    }
    kept.as_properties().forwardable_into(&mut properties);
    Ok(Will {
        topic: will.topic.into(),
        properties: properties.into(),
        payload: will.payload.into(),
        qos: will.qos,
        retain: will.retain,
        delay_s,
        message_expiry_s,
        // Not known yet.
        testator: Testator::default(),
    })
}

/// A client identifier for a client that sent none. It is random, so that nobody can guess it and take the session
/// over.
fn assigned_id(token: u64) -> Box<str> {
    use std::hash::{BuildHasher, RandomState};
    let (a, b) = (RandomState::new().hash_one(token), RandomState::new().hash_one(token));
    format!("auto-{a:016x}{b:016x}").into()
}

/// Bytes of the CONNACK of success; 0 if the client accepts packets of any size.
fn connack_bytes(pending: &PendingConnect, version: Version, limits: &Limits) -> usize {
    if pending.max_packet_bytes == u32::MAX {
        return 0;
    }
    let (terms, _) = connack_terms(pending, version, limits);
    let (reason, properties) = (ReasonCode::Success, terms.as_properties());
    let mut packet = Vec::new();
    Connack { session_present: false, reason, properties }.encode(version, &mut packet);
    let later = if pending.method == Some(Method::Scram) { SERVER_FINAL_BYTES } else { 0 };
    packet.len() + later
}

/// Longest session expiry interval in seconds. What waits for a part of the program outlasts any stop of the server.
fn longest_expiry_s(user: Option<&User>, limits: &Limits) -> u32 {
    if User::is_program(user) { u32::MAX } else { limits.max_session_expiry_s }
}

/// CONNACK's properties, and the resulting keep alive.
fn connack_terms(
    pending: &PendingConnect,
    version: Version,
    limits: &Limits,
) -> (PropertyBuf, u16) {
    let mut terms = PropertyBuf::new();
    terms
        .push(Property::ReceiveMaximum(limits.receive_maximum.max(1)))
        .push(Property::TopicAliasMaximum(limits.topic_alias_maximum));
    if let Ok(most) = u32::try_from(limits.max_packet_bytes) {
        terms.push(Property::MaximumPacketSize(most));
    }
    if pending.expiry_interval_s > limits.max_session_expiry_s {
        terms.push(Property::SessionExpiryInterval(limits.max_session_expiry_s));
    }
    if let Some(method) = pending.method {
        terms.push(Property::AuthenticationMethod(method.name()));
    }
    if let Some(data) = &pending.server_final {
        terms.push(Property::AuthenticationData(data.as_bytes()));
    }
    if pending.assigned {
        terms.push(Property::AssignedClientIdentifier(&pending.client_id));
    }
    let asked = pending.keep_alive_s;
    let keep_alive_s = match limits.max_keep_alive_s {
        // A 3.1.1 client cannot be sent another value, and would be disconnected although it keeps to its own.
        Some(most) if version == Version::V5 && (asked == 0 || asked > most) => {
            terms.push(Property::ServerKeepAlive(most));
            most
        }
        _ => asked,
    };
    (terms, keep_alive_s)
}
