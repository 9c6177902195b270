//! Handles the server's packets (sections 3.2 to 3.15, a client's side of 4.3).

use std::time::Instant;

use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::codec::{decode, peek_frame};
use fulmar_mqtt::packet::{Ack, Connack, Publish, SubscribeOptions};
use fulmar_mqtt::session::{AckError, Inbound, InboundQos2, TopicAliases};
use fulmar_mqtt::topic::check_name;
use fulmar_mqtt::{Packet, PacketId, Properties, Property, QoS, ReasonCode};

use super::flow::{Ask, NO_LIMITS};
use super::stream_map::{Accepted, CONTROL};
use super::{Ahead, Machine, Outcome, Phase, TOPIC_ALIAS_MAXIMUM, seconds};
use crate::error::Error;
use crate::message::{Message, Receipt};

/// Why the connection has to end, and the reason code for the server.
struct Failure {
    error: Error,
    answer: Option<ReasonCode>,
}

fn broken(reason: ReasonCode, text: impl ToString) -> Failure {
    Failure { error: Error::Protocol(text.to_string()), answer: Some(reason) }
}

/// Whether only clients send packets of this type.
fn is_clients_alone(packet_type: u8) -> bool {
    matches!(packet_type, 1 | 8 | 10 | 12)
}

impl<P, R> Machine<P, R> {
    /// Handles bytes from the server on one flow; returns how many were whole packets and have been handled.
    ///
    /// # Errors
    /// The connection is to be ended, after what is left of the control flow's output.
    pub fn receive(&mut self, now: Instant, flow: usize, bytes: &[u8]) -> Result<usize, Error> {
        (self.last_received, self.ping_sent) = (now, None);
        self.stream_map.heard(flow);
        let mut done = 0;
        let handled = loop {
            match self.handle_packet(flow, &bytes[done..]) {
                Ok(0) => break Ok(done),
                Ok(used) => done += used,
                Err(failure) => break Err(failure),
            }
        };
        self.pump();
        handled.map_err(|failure| {
            // Before CONNACK, a client cannot send a reason ([MQTT-3.14.0-1] is the server's).
            if let Some(reason) = failure.answer.filter(|_| self.phase == Phase::Up) {
                self.put_disconnect(reason);
            }
            failure.error
        })
    }

    fn handle_packet(&mut self, flow: usize, bytes: &[u8]) -> Result<usize, Failure> {
        let limit = self.options.max_packet_bytes as usize;
        let frame = peek_frame(bytes, limit).map_err(|error| broken(error.reason(), error))?;
        let Some(frame) = frame else { return Ok(0) };
        if is_clients_alone(frame.packet_type()) {
            let text = "a packet that only clients send";
            return Err(broken(ReasonCode::ProtocolError, text));
        }
        let packet =
            decode(&frame, self.options.version).map_err(|error| broken(error.reason(), error))?;
        match (self.phase, packet) {
            (Phase::Opening(ahead), Packet::Connack(connack)) => self.connack(&connack, ahead)?,
            (Phase::Opening(_), Packet::Auth(auth)) => {
                self.sign_in(&auth).map_err(|error| Failure { error, answer: None })?;
            }
            (Phase::Opening(_), other) => {
                let text = format!("{} before CONNACK", other.name());
                return Err(broken(ReasonCode::ProtocolError, text));
            }
            (_, packet) => self.packet(flow, packet)?,
        }
        Ok(frame.len)
    }

    fn packet(&mut self, flow: usize, packet: Packet<'_>) -> Result<(), Failure> {
        match packet {
            Packet::Publish(publish) => self.received(flow, &publish),
            Packet::Ack(AckKind::Pubrel, ack) => {
                let known = self.flows[flow].inbound.release(ack.packet_id);
                let reason =
                    if known { ReasonCode::Success } else { ReasonCode::PacketIdentifierNotFound };
                self.put_ack(flow, AckKind::Pubcomp, ack.packet_id, reason);
                Ok(())
            }
            Packet::Ack(kind, ack) => self.acknowledged(flow, kind, &ack),
            Packet::Suback(suback) => self.answered(flow, suback.packet_id, suback.codes),
            Packet::Unsuback(unsuback) => self.answered(flow, unsuback.packet_id, unsuback.codes),
            Packet::Pingresp => Ok(()),
            Packet::Disconnect(disconnect) if flow == CONTROL => {
                self.note_reference(disconnect.reason, disconnect.properties);
                Err(Failure { error: Error::Disconnected(disconnect.reason), answer: None })
            }
            other => {
                let text = format!("unexpected {}", other.name());
                Err(broken(ReasonCode::ProtocolError, text))
            }
        }
    }

