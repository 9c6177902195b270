//! Decides which message from upstream is published next to the local broker, and handles those that it refuses. No
//! I/O, no clock.
//!
//! Like for publications to upstream (`fulmar_gateway::refusals`), a message whose refusal an operator can fix is kept:
//! its topic waits, all others continue, and one message of the topic is tried again from time to time. The message is
//! not acknowledged upstream meanwhile, so that upstream keeps it, too. A message that can never be accepted is returned
//! to the caller, which drops it and reports that. For some of these (a packet that is too large) the broker ends the
//! connection without naming the message; messages are then published one by one until it is found.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use fulmar_gateway::refusals::may_pass;
use fulmar_mqtt::{PacketId, PropertyBuf, QoS, ReasonCode};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Messages that the broker has not acknowledged.
const MAX_OPEN: usize = 256;
/// Messages that wait because their topics are refused. A client has fewer unacknowledged (`receive_maximum`); MQTT
/// 3.1.1 has no such property, so from a 3.1.1 upstream nothing more is received then.
const MAX_WAITING: usize = 1024;
/// Bytes of all these messages; the last may exceed it.
const MAX_BYTES: usize = 4 << 20;
/// First and longest pause before refused topics are tried again.
const FIRST_RETRY: Duration = Duration::from_secs(5);
const LAST_RETRY: Duration = Duration::from_secs(60);

/// A message from upstream, with its local topic.
#[derive(Debug)]
pub(super) struct DownlinkMessage {
    pub(super) topic: String,
    pub(super) payload: bytes::Bytes,
    pub(super) qos: QoS,
    pub(super) retain: bool,
    pub(super) properties: PropertyBuf,
    /// Notified when the local broker has accepted it.
    pub(super) taken: oneshot::Sender<()>,
}

impl DownlinkMessage {
    fn size(&self) -> usize {
        let properties = self.properties.as_properties().raw().len();
        self.topic.len() + self.payload.len() + properties
    }

    /// The local broker has accepted it.
    fn done(self) {
        // Nobody waits if the connection by which it arrived has ended.
        self.taken.send(()).ok();
    }
}

/// A topic that the local broker refuses for now.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) reason: ReasonCode,
    /// Since when, in milliseconds since the Unix epoch.
    pub(super) since_ms: u64,
    /// In order. The first is not here while it is being tried.
    waiting: VecDeque<DownlinkMessage>,
    trying: bool,
}

/// The result of an acknowledgement.
#[derive(Debug)]
pub(super) enum Answer {
    /// The message was accepted, or is not from upstream.
    Done,
    /// The message's topic, which was refused, is accepted again.
    AcceptedAgain(String),
    /// The message's topic is refused for now; `true` if it was not refused before.
    Kept(String, bool),
    /// It can never be accepted.
    Never(DownlinkMessage),
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct DownlinkScheduler {
    /// To be published, in order.
    ready: VecDeque<DownlinkMessage>,
    /// Published and not acknowledged, in order.
    open: VecDeque<(PacketId, DownlinkMessage)>,
    refused: BTreeMap<String, Refusal>,
    retries: u32,
    retry_at: Option<Instant>,
    /// Number of the next messages that are published one by one.
    one_by_one: usize,
}

impl DownlinkScheduler {
    /// Whether it can hold another message.
    pub(super) fn has_room(&self) -> bool {
        let waiting: usize = self.refused.values().map(|refusal| refusal.waiting.len()).sum();
        self.ready.len() + self.open.len() < MAX_OPEN
            && waiting < MAX_WAITING
            && self.bytes() < MAX_BYTES
    }

    /// Counted anew, for at most a few hundred messages: there is no sum that could become wrong.
    fn bytes(&self) -> usize {
        let open = self.open.iter().map(|(_, message)| message);
        let waiting = self.refused.values().flat_map(|refusal| &refusal.waiting);
        self.ready.iter().chain(open).chain(waiting).map(DownlinkMessage::size).sum()
    }

    /// Adds a message from upstream.
    pub(super) fn push(&mut self, message: DownlinkMessage) {
        match self.refused.get_mut(&message.topic) {
            Some(refusal) if message.qos != QoS::AtMostOnce => refusal.waiting.push_back(message),
            _ => self.ready.push_back(message),
        }
    }

    /// The message to publish now, if any.
    pub(super) fn next(&mut self) -> Option<DownlinkMessage> {
        if self.one_by_one > 0 && !self.open.is_empty() {
            return None;
        }
        self.ready.pop_front()
    }

    /// The message was published; the broker will acknowledge it.
    pub(super) fn published(&mut self, id: PacketId, message: DownlinkMessage) {
        self.open.push_back((id, message));
    }

