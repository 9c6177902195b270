//! What clients were promised and have received: every acknowledged message is owed to each session that was
//! certainly subscribed from before it was sent until after it was acknowledged. If the client cannot know (SUBACK
//! has not arrived, the session may have expired), nothing is owed, so that every reported error is the broker's
//! fault.

mod missing;
mod refusals;
mod shares;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fulmar_broker::Timestamp;
use fulmar_mqtt::QoS;

use crate::broker::schedule::{FILTERS, Nature, TOPICS};
use crate::overdue::Tick;

pub(crate) use refusals::Before;

/// A flow from its client's view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Lane {
    Control,
    Named(u64),
    /// A stream's unnamed flow, which ends with the stream.
    Unnamed(u64),
    /// No stream: a will, by its number.
    Will(usize),
    /// The control flow, or a later flow of the same name: the flow has ended, or its client cannot know.
    Gone,
}

/// A message from its publisher's view.
#[derive(Debug)]
pub(crate) struct SentMessage {
    /// Order is promised within each lane of a publisher.
    publisher: (usize, Lane),
    /// `None` for the publisher's own retained topic.
    pub(crate) topic: Option<usize>,
    pub(crate) qos: QoS,
    pub(crate) acknowledged: bool,
    /// When it was, at the latest.
    acknowledged_at: Timestamp,
    owed: Vec<ExpectedDelivery>,
    /// Shared filters of which one group member was certainly to receive it, each with its group's number.
    shared: Vec<(usize, u64)>,
    /// Seconds after which it expires, and the time when that may be.
    pub(crate) expiry_s: Option<u32>,
    lapses: Option<Timestamp>,
    will: Option<Bequest>,
    /// Last publication, and when that was sent.
    said: (u64, Tick),
    /// The broker has refused it at QoS 2.
    is_refused: bool,
}

impl SentMessage {
    /// A will may be published from then on, and expire soon after.
    fn may_come(&mut self, at: Timestamp) {
        self.will = Some(Bequest::NotBefore(at));
        self.lapses = self.expiry_s.map(|seconds| at.plus_secs(seconds));
    }

    /// Whether it may have expired by then.
    pub(crate) fn may_have_lapsed(&self, now: Timestamp) -> bool {
        self.lapses.is_some_and(|at| at <= now)
    }
}

/// When a will may be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bequest {
    Never,
    NotBefore(Timestamp),
}

