//! What a client sees while storage is stalled ([`crate::stall`]): its packets that would have to be stored are refused
//! where the protocol can express that, and otherwise left unread, for as long as an acknowledgement may take.

use std::sync::Arc;

use fulmar_auth::Timestamp;
use fulmar_mqtt::ack::{self, AckKind};
use fulmar_mqtt::codec::{Frame, decode};
use fulmar_mqtt::packet::{Connack, Publish};
use fulmar_mqtt::topic::check_name;
use fulmar_mqtt::{Packet, Properties, QoS, ReasonCode, Version};

use super::{Connection, State, Waiting, WaitingAck};
use crate::event::BrokerEvent;
use crate::lifecycle::Departure;
use crate::peer::StreamKey;
use crate::session::Session;
use crate::shard::Shard;

/// The reason of every refusal because of storage. 0x97 (Quota exceeded) would say that the client has had too much.
pub(super) const STALLED: ReasonCode = ReasonCode::ImplementationSpecificError;

/// Why a connection is closed, for the log.
const WHY: &str = "storage is stalled";

impl Connection {
    /// Whether a publication is refused, while storage is stalled, because it would have to be stored. At QoS 0 that is so
    /// only when storage may not be given any more.
    pub(super) fn refuses_publish(
        &self,
        shard: &mut Shard,
        stream_index: usize,
        session: &Session,
        topic: &str,
        publish: &Publish<'_>,
    ) -> bool {
        let mut stores = shard.would_store(topic, publish.qos, publish.retain);
        match publish.qos {
            QoS::AtMostOnce => stores &= shard.turn.storage_is_behind(),
            QoS::AtLeastOnce => {}
            QoS::ExactlyOnce => {
                let mut state = session.lock();
                stores |= state.durable;
                // One that was accepted before must not be refused: its answer waits.
                let id = publish.packet_id;
                let open =
                    state.flow_mut(self.flow_of(stream_index)).map(|flow| flow.inbound.iter());
                stores &= !open.is_some_and(|mut open| open.any(|known| Some(known) == id));
            }
        }
        stores
    }

    /// Whether a packet would have to be stored and cannot be refused, because the client speaks 3.1.1. It is left
    /// unread until storage works again or the client is disconnected.
    pub(super) fn is_held_by_stall(
        &mut self,
        shard: &mut Shard,
        stream_index: usize,
        frame: &Frame<'_>,
    ) -> bool {
        if self.version != Version::V311 || !self.stores_without_answer(shard, stream_index, frame)
        {
            return false;
        }
        let until = shard.now() + shard.turn.limits().storage_stall_timeout;
        self.rare().held_until.get_or_insert(until);
        true
    }

    fn stores_without_answer(
        &self,
        shard: &mut Shard,
        stream_index: usize,
        frame: &Frame<'_>,
    ) -> bool {
        let State::Connected(session) = &self.state else { return false };
        // What is wrong with a packet is found where it is handled.
        match decode(frame, self.version) {
            Ok(Packet::Publish(publish)) => {
                publish.qos > QoS::AtMostOnce
                    && check_name(publish.topic).is_ok()
                    && self.refuses_publish(shard, stream_index, session, publish.topic, &publish)
            }
            Ok(Packet::Unsubscribe(_)) => session.lock().durable,
            _ => false,
        }
    }

    /// Until when a packet may be left unread because storage is stalled.
    pub(super) fn held_until(&self) -> Option<Timestamp> {
        self.rare.as_ref()?.held_until
    }

    /// Storage may work again: what was left unread is read then.
    pub(super) fn end_hold(&mut self, shard: &Shard) {
        if let Some(rare) = &mut self.rare
            && rare.held_until.is_some()
            && !shard.turn.is_stalled()
        {
            rare.held_until = None;
        }
    }

    /// The time for which a packet may be left unread is over.
    pub(super) fn hold_is_over(&mut self, shard: &mut Shard) {
        self.end_hold(shard);
        if self.held_until().is_some() {
            self.close_for_stall(shard);
        } else {
            shard.turn.notify_own(self.at.token, BrokerEvent::Ready);
        }
    }

