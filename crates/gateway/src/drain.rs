//! Which message goes next, and how many at a time: the order of the outbox as a machine without I/O.
//!
//! Two lanes, urgent and normal, each in the order of entry, so that messages of a topic stay in
//! order. Urgent ones go first; where they never end, every ninth is a normal one, so that nobody
//! starves. What is on its way is bounded in bytes: an urgent message never waits behind more than
//! that, however long the gateway was offline, and has room of its own beside it.

use std::collections::{BTreeMap, VecDeque};

use fulmar_mqtt::ReasonCode;

use crate::mapping::Priority;
use crate::outbox::{Reading, Stored};
use crate::refusals::{Refusal, Refusals, Refused};

/// Urgent messages in a row while normal ones wait.
const IN_A_ROW: u32 = 8;

/// How much may be on its way.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Messages, of both lanes together; at least 1.
    pub messages: usize,
    /// Bytes of normal messages, and as many again of urgent ones; the last may exceed it.
    pub bytes: usize,
}

/// How normal messages are put together.
#[derive(Clone, Copy, Debug)]
pub struct Batching {
    /// Most messages in one.
    pub messages: usize,
    /// Most bytes of messages in one.
    pub bytes: usize,
    /// How long a message may wait for others, in milliseconds.
    pub delay_ms: u64,
}

/// What goes out as one publication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Load {
    /// A message by itself.
    One(Stored),
    /// Several, at least two, in order.
    Batch(Vec<Stored>),
}

/// Messages of one lane that were read from the outbox and not sent.
#[derive(Debug, Default)]
struct Lane {
    ready: VecDeque<Stored>,
    /// The last one read.
    read_to: u64,
    /// Whether the outbox may hold more behind it.
    more: bool,
    in_flight_bytes: usize,
    /// Whether all that waited when the pass began has been read.
    swept: bool,
}

/// The machine.
#[derive(Debug)]
pub struct Drain {
    window: Window,
    batching: Option<Batching>,
    lanes: [Lane; 2],
    urgent_in_a_row: u32,
    /// By its first message: lane, number of messages, bytes.
    in_flight: BTreeMap<u64, (Priority, usize, usize)>,
    messages_in_flight: usize,
    refusals: Refusals,
    /// Messages up to this one go by themselves: a batch with one of them could not be taken.
    singly_to: u64,
    swept: bool,
}

impl Drain {
    /// One that has sent nothing of what the outbox holds.
    #[must_use]
    pub fn new(window: Window, batching: Option<Batching>) -> Drain {
        let lane = || Lane { more: true, ..Lane::default() };
        Drain {
            window,
            batching,
            lanes: [lane(), lane()],
            urgent_in_a_row: 0,
            in_flight: BTreeMap::new(),
            messages_in_flight: 0,
            refusals: Refusals::default(),
            singly_to: 0,
            swept: false,
        }
    }

    /// What the broker upstream refuses for now.
    #[must_use]
    pub fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// Something may have changed upstream: what was refused is tried again at once.
    pub fn look_again(&mut self, now_ms: u64) {
        self.refusals.look_again(now_ms);
    }

    /// This was refused for now, and stays in the outbox: its topic's messages are passed over. Whether that
    /// is news; `None` if too much is refused to go on, so that everything has to wait.
    pub fn refused(&mut self, load: &Load, reason: ReasonCode, now_ms: u64) -> Option<bool> {
        self.done(load.first());
        let news = self.refusals.add(load, reason, now_ms);
        let (what, batching) = (Refused::of(load), self.batching.is_some());
        for lane in &mut self.lanes {
            lane.ready.retain(|message| !what.covers(message, batching));
        }
        news
    }

    /// This was taken: what had been refused of the kind before, if it was. Then [`Drain::restart`] is due, to
    /// send what was passed over.
    pub fn taken(&mut self, load: &Load) -> Option<(Refused, Refusal)> {
        self.done(load.first());
        self.refusals.taken(load)
    }

    /// A batch cannot be taken as a whole: after [`Drain::restart`] its messages go one by one.
    pub fn unbatch(&mut self, load: &Load) {
        self.done(load.first());
        self.singly_to = load.messages().last().map_or(0, |last| last.seq).max(self.singly_to);
    }

    /// The outbox has new messages in this lane.
    pub fn arrived(&mut self, priority: Priority) {
        self.lanes[priority as usize].more = true;
    }

    /// What to read from the outbox: a lane, and behind which message; `None` for nothing now.
    #[must_use]
    pub fn wants(&self) -> Option<(Priority, u64)> {
        let wanted = |priority: &Priority| {
            let lane = &self.lanes[*priority as usize];
            lane.more && lane.ready.is_empty() && self.has_room(*priority)
        };
        let priority = [Priority::Urgent, Priority::Normal].into_iter().find(wanted)?;
        Some((priority, self.lanes[priority as usize].read_to))
    }

