//! Retained messages: the last value of each topic, for later subscribers
//! (MQTT 5.0 section 3.3.1.3).
//!
//! Kept in topic order, so that a filter only looks at the topics that share its literal prefix,
//! and so that a subscription to many topics can be served a few at a time: a cursor remembers the
//! last topic it gave.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use fulmar_auth::Timestamp;
use fulmar_mqtt::QoS;
use fulmar_mqtt::topic::matches;

use crate::limits::Limits;
use crate::memory::MemoryOwner;
use crate::message::{Identifiers, Message, MessageId};

/// Steps of a topic's size in bytes that count as growth in an owner's share.
const STEP: usize = 256;

/// The topic's message was not kept: a bound was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RetainedFull;

/// A message in the order of topics, without another copy of its topic, and the owner for whom it counts. Bytes, as the
/// order is the same and they need no check of UTF-8.
#[derive(Debug)]
struct ByTopic(Arc<Message>, Option<Arc<MemoryOwner>>);

impl Borrow<[u8]> for ByTopic {
    fn borrow(&self) -> &[u8] {
        self.0.topic_bytes()
    }
}

impl Ord for ByTopic {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.topic_bytes().cmp(other.0.topic_bytes())
    }
}

impl PartialOrd for ByTopic {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ByTopic {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for ByTopic {}

/// All retained messages.
#[derive(Debug, Default)]
pub(crate) struct RetainedStore {
    by_topic: BTreeSet<ByTopic>,
    /// Those that expire.
    by_expiry: BTreeMap<(Timestamp, MessageId), Arc<Message>>,
    bytes: usize,
    /// Topics that filters beginning with a wildcard do not reach, besides those with `$`.
    apart: Option<&'static str>,
}

impl RetainedStore {
    /// A store whose topics below this prefix are given only to filters that name it.
    pub(crate) fn with_apart(apart: Option<&'static str>) -> Self {
        Self { apart, ..Self::default() }
    }

    /// Sets the topic's message, which `owner` has published; `None` for the program itself and after a restart.
    pub(crate) fn put(
        &mut self,
        message: &Arc<Message>,
        owner: Option<&Arc<MemoryOwner>>,
        limits: &Limits,
    ) -> Result<(), RetainedFull> {
        let (size, len) = (message.size(), self.by_topic.len());
        let old = self.get(message.topic()).map(|old| old.size());
        let (more, more_bytes) =
            (usize::from(old.is_none()), size.saturating_sub(old.unwrap_or(0)));
        let (most, most_bytes) = (limits.max_retained_messages, limits.max_retained_bytes);
        let mut full = len + more > most || self.bytes + more_bytes > most_bytes;
        if let Some(owner) = owner.filter(|owner| !owner.is_unlimited()) {
            let own = owner.retained();
            // A value with a digit more is no growth.
            let [new, old] = [size, old.unwrap_or(0)].map(|size| size.next_multiple_of(STEP));
            full |= !may_have(own.messages(), more, len, most);
            full |= !may_have(own.bytes(), new.saturating_sub(old), self.bytes, most_bytes);
        }
        if full {
            return Err(RetainedFull);
        }
        self.remove(message.topic());
        if let Some(owner) = owner {
            owner.retained().add(size);
        }
        self.bytes += size;
        if let Some(at) = message.expires_at() {
            self.by_expiry.insert((at, message.id()), Arc::clone(message));
        }
        self.by_topic.insert(ByTopic(Arc::clone(message), owner.cloned()));
        Ok(())
    }

    /// Clears the topic; returns whether it had a message.
    pub(crate) fn remove(&mut self, topic: &str) -> bool {
        match self.by_topic.take(topic.as_bytes()) {
            Some(ByTopic(old, owner)) => {
                self.bytes -= old.size();
                if let Some(at) = old.expires_at() {
                    self.by_expiry.remove(&(at, old.id()));
                }
                if let Some(owner) = owner {
                    owner.retained().remove(old.size());
                }
                true
            }
            None => false,
        }
    }

    /// The topic's message.
    pub(crate) fn get(&self, topic: &str) -> Option<&Arc<Message>> {
        self.by_topic.get(topic.as_bytes()).map(|ByTopic(message, _)| message)
    }

    /// Topics that have a message, in order from behind `after`; the broker's own (`$`) are passed over at once.
    pub(crate) fn topics_after(&self, after: &str) -> impl Iterator<Item = &str> {
        const OWN: &str = "$";
        /// The first that is behind all of them.
        const BEHIND_OWN: &str = "%";
        let before = (Bound::Excluded(after.as_bytes()), Bound::Excluded(OWN.as_bytes()));
        let before = (after < OWN).then(|| self.by_topic.range::<[u8], _>(before));
        let start =
            if after < BEHIND_OWN { Bound::Included(BEHIND_OWN) } else { Bound::Excluded(after) };
        let behind = self.by_topic.range::<[u8], _>((start.map(str::as_bytes), Bound::Unbounded));
        before.into_iter().flatten().chain(behind).map(|ByTopic(message, _)| message.topic())
    }

