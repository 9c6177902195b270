//! Decides which message leaves the outbox for the upstream broker next, and how many at a time: a state machine without
//! I/O.
//!
//! There are two lanes, urgent and normal, each FIFO. A topic's rule sets the priority of all its messages, so that they
//! stay in order. Urgent messages are sent first; after eight of them, one normal publication (a message or a batch) is
//! sent, so that normal messages do not starve. The bytes in flight are bounded: an urgent message never waits behind
//! more than that, however long the gateway was offline, and urgent messages have an allowance of their own beside it.

use std::collections::{BTreeMap, VecDeque};

use fulmar_mqtt::ReasonCode;

use crate::mapping::Priority;
use crate::outbox::{Page, Stored};
use crate::refusals::{Refusal, RefusalRecord, Refusals, Refused, is_passing};

/// Maximum number of urgent messages in a row while normal ones wait.
const MAX_URGENT_IN_A_ROW: u32 = 8;
/// Pause in milliseconds before messages that the upstream broker could not accept are sent again.
pub const LATER_MS: u64 = 5_000;
/// The same after it has refused too many topics.
const TOO_MANY_MS: u64 = 60_000;

/// Limits on publications in flight.
#[derive(Clone, Copy, Debug, Default)]
pub struct Window {
    /// Messages of both lanes together, at least 1; urgent messages may bring them up to twice this.
    pub messages: usize,
    /// Bytes of normal messages, and as many again of urgent ones; the last message may exceed the bound.
    pub bytes: usize,
}

/// Limits of the batches in which normal messages are combined.
#[derive(Clone, Copy, Debug)]
pub struct Batching {
    /// Maximum number of messages per batch.
    pub messages: usize,
    /// Maximum number of bytes of messages per batch.
    pub bytes: usize,
    /// Longest time in milliseconds that a message may wait for others.
    pub delay_ms: u64,
    /// Batches contain only messages that Fulmar's platform takes out of them: those about sensors. It drops others.
    pub only_sensors: bool,
}

impl Batching {
    /// Whether this message may be sent in a batch.
    fn takes(&self, message: &Stored) -> bool {
        message.batchable() && (!self.only_sensors || message.is_about_sensor())
    }
}

/// One or several stored messages that are sent as one publication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Publication {
    /// A message by itself.
    One(Stored),
    /// Several, at least two, in order.
    Batch(Vec<Stored>),
}

/// Messages of one lane that were read from the outbox and not sent.
#[derive(Debug, Default)]
struct Lane {
    ready: VecDeque<Stored>,
    /// Number of the last message read.
    read_to: u64,
    /// Whether the outbox may hold more behind it.
    more: bool,
    /// Whether messages have arrived since the last page was asked for, which may be without them.
    arrived: bool,
    in_flight_bytes: usize,
    /// Whether all messages that waited in the outbox when reading last began at its oldest have been read.
    pass_read: bool,
}

/// Chooses the next publication.
#[derive(Debug, Default)]
pub struct UplinkScheduler {
    window: Window,
    batching: Option<Batching>,
    lanes: [Lane; 2],
    urgent_in_a_row: u32,
    /// Publications in flight by their first message: lane, number of messages, bytes.
    in_flight: BTreeMap<u64, (Priority, usize, usize)>,
    messages_in_flight: usize,
    refusals: Refusals,
    /// Messages up to this one are sent singly, because a batch with one of them could not be accepted.
    singly_to: u64,
    pass_ended: bool,
    /// Nothing is sent until everything in flight is done, and not before this time; then everything is sent again.
    again_at_ms: Option<u64>,
}

impl UplinkScheduler {
    /// A scheduler that has sent nothing of what the outbox holds.
    #[must_use]
    pub fn new(window: Window, batching: Option<Batching>) -> UplinkScheduler {
        let lane = || Lane { more: true, ..Lane::default() };
        UplinkScheduler { window, batching, lanes: [lane(), lane()], ..UplinkScheduler::default() }
    }

    /// Returns what the upstream broker currently refuses.
    #[must_use]
    pub fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// Something may have changed upstream: tries refused messages again at once.
    pub fn look_again(&mut self, now_ms: u64) {
        self.refusals.look_again(now_ms);
    }

