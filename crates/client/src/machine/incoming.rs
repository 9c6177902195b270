//! What the server's packets do to a session (sections 3.2 to 3.15, a client's side of 4.3).

use std::time::Instant;

use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::codec::{decode, peek_frame};
use fulmar_mqtt::packet::{Ack, Connack, Publish};
use fulmar_mqtt::session::{Inbound, Received, TopicAliases};
use fulmar_mqtt::topic::check_name;
use fulmar_mqtt::{Packet, PacketId, Property, QoS, ReasonCode};

use super::{
    Ask, FILTERS_PER_PACKET, Machine, NO_LIMITS, Outcome, Phase, Request, TOPIC_ALIAS_MAXIMUM,
    seconds,
};
use crate::error::Error;
use crate::message::Message;

/// Why the connection has to end, and what to tell the server.
struct Failure {
    error: Error,
    answer: Option<ReasonCode>,
}

fn broken(reason: ReasonCode, text: impl ToString) -> Failure {
    Failure { error: Error::Protocol(text.to_string()), answer: Some(reason) }
}

impl<P, R> Machine<P, R> {
    /// Bytes from the server; returns how many were whole packets and are done with.
    ///
    /// # Errors
    /// The connection is to be ended, after what is left of the output.
    pub(crate) fn input(&mut self, now: Instant, bytes: &[u8]) -> Result<usize, Error> {
        (self.last_received, self.ping_sent) = (now, None);
        let mut done = 0;
        let handled = loop {
            match self.one(&bytes[done..]) {
                Ok(0) => break Ok(done),
                Ok(used) => done += used,
                Err(failure) => break Err(failure),
            }
        };
        self.pump();
        handled.map_err(|failure| {
            // Before CONNACK a client cannot say why it goes ([MQTT-3.14.0-1] is the server's).
            if let Some(reason) = failure.answer.filter(|_| self.phase == Phase::Up) {
                self.put_disconnect(reason);
            }
            failure.error
        })
    }

    fn one(&mut self, bytes: &[u8]) -> Result<usize, Failure> {
        let limit = self.options.max_packet_bytes as usize;
        let frame = peek_frame(bytes, limit).map_err(|error| broken(error.reason(), error))?;
        let Some(frame) = frame else { return Ok(0) };
        let packet =
            decode(&frame, self.options.version).map_err(|error| broken(error.reason(), error))?;
        match (self.phase, packet) {
            (Phase::Opening { early }, Packet::Connack(connack)) => {
                self.connack(&connack, early)?
            }
            (Phase::Opening { .. }, other) => {
                let text = format!("{} before CONNACK", other.name());
                return Err(broken(ReasonCode::ProtocolError, text));
            }
            (_, packet) => self.packet(packet)?,
        }
        Ok(frame.len)
    }

    fn packet(&mut self, packet: Packet<'_>) -> Result<(), Failure> {
        match packet {
            Packet::Publish(publish) => self.received(&publish),
            Packet::Ack(AckKind::Pubrel, ack) => {
                let known = self.inbound.release(ack.packet_id);
                let reason =
                    if known { ReasonCode::Success } else { ReasonCode::PacketIdentifierNotFound };
                self.put_ack(AckKind::Pubcomp, ack.packet_id, reason);
                Ok(())
            }
            Packet::Ack(kind, ack) => {
                self.acknowledged(kind, &ack);
                Ok(())
            }
            Packet::Suback(suback) => self.answered(suback.packet_id, suback.codes),
            Packet::Unsuback(unsuback) => self.answered(unsuback.packet_id, unsuback.codes),
            Packet::Pingresp => Ok(()),
            Packet::Disconnect(disconnect) => {
                Err(Failure { error: Error::Disconnected(disconnect.reason), answer: None })
            }
            other => {
                let text = format!("unexpected {}", other.name());
                Err(broken(ReasonCode::ProtocolError, text))
            }
        }
    }

    fn connack(&mut self, connack: &Connack<'_>, early: bool) -> Result<(), Failure> {
        if connack.reason.is_error() {
            return Err(Failure { error: self.refused(connack), answer: None });
        }
        // [MQTT-3.2.2-2]: a new session cannot have been there.
        if connack.session_present && self.clean_start() {
            let text = "session present after a clean start";
            return Err(broken(ReasonCode::ProtocolError, text));
        }
        self.phase = Phase::Up;
        self.connected_before = true;
        self.take_terms(connack);
        self.outcomes.push_back(Outcome::Connected { session_present: connack.session_present });
        self.early_data_sent();
        if !connack.session_present {
            self.inbound = Inbound::new();
            self.restore_subscriptions();
        }
        // What is in flight after an early start was sent on this very connection.
        match (early, connack.session_present) {
            (true, _) => {}
            (false, true) => {
                self.replay = self.outbound.replay().map(|entry| entry.packet_id()).collect();
            }
            (false, false) => self.send_as_new(),
        }
        Ok(())
    }