    fn connack(&mut self, connack: &Connack<'_>, ahead: Ahead) -> Result<(), Failure> {
        if connack.reason.is_error() {
            self.note_reference(connack.reason, connack.properties);
            return Err(Failure { error: self.refused(connack), answer: None });
        }
        if self.options.scram {
            self.sign_in.check(connack).map_err(|error| Failure { error, answer: None })?;
        }
        // [MQTT-3.2.2-2]: a new session cannot be present.
        if connack.session_present && self.clean_start() {
            let text = "session present after a clean start";
            return Err(broken(ReasonCode::ProtocolError, text));
        }
        let session_present = connack.session_present;
        self.phase = Phase::Up;
        self.desk.up = true;
        let first = !std::mem::replace(&mut self.connected_before, true);
        self.take_terms(connack);
        self.desk.outcomes.push_back(Outcome::Connected { session_present });
        self.early_data_sent();
        let control = &mut self.flows[CONTROL];
        if !session_present {
            control.inbound = Inbound::new();
        }
        // If publications were sent ahead of CONNACK, those in flight were sent on this connection.
        match (ahead, session_present) {
            (Ahead::Modest | Ahead::All, _) => {}
            (Ahead::Requests | Ahead::Nothing, true) => control.resume(),
            (Ahead::Requests | Ahead::Nothing, false) => {
                let doubtful = control.forgotten(&mut self.desk);
                self.doubt(doubtful);
            }
        }
        self.streams_up(session_present, first);
        Ok(())
    }

    fn note_reference(&mut self, reason: ReasonCode, properties: Properties<'_>) {
        if matches!(reason, ReasonCode::UseAnotherServer | ReasonCode::ServerMoved) {
            self.reference =
                fulmar_mqtt::find_property!(properties, ServerReference).map(Into::into);
        }
    }

    fn refused(&self, connack: &Connack<'_>) -> Error {
        let words = fulmar_mqtt::find_property!(connack.properties, ReasonString);
        let hint = match connack.reason {
            ReasonCode::BadUserNameOrPassword | ReasonCode::NotAuthorized
                if self.options.username.is_none() && self.options.password.is_none() =>
            {
                "; give a user name and password (-u and -P)"
            }
            ReasonCode::BadUserNameOrPassword if self.options.scram => {
                "; check user name and password, which has to be set again if it was set before the broker had SCRAM"
            }
            ReasonCode::NotAuthorized if self.options.will.is_some() => {
                "; check user name and password, and whether this client may publish to the will's topic"
            }
            ReasonCode::BadUserNameOrPassword | ReasonCode::NotAuthorized => {
                "; check user name and password"
            }
            ReasonCode::ClientIdentifierNotValid => {
                "; another user may have a session with this client identifier: choose another one"
            }
            ReasonCode::BadAuthenticationMethod if self.options.scram => {
                "; it does not offer SCRAM-SHA-256 (Fulmar: [auth] scram = true)"
            }
            ReasonCode::UnsupportedProtocolVersion => "; try the other protocol version",
            _ => "",
        };
        let detail = words.map_or(String::new(), |text| format!(": {}", text.escape_debug()));
        Error::Refused {
            url: self.options.url.to_string(),
            reason: connack.reason,
            detail: detail + hint,
        }
    }

    fn take_terms(&mut self, connack: &Connack<'_>) {
        let mut limits = NO_LIMITS;
        let mut window = u16::MAX;
        for property in connack.properties.iter() {
            match property {
                Property::ReceiveMaximum(maximum) => window = maximum,
                Property::MaximumPacketSize(bytes) => {
                    limits.max_packet_bytes = bytes.min(limits.max_packet_bytes);
                }
                Property::MaximumQoS(qos) => {
                    limits.max_qos = QoS::try_from(qos).unwrap_or_default()
                }
                Property::RetainAvailable(available) => limits.retain = available,
                Property::ServerKeepAlive(s) => self.keep_alive = seconds(s),
                Property::AssignedClientIdentifier(id) => id.clone_into(&mut self.client_id),
                _ => {}
            }
        }
        self.desk.limits = limits;
        for flow in &mut self.flows {
            flow.outbound.set_window(window);
        }
    }

    pub(super) fn put_ack(&mut self, flow: usize, kind: AckKind, id: PacketId, reason: ReasonCode) {
        // Nothing may follow DISCONNECT ([MQTT-3.14.4-2]).
        if self.phase == Phase::Up {
            self.flows[flow].put_ack(self.options.version, kind, id, reason);
        }
    }

    fn received(&mut self, index: usize, publish: &Publish<'_>) -> Result<(), Failure> {
        let flow = &mut self.flows[index];
        let topic = resolve(&mut flow.aliases, publish)?;
        check_name(topic).map_err(|error| broken(ReasonCode::TopicNameInvalid, error))?;
        let (new, answer) = match (publish.qos, publish.packet_id) {
            (QoS::AtLeastOnce, Some(id)) => (true, Some((AckKind::Puback, id))),
            (QoS::ExactlyOnce, Some(id)) => {
                let new = match flow.inbound.publish(id, self.options.receive_maximum) {
                    InboundQos2::New => true,
                    InboundQos2::Duplicate => false,
                    InboundQos2::TooMany => {
                        let text = "more unacknowledged messages than were allowed";
                        return Err(broken(ReasonCode::ReceiveMaximumExceeded, text));
                    }
                };
                (new, Some((AckKind::Pubrec, id)))
            }
            _ => (true, None),
        };
        let by_hand =
            answer.filter(|(kind, _)| *kind == AckKind::Puback && self.options.acknowledge_by_hand);
        if new {
            let mut message = Message::received(topic, publish);
            let connection = self.connection;
            message.receipt = by_hand.map(|(_, id)| Receipt { connection, flow: index, id });
            self.desk.outcomes.push_back(Outcome::Message(message));
        }
        if let Some((kind, id)) = answer
            && by_hand.is_none()
        {
            self.put_ack(index, kind, id, ReasonCode::Success);
        }
        Ok(())
    }

