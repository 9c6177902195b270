//! Messages to a device (sections 6.6, 6.10 and 6.14): one after the other, each with a topic identifier that the
//! device knows or that is registered before. Unanswered messages are sent again.
//!
//! The broker has the queue. This module has the few messages that the broker has in flight, and messages without
//! acknowledgement up to a limit.

use std::collections::VecDeque;
use std::time::Instant;

use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::{PacketId, QoS, ReasonCode};

use super::{Context, Retry};
use crate::message::{Message, Publish, ReturnCode, TopicRef};
use crate::request::{Publication, Request};
use crate::topics::{Naming, Topics};

/// Maximum number of times that a device may reject an identifier that was registered with it.
const MAX_REGISTRATIONS: u32 = 3;

/// Bytes of REGISTER besides the topic, and of its headers.
const REGISTER_OVERHEAD: usize = 64;

/// A message to be sent.
enum Item {
    Message(Publication),
    /// PUBREL.
    Release(PacketId),
}

/// A message that waits for the device's answer.
enum Step {
    /// REGISTER of the first message's topic.
    Register { msg_id: u16, topic_id: u16 },
    /// The first message.
    Publish(TopicRef),
    /// The device has the message; the broker's PUBREL is awaited.
    Received(PacketId),
    /// PUBREL.
    Release(PacketId),
}

struct Flight {
    step: Step,
    retry: Retry,
}

/// Messages for the device.
pub(super) struct Down {
    queue: VecDeque<Item>,
    /// Bytes of topics and payloads in the queue.
    bytes: usize,
    flight: Option<Flight>,
    /// Number of times the first message's topic has been registered for it.
    registrations: u32,
    /// Whether the device's address is validated. Before, no message is sent to it; a REGISTER, which only its receiver
    /// can answer, validates the address, so that forged subscriptions do not send messages to other machines.
    pub(super) proven: bool,
}

impl Down {
    pub(super) fn new(proven: bool) -> Down {
        Down { queue: VecDeque::new(), bytes: 0, flight: None, registrations: 0, proven }
    }

    /// The connection to the broker is new: the broker sends unacknowledged messages again.
    pub(super) fn restart(&mut self) {
        self.flight = None;
        self.registrations = 0;
        self.queue
            .retain(|item| matches!(item, Item::Message(message) if message.packet_id.is_none()));
        self.bytes = self.queue.iter().map(Item::bytes).sum();
    }

    /// Adds a message. One without acknowledgement is dropped if there is no room.
    pub(super) fn push(&mut self, cx: &mut Context<'_>, message: Publication) {
        let item = Item::Message(message);
        let (bytes, limits) = (item.bytes(), cx.settings);
        let room =
            self.queue.len() < limits.max_queued && self.bytes + bytes <= limits.max_queued_bytes;
        // The broker has at most its window of other messages in flight.
        if !room && matches!(&item, Item::Message(message) if message.packet_id.is_none()) {
            cx.statistics.dropped += 1;
            return;
        }
        self.bytes += bytes;
        self.queue.push_back(item);
    }

    /// The broker releases a message at QoS 2.
    pub(super) fn release(&mut self, cx: &mut Context<'_>, id: PacketId, now: bool) {
        let awaited = matches!(&self.flight,
            Some(Flight { step: Step::Received(other), .. }) if *other == id);
        if awaited && now {
            self.send_release(cx, id);
            return;
        }
        if awaited {
            self.flight = None;
            self.queue.push_front(Item::Release(id));
        } else {
            self.queue.push_back(Item::Release(id));
        }
    }

    fn send_release(&mut self, cx: &mut Context<'_>, id: PacketId) {
        cx.send(&Message::Pubrel(id.get()));
        self.flight = Some(Flight { step: Step::Release(id), retry: Retry::start(cx) });
    }

