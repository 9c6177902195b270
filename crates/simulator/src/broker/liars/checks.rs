//! Compares what the broker does with the law.

use std::rc::Rc;

use fulmar_broker::StreamKey;
use fulmar_broker::access::Action;
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::packet::Publish;
use fulmar_mqtt::{Packet, PacketId, ReasonCode, Version};

use super::fakes::number;
use super::law::Who;
use super::stage::{Moment, PendingRequest, Stage};
use super::{CONTROL, PROGRAM, RESPONSE, Voucher};
use crate::packets::{acknowledgement, decoded};

/// What the program subscribes to.
const ALL: [&str; 4] = ["#", "fulmar/#", "$CONTROL/#", "$SYS/x"];

impl Stage {
    /// Whether something was so at a moment from that one on.
    fn was(&self, from: usize, holds: impl Fn(&Moment) -> bool) -> bool {
        self.moments[from..].iter().any(holds)
    }

    /// Whether a client might do something at a moment from that one on: with the connection it has, and with a fresh login.
    /// The broker may know of a change of rights and not yet of a credential's end, or the other way round.
    fn might(&self, from: usize, who: &Who, action: Action, topic: &str) -> bool {
        self.was(from, |moment| moment.law.may_log_in(who, moment.now))
            && self.was(from, |moment| moment.law.may(who, action, topic))
    }

    /// Checks what the broker has accepted since this was called last, and notes whether it has published wills.
    pub(super) fn check_accepted(&mut self) -> Result<(), String> {
        let published = self.world.broker().metrics().sum(|worker| &worker.wills_published);
        if std::mem::replace(&mut self.published, published) != published {
            self.wills.push(self.now());
        }
        let now = self.now();
        for accepted in self.fakes.take_accepted() {
            let message = accepted.message.and_then(|at| self.messages.get_mut(at));
            let Some(message) = message else { return Err(format!("nobody's: {accepted:?}")) };
            message.accepted = Some(now);
            let (who, topic, line) = (Rc::clone(&message.who), message.topic, message.line);
            if !self.might(self.lines[line].seen(), &who, Action::Publish, topic) {
                return Err(format!("published without the right to: {who:?}, {topic}"));
            }
            if accepted.is_external && who.voucher != Voucher::Platform {
                return Err(format!("published as an account: {who:?}"));
            }
            if accepted.is_request && topic != CONTROL {
                return Err(format!("a request on another topic: {who:?}, {topic}"));
            }
        }
        Ok(())
    }

    /// A connection whose client could not log in any more is closed when its worker has seen why.
    pub(super) fn check_stays(&self, line: usize) -> Result<(), String> {
        let own = &self.lines[line];
        let may_stay = |moment: &Moment| moment.law.may_log_in(&own.who, moment.now);
        match (self.world.is_open(line), own.client) {
            (false, None) if own.greeted => Err("the program was disconnected".to_owned()),
            (true, _) if own.greeted && !self.was(own.seen(), may_stay) => {
                Err(format!("stays connected: {:?}", own.who))
            }
            _ => Ok(()),
        }
    }