    /// Handles an acknowledgement; `now_ms` is the same time in milliseconds since the Unix epoch.
    pub(super) fn answered(
        &mut self,
        id: PacketId,
        reason: ReasonCode,
        now: Instant,
        now_ms: u64,
    ) -> Answer {
        let Some(at) = self.open.iter().position(|(open, _)| *open == id) else {
            return Answer::Done;
        };
        let Some((_, message)) = self.open.remove(at) else { return Answer::Done };
        self.one_by_one = self.one_by_one.saturating_sub(1);
        if !reason.is_error() {
            let topic = message.topic.clone();
            message.done();
            return if self.release(&topic) { Answer::AcceptedAgain(topic) } else { Answer::Done };
        }
        if !may_pass(reason) {
            self.release(&message.topic);
            return Answer::Never(message);
        }
        let topic = message.topic.clone();
        let is_new = self.hold_refused(message, reason, now_ms);
        self.retry_at.get_or_insert(now + FIRST_RETRY);
        Answer::Kept(topic, is_new)
    }

    /// Keeps a refused message and later ones of its topic. Returns whether the topic was not refused before.
    fn hold_refused(&mut self, message: DownlinkMessage, reason: ReasonCode, now_ms: u64) -> bool {
        let topic = message.topic.clone();
        if let Some(refusal) = self.refused.get_mut(&topic) {
            // The one that was tried is the oldest; others had been published already, in order.
            match std::mem::take(&mut refusal.trying) {
                true => refusal.waiting.push_front(message),
                false => refusal.waiting.push_back(message),
            }
            refusal.reason = reason;
            return false;
        }
        let mut waiting = VecDeque::from([message]);
        let (behind, ready) = std::mem::take(&mut self.ready)
            .into_iter()
            .partition(|other| other.topic == topic && other.qos != QoS::AtMostOnce);
        waiting.extend::<VecDeque<_>>(behind);
        self.ready = ready;
        self.refused.insert(topic, Refusal { reason, since_ms: now_ms, waiting, trying: false });
        true
    }

    /// Puts the messages that wait for this topic back into the queue. Returns whether the topic was refused.
    fn release(&mut self, topic: &str) -> bool {
        let Some(refusal) = self.refused.remove(topic) else { return false };
        for message in refusal.waiting.into_iter().rev() {
            self.ready.push_front(message);
        }
        if self.refused.is_empty() {
            (self.retries, self.retry_at) = (0, None);
        }
        true
    }

    /// When [`DownlinkScheduler::retry`] is due.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Tries one message of each refused topic again.
    pub(super) fn retry(&mut self, now: Instant) {
        self.retries += 1;
        let wait = FIRST_RETRY.saturating_mul(1 << self.retries.min(8)).min(LAST_RETRY);
        self.retry_at = Some(now + wait);
        for refusal in self.refused.values_mut().filter(|refusal| !refusal.trying) {
            // Upstream sends messages of a connection that has ended again by the next.
            refusal.waiting.retain(|message| !message.taken.is_closed());
            if let Some(message) = refusal.waiting.pop_front() {
                refusal.trying = true;
                self.ready.push_front(message);
            }
        }
        self.refused.retain(|_, refusal| refusal.trying || !refusal.waiting.is_empty());
        if self.refused.is_empty() {
            (self.retries, self.retry_at) = (0, None);
        }
    }

    /// The connection to the broker has ended, with this reason if it gave one. Unacknowledged messages are published
    /// again. Returns the message because of which it ended, if that is known.
    pub(super) fn lost(&mut self, reason: Option<ReasonCode>) -> Option<DownlinkMessage> {
        let one_is_wrong = reason.is_some_and(|reason| reason.is_error() && !may_pass(reason));
        if one_is_wrong && self.one_by_one > 0 && self.open.len() == 1 {
            self.one_by_one -= 1;
            let (_, message) = self.open.pop_front()?;
            self.release(&message.topic);
            return Some(message);
        }
        if one_is_wrong {
            self.one_by_one = self.open.len();
        }
        for (_, message) in self.open.drain(..).rev() {
            self.ready.push_front(message);
        }
        None
    }