    /// What was read, in order: up to which message, and whether the outbox may hold more behind it.
    pub fn loaded(&mut self, priority: Priority, read: Reading) {
        let lane = &mut self.lanes[priority as usize];
        lane.read_to = lane.read_to.max(read.to);
        lane.more = read.more;
        lane.swept |= !read.more;
        if self.refusals.is_empty() {
            lane.ready.extend(read.messages);
            return;
        }
        let batching = self.batching.is_some();
        let refusals = &mut self.refusals;
        let free = read.messages.into_iter().filter(|message| !refusals.holds(message, batching));
        lane.ready.extend(free);
    }

    /// Tells, once a pass, that all which waited has been looked at.
    pub fn sweep(&mut self, now_ms: u64) {
        if !self.swept && self.lanes.iter().all(|lane| lane.swept) {
            self.swept = true;
            self.refusals.end_pass(now_ms);
        }
    }

    fn has_room(&self, priority: Priority) -> bool {
        let lane = &self.lanes[priority as usize];
        // Urgent ones are not kept waiting by the number of normal ones either.
        let messages = match priority {
            Priority::Urgent => self.window.messages * 2,
            Priority::Normal => self.window.messages,
        };
        self.messages_in_flight < messages && lane.in_flight_bytes < self.window.bytes
    }

    /// What to send now, if anything.
    pub fn next(&mut self, now_ms: u64) -> Option<Load> {
        let can = |drain: &Drain, priority: Priority| {
            !drain.lanes[priority as usize].ready.is_empty() && drain.has_room(priority)
        };
        let (urgent, normal) = (can(self, Priority::Urgent), can(self, Priority::Normal));
        let normal = normal && self.due_at().is_none_or(|at| at <= now_ms);
        if urgent && !(normal && self.urgent_in_a_row >= IN_A_ROW) {
            self.urgent_in_a_row += 1;
            return self.take(Priority::Urgent, 1);
        }
        if !normal {
            return None;
        }
        self.urgent_in_a_row = 0;
        let count = self.batch_len();
        self.take(Priority::Normal, count)
    }

    /// When a batch that waits for more messages is due, in milliseconds since the Unix epoch; `None`
    /// when none waits.
    #[must_use]
    pub fn due_at(&self) -> Option<u64> {
        let batching = self.batching.as_ref()?;
        let lane = &self.lanes[Priority::Normal as usize];
        let first = lane.ready.front()?;
        if !first.batchable() || first.seq <= self.singly_to {
            return None;
        }
        let whole = lane.more || self.batch_len() < lane.ready.len();
        let full = self.batch_len() >= batching.messages;
        (!whole && !full).then(|| first.entered_ms.saturating_add(batching.delay_ms))
    }

    /// How many messages at the front of the normal lane go together.
    fn batch_len(&self) -> usize {
        let Some(batching) = &self.batching else { return 1 };
        let mut bytes = 0;
        let fits = |message: &&Stored| {
            bytes += message.size();
            message.batchable() && message.seq > self.singly_to && bytes <= batching.bytes
        };
        let ready = &self.lanes[Priority::Normal as usize].ready;
        ready.iter().take(batching.messages).take_while(fits).count().max(1)
    }

    fn take(&mut self, priority: Priority, count: usize) -> Option<Load> {
        let lane = &mut self.lanes[priority as usize];
        let mut taken: Vec<Stored> = lane.ready.drain(..count.min(lane.ready.len())).collect();
        let bytes: usize = taken.iter().map(Stored::size).sum();
        let first = taken.first()?.seq;
        lane.in_flight_bytes += bytes;
        self.messages_in_flight += taken.len();
        self.in_flight.insert(first, (priority, taken.len(), bytes));
        match taken.len() {
            1 => taken.pop().map(Load::One),
            _ => Some(Load::Batch(taken)),
        }
    }

    /// What began with message `first` is over: acknowledged, or given up.
    pub fn done(&mut self, first: u64) {
        if let Some((priority, messages, bytes)) = self.in_flight.remove(&first) {
            self.lanes[priority as usize].in_flight_bytes -= bytes;
            self.messages_in_flight -= messages;
        }
    }

    /// Begins anew with all that is not done: what was on its way is sent again, in order, and of what is
    /// refused as much as shows whether it still is.
    pub fn restart(&mut self, now_ms: u64) {
        let (refusals, singly_to) = (std::mem::take(&mut self.refusals), self.singly_to);
        *self = Drain { refusals, singly_to, ..Drain::new(self.window, self.batching) };
        let batch = self.batching.map_or(0, |batching| batching.messages);
        self.refusals.begin_pass(batch, now_ms);
    }

