//! Handles the packets that a client receives; returns its answers.

use fulmar_broker::StreamKey;
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::packet::Publish;
use fulmar_mqtt::session::{Outbound, Replay};
use fulmar_mqtt::{Packet, PacketId, QoS, ReasonCode, find_property};

use super::{Client, Receiving, StreamBytes};
use crate::broker::ledger::{Delivery, Lane, Ledger, message_of, publication_of};
use crate::broker::schedule::TOPICS;
use crate::packets::decoded;

impl Client {
    /// Reads a packet; returns the client's answer.
    pub(crate) fn receive(
        &mut self,
        key: StreamKey,
        bytes: &[u8],
        ledger: &mut Ledger,
    ) -> Result<Vec<StreamBytes>, String> {
        self.heard += 1;
        let Some(lane) = self.lane_of(key) else { return Ok(Vec::new()) };
        self.is_answered(key);
        let who = self.index;
        let packet = decoded(bytes, self.version())
            .map_err(|error| format!("client {who} cannot read {bytes:?}: {error}"))?;
        if !self.greeted && !matches!(packet, Packet::Connack(_)) {
            return Err(format!("client {who} was sent {} before CONNACK", packet.name()));
        }
        match packet {
            Packet::Connack(connack) => {
                if connack.reason != ReasonCode::Success {
                    return self.connection_refused(connack.reason, ledger);
                }
                self.greet(connack.session_present, ledger)
            }
            Packet::Publish(publish) => self.receive_publish(key, lane, &publish, ledger),
            Packet::Ack(kind @ (AckKind::Puback | AckKind::Pubrec), ack)
                if ack.reason.is_error() =>
            {
                self.publication_refused(lane, kind, &ack, ledger)
            }
            Packet::Ack(kind, ack) => self.settle(key, lane, kind, ack.packet_id, ledger),
            Packet::Suback(suback) => self.subscribed(suback.packet_id, suback.codes, ledger),
            Packet::Unsuback(unsuback) => {
                self.unsubscribed(unsuback.packet_id, unsuback.codes, ledger)
            }
            Packet::Pingresp => Ok(Vec::new()),
            other => Err(format!("client {who} was sent {other:?}")),
        }
    }

    fn greet(&mut self, present: bool, ledger: &mut Ledger) -> Result<Vec<StreamBytes>, String> {
        let who = self.index;
        if self.expects.is_some_and(|expected| expected != present) {
            return Err(format!("client {who} was told session present = {present}"));
        }
        self.greeted = true;
        if !self.quic {
            // Messages that waited for streams arrive on this one.
            self.kept.clear();
        }
        self.must_clean = false;
        self.known = self.nature.durable.then_some(true).or(Some(false));
        if !present {
            self.forget(ledger);
        }
        let Some(outbound) = self.outbound.get(&Lane::Control) else { return Ok(Vec::new()) };
        let replay: Vec<_> = outbound
            .replay()
            .map(|replay| match replay {
                Replay::Publish { packet_id, message, .. } => (packet_id, Some(*message)),
                Replay::Pubrel { packet_id } => (packet_id, None),
            })
            .collect();
        let key = StreamKey::CONTROL;
        let again = replay.into_iter().map(|(id, message)| match message {
            Some(message) => self.say_publish(key, Some(id), message, true, ledger),
            None => self.ack(key, AckKind::Pubrel, id),
        });
        Ok(again.collect())
    }

