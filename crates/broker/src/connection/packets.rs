//! Handles the packets of a connected client: PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, DISCONNECT
//! (MQTT 5.0, sections 3.3 to 3.7 and 3.14).
//!
//! The client's answers to our publications (PUBACK, PUBREC, PUBCOMP) continue in [`crate::client_acks`]; PUBREL, which
//! ends a publication of the client, is handled here.

use std::sync::Arc;

use fulmar_auth::access::{Action, Subject};
use fulmar_auth::{CONTROL_PREFIX, Timestamp, User, Vouched, text_of};
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::codec::{Frame, decode};
use fulmar_mqtt::packet::{Disconnect, Publish};
use fulmar_mqtt::session::{AckError, InboundQos2};
use fulmar_mqtt::topic::{TopicError, check_name};
use fulmar_mqtt::{Packet, PacketId, Properties, Property, QoS, ReasonCode, Version};

use super::connect::is_connect;
use super::stall::STALLED;
use super::{Connection, State, Waiting};
use crate::lifecycle::Departure;
use crate::message::MessageParts;
use crate::publish_hook::Arrival;
use crate::retained::RetainedFull;
use crate::session::{Session, SessionState};
use crate::shard::Shard;
use crate::storage::{FlowId, Op};
use crate::turn::Turn;

/// Longest topic that a connection remembers as allowed.
const MAX_REMEMBERED_TOPIC_BYTES: usize = 256;

/// The properties of a PUBLISH that concern this hop only.
#[derive(Default)]
struct Hop {
    alias: Option<u16>,
    expires_at: Option<Timestamp>,
    /// Some properties must not be forwarded unchanged.
    rewrite: bool,
    illegal: bool,
}

impl Hop {
    fn read(properties: Properties<'_>, now: Timestamp) -> Hop {
        let mut hop = Hop::default();
        if properties.is_empty() {
            return hop;
        }
        for property in properties.iter() {
            match property {
                Property::TopicAlias(alias) => (hop.alias, hop.rewrite) = (Some(alias), true),
                Property::MessageExpiryInterval(seconds) => {
                    (hop.expires_at, hop.rewrite) = (Some(now.plus_secs(seconds)), true);
                }
                // [MQTT-3.3.4-6]: only servers send it.
                Property::SubscriptionIdentifier(_) => hop.illegal = true,
                Property::ResponseTopic(topic) => hop.illegal |= check_name(topic).is_err(),
                _ => {}
            }
        }
        hop
    }
}

impl Connection {
    /// Handles one complete packet on a stream that has a flow.
    pub(super) fn handle_frame(
        &mut self,
        shard: &mut Shard,
        stream_index: usize,
        frame: &Frame<'_>,
    ) {
        let State::Connected(session) = &self.state else {
            return self.handle_first(shard, frame);
        };
        let session = Arc::clone(session);
        match decode(frame, self.version) {
            Ok(Packet::Publish(publish)) => {
                if self.charge_publish(shard, frame.len) {
                    self.handle_publish(shard, stream_index, &session, &publish);
                }
            }
            Ok(Packet::Ack(kind, ack)) => {
                self.handle_ack(shard, stream_index, &session, kind, ack.packet_id, ack.reason);
            }
            Ok(packet) => self.handle_other(shard, stream_index, &session, packet),
            // Even if the second CONNECT is malformed.
            Err(_) if is_connect(frame.first) => {
                let why = "a second CONNECT";
                self.refuse_packet(shard, ReasonCode::ProtocolError, &why);
            }
            Err(_) if is_server_only(frame.packet_type()) => {
                let why = "a packet that only servers send";
                self.refuse_packet(shard, ReasonCode::ProtocolError, &why);
            }
            Err(error) => self.refuse_packet(shard, error.reason(), &error),
        }
    }

