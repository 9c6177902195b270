//! Messages from upstream on their way into the broker here: which is published next, and what becomes of those it
//! refuses. No I/O, no clock.
//!
//! As on the way up (`fulmar_gateway::refusals`), what an operator can fix is kept: the topic waits, everything else goes
//! on, and one message of it is tried again from time to time. It is not acknowledged upstream meanwhile, so that it is
//! kept there, too. What can never be accepted is given back, to be dropped where everybody can see it. For some of that
//! (a packet that is too large) the broker ends the connection and does not say which message it was; then they are
//! published one at a time until it is found.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use fulmar_gateway::refusals::may_pass;
use fulmar_mqtt::{PacketId, PropertyBuf, QoS, ReasonCode};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Messages that the broker has not acknowledged.
const MAX_OPEN: usize = 256;
/// Messages that wait because their topics are refused. A client has fewer unacknowledged (`receive_maximum`);
/// for an upstream of 3.1.1, which is not told, nothing more is taken then.
const MAX_WAITING: usize = 1024;
/// Before refused topics are tried again, at first and at last.
const FIRST_RETRY: Duration = Duration::from_secs(5);
const LAST_RETRY: Duration = Duration::from_secs(60);

/// A message from upstream, under its name here.
#[derive(Debug)]
pub(super) struct Down {
    pub(super) topic: String,
    pub(super) payload: bytes::Bytes,
    pub(super) qos: QoS,
    pub(super) retain: bool,
    pub(super) properties: PropertyBuf,
    /// Told when the broker here has it.
    pub(super) taken: oneshot::Sender<()>,
}

impl Down {
    /// The broker has it for good.
    fn done(self) {
        // Nobody waits for it where the connection it came by has ended.
        self.taken.send(()).ok();
    }
}

/// A topic that the broker here refuses for now.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) reason: ReasonCode,
    /// Since when, in milliseconds since the Unix epoch.
    pub(super) since_ms: u64,
    /// In order. The first is absent while it is tried.
    waiting: VecDeque<Down>,
    trying: bool,
}

/// What an answer means.
#[derive(Debug)]
pub(super) enum Answer {
    /// The message is where it belongs, or not ours.
    Done,
    /// Its topic is taken again.
    TakenAgain(String),
    /// Its topic is refused for now; `true` if that is news.
    Kept(String, bool),
    /// It can never be accepted.
    Never(Down),
}

/// See the module's words.
#[derive(Debug, Default)]
pub(super) struct Descent {
    /// To be published, in order.
    ready: VecDeque<Down>,
    /// Published and not acknowledged, in order.
    open: VecDeque<(PacketId, Down)>,
    refused: BTreeMap<String, Refusal>,
    retries: u32,
    retry_at: Option<Instant>,
    /// So many of the next are published one at a time.
    singly: usize,
}

impl Descent {
    /// Whether more may come.
    pub(super) fn has_room(&self) -> bool {
        let waiting: usize = self.refused.values().map(|refusal| refusal.waiting.len()).sum();
        self.ready.len() + self.open.len() < MAX_OPEN && waiting < MAX_WAITING
    }

    /// Takes a message that has come.
    pub(super) fn push(&mut self, message: Down) {
        match self.refused.get_mut(&message.topic) {
            Some(refusal) if message.qos != QoS::AtMostOnce => refusal.waiting.push_back(message),
            _ => self.ready.push_back(message),
        }
    }

    /// The message to publish now, if any.
    pub(super) fn next(&mut self) -> Option<Down> {
        if self.singly > 0 && !self.open.is_empty() {
            return None;
        }
        self.ready.pop_front()
    }

    /// It was published and will be acknowledged.
    pub(super) fn published(&mut self, id: PacketId, message: Down) {
        self.open.push_back((id, message));
    }