    fn receive_publish(
        &mut self,
        key: StreamKey,
        lane: Lane,
        publish: &Publish<'_>,
        ledger: &mut Ledger,
    ) -> Result<Vec<StreamBytes>, String> {
        let who = self.index;
        let named = self.resolve(key, publish)?;
        let topic = TOPICS.iter().position(|topic| *topic == named);
        let numbers = message_of(publish.payload).zip(publication_of(publish.payload));
        let Some(((message, publication), topic)) = numbers.zip(topic) else {
            let text = String::from_utf8_lossy(publish.payload);
            return Err(format!("client {who} got {text:?} on {named}"));
        };
        let qos = publish.qos;
        let left_s = find_property!(publish.properties, MessageExpiryInterval);
        let left_s = self.nature.v5.then_some(left_s);
        let got = Delivery { message, publication, qos, topic, dup: publish.dup, left_s };
        let Some(id) = publish.packet_id else {
            ledger.arrive(who, got)?;
            return Ok(Vec::new());
        };
        // [MQTT-4.4.0-1]. If a crash undid a will's publication, it is published again.
        let one = !ledger.is_will(message);
        if one
            && qos == QoS::AtLeastOnce
            && lane == Lane::Control
            && ledger.has_one_copy(who, topic)
        {
            let before = *self.received_as.entry(publication).or_insert(id);
            if publish.dup && before != id {
                return Err(format!(
                    "client {who} got message {message} again as {id}, not {before}"
                ));
            }
        }
        let receiving = self.receiving.entry(lane).or_default();
        let new = match receiving
            .insert(id.get(), Receiving { message, qos, connection: self.connections })
        {
            None => true,
            Some(before) if before.message != message => {
                let before = before.message;
                return Err(format!(
                    "client {who} got message {message} as {id}, which is still message {before}"
                ));
            }
            // A repetition: at QoS 2 the client has recorded it.
            Some(_) => qos == QoS::AtLeastOnce,
        };
        let room = usize::from(self.nature.receive_maximum);
        let open = receiving.values().filter(|got| got.connection == self.connections).count();
        if self.nature.v5 && open > room {
            return Err(format!("client {who} got {open} messages at once and takes {room}"));
        }
        if new {
            ledger.arrive(who, got)?;
        }
        let kind = if qos == QoS::ExactlyOnce { AckKind::Pubrec } else { AckKind::Puback };
        if self.nature.slow_acks {
            self.unacknowledged.push_back((key, lane, kind, id.get()));
            return Ok(Vec::new());
        }
        Ok(vec![self.finish(key, lane, kind, id)])
    }

    /// The topic of a publication, by name or alias (MQTT 5.0 section 3.3.2.3.4).
    fn resolve(&mut self, key: StreamKey, publish: &Publish<'_>) -> Result<String, String> {
        let alias = find_property!(publish.properties, TopicAlias);
        let topic = publish.topic.to_owned();
        let Some(alias) = alias else { return Ok(topic) };
        let (who, most) = (self.index, self.alias_maximum());
        if alias == 0 || alias > most {
            return Err(format!("client {who} got alias {alias} and allows {most}"));
        }
        if topic.is_empty() {
            let known = self.resolved.get(&(key.0, alias)).cloned();
            return known
                .ok_or_else(|| format!("client {who} got alias {alias}, not set on {key:?}"));
        }
        self.resolved.insert((key.0, alias), topic.clone());
        Ok(topic)
    }

    /// An acknowledgement of what it published, or PUBREL.
    fn settle(
        &mut self,
        key: StreamKey,
        lane: Lane,
        kind: AckKind,
        id: PacketId,
        ledger: &mut Ledger,
    ) -> Result<Vec<StreamBytes>, String> {
        let who = self.index;
        let window = self.nature.window;
        let outbound = self.outbound.entry(lane).or_insert_with(|| Outbound::new(window));
        let unknown = |error| format!("client {who} got {kind:?} of {id}: {error}");
        let mut said = Vec::new();
        match kind {
            AckKind::Puback => {
                let message = outbound.puback(id).map_err(unknown)?;
                self.told(message, ledger)?;
            }
            AckKind::Pubrec => {
                let message = *outbound.pubrec(id).map_err(unknown)?;
                self.told(message, ledger)?;
                said.push(self.ack(key, AckKind::Pubrel, id));
            }
            AckKind::Pubcomp => {
                outbound.pubcomp(id).map_err(unknown)?;
            }
            AckKind::Pubrel => {
                if let Some(receiving) = self.receiving.get_mut(&lane) {
                    receiving.remove(&id.get());
                }
                said.push(self.ack(key, AckKind::Pubcomp, id));
            }
        }
        Ok(said)
    }

    fn told(&mut self, message: usize, ledger: &mut Ledger) -> Result<(), String> {
        ledger.check_accepted(message)?;
        ledger.acknowledged(message);
        if ledger.sent[message].topic.is_none() {
            self.retained.0 = self.retained.0.max(Some(message));
        }
        Ok(())
    }
}