    fn refused(&self, connack: &Connack<'_>) -> Error {
        let words = connack.properties.iter().find_map(|property| match property {
            Property::ReasonString(text) => Some(text),
            _ => None,
        });
        let hint = match connack.reason {
            ReasonCode::BadUserNameOrPassword | ReasonCode::NotAuthorized => {
                "; check user name and password"
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
        self.limits = limits;
        self.outbound.set_window(window);
    }

    /// The server has lost the session: subscriptions are made again.
    fn restore_subscriptions(&mut self) {
        let lists: Vec<_> =
            self.subscriptions.chunks(FILTERS_PER_PACKET).map(<[_]>::to_vec).collect();
        for filters in lists.into_iter().rev() {
            self.waiting.push_front(Request { ask: Ask::Subscribe(filters), token: None });
        }
    }

    /// The server has lost the session: what it had received is its own, the rest is sent as new.
    fn send_as_new(&mut self) {
        let mut again = Vec::new();
        for (handed_over, pending) in self.outbound.drain() {
            if handed_over {
                let done = Outcome::Published(pending.token, Ok(ReasonCode::Success));
                self.outcomes.push_back(done);
            } else {
                again.push(pending);
            }
        }
        for pending in again.into_iter().rev() {
            self.queue.push_front(pending);
        }
    }

    fn received(&mut self, publish: &Publish<'_>) -> Result<(), Failure> {
        let topic = resolve(&mut self.aliases, publish)?;
        check_name(topic).map_err(|error| broken(ReasonCode::TopicNameInvalid, error))?;
        let (new, answer) = match (publish.qos, publish.packet_id) {
            (QoS::AtLeastOnce, Some(id)) => (true, Some((AckKind::Puback, id))),
            (QoS::ExactlyOnce, Some(id)) => {
                let new = match self.inbound.publish(id, self.options.receive_maximum) {
                    Received::New => true,
                    Received::Duplicate => false,
                    Received::TooMany => {
                        let text = "more unacknowledged messages than were allowed";
                        return Err(broken(ReasonCode::ReceiveMaximumExceeded, text));
                    }
                };
                (new, Some((AckKind::Pubrec, id)))
            }
            _ => (true, None),
        };
        if new {
            self.outcomes.push_back(Outcome::Message(Message::received(topic, publish)));
        }
        if let Some((kind, id)) = answer {
            self.put_ack(kind, id, ReasonCode::Success);
        }
        Ok(())
    }

    /// An acknowledgement that fits nothing is not worth a connection: a server that restored an
    /// older state sends such.
    fn acknowledged(&mut self, kind: AckKind, ack: &Ack<'_>) {
        let (id, reason) = (ack.packet_id, ack.reason);
        let over = match kind {
            AckKind::Puback => self.outbound.puback(id),
            AckKind::Pubrec if reason.is_error() => self.outbound.pubrec_refused(id),
            AckKind::Pubrec => {
                let answer = match self.outbound.pubrec(id) {
                    Ok(_) => ReasonCode::Success,
                    Err(_) => ReasonCode::PacketIdentifierNotFound,
                };
                self.put_ack(AckKind::Pubrel, id, answer);
                return;
            }
            AckKind::Pubcomp | AckKind::Pubrel => self.outbound.pubcomp(id),
        };
        match over {
            Ok(pending) => {
                let result = if reason.is_error() && kind != AckKind::Pubcomp {
                    Err(Error::Rejected(reason))
                } else {
                    Ok(reason)
                };
                self.outcomes.push_back(Outcome::Published(pending.token, result));
            }
            Err(error) => tracing::debug!(%error, "acknowledgement ignored"),
        }
    }

    fn answered(&mut self, id: PacketId, codes: &[u8]) -> Result<(), Failure> {
        let Some(at) = self.asked.iter().position(|(asked, _)| *asked == id) else {
            let text = "an answer to a request that was not made";
            return Err(broken(ReasonCode::ProtocolError, text));
        };
        let codes: Option<Vec<_>> = codes.iter().map(|code| ReasonCode::from_u8(*code)).collect();
        let codes = codes.ok_or_else(|| broken(ReasonCode::MalformedPacket, "reason code"))?;
        // An answer that is wrong ends the connection, and the request is made again on the next.
        if let Ask::Subscribe(filters) = &self.asked[at].1.ask
            && codes.len() != filters.len()
        {
            return Err(broken(ReasonCode::ProtocolError, "SUBACK of another length"));
        }
        let (_, request) = self.asked.remove(at);
        self.outbound.unreserve(id);
        let codes = match request.ask {
            Ask::Subscribe(filters) => {
                for ((filter, options), code) in filters.into_iter().zip(&codes) {
                    self.subscriptions.retain(|(known, _)| *known != filter);
                    if !code.is_error() {
                        self.subscriptions.push((filter, options));
                    }
                }
                codes
            }
            Ask::Unsubscribe(filters) => {
                self.subscriptions.retain(|(known, _)| !filters.contains(known));
                // 3.1.1 has no codes here.
                if codes.is_empty() { vec![ReasonCode::Success; filters.len()] } else { codes }
            }
        };
        self.outcomes.extend(request.token.map(|token| Outcome::Answered(token, Ok(codes))));
        Ok(())
    }
}

/// The topic of a message, by name or alias (section 3.3.2.3.4).
fn resolve<'a>(aliases: &'a mut TopicAliases, publish: &Publish<'a>) -> Result<&'a str, Failure> {
    let alias = publish.properties.iter().find_map(|property| match property {
        Property::TopicAlias(alias) => Some(alias),
        _ => None,
    });
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