    /// A client reads a packet.
    pub(super) fn receive(&mut self, line: usize, packet: &[u8]) -> Result<(), String> {
        self.played.heard += 1;
        let packet = decoded(packet, Version::V5)?;
        let own = &mut self.lines[line];
        if own.client.is_some() {
            self.story.add_event(|| format!("    {:?} reads {packet:?}", own.who));
        }
        match packet {
            Packet::Connack(connack) if connack.reason == ReasonCode::Success => {
                own.greeted = true;
                self.check_greeted(line)?;
            }
            Packet::Publish(publish) => {
                self.check_delivery(line, &publish)?;
                let id = publish.packet_id;
                id.into_iter().for_each(|id| self.answer(line, AckKind::Puback, id));
            }
            Packet::Ack(AckKind::Pubcomp, _) => {}
            Packet::Ack(kind, ack) => {
                if kind == AckKind::Pubrec && !ack.reason.is_error() {
                    self.answer(line, AckKind::Pubrel, ack.packet_id);
                }
                self.check_answer(line, ack.packet_id, ack.reason)?;
            }
            Packet::Suback(suback) => {
                let code = suback.codes.first().and_then(|code| ReasonCode::from_u8(*code));
                self.check_answer(line, suback.packet_id, code.ok_or("SUBACK without a code")?)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn answer(&mut self, line: usize, kind: AckKind, id: PacketId) {
        self.world.client_sends(line, StreamKey::CONTROL, acknowledgement(kind, id, Version::V5));
    }

    fn check_greeted(&mut self, line: usize) -> Result<(), String> {
        let own = &self.lines[line];
        let who = Rc::clone(&own.who);
        if own.client.is_none() {
            self.has_program = true;
            ALL.into_iter().for_each(|filter| self.subscribe(line, filter));
        } else if !self.was(own.began, |moment| moment.law.may_log_in(&who, moment.now)) {
            return Err(format!("was let in: {who:?}"));
        } else if who.id == PROGRAM && self.has_program {
            return Err(format!("has the program's session: {who:?}"));
        }
        Ok(())
    }

    /// The broker's answer is that of the law, and what a fresh login would get, at some moment since the question.
    fn check_answer(
        &mut self,
        line: usize,
        id: PacketId,
        reason: ReasonCode,
    ) -> Result<(), String> {
        let own = &mut self.lines[line];
        let Some(at) = own.asked.iter().position(|asked| asked.0 == id) else { return Ok(()) };
        let (_, asked, since) = own.asked.swap_remove(at);
        let who = Rc::clone(&own.who);
        let (action, topic) = match asked {
            PendingRequest::Publish(message) => (Action::Publish, self.messages[message].topic),
            PendingRequest::Subscribe(filter) => {
                let shared = filter.strip_prefix("$share/g/");
                (Action::Subscribe, shared.unwrap_or(filter))
            }
        };
        // Whether a publication was accepted, or is taken for a repeated one, is known from elsewhere.
        let is_granted = action == Action::Subscribe && !reason.is_error();
        if is_granted && !self.might(since, &who, action, topic) {
            return Err(format!("allowed without a rule: {who:?}, {action:?} {topic}"));
        }
        // What is reserved may have further conditions, and so may deleted users.
        let is_plain = !topic.starts_with('$') && !topic.starts_with("fulmar/");
        let is_denied = is_plain && reason == ReasonCode::NotAuthorized;
        self.played.denied += u64::from(is_denied);
        let denies = |Moment { law, now }: &Moment| {
            !law.may_log_in(&who, *now) || !law.may(&who, action, topic) || law.is_deleted(&who)
        };
        if is_denied && !self.was(since, denies) {
            return Err(format!("a fresh login gets more: {who:?}, {action:?} {topic}"));
        }
        Ok(())
    }

    /// A message was handed to the client's session at a moment when the client might have it; and a will was published at
    /// one when its client might leave it.
    fn check_delivery(&self, line: usize, publish: &Publish<'_>) -> Result<(), String> {
        let (own, topic) = (&self.lines[line], publish.topic);
        let who = &*own.who;
        let receives = |moment: &Moment| moment.law.may(who, Action::Receive, topic);
        let late = || self.was(own.seen(), receives);
        let message = number(publish.payload).and_then(|at| self.messages.get(at));
        let Some(message) = message.filter(|message| message.topic == topic) else {
            return match (topic == RESPONSE || topic.starts_with("$SYS/")) && late() {
                true => Ok(()),
                false => Err(format!("received without the right to: {who:?}, {topic}")),
            };
        };
        let from: &Who = &message.who;
        let received = if message.is_will {
            let leaves = |at: &&usize| {
                let Moment { law, now } = &self.moments[**at];
                let before = &self.moments[message.said..=**at];
                before.iter().any(|then| law.may_leave(from, topic, &then.law, *now))
            };
            let since = self.wills.iter().filter(|at| **at >= message.said);
            let mut left = since.filter(leaves).map(|at| &self.moments[*at]).peekable();
            if left.peek().is_none() {
                return Err(format!("the will was published: {from:?}, {topic}"));
            }
            left.any(receives)
        } else {
            let Some(accepted) = message.accepted else {
                return Err(format!(
                    "received what was not accepted: {who:?} from {from:?}, {topic}"
                ));
            };
            receives(&self.moments[accepted])
        };
        // Retained messages are handed over later, and an account's rights reach its connection with its events.
        if received || ((publish.retain || who.voucher == Voucher::Platform) && late()) {
            return Ok(());
        }
        Err(format!("received without the right to: {who:?} from {from:?}, {topic}"))
    }
}