    fn handle_other(
        &mut self,
        shard: &mut Shard,
        stream_index: usize,
        session: &Arc<Session>,
        packet: Packet<'_>,
    ) {
        let control = stream_index == 0;
        match packet {
            Packet::Subscribe(packet) => {
                self.handle_subscribe(shard, stream_index, session, &packet)
            }
            Packet::Unsubscribe(packet) => {
                self.handle_unsubscribe(shard, stream_index, session, &packet)
            }
            Packet::Auth(packet) if control => self.handle_auth(shard, session, &packet),
            Packet::Pingreq => {
                let mut pingresp = Vec::new();
                Packet::Pingresp.encode(self.version, &mut pingresp);
                let pingresp = Waiting::Packet(pingresp.into());
                if self.greeted && !self.streams[stream_index].key.is_unidirectional() {
                    // Not behind acknowledgements that wait for storage: the client would give the connection up.
                    self.answer_now(shard, stream_index, pingresp);
                } else {
                    // Behind a CONNACK that waits for storage ([MQTT-3.2.0-1]).
                    self.answer(shard, stream_index, false, pingresp);
                }
            }
            Packet::Disconnect(packet) if control => self.handle_disconnect(shard, &packet),
            packet => {
                let why = format_args!("{} is not allowed here", packet.name()).to_string();
                self.refuse_packet(shard, ReasonCode::ProtocolError, &why);
            }
        }
    }

    fn handle_publish(
        &mut self,
        shard: &mut Shard,
        stream_index: usize,
        session: &Arc<Session>,
        publish: &Publish<'_>,
    ) {
        shard.metrics().messages_received.add(1);
        let hop = Hop::read(publish.properties, shard.now());
        if hop.illegal {
            let why = "PUBLISH carries a property only servers send, or a bad response topic";
            return self.refuse_packet(shard, ReasonCode::ProtocolError, &why);
        }
        let aliased: Box<str>;
        let topic = match hop.alias {
            None => publish.topic,
            Some(alias) => {
                match self.resolve_alias(shard, stream_index, session, alias, publish.topic) {
                    Ok(topic) => {
                        aliased = topic;
                        &aliased
                    }
                    Err(reason) => return self.refuse_alias(shard, alias, reason),
                }
            }
        };
        if let Err(error) = check_name(topic) {
            // Section 3.3.2.3.4: no name, and no alias to stand for one.
            let reason = match error {
                TopicError::Empty => ReasonCode::ProtocolError,
                _ => ReasonCode::TopicNameInvalid,
            };
            return self.refuse_packet(shard, reason, &error);
        }
        let mut reason = self.may_publish(shard, session, topic);
        // Of 3.1.1, what cannot be refused was left unread; what is here is stored.
        let may_refuse = self.version == Version::V5 || publish.qos == QoS::AtMostOnce;
        if !reason.is_error()
            && may_refuse
            && shard.turn.is_stalled()
            && self.refuses_publish(shard, stream_index, session, topic, publish)
        {
            shard.metrics().storage_refused.add(1);
            reason = STALLED;
        }
        let forwarded: Vec<u8>;
        let properties = if hop.rewrite {
            let mut kept = Vec::new();
            publish.properties.forwardable_into(&mut kept);
            forwarded = kept;
            &forwarded[..]
        } else {
            publish.properties.raw()
        };
        let stamped = if reason.is_error() {
            None
        } else {
            Connection::note_publisher(shard, session, topic);
            self.stamp(shard, session, topic, properties, publish)
        };
        let parts = MessageParts {
            topic,
            properties: stamped.as_deref().unwrap_or(properties),
            payload: publish.payload,
            qos: publish.qos,
            retain: publish.retain,
            expires_at: hop.expires_at,
            publisher: session.publisher(),
        };
        if publish.retain {
            shard.turn.retainer = session.lock().memory_owner();
        }
        match (publish.qos, publish.packet_id) {
            (QoS::AtLeastOnce, Some(id)) => {
                self.publish_qos1(shard, stream_index, parts, id, reason)
            }
            (QoS::ExactlyOnce, Some(id)) => {
                self.publish_qos2(shard, stream_index, session, parts, id, reason);
            }
            _ if reason.is_error() => {}
            _ if topic.starts_with(CONTROL_PREFIX) => {
                self.control(shard, &parts);
            }
            _ => {
                shard.publish(parts);
            }
        }
        if publish.retain {
            shard.turn.retainer = None;
        }
        if shard.turn.is_traced() {
            shard.turn.trace_handled();
        }
    }