    /// The upstream broker refused `publication` and may accept it later: it stays in the outbox, and messages of its
    /// topic are skipped.
    pub fn refused(
        &mut self,
        publication: &Publication,
        reason: ReasonCode,
        now_ms: u64,
    ) -> RefusalRecord {
        self.done(publication.first());
        let record = self.refusals.add(publication, reason, now_ms);
        if record == RefusalRecord::TooMany {
            let pause_ms = if is_passing(reason) { LATER_MS } else { TOO_MANY_MS };
            self.again_at_ms = Some(now_ms + pause_ms);
        }
        let what = Refused::from_publication(publication);
        for priority in [Priority::Urgent, Priority::Normal] {
            let batching = self.batching_of(priority);
            let ready = &mut self.lanes[priority as usize].ready;
            let in_batch = |message: &Stored| batching.is_some_and(|it| it.takes(message));
            ready.retain(|message| !what.covers(message, in_batch(message)));
        }
        record
    }

    /// The upstream broker accepted `publication`: returns the refusal that this ends, if there was one. Then the
    /// messages that were skipped are sent.
    pub fn accepted(
        &mut self,
        publication: &Publication,
        now_ms: u64,
    ) -> Option<(Refused, Refusal)> {
        self.done(publication.first());
        let ended = self.refusals.accepted(publication)?;
        self.again_at_ms.get_or_insert(now_ms);
        Some(ended)
    }

    /// It is not known whether the upstream broker has `publication`: it is sent again later.
    pub fn failed(&mut self, publication: &Publication, now_ms: u64) {
        self.done(publication.first());
        self.again_at_ms = Some(now_ms + LATER_MS);
    }

    /// A batch can never be accepted as it is: its messages are sent again singly.
    pub fn unbatch(&mut self, publication: &Publication, now_ms: u64) {
        self.done(publication.first());
        self.again_at_ms.get_or_insert(now_ms);
        self.singly_to =
            publication.messages().last().map_or(0, |last| last.seq).max(self.singly_to);
    }

    /// The outbox has new messages in this lane.
    pub fn arrived(&mut self, priority: Priority) {
        let lane = &mut self.lanes[priority as usize];
        (lane.more, lane.arrived) = (true, true);
    }

    /// Returns what to read from the outbox now: a lane, and the message after which to start; `None` for nothing. The
    /// page is passed to [`UplinkScheduler::loaded`].
    #[must_use]
    pub fn wants(&mut self) -> Option<(Priority, u64)> {
        let wanted = |priority: &Priority| {
            let lane = &self.lanes[*priority as usize];
            let batch_waits = *priority == Priority::Normal && self.due_at().is_some();
            lane.more && (lane.ready.is_empty() || batch_waits) && self.has_room(*priority)
        };
        let priority = [Priority::Urgent, Priority::Normal].into_iter().find(wanted)?;
        let lane = &mut self.lanes[priority as usize];
        lane.arrived = false;
        Some((priority, lane.read_to))
    }

    /// Adds messages that were read from the outbox.
    pub fn loaded(&mut self, priority: Priority, read: Page) {
        let batching = self.batching_of(priority);
        let lane = &mut self.lanes[priority as usize];
        lane.read_to = lane.read_to.max(read.to);
        lane.more = read.more || lane.arrived;
        lane.pass_read |= !read.more;
        if self.refusals.is_empty() {
            lane.ready.extend(read.messages);
            return;
        }
        let refusals = &mut self.refusals;
        let in_batch = |message: &Stored| batching.is_some_and(|it| it.takes(message));
        let free =
            read.messages.into_iter().filter(|message| !refusals.holds(message, in_batch(message)));
        lane.ready.extend(free);
    }

    /// Ends the pass over refused messages once all messages that waited at its start were read.
    pub fn end_pass_if_read(&mut self, now_ms: u64) {
        if !self.pass_ended && self.lanes.iter().all(|lane| lane.pass_read) {
            self.pass_ended = true;
            self.refusals.end_pass(now_ms);
        }
    }

    /// Returns the limits of the batches in which messages of a lane are combined; `None` if they are not.
    fn batching_of(&self, priority: Priority) -> Option<Batching> {
        self.batching.filter(|_| priority == Priority::Normal)
    }

    fn has_room(&self, priority: Priority) -> bool {
        let lane = &self.lanes[priority as usize];
        // Twice, so that a window full of normal messages does not delay urgent ones.
        let messages = match priority {
            Priority::Urgent => self.window.messages * 2,
            Priority::Normal => self.window.messages,
        };
        self.messages_in_flight < messages && lane.in_flight_bytes < self.window.bytes
    }

    /// The publication to send now, if any.
    pub fn next(&mut self, now_ms: u64) -> Option<Publication> {
        if self.again_at_ms.is_some() {
            return None;
        }
        let can = |scheduler: &UplinkScheduler, priority: Priority| {
            !scheduler.lanes[priority as usize].ready.is_empty() && scheduler.has_room(priority)
        };
        let (urgent, normal) = (can(self, Priority::Urgent), can(self, Priority::Normal));
        let normal = normal && self.due_at().is_none_or(|at| at <= now_ms);
        if urgent && !(normal && self.urgent_in_a_row >= MAX_URGENT_IN_A_ROW) {
            self.urgent_in_a_row += 1;
            return self.pop(Priority::Urgent, 1);
        }
        if !normal {
            return None;
        }
        self.urgent_in_a_row = 0;
        let count = self.batch_len();
        self.pop(Priority::Normal, count)
    }