    /// Nothing of a stream is waited for any more.
    pub(super) fn unblock(&mut self, shard: &mut Shard, stream: StreamKey) {
        self.set_wait(shard, stream, None);
        if let Some(rare) = &mut self.rare
            && self.waits.is_empty()
        {
            rare.held_until = None;
        }
    }

    fn close_for_stall(&mut self, shard: &mut Shard) {
        shard.metrics().storage_refused.add(1);
        self.disconnect(shard, STALLED, WHY);
    }

    /// Answers that wait for storage are overdue. A PUBACK becomes a refusal, if the client's version has that: at
    /// QoS 1, the message may arrive all the same. For the other answers, the client is disconnected: it repeats what
    /// was not answered, and is then answered as if for the first time. A PUBREL goes on waiting, as its message has
    /// arrived.
    pub(super) fn refuse_overdue(&mut self, shard: &mut Shard) {
        // What has become durable meanwhile is no refusal.
        self.release_waiting(shard);
        let overdue = shard.turn.overdue();
        if self.waiting.front().is_none_or(|ack| ack.turn > overdue) {
            return;
        }
        if !self.greeted {
            return self.refuse_opened(shard);
        }
        let mut close = false;
        let (version, streams) = (self.version, &mut self.streams);
        self.waiting.retain(|WaitingAck { turn, stream, what }| match what {
            _ if *turn > overdue => true,
            Waiting::Ack(AckKind::Pubrel, ..) => true,
            Waiting::Ack(AckKind::Puback, id, reason) if version == Version::V5 => {
                let reason = if reason.is_error() { *reason } else { STALLED };
                if let Some(stream) = streams.iter_mut().find(|open| open.key == *stream) {
                    ack::encode(&mut stream.out, version, AckKind::Puback, *id, reason);
                }
                shard.metrics().storage_refused.add(1);
                false
            }
            // Refused at once, and only behind another answer.
            Waiting::Ack(AckKind::Pubrec, id, reason) if reason.is_error() => {
                if let Some(stream) = streams.iter_mut().find(|open| open.key == *stream) {
                    ack::encode(&mut stream.out, version, AckKind::Pubrec, *id, *reason);
                }
                false
            }
            _ => {
                close = true;
                true
            }
        });
        if close {
            self.close_for_stall(shard);
        }
    }

    /// CONNACK is overdue: the client is refused, and its will with it.
    fn refuse_opened(&mut self, shard: &mut Shard) {
        shard.metrics().connect_refused.add(1);
        shard.metrics().storage_refused.add(1);
        let (reason, properties) = (ReasonCode::ServerUnavailable, Properties::NONE);
        let connack = Connack { session_present: false, reason, properties };
        connack.encode(self.version, &mut self.streams[0].out);
        self.leave(shard, Departure { discard_will: true, expiry_interval_s: None }, WHY);
        self.end(shard, WHY, u64::from(reason.as_u8()));
    }

    /// Whether CONNECT is refused because its session would have to be stored, or removed from storage; or because of a
    /// will, which nobody could refuse when it is published, and storage has too much already.
    pub(super) fn refuses_session(
        shard: &Shard,
        client_id: &str,
        is_stored: bool,
        has_will: bool,
    ) -> bool {
        let refuses = shard.turn.is_stalled()
            && (is_stored
                || shard.broker().registry.is_durable(client_id)
                || has_will && shard.turn.storage_is_behind());
        if refuses {
            shard.metrics().storage_refused.add(1);
        }
        refuses
    }
}

impl Shard {
    /// Whether a publication to `topic` now would have to be stored: retained, or for a durable session.
    fn would_store(&mut self, topic: &str, qos: QoS, retain: bool) -> bool {
        if retain && !topic.starts_with('$') {
            return true;
        }
        if qos == QoS::AtMostOnce {
            return false;
        }
        let broker = Arc::clone(&self.turn.broker);
        let route = self.routes.find(&broker, topic, &mut self.turn.fan_out);
        let stores = |session: &Session, qos: QoS| qos > QoS::AtMostOnce && session.lock().durable;
        route.targets.iter().any(|target| stores(&target.session, target.qos))
            || route.shared.iter().any(|group| {
                group.members().iter().any(|member| stores(&member.session, member.qos))
            })
    }
}