    /// The publication's properties with those that the publish hook adds, if it adds any. Asks the tracer as well.
    fn stamp(
        &self,
        shard: &mut Shard,
        session: &Session,
        topic: &str,
        properties: &[u8],
        publish: &Publish<'_>,
    ) -> Option<Vec<u8>> {
        let (client_id, packet_id, dup) = (session.client_id(), publish.packet_id, publish.dup);
        let payload = publish.payload;
        let (hook, tracer) = (shard.broker().publish_hook(), shard.broker().tracer());
        if hook.is_none() && tracer.is_none() {
            return None;
        }
        let is_external = self.rare.as_ref().is_some_and(|rare| rare.external_user);
        let user = is_external.then(|| session.lock().user.clone()).flatten();
        let external_user = match user.as_ref().map(User::vouched) {
            Some(Vouched::External(name)) => Some(name),
            _ => None,
        };
        let arrival =
            Arrival { topic, payload, properties, client_id, external_user, packet_id, dup };
        let added = hook.and_then(|hook| hook.stamp(&arrival));
        if let Some(tracer) = tracer {
            let number = tracer.received(&arrival);
            shard.turn.trace_next(number);
        }
        let added = added?;
        Some([properties, &added].concat())
    }

    fn publish_qos1(
        &mut self,
        shard: &mut Shard,
        stream_index: usize,
        parts: MessageParts<'_>,
        id: PacketId,
        reason: ReasonCode,
    ) {
        let before = shard.turn.batch_len();
        let reason = self.publish_unless_denied(shard, parts, reason);
        let wait_for_storage = shard.turn.batch_len() > before;
        self.answer(
            shard,
            stream_index,
            wait_for_storage,
            Waiting::Ack(AckKind::Puback, id, reason),
        );
    }

    fn publish_qos2(
        &mut self,
        shard: &mut Shard,
        stream_index: usize,
        session: &Arc<Session>,
        parts: MessageParts<'_>,
        id: PacketId,
        reason: ReasonCode,
    ) {
        let before = shard.turn.batch_len();
        // A client of 3.1.1 cannot know it: its identifiers are the bound, and count as memory.
        let maximum = match self.version {
            Version::V5 => shard.broker().limits().receive_maximum,
            Version::V311 => u16::MAX,
        };
        let flow_id = self.flow_of(stream_index);
        let mut state = session.lock();
        let durable = state.durable;
        if !state.is_attached(self.at) {
            return;
        }
        let Some(index) = state.flow_index(flow_id) else { return };
        let is_open = state.flows[index].inbound.is_open(id);
        let is_full = !is_open && !reason.is_error() && !state.may_open_identifier(index);
        let reason = if is_full { ReasonCode::QuotaExceeded } else { reason };
        if is_full {
            state.refused_memory(session, &mut shard.turn, "QoS 2 message refused");
        }
        // An error ends the exchange ([MQTT-4.3.3-9]). A duplicate of a message accepted before its topic was denied
        // still succeeds: after an error, its client could reuse an identifier that is not released yet.
        if reason.is_error() && !is_open {
            drop(state);
            if is_full && self.version == Version::V311 {
                // It would take any acknowledgement as success.
                let why = "the user's sessions have their share of [limits] memory";
                return self.refuse_packet(shard, reason, &why);
            }
            return self.answer(
                shard,
                stream_index,
                false,
                Waiting::Ack(AckKind::Pubrec, id, reason),
            );
        }
        let flow = &mut state.flows[index];
        let received = flow.inbound.publish(id, maximum);
        let (open, flow_is_stored) = (flow.inbound.len(), flow.is_stored());
        if received == InboundQos2::New {
            state.identifiers_changed(session, open - 1, open);
        }
        state.last_turn = shard.turn.awaitable_stamp();
        drop(state);
        let reason = match received {
            InboundQos2::TooMany => {
                let why = "more QoS 2 messages than the receive maximum are open";
                return self.refuse_packet(shard, ReasonCode::ReceiveMaximumExceeded, &why);
            }
            InboundQos2::Duplicate => ReasonCode::Success,
            InboundQos2::New => self.publish_unless_denied(shard, parts, reason),
        };
        if reason.is_error() {
            release(&mut session.lock(), session, flow_id, id);
        } else if received == InboundQos2::New && durable && flow_is_stored {
            let (session, flow) = (session.key(), flow_id);
            shard.turn.op(Op::InboundReceived { session, flow, packet_id: id });
        }
        // A duplicate's first copy may not be durable yet, so its answer waits as well.
        let wait_for_storage = durable || shard.turn.batch_len() > before;
        self.answer(
            shard,
            stream_index,
            wait_for_storage,
            Waiting::Ack(AckKind::Pubrec, id, reason),
        );
    }

