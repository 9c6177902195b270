//! CONNECT: who is there, what session, on what terms (sections 3.1 and 3.2).

use std::sync::Arc;

use fulmar_mqtt::codec::Frame;
use fulmar_mqtt::packet::{Connack, Connect, LastWill};
use fulmar_mqtt::topic::check_name;
use fulmar_mqtt::{Packet, Property, PropertyBuf, ReasonCode, Version};

use super::auth::{Exchange, METHOD};
use super::{Connection, State};
use crate::access::Subject;
use crate::auth::{Admitted, AuthReply, Credentials, GUEST_PREFIX, ReplyTo};
use crate::limits::Limits;
use crate::peer::TransportKind;
use crate::registry::OpenRequest;
use crate::shard::Shard;
use crate::time::Timestamp;
use crate::will::Will;

/// Whether a packet may be acted on before the QUIC handshake is complete. A first flight can be
/// recorded and sent again by somebody else; tickets that work once (the transport's part) make
/// sure that it is never acted on twice, and of what is acted on at all only these are needed to
/// save the round trip: CONNECT, PUBLISH and PUBREL.
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
    /// The client gave none and got this one.
    assigned: bool,
    clean_start: bool,
    keep_alive_s: u16,
    expiry_interval_s: u32,
    receive_maximum: u16,
    max_packet_bytes: u32,
    will: Option<Arc<Will>>,
    /// As the client gave it.
    username: Option<Box<str>>,
    /// Enhanced authentication was asked for.
    by_method: bool,
    /// The login has failed; when that is to be answered.
    pub(super) late_refusal: Option<(Timestamp, ReasonCode)>,
}

impl PendingConnect {
    pub(super) fn username(&self) -> Option<&str> {
        self.username.as_deref()
    }

    pub(super) fn client_id(&self) -> &str {
        &self.client_id
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
                // A client of an unknown version is told in the oldest form there is.
                if error.reason() == ReasonCode::UnsupportedProtocolVersion {
                    self.version = Version::V311;
                }
                self.refuse(shard, error.reason());
            }
        }
    }

    fn handle_connect(&mut self, shard: &mut Shard, connect: &Connect<'_>) {
        self.version = connect.version;
        self.bridge = connect.bridge;
        let pending = match pending(connect, shard.broker().limits(), self.at.token.0) {
            Ok(pending) => pending,
            Err(reason) => return self.refuse(shard, reason),
        };
        let exchange = Exchange::read(connect.properties);
        if exchange.method.is_some() {
            return self.begin_exchange(shard, pending, connect, exchange);
        }
        let broker = Arc::clone(shard.broker());
        let credentials = Credentials {
            username: connect.username,
            password: connect.password,
            certificate: self.peer.identity.as_deref(),
            allow_anonymous: self.peer.listener.allow_anonymous,
        };
        let at = self.at;
        let reply_to = || ReplyTo { broker: Arc::clone(&broker), at };
        let reply = broker.gate().check(&credentials, shard.now(), reply_to);
        self.state = State::Authenticating(Box::new(pending));
        if let Some(reply) = reply {
            self.authenticated(shard, reply);
        }
    }

    /// The gate has decided.
    pub(super) fn authenticated(&mut self, shard: &mut Shard, reply: AuthReply) {
        let state = std::mem::replace(&mut self.state, State::New);
        let State::Authenticating(pending) = state else {
            self.state = state;
            return;
        };
        let admitted = match reply {
            Ok(admitted) => admitted,
            Err(reason) => return self.login_failed(shard, pending, reason),
        };
        self.admit(shard, *pending, admitted);
    }

    /// Answers a failed login: at once, or late if many from this address have failed.
    fn login_failed(
        &mut self,
        shard: &mut Shard,
        mut pending: Box<PendingConnect>,
        reason: ReasonCode,
    ) {
        shard.metrics().authentication_failed.add(1);
        let now = shard.now();
        let delay = shard.broker().doorman().login_failed(self.peer.address.ip(), now);
        tracing::info!(peer = %self.peer.address, client = &*pending.client_id, %reason, ?delay,
            "login refused");
        if delay.is_zero() {
            return self.refuse(shard, reason);
        }
        pending.late_refusal = Some((now + delay, reason));
        self.state = State::Authenticating(pending);
    }

    fn admit(&mut self, shard: &mut Shard, pending: PendingConnect, admitted: Admitted) {
        let username = admitted.username;
        let gate = shard.broker().gate();
        if let Some(will) = &pending.will {
            let subject = Subject { username: username.as_deref(), client_id: &pending.client_id };
            if !gate.may_publish(subject, &will.topic) {
                shard.metrics().access_denied.add(1);
                tracing::info!(peer = %self.peer.address, client = &*pending.client_id,
                    topic = &*will.topic, "will denied, connection refused");
                return self.refuse(shard, ReasonCode::NotAuthorized);
            }
        }
        if username.as_deref().is_some_and(|name| name.starts_with(GUEST_PREFIX)) {
            let rare = self.rare();
            (rare.guest, rare.ticket) = (true, admitted.ticket);
        }
        let limits = shard.broker().limits().clone();
        let (terms, keep_alive_s) = connack_terms(&pending, &limits);
        self.keep_alive_s = keep_alive_s;
        if pending.by_method || admitted.until != Timestamp::NEVER {
            let rare = self.rare();
            rare.admitted_until = admitted.until;
            rare.by_method = pending.by_method;
        }
        let request = OpenRequest {
            client_id: &pending.client_id,
            clean_start: pending.clean_start,
            version: self.version,
            username,
            expiry_interval_s: pending.expiry_interval_s.min(limits.max_session_expiry_s),
            max_packet_bytes: pending.max_packet_bytes,
            window: pending.receive_maximum,
            will: pending.will,
            attachment: self.at,
            streams: self.peer.transport == TransportKind::Quic,
        };
        let broker = Arc::clone(shard.broker());
        let before = shard.turn.batch_len();
        let opened = match broker.registry().open(&mut shard.turn, request) {
            Ok(opened) => opened,
            Err(reason) => return self.refuse(shard, reason),
        };
        tracing::debug!(peer = %self.peer.address, client = opened.session.client_id(),
            transport = %self.peer.transport, present = opened.present, "connected");
        let connack = Connack {
            session_present: opened.present,
            reason: ReasonCode::Success,
            properties: terms.as_properties(),
        };
        // A session that is promised to outlive the connection is durable before it is promised.
        let stored = shard.turn.batch_len() > before;
        let mut packet = Vec::new();
        connack.encode(self.version, &mut packet);
        self.state = State::Connected(opened.session.clone());
        self.greeted = !stored;
        self.answer(shard, 0, stored, super::Waiting::Packet(packet.into()));
        if let Some(will) = opened.due_will {
            crate::chores::publish_will(shard, opened.session.key().0, &will);
        }
        // It may have been taken back before this connection was known to be there.
        self.recheck(shard);
    }

    /// Answers CONNECT with an error and closes.
    pub(super) fn refuse(&mut self, shard: &mut Shard, reason: ReasonCode) {
        shard.metrics().connect_refused.add(1);
        let properties = fulmar_mqtt::Properties::NONE;
        let connack = Connack { session_present: false, reason, properties };
        connack.encode(self.version, &mut self.streams[0].out);
        self.state = State::New;
        self.end(shard, reason.text(), u64::from(reason.as_u8()));
    }
}