    /// Number of retained messages.
    pub(crate) fn len(&self) -> usize {
        self.by_topic.len()
    }

    /// Their size in the limit, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Removes the message that was the first to expire, if it has by `now`; returns its topic.
    pub(crate) fn remove_expired(&mut self, now: Timestamp) -> Option<Box<str>> {
        let (_, first) = self.by_expiry.first_key_value()?;
        let topic = first.is_expired(now).then(|| Box::from(first.topic()))?;
        self.remove(&topic);
        Some(topic)
    }

    /// True if topics that this filter matches may have a message; exact for a filter without wildcards.
    pub(crate) fn may_match(&self, filter: &str) -> bool {
        let prefix = literal_prefix(filter);
        if prefix.len() == filter.len() {
            return self.get(filter).is_some();
        }
        let range = (Bound::Included(prefix.as_bytes()), Bound::Unbounded);
        let first = self.by_topic.range::<[u8], _>(range).next();
        first.is_some_and(|ByTopic(message, _)| message.topic().starts_with(prefix))
    }

    /// The next message for `cursor`, looking at no more than `budget` topics.
    fn next(&self, cursor: &mut RetainedCursor, budget: &mut usize) -> Option<Arc<Message>> {
        if !cursor.filter.contains(['+', '#']) {
            cursor.done = true;
            return self.get(&cursor.filter).map(Arc::clone);
        }
        let prefix = literal_prefix(&cursor.filter);
        let start = match &cursor.after {
            Some(topic) => Bound::Excluded(topic.as_bytes()),
            None => Bound::Included(prefix.as_bytes()),
        };
        for ByTopic(message, _) in self.by_topic.range::<[u8], _>((start, Bound::Unbounded)) {
            let topic = message.topic();
            if !topic.starts_with(prefix) {
                break;
            }
            if *budget == 0 {
                return None;
            }
            *budget -= 1;
            cursor.after = Some(topic.into());
            let apart =
                prefix.is_empty() && self.apart.is_some_and(|prefix| topic.starts_with(prefix));
            if !apart && matches(&cursor.filter, topic) {
                return Some(Arc::clone(message));
            }
        }
        cursor.done = true;
        None
    }
}

/// Whether an owner that has `own` may have `more`, as for memory ([`crate::memory`]): what is free once half of `most`
/// is in use. What adds nothing is always allowed, so that existing topics can be updated.
fn may_have(own: usize, more: usize, used: usize, most: usize) -> bool {
    more == 0 || used + more <= most / 2 || own + more <= most.saturating_sub(used)
}

/// The part of a filter before its first wildcard. `sport/#` also matches `sport`, so the slash
/// before a `#` is not part of it.
fn literal_prefix(filter: &str) -> &str {
    let end = filter.find(['+', '#']).unwrap_or(filter.len());
    let prefix = &filter[..end];
    if filter[end..].starts_with('#') { prefix.strip_suffix('/').unwrap_or(prefix) } else { prefix }
}

/// A subscription's progress through the retained messages that it gets.
#[derive(Debug)]
pub(crate) struct RetainedCursor {
    filter: Box<str>,
    after: Option<Box<str>>,
    done: bool,
    /// Highest quality of service the subscription takes.
    pub(crate) qos: QoS,
    /// Subscription identifier to send along.
    pub(crate) identifiers: Identifiers,
    /// No Local: skip what its client published itself.
    pub(crate) skip_publisher: Option<u64>,
}

impl RetainedCursor {
    pub(crate) fn new(
        filter: &str,
        qos: QoS,
        identifiers: Identifiers,
        skip_publisher: Option<u64>,
        after: &str,
    ) -> RetainedCursor {
        RetainedCursor {
            filter: filter.into(),
            after: (!after.is_empty()).then(|| after.into()),
            done: false,
            qos,
            identifiers,
            skip_publisher,
        }
    }

    /// The position that storage keeps, to go on after a restart ([`crate::storage::SubscriptionRecord::replay`]).
    pub(crate) fn progress(&self) -> Option<Box<str>> {
        let is_lasting = !self.done && self.qos > QoS::AtMostOnce;
        is_lasting.then(|| self.after.clone().unwrap_or_default())
    }

    pub(crate) fn filter(&self) -> &str {
        &self.filter
    }

    /// Whether it is a subscription's to `filter`.
    pub(crate) fn is_for(&self, filter: &str) -> bool {
        &*self.filter == filter
    }

    /// The next message that is still deliverable; looks at no more than `budget` topics, and
    /// takes those from it.
    pub(crate) fn next(
        &mut self,
        store: &RetainedStore,
        now: Timestamp,
        budget: &mut usize,
    ) -> Option<Arc<Message>> {
        while !self.done {
            let message = store.next(self, budget)?;
            if !message.is_expired(now) && self.skip_publisher != Some(message.publisher()) {
                return Some(message);
            }
        }
        None
    }

    /// Whether everything has been given.
    pub(crate) fn is_done(&self) -> bool {
        self.done
    }
}