    /// When a batch that waits for more messages is due, in milliseconds since the Unix epoch; `None`
    /// if none waits.
    fn due_at(&self) -> Option<u64> {
        let batching = self.batching.as_ref()?;
        let lane = &self.lanes[Priority::Normal as usize];
        let first = lane.ready.front()?;
        if !batching.takes(first) || first.seq <= self.singly_to {
            return None;
        }
        let (len, ready) = (self.batch_len(), lane.ready.len());
        (len == ready && len < batching.messages)
            .then(|| first.entered_ms.saturating_add(batching.delay_ms))
    }

    /// Returns the number of messages at the front of the normal lane that are sent together.
    fn batch_len(&self) -> usize {
        let Some(batching) = &self.batching else { return 1 };
        let mut bytes = 0;
        let fits = |message: &&Stored| {
            bytes += message.size();
            batching.takes(message) && message.seq > self.singly_to && bytes <= batching.bytes
        };
        let ready = &self.lanes[Priority::Normal as usize].ready;
        ready.iter().take(batching.messages).take_while(fits).count().max(1)
    }

    /// Takes the first `count` messages of a lane, which are in flight from then on.
    fn pop(&mut self, priority: Priority, count: usize) -> Option<Publication> {
        let lane = &mut self.lanes[priority as usize];
        let mut popped: Vec<Stored> = lane.ready.drain(..count.min(lane.ready.len())).collect();
        let bytes: usize = popped.iter().map(Stored::size).sum();
        let first = popped.first()?.seq;
        lane.in_flight_bytes += bytes;
        self.messages_in_flight += popped.len();
        self.in_flight.insert(first, (priority, popped.len(), bytes));
        match popped.len() {
            1 => popped.pop().map(Publication::One),
            _ => Some(Publication::Batch(popped)),
        }
    }

    /// The publication whose first message is `first` is acknowledged or abandoned.
    pub fn done(&mut self, first: u64) {
        if let Some((priority, messages, bytes)) = self.in_flight.remove(&first) {
            self.lanes[priority as usize].in_flight_bytes -= bytes;
            self.messages_in_flight -= messages;
        }
    }

    /// Starts again if that is due. Returns whether it was: a page that is being read is then not to be passed to
    /// [`UplinkScheduler::loaded`].
    pub fn restart_if_due(&mut self, now_ms: u64) -> bool {
        if self.refusals.retry_at_ms().is_some_and(|at| at <= now_ms) {
            self.again_at_ms.get_or_insert(now_ms);
        }
        let is_due = self.in_flight.is_empty() && self.again_at_ms.is_some_and(|at| at <= now_ms);
        if is_due {
            self.restart(now_ms);
        }
        is_due
    }

    /// The time in milliseconds since the Unix epoch at which [`UplinkScheduler::next`] or
    /// [`UplinkScheduler::restart_if_due`] is due, if only time has to pass.
    #[must_use]
    pub fn deadline(&self) -> Option<u64> {
        let again = match self.again_at_ms {
            None => self.refusals.retry_at_ms(),
            at => at.filter(|_| self.in_flight.is_empty()),
        };
        self.due_at().into_iter().chain(again).min()
    }

    /// Starts again with all messages that are not done: those that were in flight are sent again, in order, and,
    /// for each refusal, just enough messages to test whether it still holds.
    pub fn restart(&mut self, now_ms: u64) {
        let (refusals, singly_to) = (std::mem::take(&mut self.refusals), self.singly_to);
        *self = UplinkScheduler {
            refusals,
            singly_to,
            ..UplinkScheduler::new(self.window, self.batching)
        };
        let batch = self.batching.map_or(0, |batching| batching.messages);
        self.refusals.begin_pass(batch, now_ms);
    }

    /// Number of publications in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }
}

impl Publication {
    /// Number of its first message, which identifies it.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.messages().first().map_or(0, |message| message.seq)
    }

    /// Messages that it carries.
    #[must_use]
    pub fn messages(&self) -> &[Stored] {
        match self {
            Publication::One(message) => std::slice::from_ref(message),
            Publication::Batch(messages) => messages,
        }
    }
}

#[cfg(test)]
#[path = "uplink_scheduler_tests.rs"]
mod tests;
