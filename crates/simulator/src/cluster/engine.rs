//! The engine in which the nodes have their log and control record. It handles a request when the schedule decides.

use std::sync::Arc;
use std::time::Duration;

use fulmar_cluster::purge_up_to;
use fulmar_store::journal::{LogEntry, LogPosition, RecordKind};

use crate::tables::Tables;

/// Records per answer.
const READ: usize = 4;

/// A record's bytes.
pub(crate) type Bytes = Arc<[u8]>;

/// A message of the log.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) bytes: Bytes,
    /// Whether it was published by compare-and-swap.
    pub(crate) conditional: bool,
}

impl Entry {
    pub(crate) fn as_read(&self) -> LogEntry<'_> {
        LogEntry { bytes: &self.bytes, conditional: self.conditional }
    }
}

/// Messages that strangers publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strange {
    /// Anything.
    Garbage,
    /// A record again that is in the log.
    Copy,
    /// A record of the right epoch and number, which continues another one.
    Forged,
    /// The same of an earlier epoch.
    Stale,
}

impl Strange {
    pub(crate) const ALL: [Strange; 4] =
        [Strange::Garbage, Strange::Copy, Strange::Forged, Strange::Stale];
}

/// The control record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Control {
    pub(crate) incarnation: u64,
    pub(crate) released: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Request {
    ReadControl,
    /// Replaces the control record of this revision.
    Swap(u64, Control),
    /// Reads from this record on.
    ReadLog(u64),
    Append(LogPosition, Bytes),
}

#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// The revision, and the record if there is one.
    Control(u64, Option<Control>),
    /// The new revision; or the one that it has, and what it says.
    Swapped(Result<u64, (u64, Option<Control>)>),
    Log(Vec<Entry>),
    /// The log begins later: a snapshot.
    Purged(LogPosition, Box<Tables>),
    Appended(Appended),
}

/// Result of an append.
#[derive(Clone, Debug)]
pub(crate) enum Appended {
    /// It is in the log.
    Stored,
    /// This has its place.
    Displaced(Entry),
    /// It has no place.
    Refused,
}

/// A request in flight.
#[derive(Clone, Debug)]
pub(crate) struct InFlightRequest {
    pub(crate) id: u64,
    pub(crate) node: usize,
    pub(crate) request: Request,
}

#[derive(Default)]
pub(crate) struct Engine {
    /// Number of the first record that is there.
    first: u64,
    log: Vec<Entry>,
    /// Every message that ever was.
    pub(crate) all: Vec<Entry>,
    revision: u64,
    control: Option<Control>,
    snapshots: Vec<(LogPosition, Tables)>,
    /// Requests that have not arrived.
    pub(crate) network: Vec<InFlightRequest>,
    /// Until when there is no leader.
    pub(crate) down_until: Duration,
    /// Whether it has mixed up records.
    pub(crate) corrupt: bool,
}

impl Engine {
    pub(crate) fn new() -> Engine {
        let snapshots = vec![(LogPosition::default(), Tables::default())];
        Engine { first: 1, snapshots, ..Engine::default() }
    }

    fn last(&self) -> u64 {
        self.first + self.log.len() as u64 - 1
    }

    pub(crate) fn handle(&mut self, request: &Request) -> Answer {
        match request {
            Request::ReadControl => Answer::Control(self.revision, self.control),
            Request::Swap(revision, _) if *revision != self.revision => {
                Answer::Swapped(Err((self.revision, self.control)))
            }
            Request::Swap(_, control) => {
                self.revision += 1;
                self.control = Some(*control);
                Answer::Swapped(Ok(self.revision))
            }
            Request::ReadLog(from) if *from < self.first => {
                let newest = self.snapshots.last().cloned().unwrap_or_default();
                Answer::Purged(newest.0, Box::new(newest.1))
            }
            Request::ReadLog(from) => {
                let skip = usize::try_from(from - self.first).unwrap_or(usize::MAX);
                Answer::Log(self.log.iter().skip(skip).take(READ).cloned().collect())
            }
            Request::Append(position, bytes) => Answer::Appended(self.append(*position, bytes)),
        }
    }

    /// The record is in the log if it is appended now, or was before.
    fn append(&mut self, position: LogPosition, bytes: &Bytes) -> Appended {
        if position.number == self.last() + 1 {
            self.push(Entry { bytes: Arc::clone(bytes), conditional: true });
            return Appended::Stored;
        }
        let place = position.number.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        match place.and_then(|at| self.log.get(at)) {
            Some(found) if found.bytes == *bytes => Appended::Stored,
            Some(found) => Appended::Displaced(found.clone()),
            None => Appended::Refused,
        }
    }

    fn push(&mut self, entry: Entry) {
        self.log.push(entry.clone());
        self.all.push(entry);
    }

    /// Somebody publishes without compare-and-swap.
    pub(crate) fn publish(&mut self, what: Strange, at: usize) {
        let word = |from: usize| {
            let last = self.all.iter().rev().find(|entry| entry.conditional);
            let bytes = last.and_then(|entry| entry.bytes.get(from..from + 8)?.try_into().ok());
            bytes.map_or(0, u64::from_le_bytes)
        };
        let forged = |epoch: u64| {
            let after = LogPosition { epoch, number: self.last(), checksum: at as u32 };
            let mut bytes = Vec::new();
            after.next(RecordKind::Group(&[]), &mut bytes);
            bytes.into()
        };
        let bytes: Bytes = match what {
            Strange::Garbage => vec![at as u8; at % 60].into(),
            Strange::Copy if self.log.is_empty() => return,
            Strange::Copy => Arc::clone(&self.log[at % self.log.len()].bytes),
            Strange::Forged => forged(word(1)),
            Strange::Stale => forged(word(1).saturating_sub(1)),
        };
        self.push(Entry { bytes, conditional: false });
    }

    /// Stores a snapshot, and purges what no snapshot that is kept needs.
    pub(crate) fn snapshot(&mut self, position: LogPosition, tables: Tables) {
        let newest = self.snapshots.last().map_or(0, |(at, _)| at.number);
        if self.corrupt || position.number <= newest {
            return;
        }
        self.snapshots.push((position, tables));
        let purged = purge_up_to(self.snapshots.iter().map(|(at, _)| at.number)).unwrap_or(0);
        self.snapshots.retain(|(at, _)| at.number >= purged);
        let gone = usize::try_from((purged + 1).saturating_sub(self.first)).unwrap_or(0);
        self.log.drain(..gone.min(self.log.len()));
        self.first = self.first.max(purged + 1);
    }

    /// Loses a record, or has two in the wrong order, with all that belongs to them. A record of a node is behind: that
    /// the log's last ones are missing, nobody could notice.
    pub(crate) fn mix_up(&mut self, at: usize, lose: bool) {
        let last = self.log.iter().rposition(|entry| entry.conditional).unwrap_or(0);
        let places = last.min(self.log.len().saturating_sub(2));
        if places == 0 {
            return;
        }
        let at = at % places;
        self.corrupt = true;
        if lose {
            // There is another one behind, so that the numbers are right.
            self.log[at] = self.log[at + 1].clone();
        } else {
            self.log.swap(at, at + 1);
        }
    }
}