    /// The broker has answered at this time, which is `now_ms` since the Unix epoch.
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
        self.singly = self.singly.saturating_sub(1);
        if !reason.is_error() {
            let topic = message.topic.clone();
            message.done();
            return if self.release(&topic) { Answer::TakenAgain(topic) } else { Answer::Done };
        }
        if !may_pass(reason) {
            self.release(&message.topic);
            return Answer::Never(message);
        }
        let topic = message.topic.clone();
        let is_new = self.keep(message, reason, now_ms);
        self.retry_at.get_or_insert(now + FIRST_RETRY);
        Answer::Kept(topic, is_new)
    }

    /// Puts a refused message where it waits, with what is behind it; whether its topic was not refused before.
    fn keep(&mut self, message: Down, reason: ReasonCode, now_ms: u64) -> bool {
        let topic = message.topic.clone();
        if let Some(refusal) = self.refused.get_mut(&topic) {
            // The one that was tried is the oldest; others were on their way already, in order.
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

    /// Nothing of this topic waits any more; whether something did.
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

    /// When [`Descent::retry`] is due.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Tries one message of each refused topic again.
    pub(super) fn retry(&mut self, now: Instant) {
        self.retries += 1;
        let wait = FIRST_RETRY.saturating_mul(1 << self.retries.min(8)).min(LAST_RETRY);
        self.retry_at = Some(now + wait);
        for refusal in self.refused.values_mut().filter(|refusal| !refusal.trying) {
            // What came by a connection that has ended comes again by the next.
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

    /// The connection to the broker has ended, with this reason if it gave one: what was open is published again.
    /// Gives back a message for which it ended.
    pub(super) fn lost(&mut self, reason: Option<ReasonCode>) -> Option<Down> {
        let one_is_wrong = reason.is_some_and(|reason| reason.is_error() && !may_pass(reason));
        if one_is_wrong && self.singly > 0 && self.open.len() == 1 {
            self.singly -= 1;
            let (_, message) = self.open.pop_front()?;
            self.release(&message.topic);
            return Some(message);
        }
        if one_is_wrong {
            self.singly = self.open.len();
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

    fn down(topic: &str, payload: &'static str) -> (Down, oneshot::Receiver<()>) {
        let (taken, told) = oneshot::channel();
        let (topic, payload) = (topic.to_owned(), payload.into());
        let (qos, retain, properties) = (QoS::AtLeastOnce, false, PropertyBuf::new());
        (Down { topic, payload, qos, retain, properties, taken }, told)
    }

    fn id(number: u16) -> PacketId {
        PacketId::new(number).unwrap()
    }

    /// Publishes all that may be, with identifiers from `from` on; their payloads.
    fn publish(descent: &mut Descent, from: u16) -> Vec<String> {
        let mut said = Vec::new();
        while let Some(message) = descent.next() {
            said.push(String::from_utf8(message.payload.to_vec()).unwrap());
            descent.published(id(from + u16::try_from(said.len()).unwrap() - 1), message);
        }
        said
    }

    #[test]
    fn a_refused_topic_waits_in_order_while_others_go_on() {
        let (mut descent, now) = (Descent::default(), Instant::now());
        let (first, mut told) = down("a", "a1");
        descent.push(first);
        assert_eq!(publish(&mut descent, 1), ["a1"]);
        let full = ReasonCode::QuotaExceeded;
        assert!(matches!(descent.answered(id(1), full, now, 7), Answer::Kept(_, true)));
        assert!(told.try_recv().is_err(), "it is not acknowledged upstream");
        let (second, mut told_second) = down("a", "a2");
        let (other, mut told_other) = down("b", "b1");
        descent.push(second);
        descent.push(other);
        assert_eq!(publish(&mut descent, 2), ["b1"]);
        assert!(matches!(descent.answered(id(2), ReasonCode::Success, now, 8), Answer::Done));
        told_other.try_recv().unwrap();
        let (topic, refusal) = descent.refusals().next().unwrap();
        assert_eq!((topic.as_str(), refusal.reason, refusal.since_ms), ("a", full, 7));
        let at = descent.retry_at().unwrap();
        descent.retry(at);
        assert_eq!(publish(&mut descent, 3), ["a1"], "one is tried");
        assert!(matches!(descent.answered(id(3), full, at, 9), Answer::Kept(_, false)));
        assert!(descent.retry_at().unwrap() > at);
        descent.retry(at);
        assert_eq!(publish(&mut descent, 4), ["a1"]);
        let taken = descent.answered(id(4), ReasonCode::Success, at, 10);
        assert!(matches!(taken, Answer::TakenAgain(topic) if topic == "a"));
        assert_eq!(publish(&mut descent, 5), ["a2"]);
        descent.answered(id(5), ReasonCode::Success, at, 11);
        told.try_recv().unwrap();
        told_second.try_recv().unwrap();
        assert_eq!((descent.refusals().count(), descent.retry_at()), (0, None));
    }

    #[test]
    fn the_message_for_which_the_connection_ends_is_found_and_the_others_are_not_lost() {
        let (mut descent, now) = (Descent::default(), Instant::now());
        let told: Vec<_> = ["1", "2 too large", "3"]
            .map(|text| {
                let (message, told) = down("a", text);
                descent.push(message);
                told
            })
            .into();
        assert_eq!(publish(&mut descent, 1), ["1", "2 too large", "3"]);
        let too_large = Some(ReasonCode::PacketTooLarge);
        assert!(descent.lost(too_large).is_none(), "it may be any of them");
        assert_eq!(publish(&mut descent, 4), ["1"], "one at a time");
        assert!(matches!(descent.answered(id(4), ReasonCode::Success, now, 1), Answer::Done));
        assert_eq!(publish(&mut descent, 5), ["2 too large"]);
        assert_eq!(descent.lost(too_large).unwrap().payload, "2 too large");
        assert_eq!(publish(&mut descent, 6), ["3"]);
        // A connection that ends for another reason has nothing to do with it.
        assert!(descent.lost(Some(ReasonCode::ServerShuttingDown)).is_none());
        assert_eq!(publish(&mut descent, 7), ["3"]);
        assert!(matches!(descent.answered(id(7), ReasonCode::Success, now, 1), Answer::Done));
        drop(told);
    }

    #[test]
    fn what_comes_again_by_another_connection_does_not_wait_twice() {
        let (mut descent, now) = (Descent::default(), Instant::now());
        let (message, told) = down("a", "1");
        descent.push(message);
        publish(&mut descent, 1);
        descent.answered(id(1), ReasonCode::QuotaExceeded, now, 1);
        drop(told);
        let (again, _told) = down("a", "1");
        descent.push(again);
        descent.retry(now);
        assert_eq!(publish(&mut descent, 2), ["1"]);
        assert!(matches!(
            descent.answered(id(2), ReasonCode::Success, now, 2),
            Answer::TakenAgain(_)
        ));
        assert_eq!(publish(&mut descent, 3), [""; 0]);
    }
}
