//! Which message goes next, and how many at a time: the order of the outbox as a machine without I/O.
//!
//! Two lanes, urgent and normal, each in the order of entry, so that messages of a topic stay in
//! order. Urgent ones go first; where they never end, every ninth is a normal one, so that nobody
//! starves. What is on its way is bounded in bytes: an urgent message never waits behind more than
//! that, however long the gateway was offline, and has room of its own beside it.

use std::collections::{BTreeMap, VecDeque};

use crate::mapping::Priority;
use crate::outbox::{Reading, Stored};

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
        }
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
        lane.ready.extend(read.messages);
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
        let first = lane.ready.front().filter(|first| first.batchable())?;
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
            message.batchable() && bytes <= batching.bytes
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

    /// Begins anew with all that is not done: what was on its way is sent again, in order.
    pub fn restart(&mut self) {
        *self = Drain::new(self.window, self.batching);
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
        drain.restart();
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
}
