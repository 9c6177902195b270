//! Messages and requests from a device (sections 6.5 to 6.9, 6.12). Requests to the broker have the device's message
//! identifiers, so that the broker recognises a repeated message. The device gets an answer only when the broker has
//! answered.

use std::collections::VecDeque;
use std::hash::{Hash as _, Hasher as _};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fulmar_mqtt::topic::{Subscription, check_name};
use fulmar_mqtt::{PacketId, QoS, ReasonCode};
use rustc_hash::FxHasher;

use super::{Context, packet_id, return_code};
use crate::message::{Message, Publish, ReturnCode, TopicName};
use crate::request::{Answer, Publication, Request};
use crate::topics::{Topics, short_name};

/// Messages and requests of one device that wait for the broker. The specification allows it one of each
/// (section 6.12).
const MAX_PENDING: usize = 8;

/// Completed messages of one device that are remembered.
const MAX_RECENT: usize = 8;

/// Time in which the network may deliver a second copy of a datagram. Only at QoS 2, exactly once, is such a copy
/// distinguished from a new message that a simple device sends with the same identifier and content.
const ECHO: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// PUBLISH; the broker has not answered.
    Published,
    /// The broker has it, at QoS 2; PUBREC was sent to the device.
    Received,
    /// PUBREL; the broker has not answered.
    Released,
}

/// A message in flight to the broker.
struct Pending {
    id: PacketId,
    topic_id: u16,
    /// Hash of topic and payload, to distinguish another message with the same identifier; none for a PUBREL alone.
    content: Option<u64>,
    step: Step,
}

/// A message that the broker has acknowledged.
struct AcknowledgedMessage {
    id: PacketId,
    content: u64,
    qos: QoS,
    at: Instant,
}

/// A request about subscriptions.
enum SubscriptionRequest {
    /// With the identifier of a predefined topic.
    Subscribe {
        filter: Box<str>,
        topic_id: u16,
        qos: QoS,
    },
    Unsubscribe,
}

/// Messages and requests in flight from the device.
#[derive(Default)]
pub(super) struct Up {
    pending: Vec<Pending>,
    asked: Vec<(PacketId, SubscriptionRequest)>,
    /// The last completed messages. The device may not have received the answers.
    recent: VecDeque<AcknowledgedMessage>,
    most: usize,
}

impl AcknowledgedMessage {
    /// Whether a message is this one.
    fn is(&self, id: PacketId, content: u64, dup: bool, now: Instant) -> bool {
        let echo = self.qos == QoS::ExactlyOnce && now.saturating_duration_since(self.at) < ECHO;
        self.id == id && self.content == content && (dup || echo)
    }
}

impl Up {
    /// The connection to the broker is new, and accepts this many messages in flight.
    pub(super) fn restart(&mut self, in_flight: u16) {
        let recent = std::mem::take(&mut self.recent);
        *self = Up { recent, most: MAX_PENDING.min(in_flight.into()), ..Up::default() };
    }

    pub(super) fn register(cx: &mut Context<'_>, topics: &mut Topics, msg_id: u16, topic: &str) {
        let (topic_id, code) = match check_name(topic) {
            Err(_) => (0, ReturnCode::NotSupported),
            Ok(()) => match topics.register(topic) {
                Ok(id) => (id, ReturnCode::Accepted),
                Err(_) => (0, ReturnCode::Congestion),
            },
        };
        cx.send(&Message::Regack { topic_id, msg_id, code });
    }

    pub(super) fn publish(&mut self, cx: &mut Context<'_>, topics: &Topics, publish: &Publish<'_>) {
        let (topic_id, msg_id) = (publish.topic.number(), publish.msg_id);
        let Some(topic) = topics.resolve(publish.topic) else {
            let code = ReturnCode::InvalidTopicId;
            cx.send(&Message::Puback { topic_id, msg_id, code });
            return;
        };
        if publish.payload.len() + topic.len() > cx.settings.max_message_bytes {
            let code = ReturnCode::NotSupported;
            cx.send(&Message::Puback { topic_id, msg_id, code });
            return;
        }
        // −1 is for devices without a connection; from others it is treated as QoS 0.
        let qos = publish.qos.unwrap_or(QoS::AtMostOnce);
        let mut id = None;
        if qos != QoS::AtMostOnce {
            let Some(packet_id) = packet_id(cx, msg_id) else { return };
            id = Some(packet_id);
            if !self.admit(cx, packet_id, topic_id, &topic, publish) {
                return;
            }
        }
        cx.statistics.received += 1;
        cx.push_request(Request::Publish(Publication {
            topic: topic.into(),
            payload: Bytes::copy_from_slice(publish.payload),
            qos,
            retain: publish.retain,
            dup: publish.dup,
            packet_id: id,
        }));
    }