    /// Topics that are refused for now.
    pub(super) fn refusals(&self) -> impl Iterator<Item = (&String, &Refusal)> {
        self.refused.iter()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn down(topic: &str, payload: &'static str) -> (DownlinkMessage, oneshot::Receiver<()>) {
        let (taken, accepted) = oneshot::channel();
        let (topic, payload) = (topic.to_owned(), payload.into());
        let (qos, retain, properties) = (QoS::AtLeastOnce, false, PropertyBuf::new());
        (DownlinkMessage { topic, payload, qos, retain, properties, taken }, accepted)
    }

    fn id(number: u16) -> PacketId {
        PacketId::new(number).unwrap()
    }

    /// Publishes all that may be, with identifiers from `from` on; their payloads.
    fn publish(downlink: &mut DownlinkScheduler, from: u16) -> Vec<String> {
        let mut payloads = Vec::new();
        while let Some(message) = downlink.next() {
            payloads.push(String::from_utf8(message.payload.to_vec()).unwrap());
            downlink.published(id(from + u16::try_from(payloads.len()).unwrap() - 1), message);
        }
        payloads
    }

    #[test]
    fn a_refused_topic_waits_in_order_while_others_go_on() {
        let (mut downlink, now) = (DownlinkScheduler::default(), Instant::now());
        let (first, mut accepted) = down("a", "a1");
        downlink.push(first);
        assert_eq!(publish(&mut downlink, 1), ["a1"]);
        let full = ReasonCode::QuotaExceeded;
        assert!(matches!(downlink.answered(id(1), full, now, 7), Answer::Kept(_, true)));
        assert!(accepted.try_recv().is_err(), "it is not acknowledged upstream");
        let (second, mut second_accepted) = down("a", "a2");
        let (other, mut other_accepted) = down("b", "b1");
        downlink.push(second);
        downlink.push(other);
        assert_eq!(publish(&mut downlink, 2), ["b1"]);
        assert!(matches!(downlink.answered(id(2), ReasonCode::Success, now, 8), Answer::Done));
        other_accepted.try_recv().unwrap();
        let (topic, refusal) = downlink.refusals().next().unwrap();
        assert_eq!((topic.as_str(), refusal.reason, refusal.since_ms), ("a", full, 7));
        let at = downlink.retry_at().unwrap();
        downlink.retry(at);
        assert_eq!(publish(&mut downlink, 3), ["a1"], "one is tried");
        assert!(matches!(downlink.answered(id(3), full, at, 9), Answer::Kept(_, false)));
        assert!(downlink.retry_at().unwrap() > at);
        downlink.retry(at);
        assert_eq!(publish(&mut downlink, 4), ["a1"]);
        let taken = downlink.answered(id(4), ReasonCode::Success, at, 10);
        assert!(matches!(taken, Answer::AcceptedAgain(topic) if topic == "a"));
        assert_eq!(publish(&mut downlink, 5), ["a2"]);
        downlink.answered(id(5), ReasonCode::Success, at, 11);
        accepted.try_recv().unwrap();
        second_accepted.try_recv().unwrap();
        assert_eq!((downlink.refusals().count(), downlink.retry_at()), (0, None));
    }

    #[test]
    fn messages_that_wait_are_bounded_in_bytes() {
        let (mut downlink, now) = (DownlinkScheduler::default(), Instant::now());
        let large = bytes::Bytes::from(vec![0; 1 << 20]);
        let mut receivers = Vec::new();
        let mut push = |downlink: &mut DownlinkScheduler, topic: &str| {
            let (mut message, accepted) = down(topic, "");
            message.payload = large.clone();
            receivers.push(accepted);
            downlink.push(message);
        };
        push(&mut downlink, "refused");
        let first = downlink.next().unwrap();
        downlink.published(id(1), first);
        downlink.answered(id(1), ReasonCode::QuotaExceeded, now, 1);
        let mut waiting = 1;
        while downlink.has_room() && waiting < 100 {
            push(&mut downlink, "refused");
            waiting += 1;
        }
        assert_eq!(waiting, 4, "MiB");
        downlink.retry(now);
        let first = downlink.next().unwrap();
        downlink.published(id(2), first);
        assert!(!downlink.has_room(), "what is being tried counts as well");
        downlink.answered(id(2), ReasonCode::Success, now, 2);
        assert!(downlink.has_room());
    }

    #[test]
    fn the_message_for_which_the_connection_ends_is_found_and_the_others_are_not_lost() {
        let (mut downlink, now) = (DownlinkScheduler::default(), Instant::now());
        let accepted: Vec<_> = ["1", "2 too large", "3"]
            .map(|text| {
                let (message, accepted) = down("a", text);
                downlink.push(message);
                accepted
            })
            .into();
        assert_eq!(publish(&mut downlink, 1), ["1", "2 too large", "3"]);
        let too_large = Some(ReasonCode::PacketTooLarge);
        assert!(downlink.lost(too_large).is_none(), "it may be any of them");
        assert_eq!(publish(&mut downlink, 4), ["1"], "one at a time");
        assert!(matches!(downlink.answered(id(4), ReasonCode::Success, now, 1), Answer::Done));
        assert_eq!(publish(&mut downlink, 5), ["2 too large"]);
        assert_eq!(downlink.lost(too_large).unwrap().payload, "2 too large");
        assert_eq!(publish(&mut downlink, 6), ["3"]);
        // A connection that ends for another reason has nothing to do with it.
        assert!(downlink.lost(Some(ReasonCode::ServerShuttingDown)).is_none());
        assert_eq!(publish(&mut downlink, 7), ["3"]);
        assert!(matches!(downlink.answered(id(7), ReasonCode::Success, now, 1), Answer::Done));
        drop(accepted);
    }

    #[test]
    fn what_comes_again_by_another_connection_does_not_wait_twice() {
        let (mut downlink, now) = (DownlinkScheduler::default(), Instant::now());
        let (message, accepted) = down("a", "1");
        downlink.push(message);
        publish(&mut downlink, 1);
        downlink.answered(id(1), ReasonCode::QuotaExceeded, now, 1);
        drop(accepted);
        let (again, _told) = down("a", "1");
        downlink.push(again);
        downlink.retry(now);
        assert_eq!(publish(&mut downlink, 2), ["1"]);
        assert!(matches!(
            downlink.answered(id(2), ReasonCode::Success, now, 2),
            Answer::AcceptedAgain(_)
        ));
        assert_eq!(publish(&mut downlink, 3), [""; 0]);
    }
}