/// Checks a CONNECT and keeps what outlives its bytes.
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
        will: connect.will.as_ref().map(will).transpose()?.map(Arc::new),
        username: connect.username.map(Into::into),
        by_method: false,
        late_refusal: None,
    };
    let mut has_data = false;
    for property in connect.properties.iter() {
        match property {
            Property::SessionExpiryInterval(seconds) => pending.expiry_interval_s = seconds,
            Property::ReceiveMaximum(most) => pending.receive_maximum = most,
            Property::MaximumPacketSize(most) => pending.max_packet_bytes = most,
            Property::AuthenticationMethod(_) => pending.by_method = true,
            Property::AuthenticationData(_) => has_data = true,
            _ => {}
        }
    }
    if has_data && !pending.by_method {
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
    })
}

/// A client identifier for one that gave none: unguessable, so that nobody can take the session
/// over by counting.
fn assigned_id(token: u64) -> Box<str> {
    use std::hash::{BuildHasher, RandomState};
    let (a, b) = (RandomState::new().hash_one(token), RandomState::new().hash_one(token));
    format!("auto-{a:016x}{b:016x}").into()
}

/// CONNACK's properties, and the keep alive that holds.
fn connack_terms(pending: &PendingConnect, limits: &Limits) -> (PropertyBuf, u16) {
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
    if pending.by_method {
        terms.push(Property::AuthenticationMethod(METHOD));
    }
    if pending.assigned {
        terms.push(Property::AssignedClientIdentifier(&pending.client_id));
    }
    let asked = pending.keep_alive_s;
    let keep_alive_s = match limits.max_keep_alive_s {
        Some(most) if asked == 0 || asked > most => {
            terms.push(Property::ServerKeepAlive(most));
            most
        }
        _ => asked,
    };
    (terms, keep_alive_s)
}