    /// Whether to send a message at QoS 1 or 2 to the broker. A completed one is answered as before.
    fn admit(
        &mut self,
        cx: &mut Context<'_>,
        id: PacketId,
        topic_id: u16,
        topic: &str,
        publish: &Publish<'_>,
    ) -> bool {
        let mut hasher = FxHasher::default();
        (topic, publish.payload, publish.retain).hash(&mut hasher);
        let content = hasher.finish();
        let msg_id = id.get();
        let busy = Message::Puback { topic_id, msg_id, code: ReturnCode::Congestion };
        if let Some(known) = self.pending.iter().find(|pending| pending.id == id) {
            match known.step {
                _ if known.content != Some(content) => drop(cx.send(&busy)),
                Step::Published | Step::Released => {}
                Step::Received => drop(cx.send(&Message::Pubrec(msg_id))),
            }
            return false;
        }
        match self.recent.iter().find(|done| done.is(id, content, publish.dup, cx.now)) {
            Some(AcknowledgedMessage { qos: QoS::ExactlyOnce, .. }) => {
                cx.send(&Message::Pubrec(msg_id));
                return false;
            }
            Some(_) => {
                let code = ReturnCode::Accepted;
                cx.send(&Message::Puback { topic_id, msg_id, code });
                return false;
            }
            None => {}
        }
        if self.pending.len() >= self.most {
            cx.send(&busy);
            return false;
        }
        self.pending.push(Pending { id, topic_id, content: Some(content), step: Step::Published });
        true
    }

    /// The device's PUBREL.
    pub(super) fn release(&mut self, cx: &mut Context<'_>, msg_id: u16) {
        let Some(id) = packet_id(cx, msg_id) else { return };
        let room = self.pending.len() < self.most;
        match self.pending.iter_mut().find(|pending| pending.id == id) {
            Some(pending) if pending.step == Step::Received => pending.step = Step::Released,
            Some(_) => return,
            // It belongs to a completed message or to an earlier connection: the broker knows which.
            None if room => {
                let (topic_id, content) = (0, None);
                self.pending.push(Pending { id, topic_id, content, step: Step::Released });
            }
            None => return,
        }
        cx.push_request(Request::Release(id));
    }

    /// The broker has answered a message.
    pub(super) fn answered(
        &mut self,
        cx: &mut Context<'_>,
        answer: Answer,
        id: PacketId,
        reason: ReasonCode,
    ) {
        let Some(at) = self.pending.iter().position(|pending| pending.id == id) else { return };
        let (topic_id, msg_id) = (self.pending[at].topic_id, id.get());
        match answer {
            Answer::Pubrec if !reason.is_error() => {
                self.pending[at].step = Step::Received;
                cx.send(&Message::Pubrec(msg_id));
                return;
            }
            // An identifier that is unknown to the broker was completed before.
            Answer::Pubcomp => drop(cx.send(&Message::Pubcomp(msg_id))),
            Answer::Puback | Answer::Pubrec => {
                let code = return_code(reason);
                cx.send(&Message::Puback { topic_id, msg_id, code });
                if code != ReturnCode::Accepted {
                    self.pending.swap_remove(at);
                    return;
                }
            }
        }
        // An unknown identifier must not displace a known one.
        let Some(content) = self.pending.swap_remove(at).content else { return };
        let qos = match answer {
            Answer::Puback => QoS::AtLeastOnce,
            Answer::Pubrec | Answer::Pubcomp => QoS::ExactlyOnce,
        };
        if self.recent.len() >= MAX_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(AcknowledgedMessage { id, content, qos, at: cx.now });
    }

