//! Topics that the upstream broker refuses for now. They wait until an operator has granted a right, raised a quota or
//! corrected a prefix, while all other topics continue.
//!
//! Messages of a refused topic stay in the outbox and are skipped. From time to time, at growing intervals, one message
//! of each topic is sent as a probe. If it is accepted, the topic is no longer refused, and its messages are read again
//! from the oldest one, so that their order is kept. No I/O, no clock.

use std::collections::BTreeMap;

use fulmar_mqtt::ReasonCode;

use crate::outbox::Stored;
use crate::uplink_scheduler::Publication;

/// Maximum number of topics that are skipped individually. With more, everything waits.
pub const MAX_REFUSED: usize = 1024;
/// Time before the first probe of a refused topic, in milliseconds; doubled with each one, up to [`LAST_RETRY_MS`].
const FIRST_RETRY_MS: u64 = 5_000;
/// Longest time between two probes, in milliseconds.
const LAST_RETRY_MS: u64 = 300_000;

/// Publications that are refused: those to a topic, or those that carry batches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refused {
    /// Messages to this topic.
    Topic(String),
    /// Batches.
    Batches,
}

impl Refused {
    /// The subject of a refusal of this publication.
    pub(crate) fn from_publication(publication: &Publication) -> Refused {
        match publication {
            Publication::One(message) => Refused::Topic(message.topic.clone()),
            Publication::Batch(_) => Refused::Batches,
        }
    }

    /// Whether it concerns this message, which would be sent in a batch or not.
    pub(crate) fn covers(&self, message: &Stored, in_batch: bool) -> bool {
        match self {
            Refused::Topic(topic) => *topic == message.topic,
            Refused::Batches => in_batch,
        }
    }
}

/// A refusal: its reason, its beginning, and its probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The broker's reason.
    pub reason: ReasonCode,
    /// Since when, in milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// Probes that may still be sent in this pass.
    probes: usize,
    /// Whether this pass has found a message of it.
    met: bool,
}

/// The outcome of recording a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalRecord {
    /// It is new.
    New,
    /// It was known already, and has the latest reason now.
    Known,
    /// So many topics are refused that no further one is recorded: everything has to wait.
    TooMany,
}

/// All refusals.
#[derive(Debug, Default)]
pub struct Refusals {
    all: BTreeMap<Refused, Refusal>,
    retries: u32,
    retry_at_ms: Option<u64>,
}

/// Whether the same message may be accepted later, after a change of a right, of a quota, or of the broker's features
/// or state.
#[must_use]
pub fn may_pass(reason: ReasonCode) -> bool {
    use ReasonCode as R;
    !matches!(
        reason,
        R::TopicNameInvalid
            | R::PayloadFormatInvalid
            | R::PacketTooLarge
            | R::MalformedPacket
            | R::ProtocolError
    )
}

/// Whether the refusal ends by itself: a Fulmar whose disk fails answers so, and each of its topics is tried again every
/// few seconds.
#[must_use]
pub fn is_passing(reason: ReasonCode) -> bool {
    reason == ReasonCode::ImplementationSpecificError
}

impl Refusals {
    /// Every refusal, in order of topics.
    pub fn iter(&self) -> impl Iterator<Item = (&Refused, &Refusal)> {
        self.all.iter()
    }

    /// Whether nothing is refused.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// When to begin a new pass, in milliseconds since the Unix epoch.
    #[must_use]
    pub fn retry_at_ms(&self) -> Option<u64> {
        self.retry_at_ms.filter(|_| !self.all.is_empty())
    }

    /// Records a refusal. If there are too many, nothing more may be sent.
    pub(crate) fn add(
        &mut self,
        publication: &Publication,
        reason: ReasonCode,
        now_ms: u64,
    ) -> RefusalRecord {
        let what = Refused::from_publication(publication);
        let soon = now_ms.saturating_add(FIRST_RETRY_MS);
        if is_passing(reason) {
            self.retry_at_ms =
                Some(self.retry_at_ms.filter(|at| *at > now_ms).map_or(soon, |at| at.min(soon)));
        } else if self.retry_at_ms.is_none_or(|at| at <= now_ms) {
            let wait = FIRST_RETRY_MS << self.retries.min(10);
            self.retry_at_ms = Some(now_ms.saturating_add(wait.min(LAST_RETRY_MS)));
        }
        if let Some(known) = self.all.get_mut(&what) {
            (known.reason, known.probes, known.met) = (reason, 0, true);
            return RefusalRecord::Known;
        }
        if self.all.len() >= MAX_REFUSED {
            return RefusalRecord::TooMany;
        }
        self.all.insert(what, Refusal { reason, since_ms: now_ms, probes: 0, met: true });
        RefusalRecord::New
    }

    /// Records an acceptance. Returns the refusal that it ends, if there was one.
    pub(crate) fn accepted(&mut self, publication: &Publication) -> Option<(Refused, Refusal)> {
        let found = self.all.remove_entry(&Refused::from_publication(publication))?;
        self.retries = 0;
        Some(found)
    }

    /// Whether a message has to be skipped; counts the probes of this pass.
    pub(crate) fn holds(&mut self, message: &Stored, in_batch: bool) -> bool {
        let keys =
            [Some(Refused::Topic(message.topic.clone())), in_batch.then_some(Refused::Batches)];
        let mut held = false;
        for key in keys.into_iter().flatten() {
            let Some(refusal) = self.all.get_mut(&key) else { continue };
            refusal.met = true;
            held |= refusal.probes == 0;
            refusal.probes = refusal.probes.saturating_sub(1);
        }
        held
    }

    /// Begins a new pass over the whole outbox: one message of each topic may be sent, and `batch` messages for a
    /// batch.
    pub(crate) fn begin_pass(&mut self, batch: usize, now_ms: u64) {
        for (what, refusal) in &mut self.all {
            refusal.probes = if *what == Refused::Batches { batch } else { 1 };
            refusal.met = false;
        }
        if self.retry_at_ms.is_some_and(|at| at <= now_ms) {
            self.retries += 1;
        }
        self.retry_at_ms = None;
    }

    /// Ends the pass: all waiting messages were read. Removes refusals of which no message was found.
    pub(crate) fn end_pass(&mut self, now_ms: u64) {
        self.all.retain(|_, refusal| refusal.met);
        if self.retry_at_ms.is_none() && !self.all.is_empty() {
            let wait = FIRST_RETRY_MS << self.retries.min(10);
            self.retry_at_ms = Some(now_ms.saturating_add(wait.min(LAST_RETRY_MS)));
        }
    }

    /// Something may have changed, such as the connection: probes at once.
    pub fn look_again(&mut self, now_ms: u64) {
        self.retries = 0;
        if !self.all.is_empty() {
            self.retry_at_ms = Some(now_ms);
        }
    }
}