    /// An acknowledgement of an unknown identifier does not end the connection, because a server that has restored an
    /// older state sends such. One for another quality of service is a protocol error.
    fn acknowledged(&mut self, flow: usize, kind: AckKind, ack: &Ack<'_>) -> Result<(), Failure> {
        let (id, reason) = (ack.packet_id, ack.reason);
        let outbound = &mut self.flows[flow].outbound;
        let over = match kind {
            AckKind::Puback => outbound.puback(id),
            AckKind::Pubrec if reason.is_error() => {
                outbound.pubrec_refused(id).map(|(_, pending)| pending)
            }
            AckKind::Pubrec => match outbound.pubrec(id) {
                Err(error @ AckError::WrongQoS(_)) => Err(error),
                known => {
                    let unknown = ReasonCode::PacketIdentifierNotFound;
                    let answer = known.map_or(unknown, |_| ReasonCode::Success);
                    self.put_ack(flow, AckKind::Pubrel, id, answer);
                    return Ok(());
                }
            },
            AckKind::Pubcomp | AckKind::Pubrel => outbound.pubcomp(id),
        };
        match over {
            Ok(pending) => {
                let result = if reason.is_error() && kind != AckKind::Pubcomp {
                    Err(Error::Rejected(reason))
                } else {
                    Ok(reason)
                };
                self.desk.published(pending, result);
                if flow == CONTROL {
                    self.stream_map.control_published();
                }
            }
            Err(error @ AckError::WrongQoS(_)) => {
                return Err(broken(ReasonCode::ProtocolError, error));
            }
            Err(error) => tracing::debug!(%error, "acknowledgement ignored"),
        }
        Ok(())
    }

    fn answered(&mut self, index: usize, id: PacketId, codes: &[u8]) -> Result<(), Failure> {
        let flow = &mut self.flows[index];
        let Some(at) = flow.asked.iter().position(|(asked, _)| *asked == id) else {
            let text = "an answer to a request that was not made";
            return Err(broken(ReasonCode::ProtocolError, text));
        };
        let codes: Option<Vec<_>> = codes.iter().map(|code| ReasonCode::from_u8(*code)).collect();
        let codes = codes.ok_or_else(|| broken(ReasonCode::MalformedPacket, "reason code"))?;
        // An invalid answer ends the connection, and the request is made again on the next.
        if let Ask::Subscribe(filters) = &flow.asked[at].1.ask
            && codes.len() != filters.len()
        {
            return Err(broken(ReasonCode::ProtocolError, "SUBACK of another length"));
        }
        let (_, request) = flow.asked.remove(at);
        flow.outbound.unreserve(id);
        let codes = match request.ask {
            Ask::Subscribe(filters) => {
                let own = request.token.is_none();
                for ((filter, options), code) in filters.into_iter().zip(&codes) {
                    self.subscribed(index, own, filter, options, *code);
                }
                codes
            }
            Ask::Unsubscribe(filters) => {
                self.subscriptions.retain(|kept| !filters.contains(&kept.filter));
                // 3.1.1 has no codes here.
                if codes.is_empty() { vec![ReasonCode::Success; filters.len()] } else { codes }
            }
        };
        self.desk.answered(request.token, Ok(codes));
        Ok(())
    }

    fn subscribed(
        &mut self,
        flow: usize,
        own: bool,
        filter: String,
        options: SubscribeOptions,
        code: ReasonCode,
    ) {
        // The machine's own subscriptions differ from the application's in when retained messages are sent.
        if own && !code.is_error() {
            return;
        }
        if own {
            tracing::warn!(filter, reason = %code,
                "the server refuses a subscription it had accepted");
        }
        self.subscriptions.retain(|kept| kept.filter != filter);
        if !code.is_error() {
            self.subscriptions.push(Accepted::new(filter, options, flow));
        }
    }
}

/// The topic of a message, by name or alias (section 3.3.2.3.4).
fn resolve<'a>(aliases: &'a mut TopicAliases, publish: &Publish<'a>) -> Result<&'a str, Failure> {
    let alias = fulmar_mqtt::find_property!(publish.properties, TopicAlias);
    let Some(alias) = alias else { return Ok(publish.topic) };
    if publish.topic.is_empty() {
        return aliases
            .get(alias)
            .ok_or_else(|| broken(ReasonCode::ProtocolError, "topic alias that was not set"));
    }
    if !aliases.set(alias, TOPIC_ALIAS_MAXIMUM, publish.topic) {
        return Err(broken(ReasonCode::TopicAliasInvalid, "topic alias out of range"));
    }
    Ok(publish.topic)
}