    pub(super) fn subscribe(
        &mut self,
        cx: &mut Context<'_>,
        topics: &Topics,
        msg_id: u16,
        topic: TopicName<'_>,
        qos: QoS,
    ) {
        let Some(id) = packet_id(cx, msg_id) else { return };
        let name = filter_named(topics, topic);
        let topic_id = if let TopicName::Predefined(topic_id) = topic { topic_id } else { 0 };
        let code = match (&name, topic) {
            (None, TopicName::Predefined(_)) => ReturnCode::InvalidTopicId,
            (Some(name), _) if Subscription::parse(name).is_ok() => ReturnCode::Accepted,
            _ => ReturnCode::NotSupported,
        };
        let Some(name) = name.filter(|_| code == ReturnCode::Accepted) else {
            cx.send(&Message::Suback { qos: QoS::AtMostOnce, topic_id, msg_id, code });
            return;
        };
        let filter: Box<str> = name.into();
        let asked = SubscriptionRequest::Subscribe { filter: filter.clone(), topic_id, qos };
        match self.note(id, asked) {
            Noted::Yes => cx.push_request(Request::Subscribe(id, filter, qos)),
            Noted::Already => {}
            Noted::Full => {
                let code = ReturnCode::Congestion;
                cx.send(&Message::Suback { qos: QoS::AtMostOnce, topic_id, msg_id, code });
            }
        }
    }

    pub(super) fn unsubscribe(
        &mut self,
        cx: &mut Context<'_>,
        topics: &Topics,
        msg_id: u16,
        topic: TopicName<'_>,
    ) {
        let Some(id) = packet_id(cx, msg_id) else { return };
        let Some(name) =
            filter_named(topics, topic).filter(|name| Subscription::parse(name).is_ok())
        else {
            // There is no such subscription, and UNSUBACK cannot say more.
            cx.send(&Message::Unsuback(msg_id));
            return;
        };
        // A device that cannot get the answer now sends its request again.
        if let Noted::Yes = self.note(id, SubscriptionRequest::Unsubscribe) {
            cx.push_request(Request::Unsubscribe(id, name.into()));
        }
    }

    fn note(&mut self, id: PacketId, asked: SubscriptionRequest) -> Noted {
        if self.asked.iter().any(|(other, _)| *other == id) {
            return Noted::Already;
        }
        if self.asked.len() >= MAX_PENDING {
            return Noted::Full;
        }
        self.asked.push((id, asked));
        Noted::Yes
    }

    /// The broker has answered a subscription.
    pub(super) fn subscribed(
        &mut self,
        cx: &mut Context<'_>,
        topics: &mut Topics,
        id: PacketId,
        reason: ReasonCode,
    ) {
        let Some(SubscriptionRequest::Subscribe { filter, topic_id, qos }) = self.settle(id) else {
            return;
        };
        let mut code = return_code(reason);
        let mut topic_id = topic_id;
        if code == ReturnCode::Accepted {
            topics.use_predefined(topic_id);
            // A filter that is a topic name, and not a short one, gets an identifier (section 5.4.16).
            if topic_id == 0 && filter.len() != 2 && check_name(&filter).is_ok() {
                match topics.register(&filter) {
                    Ok(id) => topic_id = id,
                    Err(_) => code = ReturnCode::Congestion,
                }
            }
        }
        let granted = if code == ReturnCode::Accepted {
            QoS::try_from(reason.as_u8()).unwrap_or(qos)
        } else {
            QoS::AtMostOnce
        };
        cx.send(&Message::Suback { qos: granted, topic_id, msg_id: id.get(), code });
    }

    pub(super) fn unsubscribed(&mut self, cx: &mut Context<'_>, id: PacketId) {
        if self.settle(id).is_some() {
            cx.send(&Message::Unsuback(id.get()));
        }
    }

    fn settle(&mut self, id: PacketId) -> Option<SubscriptionRequest> {
        let at = self.asked.iter().position(|(other, _)| *other == id)?;
        Some(self.asked.swap_remove(at).1)
    }
}

/// Whether a request about subscriptions is in flight.
enum Noted {
    Yes,
    Already,
    Full,
}

/// The filter of a request, if it names one.
fn filter_named(topics: &Topics, topic: TopicName<'_>) -> Option<String> {
    match topic {
        TopicName::Name(name) => Some(name.to_owned()),
        TopicName::Short(name) => short_filter(name),
        TopicName::Predefined(id) => topics.predefined(id).map(str::to_owned),
    }
}

/// Two octets as a filter: a topic name, or `/#` and the like.
fn short_filter(name: [u8; 2]) -> Option<String> {
    short_name(name).or_else(|| String::from_utf8(name.to_vec()).ok())
}