    /// Publications on their way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }
}

impl Load {
    /// Its first message, which names it.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.messages().first().map_or(0, |message| message.seq)
    }

    /// Its messages.
    #[must_use]
    pub fn messages(&self) -> &[Stored] {
        match self {
            Load::One(message) => std::slice::from_ref(message),
            Load::Batch(messages) => messages,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn message(seq: u64) -> Stored {
        Stored { seq, entered_ms: 1000, payload: vec![0; 100], ..Stored::default() }
    }

    fn read(messages: impl IntoIterator<Item = Stored>, more: bool) -> Reading {
        let messages: Vec<Stored> = messages.into_iter().collect();
        Reading { to: messages.last().map_or(0, |last| last.seq), messages, more }
    }

    fn drain(messages: usize, bytes: usize) -> Drain {
        Drain::new(Window { messages, bytes }, None)
    }

    fn seqs(drain: &mut Drain) -> Vec<u64> {
        std::iter::from_fn(|| drain.next(0)).map(|load| load.first()).collect()
    }

    #[test]
    fn urgent_goes_first_and_does_not_starve_the_rest() {
        let mut drain = drain(100, usize::MAX);
        assert_eq!(drain.wants(), Some((Priority::Urgent, 0)));
        drain.loaded(Priority::Urgent, read((101..=120).map(message), false));
        assert_eq!(drain.wants(), Some((Priority::Normal, 0)));
        drain.loaded(Priority::Normal, read((1..=3).map(message), false));
        let order = seqs(&mut drain);
        let expected: Vec<u64> = (101..=108)
            .chain([1])
            .chain(109..=116)
            .chain([2])
            .chain(117..=120)
            .chain([3])
            .collect();
        assert_eq!(order, expected);
    }

    #[test]
    fn what_is_on_its_way_is_bounded_and_urgent_has_room_of_its_own() {
        let size = message(1).size();
        let mut drain = drain(100, size * 2);
        drain.loaded(Priority::Urgent, read([], false));
        drain.loaded(Priority::Normal, read((1..=5).map(message), false));
        assert_eq!(seqs(&mut drain), [1, 2]);
        drain.arrived(Priority::Urgent);
        assert_eq!(drain.wants(), Some((Priority::Urgent, 0)));
        drain.loaded(Priority::Urgent, read([message(6)], false));
        assert_eq!(seqs(&mut drain), [6]);
        drain.done(1);
        assert_eq!(seqs(&mut drain), [3]);
        drain.done(1);
        assert_eq!(seqs(&mut drain), [0; 0], "the same end counts once");
    }

    #[test]
    fn nothing_is_read_while_there_is_no_room() {
        let mut drain = drain(2, usize::MAX);
        drain.loaded(Priority::Urgent, read([], false));
        drain.loaded(Priority::Normal, read([message(1), message(2)], true));
        assert_eq!(seqs(&mut drain), [1, 2]);
        assert_eq!(drain.wants(), None);
        drain.done(2);
        assert_eq!(drain.wants(), Some((Priority::Normal, 2)));
        drain.restart(0);
        assert_eq!((drain.wants(), drain.in_flight()), (Some((Priority::Urgent, 0)), 0));
    }

    #[test]
    fn small_messages_wait_a_little_for_company() {
        let batching = Batching { messages: 3, bytes: 10_000, delay_ms: 500 };
        let mut drain = Drain::new(Window { messages: 100, bytes: usize::MAX }, Some(batching));
        drain.loaded(Priority::Urgent, read([], false));
        drain.loaded(Priority::Normal, read((1..=4).map(message), false));
        let Some(Load::Batch(full)) = drain.next(1000) else { panic!("a full batch goes at once") };
        assert_eq!(full.iter().map(|message| message.seq).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(drain.next(1499), None);
        assert_eq!(drain.due_at(), Some(1500));
        assert_eq!(drain.next(1500), Some(Load::One(message(4))));
        assert_eq!(drain.due_at(), None);
        let mut large = message(6);
        large.retain = true;
        drain.loaded(Priority::Normal, read([message(5), large, message(7)], false));
        let order = std::iter::from_fn(|| drain.next(9999)).map(|load| load.first());
        assert_eq!(
            order.collect::<Vec<_>>(),
            [5, 6, 7],
            "one that cannot travel in a batch keeps its place"
        );
    }

    fn of(seq: u64, topic: &str) -> Stored {
        Stored { topic: topic.into(), ..message(seq) }
    }

    fn lanes(drain: &mut Drain, messages: impl IntoIterator<Item = Stored>) {
        lanes_at(drain, 0, messages);
    }

    fn lanes_at(drain: &mut Drain, now_ms: u64, messages: impl IntoIterator<Item = Stored>) {
        drain.loaded(Priority::Urgent, read([], false));
        drain.loaded(Priority::Normal, read(messages, false));
        drain.sweep(now_ms);
    }

    const DENIED: ReasonCode = ReasonCode::NotAuthorized;

    #[test]
    fn a_refused_topic_waits_and_holds_up_no_other() {
        let all = || [of(1, "a"), of(2, "b"), of(3, "a"), of(4, "b")];
        let mut drain = drain(2, usize::MAX);
        lanes(&mut drain, all());
        let (a, b) = (drain.next(0).unwrap(), drain.next(0).unwrap());
        assert_eq!(drain.refused(&a, DENIED, 1000), Some(true));
        assert_eq!(drain.taken(&b), None);
        assert_eq!(seqs(&mut drain), [4], "the topic that is allowed goes on");
        drain.done(4);
        assert_eq!(drain.refusals().retry_at_ms(), Some(6000));
        // Still refused: one message was sent to see, and the next look is later.
        drain.restart(6000);
        lanes_at(&mut drain, 6000, [of(1, "a"), of(3, "a")]);
        let probe = drain.next(0).unwrap();
        assert_eq!((probe.first(), drain.next(0)), (1, None), "one of a topic");
        assert_eq!(drain.refused(&probe, DENIED, 6000), Some(false));
        assert_eq!(drain.refusals().retry_at_ms(), Some(16_000));
        let (_, refusal) = drain.refusals().all().next().unwrap();
        assert_eq!((refusal.reason, refusal.since_ms), (DENIED, 1000));
        // Allowed now: what was passed over comes in order.
        drain.restart(16_000);
        lanes(&mut drain, [of(1, "a"), of(3, "a")]);
        let probe = drain.next(0).unwrap();
        let (what, _) = drain.taken(&probe).unwrap();
        assert_eq!(what, Refused::Topic("a".into()));
        drain.restart(16_001);
        lanes(&mut drain, [of(3, "a")]);
        assert_eq!((seqs(&mut drain), drain.refusals().is_empty()), (vec![3], true));
    }

    #[test]
    fn what_no_longer_waits_is_no_longer_refused() {
        let mut drain = drain(2, usize::MAX);
        lanes(&mut drain, [of(1, "a")]);
        let a = drain.next(0).unwrap();
        drain.refused(&a, DENIED, 0);
        drain.restart(5000);
        lanes(&mut drain, []);
        assert!(drain.refusals().is_empty(), "it was dropped for its age, say");
    }

    #[test]
    fn refused_topics_are_bounded() {
        let mut drain = drain(10_000, usize::MAX);
        let topics = crate::refusals::MAX_REFUSED as u64;
        lanes(&mut drain, (1..=topics + 1).map(|seq| of(seq, &seq.to_string())));
        let loads: Vec<Load> = std::iter::from_fn(|| drain.next(0)).collect();
        let news: Vec<_> = loads.iter().map(|load| drain.refused(load, DENIED, 0)).collect();
        assert_eq!((news[0], *news.last().unwrap()), (Some(true), None));
    }

    #[test]
    fn a_batch_that_cannot_be_taken_goes_one_by_one() {
        let batching = Batching { messages: 3, bytes: 10_000, delay_ms: 0 };
        let window = Window { messages: 100, bytes: usize::MAX };
        let mut drain = Drain::new(window, Some(batching));
        lanes(&mut drain, (1..=5).map(message));
        let batch = drain.next(1000).unwrap();
        assert_eq!(batch.messages().len(), 3);
        drain.unbatch(&batch);
        drain.restart(1000);
        lanes(&mut drain, (1..=5).map(message));
        let sizes = std::iter::from_fn(|| drain.next(1000)).map(|load| load.messages().len());
        assert_eq!(sizes.collect::<Vec<_>>(), [1, 1, 1, 2]);
    }

    #[test]
    fn refused_batches_wait_and_what_goes_alone_does_not() {
        let batching = Batching { messages: 2, bytes: 10_000, delay_ms: 0 };
        let window = Window { messages: 100, bytes: usize::MAX };
        let mut drain = Drain::new(window, Some(batching));
        let retained = |seq| Stored { retain: true, ..of(seq, "r") };
        lanes(&mut drain, [message(1), message(2), message(3), message(4), retained(5)]);
        let batch = drain.next(1000).unwrap();
        assert_eq!(drain.refused(&batch, DENIED, 0), Some(true));
        assert_eq!(seqs(&mut drain), [5]);
        drain.restart(5000);
        lanes(&mut drain, [message(1), message(2), message(3), message(4)]);
        let probe = drain.next(6000).unwrap();
        assert_eq!((probe.messages().len(), drain.next(6000)), (2, None));
    }
}