    fn handle_ack(
        &mut self,
        shard: &mut Shard,
        stream_index: usize,
        session: &Arc<Session>,
        kind: AckKind,
        id: PacketId,
        reason: ReasonCode,
    ) {
        let flow = self.flow_of(stream_index);
        let turn = &mut shard.turn;
        let mut state = session.lock();
        if !state.is_attached(self.at) {
            return;
        }
        state.last_turn = turn.awaitable_stamp();
        let unknown = ReasonCode::PacketIdentifierNotFound;
        let answer = match kind {
            AckKind::Pubrec if !reason.is_error() => {
                match state.handle_pubrec(session, turn, flow, id) {
                    Ok(wait_for_storage) => {
                        Ok(Some((AckKind::Pubrel, wait_for_storage, ReasonCode::Success)))
                    }
                    Err(AckError::Unknown(_)) => Ok(Some((AckKind::Pubrel, false, unknown))),
                    Err(error) => Err(error),
                }
            }
            AckKind::Pubrel => {
                let known = handle_pubrel(&mut state, session, turn, flow, id);
                let reason = if known { ReasonCode::Success } else { unknown };
                // A repeated PUBREL's first release may not be durable yet, so its PUBCOMP waits as well.
                Ok(Some((AckKind::Pubcomp, state.durable, reason)))
            }
            _ => state.handle_last_ack(session, turn, flow, kind, id).map(|()| None),
        };
        drop(state);
        match answer {
            Ok(Some((kind, wait_for_storage, reason))) => {
                self.answer(shard, stream_index, wait_for_storage, Waiting::Ack(kind, id, reason));
            }
            // An acknowledgement with an unknown identifier is not an error: the message may have expired or been
            // dropped.
            Ok(None) | Err(AckError::Unknown(_)) => {}
            // An acknowledgement that does not belong to the message's quality of service, or is out of order, is
            // an error.
            Err(error) => self.refuse_packet(shard, ReasonCode::ProtocolError, &error),
        }
    }

    fn handle_disconnect(&mut self, shard: &mut Shard, packet: &Disconnect<'_>) {
        let expiry = fulmar_mqtt::find_property!(packet.properties, SessionExpiryInterval);
        if let (State::Connected(session), Some(1..)) = (&self.state, expiry)
            && session.lock().expiry_interval_s == 0
        {
            // Section 3.14.2.2.2: an expiry of 0 at CONNECT cannot be raised.
            let why = "session expiry was 0 at CONNECT and cannot be set at DISCONNECT";
            return self.refuse_packet(shard, ReasonCode::ProtocolError, &why);
        }
        self.leave(
            shard,
            Departure {
                discard_will: packet.reason != ReasonCode::DisconnectWithWill,
                expiry_interval_s: expiry,
            },
            "by the client",
        );
        self.end(shard, "client disconnected", 0);
    }