#[derive(Debug)]
struct ExpectedDelivery {
    client: usize,
    claim: u64,
    /// Subscriptions by filter and number, of which one must have lasted.
    by: Vec<(usize, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct Certain {
    number: u64,
    /// At least.
    qos: QoS,
}

/// A client's subscriptions and received messages in this session.
#[derive(Debug, Default)]
struct Reader {
    /// Changes when the messages that it was owed are void.
    claim: u64,
    certain: BTreeMap<usize, Certain>,
    /// Filters to which it ever subscribed in this session, and the last lane of each.
    asked: BTreeMap<usize, (QoS, Lane)>,
    arrived: BTreeMap<usize, Arrived>,
    /// Publications received (a repeated message is another), and the newest of each order.
    seen: BTreeSet<u64>,
    newest: BTreeMap<(usize, Lane, usize, u8), u64>,
    /// Overlapping filters were on different lanes, each of which gets a copy.
    mixed: bool,
    /// The lanes have no order among each other.
    loose: bool,
    moved_from: BTreeSet<Lane>,
    /// Counts what changes its subscriptions besides requests for one of them.
    changes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Arrived {
    times: u32,
    /// The number of these at QoS 2.
    twos: u32,
    /// Number of times that it may arrive once more, because a lane ended before its acknowledgement was known.
    again: u32,
}

/// A delivery from its client's view.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delivery {
    pub(crate) message: usize,
    pub(crate) publication: u64,
    pub(crate) qos: QoS,
    pub(crate) topic: usize,
    /// DUP flag.
    pub(crate) dup: bool,
    /// The remaining seconds, if the client's protocol version has them.
    pub(crate) left_s: Option<Option<u32>>,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// The time that it really is.
    pub(crate) now: Timestamp,
    /// By how much later than after the real time the broker may act.
    pub(crate) late: Duration,
    pub(crate) sent: Vec<SentMessage>,
    readers: Vec<Reader>,
    /// Clients that do not want their own messages back, except through shared subscriptions.
    no_local: BTreeSet<usize>,
    numbers: u64,
    /// The connection on which each publication was sent: an older connection may be read later.
    pub(crate) publications: Vec<usize>,
    /// Changes whenever messages of a shared subscription may be lost, because its last member may have gone.
    groups: BTreeMap<usize, u64>,
    /// The same for another member: what may be in flight to it at QoS 2 goes to nobody else.
    ends: BTreeMap<usize, u64>,
    /// Messages that a member of a shared subscription has received.
    came: BTreeSet<usize>,
    /// Shared subscriptions with members that may lose their messages.
    weak: BTreeSet<usize>,
    /// Dropped or expired messages may have returned, because a crash undid that.
    pub(crate) undone: bool,
    /// The present.
    pub(crate) tick: Tick,
    /// The last call of the core while a batch was overdue, for the connection on which a client reads now.
    pub(crate) stalled_in: Tick,
    /// Publications that the broker has refused when it read them.
    refused: BTreeSet<u64>,
    /// Refusals that clients have got.
    pub(crate) refusals: u64,
}

/// The number of the message in a payload.
pub(crate) fn message_of(payload: &[u8]) -> Option<usize> {
    std::str::from_utf8(payload).ok()?.split(' ').next()?.parse().ok()
}

/// The number of the publication in a payload, its second word.
pub(crate) fn publication_of(payload: &[u8]) -> Option<u64> {
    std::str::from_utf8(payload).ok()?.split(' ').nth(1)?.parse().ok()
}

fn matches(filter: usize, topic: usize) -> bool {
    let filter = FILTERS[filter].trim_start_matches("$share/g/");
    filter.ends_with(['+', '#']) || filter == TOPICS[topic]
}

fn is_shared(filter: usize) -> bool {
    FILTERS[filter].starts_with("$share")
}

fn overlap(a: usize, b: usize) -> bool {
    (0..TOPICS.len()).any(|topic| matches(a, topic) && matches(b, topic))
}

/// The state of a subscription before the client repeats it.
pub(crate) struct FormerSubscription {
    /// The lane has a stream.
    pub(crate) is_open: bool,
    /// An earlier SUBSCRIBE is not answered yet.
    pub(crate) is_unanswered: bool,
}

impl Ledger {
    pub(crate) fn new(natures: &[Nature], now: Timestamp) -> Ledger {
        let readers = natures.iter().map(|_| Reader::default()).collect();
        let no_local = (0..natures.len()).filter(|client| natures[*client].no_local).collect();
        Ledger { now, readers, no_local, ..Ledger::default() }
    }

    /// A client publishes a new message.
    pub(crate) fn publish(
        &mut self,
        publisher: usize,
        lane: Lane,
        topic: Option<usize>,
        qos: QoS,
        expiry_s: Option<u32>,
    ) {
        let owed = topic.map_or_else(Vec::new, |topic| self.owed_now(publisher, topic));
        let shared = topic.map_or_else(Vec::new, |topic| self.shared_now(topic, qos));
        let lapses = expiry_s.map(|seconds| self.now.plus_secs(seconds));
        let (acknowledged, will) = (false, None);
        self.sent.push(SentMessage {
            publisher: (publisher, lane),
            topic,
            qos,
            acknowledged,
            acknowledged_at: Timestamp::NEVER,
            owed,
            shared,
            expiry_s,
            lapses,
            will,
            said: Default::default(),
            is_refused: false,
        });
    }

    /// A client's CONNECT contains a will; returns its number.
    pub(crate) fn will(
        &mut self,
        client: usize,
        topic: usize,
        qos: QoS,
        expiry_s: Option<u32>,
    ) -> usize {
        let message = self.sent.len();
        self.publish(client, Lane::Will(message), Some(topic), qos, expiry_s);
        let sent = &mut self.sent[message];
        (sent.owed, sent.shared, sent.lapses) = (Vec::new(), Vec::new(), None);
        sent.will = Some(Bequest::Never);
        message
    }

    /// The connection of a will has ended; it may be published from then on.
    pub(crate) fn bequeath(&mut self, message: usize, not_before: Timestamp) {
        let (publisher, _) = self.sent[message].publisher;
        let topic = self.sent[message].topic;
        let owed = topic.map_or_else(Vec::new, |topic| self.owed_now(publisher, topic));
        self.sent[message].owed = owed;
        self.sent[message].may_come(not_before);
    }

    /// Whether one of a client's retained messages from `oldest` to `newest` may have expired.
    pub(crate) fn may_have_lapsed(&self, client: usize, oldest: usize, newest: usize) -> bool {
        let between = &self.sent[oldest..=newest];
        let mut own =
            between.iter().filter(|sent| sent.topic.is_none() && sent.publisher.0 == client);
        own.any(|sent| sent.may_have_lapsed(self.now))
    }

    pub(crate) fn is_will(&self, message: usize) -> bool {
        self.sent.get(message).is_some_and(|sent| sent.will.is_some())
    }

    /// A will may be published at any time.
    pub(crate) fn may_come(&mut self, message: usize) {
        self.sent[message].may_come(Timestamp(0));
    }

    /// A client's earlier wills may be published too.
    pub(crate) fn wills_may_come(&mut self, client: usize) {
        let own = self.sent.iter_mut().filter(|sent| sent.publisher.0 == client);
        for sent in own.filter(|sent| matches!(sent.will, Some(Bequest::NotBefore(_)))) {
            sent.may_come(Timestamp(0));
        }
    }

    /// The broker knows that a will must not be published.
    pub(crate) fn must_not_come(&mut self, message: usize) {
        self.sent[message].will = Some(Bequest::Never);
    }

    /// The payload of a message sent now on this connection.
    pub(crate) fn payload(&mut self, message: usize, line: usize) -> String {
        let publication = self.publications.len() as u64;
        self.publications.push(line);
        self.sent[message].said = (publication, self.tick);
        format!("{message} {publication}")
    }

    fn owed_now(&self, publisher: usize, topic: usize) -> Vec<ExpectedDelivery> {
        let owed = self.readers.iter().enumerate().map(|(client, reader)| {
            let certain = reader.certain.iter().filter(|(filter, own)| {
                own.qos > QoS::AtMostOnce && !is_shared(**filter) && matches(**filter, topic)
            });
            let by = certain.map(|(filter, own)| (*filter, own.number)).collect();
            ExpectedDelivery { client, claim: reader.claim, by }
        });
        let is_own = |owed: &ExpectedDelivery| {
            owed.client == publisher && self.no_local.contains(&publisher)
        };
        owed.filter(|owed| !owed.by.is_empty() && !is_own(owed)).collect()
    }

    /// The broker acknowledged it to the publisher.
    pub(crate) fn acknowledged(&mut self, message: usize) {
        let sent = &mut self.sent[message];
        if std::mem::replace(&mut sent.acknowledged, true) {
            return;
        }
        sent.acknowledged_at = self.now;
        let readers = &self.readers;
        sent.owed.retain_mut(|owed| {
            let reader = &readers[owed.client];
            owed.by.retain(|(filter, number)| {
                reader
                    .certain
                    .get(filter)
                    .is_some_and(|own| own.number == *number && own.qos > QoS::AtMostOnce)
            });
            owed.claim == reader.claim && !owed.by.is_empty()
        });
        let (qos, mut shared) = (sent.qos, std::mem::take(&mut sent.shared));
        shared.retain(|(filter, number)| self.group(*filter, qos) == *number);
        self.sent[message].shared = shared;
    }

    /// A client, whose session is `durable`, has sent SUBSCRIBE on a lane.
    pub(crate) fn subscribing(
        &mut self,
        client: usize,
        filter: usize,
        qos: QoS,
        lane: Lane,
        former: FormerSubscription,
        durable: bool,
    ) -> Before {
        let before = self.before(client, filter);
        if is_shared(filter) && (qos == QoS::AtMostOnce || !durable) {
            self.weak.insert(filter);
        }
        let reader = &mut self.readers[client];
        if let Some(own) = reader.certain.get_mut(&filter) {
            own.qos = own.qos.min(qos);
            if qos == QoS::AtMostOnce {
                // In the meantime nothing is owed by it, even if it is never answered.
                self.numbers += 1;
                own.number = self.numbers;
            }
        }
        if let Some((most, before)) = reader.asked.get(&filter).copied() {
            if before != lane {
                // A new subscription does not depend on an old one's lane, and a lane without a stream is not waited
                // for.
                reader.loose |= !reader.certain.contains_key(&filter) || !former.is_open;
                reader.moved_from.insert(before);
                // It may overtake the earlier one.
                reader.moved_from.extend(former.is_unanswered.then_some(lane));
            }
            reader.asked.insert(filter, (most.max(qos), lane));
        } else {
            reader.asked.insert(filter, (qos, lane));
        }
        let apart = |(other, (_, at)): (&usize, &(QoS, Lane))| {
            *other != filter && overlap(*other, filter) && (*at != lane || *at == Lane::Gone)
        };
        if reader.asked.iter().any(apart) {
            (reader.mixed, reader.loose) = (true, true);
        }
        before
    }

    /// The lane of a client's last SUBSCRIBE for a filter.
    pub(crate) fn lane_of(&self, client: usize, filter: usize) -> Option<Lane> {
        self.readers[client].asked.get(&filter).map(|(_, lane)| *lane)
    }

    /// SUBACK was received.
    pub(crate) fn subscribed(&mut self, client: usize, filter: usize, qos: QoS) {
        self.numbers += 1;
        let number = self.numbers;
        let certain = &mut self.readers[client].certain;
        certain.entry(filter).or_insert(Certain { number, qos }).qos = qos;
    }

    /// A client has sent UNSUBSCRIBE.
    pub(crate) fn unsubscribing(&mut self, client: usize, filter: usize) -> Before {
        let before = self.before(client, filter);
        if is_shared(filter) {
            *self.groups.entry(filter).or_default() += 1;
        }
        let reader = &mut self.readers[client];
        reader.certain.remove(&filter);
        // It may overtake a SUBSCRIBE on another stream, which then creates a new subscription.
        reader.loose |= !reader.moved_from.is_empty();
        before
    }

    /// The filters to which a client is certainly subscribed; `None` if there may be others.
    pub(crate) fn certain(&self, client: usize) -> Option<BTreeSet<&'static str>> {
        let reader = &self.readers[client];
        let all = reader.asked.keys().all(|filter| reader.certain.contains_key(filter));
        all.then(|| reader.certain.keys().map(|filter| FILTERS[*filter]).collect())
    }

    /// A client's session may have ended.
    pub(crate) fn void(&mut self, client: usize) {
        self.leaves_groups(client);
        let reader = &mut self.readers[client];
        reader.claim += 1;
        reader.changes += 1;
        reader.certain.clear();
    }

    /// A client's session has ended.
    pub(crate) fn forget(&mut self, client: usize) {
        self.leaves_groups(client);
        let Reader { claim, changes, .. } = self.readers[client];
        let (claim, changes) = (claim + 1, changes + 1);
        self.readers[client] = Reader { claim, changes, ..Reader::default() };
    }

    /// A lane has lost its stream and continues.
    pub(crate) fn lane_waits(&mut self, client: usize, lane: Lane) {
        let reader = &mut self.readers[client];
        reader.loose |= reader.moved_from.contains(&lane);
    }

    /// A lane has ended. Its subscriptions move, and may deliver copies besides those of another flow (MQTT 5.0
    /// section 3.3.4).
    pub(crate) fn lane_ends(&mut self, client: usize, lane: Lane) {
        self.readers[client].changes += 1;
        let asked = self.readers[client].asked.values_mut();
        asked.filter(|(_, own)| *own == lane).for_each(|(_, own)| *own = Lane::Gone);
    }

    /// A lane loses what it holds and its subscriptions. Filters of which a SUBSCRIBE is not answered
    /// (`unanswered`) may still be on it.
    pub(crate) fn lane_is_emptied(
        &mut self,
        client: usize,
        lane: Lane,
        unanswered: &BTreeSet<usize>,
    ) {
        let reader = &mut self.readers[client];
        // What it was to get before may have waited there.
        reader.claim += 1;
        reader.changes += 1;
        reader.loose = true;
        // Streams overtake each other: one that moved away may be back.
        let all = reader.moved_from.contains(&lane);
        for (filter, (_, own)) in &mut reader.asked {
            if all || *own == lane || *own == Lane::Gone || unanswered.contains(filter) {
                reader.certain.remove(filter);
                // Another lane's, whose SUBSCRIBE is still to be answered, stays there; and a later one may be overtaken.
                reader.moved_from.insert(std::mem::replace(own, Lane::Gone));
                if is_shared(*filter) {
                    self.weak.insert(*filter);
                }
            }
        }
    }

    /// A client does not know on which lane a subscription is.
    pub(crate) fn may_be_elsewhere(&mut self, client: usize, filter: usize) {
        let reader = &mut self.readers[client];
        reader.changes += 1;
        if let Some((_, lane)) = reader.asked.get_mut(&filter) {
            // It may be the former one.
            reader.moved_from.insert(std::mem::replace(lane, Lane::Gone));
        }
    }

    /// Whether all messages of a topic arrive through one subscription that was always on the control flow.
    pub(crate) fn has_one_copy(&self, client: usize, topic: usize) -> bool {
        let reader = &self.readers[client];
        let mut asked = reader.asked.iter().filter(|(filter, _)| matches(**filter, topic));
        let first = asked
            .next()
            .is_some_and(|(filter, (_, lane))| *lane == Lane::Control && !is_shared(*filter));
        first && asked.next().is_none() && reader.moved_from.is_empty()
    }

    /// The lanes of a client's subscriptions.
    pub(crate) fn lanes(&self, client: usize) -> BTreeSet<Lane> {
        self.readers[client].asked.values().map(|(_, lane)| *lane).collect()
    }

    /// A lane ended before its QoS 2 message was known to have arrived.
    pub(crate) fn may_come_again(&mut self, client: usize, message: usize) {
        self.readers[client].arrived.entry(message).or_default().again += 1;
    }

    /// A client receives a message that is not in its own state.
    pub(crate) fn arrive(&mut self, client: usize, got: Delivery) -> Result<(), String> {
        let Delivery { message, publication, qos, topic, .. } = got;
        let Some(sent) = self.sent.get(message) else {
            return Err(format!("client {client} got message {message}, which nobody sent"));
        };
        if sent.topic != Some(topic) || qos > sent.qos {
            return Err(format!("client {client} got message {message} on {topic} at {qos:?}"));
        }
        self.check_not_refused(client, got)?;
        let (_, lane) = sent.publisher;
        match sent.will {
            Some(Bequest::Never) => {
                return Err(format!("client {client} got message {message}, a will not to come"));
            }
            Some(Bequest::NotBefore(at)) if self.now < at => {
                return Err(format!(
                    "client {client} got message {message}, a will before its time"
                ));
            }
            _ => {}
        }
        // It was given up, and a crash undid that: it is delivered when other messages have taken its place.
        let back = self.undone || sent.may_have_lapsed(self.now);
        let asked_s = sent.expiry_s;
        if let Some(left_s) = got.left_s
            && (left_s.is_some() != asked_s.is_some()
                || left_s > asked_s
                || (left_s == Some(0) && !got.dup))
        {
            return Err(format!(
                "client {client} got message {message} with {left_s:?} s left of {asked_s:?}"
            ));
        }
        let Some(line) = self.publications.get(publication as usize) else {
            return Err(format!(
                "client {client} got publication {publication}, which was not made"
            ));
        };
        let is_own = sent.publisher.0 == client && self.no_local.contains(&client);
        let reader = &mut self.readers[client];
        let reaches = |filter: usize| matches(filter, topic) && (!is_own || is_shared(filter));
        let asked = || reader.asked.iter().filter(|(filter, _)| reaches(**filter));
        if asked().all(|(_, (most, _))| *most < qos) {
            return Err(format!("client {client} got message {message} it has not asked for"));
        }
        let shared = asked().filter(|(filter, _)| is_shared(**filter)).count();
        let plain = asked().count() - shared;
        let copies = if reader.mixed { plain } else { plain.min(1) } + shared;
        if shared > 0 {
            self.came.insert(message);
        }
        let arrived = reader.arrived.entry(message).or_default();
        arrived.times += 1;
        arrived.twos += u32::from(qos == QoS::ExactlyOnce);
        if arrived.twos > copies as u32 + arrived.again {
            let times = arrived.twos;
            return Err(format!("client {client} got message {message} {times} times at QoS 2"));
        }
        if qos > QoS::AtMostOnce && reader.seen.insert(publication) {
            let newest = reader.newest.entry((*line, lane, topic, qos as u8)).or_default();
            if *newest > publication && !reader.loose && !back && shared == 0 {
                return Err(format!(
                    "client {client} got message {message} (publication {publication}) after {newest}"
                ));
            }
            *newest = publication.max(*newest);
        }
        Ok(())
    }
}
