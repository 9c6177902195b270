//! The engine in which the nodes have their log and control record. It handles a request when the schedule decides.

use std::sync::Arc;
use std::time::Duration;

use fulmar_cluster::purge_up_to;
use fulmar_simulator::Tables;
use fulmar_store::journal::LogPosition;

/// Records per answer.
const READ: usize = 4;

/// A record's bytes.
pub(crate) type Bytes = Arc<[u8]>;

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
    Log(Vec<Bytes>),
    /// The log begins later: a snapshot.
    Purged(LogPosition, Box<Tables>),
    /// Whether the record is in the log.
    Appended(bool),
}

/// A request on its way.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) id: u64,
    pub(crate) node: usize,
    pub(crate) request: Request,
}

#[derive(Default)]
pub(crate) struct Engine {
    /// Number of the first record that is there.
    first: u64,
    log: Vec<Bytes>,
    /// Every record that ever was.
    pub(crate) all: Vec<Bytes>,
    revision: u64,
    control: Option<Control>,
    snapshots: Vec<(LogPosition, Tables)>,
    /// Requests that have not arrived.
    pub(crate) network: Vec<Sent>,
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

    /// Whether the record is in the log: appended now, or before.
    fn append(&mut self, position: LogPosition, bytes: &Bytes) -> bool {
        if position.number == self.last() + 1 {
            self.log.push(Arc::clone(bytes));
            self.all.push(Arc::clone(bytes));
            return true;
        }
        let place = position.number.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        place.and_then(|at| self.log.get(at)) == Some(bytes)
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

    /// Loses a record in the middle, or has one twice.
    pub(crate) fn mix_up(&mut self, at: usize, lose: bool) {
        if self.log.len() < 3 {
            return;
        }
        let at = at % (self.log.len() - 2);
        self.corrupt = true;
        if lose {
            // Another one behind, so that the numbers are right.
            let next = Arc::clone(&self.log[at + 1]);
            self.log[at] = next;
        } else {
            self.log.swap(at, at + 1);
        }
    }
}