    fn publish_unless_denied(
        &self,
        shard: &mut Shard,
        parts: MessageParts<'_>,
        reason: ReasonCode,
    ) -> ReasonCode {
        if reason.is_error() {
            return reason;
        }
        if parts.topic.starts_with(CONTROL_PREFIX) {
            return self.control(shard, &parts);
        }
        // A 3.1.1 client takes any acknowledgement as success, so its message is delivered even if it cannot be
        // retained.
        shard.turn.memory_refused = false;
        match shard.publish_or_refuse(parts, self.version == Version::V5) {
            // Its receivers have no room for it now, and later they may: the client can send it again.
            Ok(0) if shard.turn.memory_refused && !parts.retain && self.version == Version::V5 => {
                ReasonCode::QuotaExceeded
            }
            Ok(0) => ReasonCode::NoMatchingSubscribers,
            Ok(_) => ReasonCode::Success,
            Err(RetainedFull) => ReasonCode::QuotaExceeded,
        }
    }

    pub(super) fn flow_of(&self, stream_index: usize) -> FlowId {
        self.streams[stream_index].flow.unwrap_or(FlowId::CONTROL)
    }

    fn may_publish(&mut self, shard: &mut Shard, session: &Session, topic: &str) -> ReasonCode {
        let external_user = self.rare.as_ref().is_some_and(|rare| rare.external_user);
        let known = !external_user && !topic.starts_with('$') && *self.allowed_topic == *topic;
        if known || !external_user && shard.is_open_to(topic) {
            return ReasonCode::Success;
        }
        let access_control = shard.broker().access_control();
        let user = session.lock().user.clone();
        let subject = Subject { user: user.as_ref(), client_id: session.client_id() };
        if access_control.allows(subject, Action::Publish, topic) {
            // Remembered for the next one; long topics would take memory that nobody counts.
            if topic.len() <= MAX_REMEMBERED_TOPIC_BYTES {
                self.allowed_topic = topic.into();
            }
            return ReasonCode::Success;
        }
        self.deny(shard, session, topic)
    }

    fn deny(&self, shard: &Shard, session: &Session, topic: &str) -> ReasonCode {
        shard.metrics().access_denied.add(1);
        tracing::info!(peer = %self.peer.address, client = session.client_id(),
            user = text_of(session.lock().user.as_ref()), topic, "publication denied");
        // A 3.1.1 client takes any acknowledgement as success; the message is dropped all the same.
        ReasonCode::NotAuthorized
    }
}

/// PUBREL from the client: ends the exchange of a QoS 2 message that the client has published, and frees its packet
/// identifier ([MQTT-4.3.3-12]). Returns false if the identifier is not in use.
fn handle_pubrel(
    state: &mut SessionState,
    session: &Session,
    turn: &mut Turn,
    flow: FlowId,
    packet_id: PacketId,
) -> bool {
    let stored = release(state, session, flow, packet_id);
    if stored == Some(true) && state.durable {
        let session = session.key();
        turn.op(Op::InboundReleased { session, flow, packet_id });
    }
    stored.is_some()
}

/// Frees a publisher's packet identifier. Says whether the flow is stored; `None` if the identifier is not in use.
fn release(
    state: &mut SessionState,
    session: &Session,
    flow: FlowId,
    packet_id: PacketId,
) -> Option<bool> {
    let flow = state.flow_mut(flow)?;
    let known = flow.inbound.release(packet_id);
    let (open, is_stored) = (flow.inbound.len(), flow.is_stored());
    if !known {
        return None;
    }
    state.identifiers_changed(session, open + 1, open);
    Some(is_stored)
}

/// Whether only servers send packets of this type.
fn is_server_only(packet_type: u8) -> bool {
    matches!(packet_type, 2 | 9 | 11 | 13)
}