    /// Whether nothing is to be sent, and nothing waits for an answer.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.flight.is_none()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.flight.as_ref().filter(|flight| flight.waits()).map(|flight| flight.retry.at)
    }

    /// Sends the messages that can be sent now.
    pub(super) fn pump(&mut self, cx: &mut Context<'_>, topics: &mut Topics) {
        while self.flight.is_none() {
            match self.queue.front() {
                None => return,
                Some(&Item::Release(id)) => {
                    self.pop();
                    self.send_release(cx, id);
                }
                Some(Item::Message(message)) => match naming(topics, &message.topic, self.proven) {
                    Ok(Naming::Known(topic)) => self.send_message(cx, topic),
                    Ok(Naming::Unknown(topic_id)) => {
                        if !self.send_register(cx, topic_id) {
                            return;
                        }
                    }
                    Err(_) => self.give_up(cx),
                },
            }
        }
    }

    fn send_message(&mut self, cx: &mut Context<'_>, topic: TopicRef) {
        let Some(Item::Message(message)) = self.queue.front() else { return };
        if !cx.send(&Message::Publish(publish(message, topic, message.dup))) {
            return self.give_up(cx);
        }
        cx.statistics.sent += 1;
        if message.qos == QoS::AtMostOnce {
            self.pop();
        } else {
            self.flight = Some(Flight { step: Step::Publish(topic), retry: Retry::start(cx) });
        }
    }

    /// Whether REGISTER of the first message's topic may be sent to the device now.
    fn has_room(&self, cx: &Context<'_>) -> bool {
        let Some(Item::Message(message)) = self.queue.front() else { return true };
        self.proven || message.topic.len() + REGISTER_OVERHEAD <= cx.room
    }

    /// `false` if that has to wait until more has been received from the device's address.
    fn send_register(&mut self, cx: &mut Context<'_>, topic_id: u16) -> bool {
        let Some(Item::Message(message)) = self.queue.front() else { return true };
        if !self.has_room(cx) {
            return false;
        }
        // Random, so that only the receiver knows it; 15 bits, because some clients read it as a signed number.
        let msg_id = cx.rng.u16(1..=0x7FFF);
        let register = Message::Register { topic_id, msg_id, topic: &message.topic };
        self.registrations += 1;
        if self.registrations > MAX_REGISTRATIONS || !cx.send(&register) {
            self.give_up(cx);
            return true;
        }
        let step = Step::Register { msg_id, topic_id };
        self.flight = Some(Flight { step, retry: Retry::start(cx) });
        true
    }

    /// Sends a message again if it is due; `false` after the last attempt.
    pub(super) fn on_deadline(&mut self, cx: &mut Context<'_>) -> bool {
        let has_room = self.has_room(cx);
        match &mut self.flight {
            Some(flight) if flight.waits() && flight.retry.at <= cx.now => {
                if matches!(flight.step, Step::Register { .. }) && !has_room {
                    flight.retry.postpone(cx);
                    return true;
                }
                if !flight.retry.again(cx) {
                    return false;
                }
                self.repeat(cx);
                true
            }
            _ => true,
        }
    }

    /// Sends the message that waits for an answer again.
    pub(super) fn repeat(&self, cx: &mut Context<'_>) {
        let Some(flight) = &self.flight else { return };
        match (&flight.step, self.queue.front()) {
            (Step::Register { msg_id, topic_id }, Some(Item::Message(message))) => {
                let (topic_id, msg_id, topic) = (*topic_id, *msg_id, &*message.topic);
                cx.send(&Message::Register { topic_id, msg_id, topic });
            }
            (Step::Publish(topic), Some(Item::Message(message))) => {
                cx.send(&Message::Publish(publish(message, *topic, true)));
            }
            (Step::Release(id), _) => drop(cx.send(&Message::Pubrel(id.get()))),
            _ => return,
        }
        cx.statistics.repeated += 1;
    }

    /// The device sleeps: unanswered messages are sent again when it is awake.
    pub(super) fn pause(&mut self) {
        self.registrations = 0;
        match self.flight.take() {
            Some(Flight { step: Step::Release(id), .. }) => {
                self.queue.push_front(Item::Release(id));
            }
            received @ Some(Flight { step: Step::Received(_), .. }) => self.flight = received,
            Some(Flight { step: Step::Publish(_), .. }) => self.set_aside(),
            _ => {}
        }
    }

    pub(super) fn regack(
        &mut self,
        cx: &mut Context<'_>,
        topics: &mut Topics,
        msg_id: u16,
        code: ReturnCode,
    ) {
        let Some(Flight { step: Step::Register { msg_id: asked, topic_id }, .. }) = &self.flight
        else {
            return;
        };
        if msg_id != *asked {
            return;
        }
        let topic_id = *topic_id;
        match code {
            // It is sent again when it is due.
            ReturnCode::Congestion => {}
            ReturnCode::Accepted => {
                self.proven = true;
                topics.set_known(topic_id, true);
                self.flight = None;
            }
            ReturnCode::InvalidTopicId | ReturnCode::NotSupported => self.give_up(cx),
        }
    }

    pub(super) fn puback(
        &mut self,
        cx: &mut Context<'_>,
        topics: &mut Topics,
        topic_id: u16,
        msg_id: u16,
        code: ReturnCode,
    ) {
        if code == ReturnCode::InvalidTopicId {
            topics.set_known(topic_id, false);
        }
        let Some((id, qos)) = self.first_sent().filter(|(id, _)| id.get() == msg_id) else {
            return;
        };
        match code {
            ReturnCode::Congestion => {}
            ReturnCode::Accepted if qos == QoS::AtLeastOnce => {
                cx.push_request(Request::Acknowledge(AckKind::Puback, id, ReasonCode::Success));
                self.flight = None;
                self.pop();
            }
            ReturnCode::Accepted => {}
            ReturnCode::InvalidTopicId => match &self.flight {
                // The identifier is registered again, if possible.
                Some(Flight { step: Step::Publish(TopicRef::Normal(_)), .. }) => self.set_aside(),
                Some(Flight { step: Step::Publish(_), .. }) => self.give_up(cx),
                _ => {}
            },
            ReturnCode::NotSupported => self.give_up(cx),
        }
    }

    pub(super) fn pubrec(&mut self, cx: &mut Context<'_>, msg_id: u16) {
        let Some(id) = PacketId::new(msg_id) else { return };
        if self.first_sent() == Some((id, QoS::ExactlyOnce)) {
            cx.push_request(Request::Acknowledge(AckKind::Pubrec, id, ReasonCode::Success));
            self.pop();
            self.flight = Some(Flight { step: Step::Received(id), retry: Retry::start(cx) });
            return;
        }
        match &self.flight {
            Some(Flight { step: Step::Received(other), .. }) if *other == id => {}
            // It belongs to a message that was completed, or is repeated anyway.
            _ => drop(cx.send(&Message::Pubrel(msg_id))),
        }
    }

    pub(super) fn pubcomp(&mut self, cx: &mut Context<'_>, msg_id: u16) {
        let Some(id) = PacketId::new(msg_id) else { return };
        match (&self.flight, self.queue.front()) {
            (Some(Flight { step: Step::Release(other), .. }), _) if *other == id => {
                self.flight = None;
            }
            // The device is asleep now.
            (None, Some(Item::Release(other))) if *other == id => drop(self.pop()),
            _ => return,
        }
        cx.push_request(Request::Acknowledge(AckKind::Pubcomp, id, ReasonCode::Success));
    }

    /// The first message, if the device may have it already.
    fn first_sent(&self) -> Option<(PacketId, QoS)> {
        let Some(Item::Message(message)) = self.queue.front() else { return None };
        let under_way = matches!(&self.flight, Some(Flight { step: Step::Publish(_), .. }));
        let before =
            !matches!(&self.flight, Some(Flight { step: Step::Received(_), .. })) && message.dup;
        message.packet_id.filter(|_| under_way || before).map(|id| (id, message.qos))
    }

    /// Sends the first message again from the beginning.
    fn set_aside(&mut self) {
        self.flight = None;
        if let Some(Item::Message(message)) = self.queue.front_mut() {
            message.dup = true;
        }
    }

    /// The first message cannot be delivered to the device: acknowledges it to the broker with an error.
    fn give_up(&mut self, cx: &mut Context<'_>) {
        self.flight = None;
        cx.statistics.dropped += 1;
        if let Some(Item::Message(message)) = self.pop()
            && let Some(id) = message.packet_id
        {
            let kind = match message.qos {
                QoS::ExactlyOnce => AckKind::Pubrec,
                _ => AckKind::Puback,
            };
            cx.push_request(Request::Acknowledge(kind, id, ReasonCode::UnspecifiedError));
        }
    }

    fn pop(&mut self) -> Option<Item> {
        let item = self.queue.pop_front()?;
        self.bytes -= item.bytes();
        self.registrations = 0;
        Some(item)
    }
}

impl Flight {
    /// Whether it waits for the device, and not for the broker.
    fn waits(&self) -> bool {
        !matches!(self.step, Step::Received(_))
    }
}

impl Item {
    fn bytes(&self) -> usize {
        match self {
            Item::Message(message) => message.topic.len() + message.payload.len(),
            Item::Release(_) => 0,
        }
    }
}

/// Returns the name for a message's topic to a device whose address is not validated yet.
fn naming(topics: &mut Topics, topic: &str, proven: bool) -> Result<Naming, crate::topics::Full> {
    if proven {
        return topics.naming(topic);
    }
    Ok(match topics.numbered(topic)? {
        Naming::Known(known) => Naming::Unknown(known.number()),
        unknown @ Naming::Unknown(_) => unknown,
    })
}

fn publish(message: &Publication, topic: TopicRef, dup: bool) -> Publish<'_> {
    Publish {
        dup,
        qos: Some(message.qos),
        retain: message.retain,
        topic,
        msg_id: message.packet_id.map_or(0, PacketId::get),
        payload: &message.payload,
    }
}
