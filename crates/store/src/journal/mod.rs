//! A log outside this process as what makes operations durable, such as a stream that three machines keep.
//!
//! Without one, a group is durable when the database has it. With one, a group becomes a record of the log
//! (`record`), is durable when the log has it, and is written to the database later: that is a cache then, and what
//! another machine starts from. One record is appended at a time: the log accepts a record only behind the one that
//! its writer names, and with several in flight, those behind a refused one could match again and be accepted.
//!
//! The log's position is in the database's own transactions, so a database always knows which records it lacks.
//!
//! # What a log must guarantee
//!
//! 1. **Compare-and-swap on its end.** Record n ([`LogPosition::number`]) is accepted only if n − 1 messages are in the
//!    log, so record n is the n-th message of the stream, also after earlier ones were purged.
//! 2. **Durable when acknowledged**: on the disks of a majority, and there after a power cut.
//! 3. **An append whose outcome is unknown can be repeated.** The log recognises the record by [`Append::id`] and
//!    answers as if it had been appended now. It may forget identifiers: a repeated record is then refused, as another
//!    one is at its place, and the implementation must read that place before it returns [`AppendError::Refused`].
//! 4. **Reading returns every record once, in order**, and does not end before a record that was acknowledged before the
//!    read began. A node that claims the log therefore reads up to its own claim before it serves.
//!
//! Rules 1 and 3 decide who writes; nothing else does. [`LogReader::read`] checks what it can of the rest: the
//! numbers, and the checksum of the record before.
//!
//! # What strangers append
//!
//! Anyone who reaches the stream can publish to it without compare-and-swap. Such a message has a number, and a node's record
//! that was to have this number is refused. [`LogPosition::read_entry`] decides for everybody what counts: a message that
//! does not continue the log, and whose publisher did not name the message before it, is passed over. The next record has
//! the next number, and the checksum of the last one that counts.
//!
//! An acknowledged record is never passed over. Where a reader is after n − 1 messages follows from these messages alone.
//! A node that appends record n has read them, or appended them itself, and thus continues the log at the place where every
//! reader is then; if message n is another one, its append is refused, and it looks at that message as readers do. So what
//! a stranger appended is a place behind which nobody has acknowledged anything that does not step over it, too. A record
//! that was damaged later does not continue the log either, and may have been acknowledged: its publisher named the message
//! before it, as all nodes do, and nobody goes on.

mod entry;
mod reader;
pub(crate) mod record;

use std::fmt;
use std::sync::Arc;

use crate::lease::Lease;
pub use entry::{decode, encode};
pub use reader::{Applied, LogReader};
pub use record::{Claimant, RecordError, RecordKind, RecordView};

/// Largest record in bytes. A larger group becomes several records, which count only together.
pub const MAX_RECORD_BYTES: usize = 512 << 10;

/// Where a reader or writer is in the log: after which record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPosition {
    /// The writer's epoch; each claim has a higher one. 0 before the first.
    pub epoch: u64,
    /// Number of the record, from 1 without gaps over all epochs; 0 before the first.
    pub number: u64,
    /// Checksum of the record, which the next one repeats.
    pub checksum: u32,
}

impl LogPosition {
    /// Identifier of the record at this position, by which the log recognises it when it is appended again.
    ///
    /// The checksum is part of it because two nodes that claim the log at the same moment use the same epoch and number.
    pub fn id(self) -> String {
        format!("{}.{}.{:08x}", self.epoch, self.number, self.checksum)
    }
}

impl fmt::Display for LogPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record {} of epoch {}", self.number, self.epoch)
    }
}

/// Contents of the log at a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEntry<'a> {
    /// A record's bytes, or anything else.
    pub bytes: &'a [u8],
    /// Whether its publisher named the message before it (compare-and-swap), as every node does.
    pub conditional: bool,
}

impl<'a> LogEntry<'a> {
    /// One by a node.
    pub fn by_node(bytes: &'a [u8]) -> LogEntry<'a> {
        LogEntry { bytes, conditional: true }
    }
}

/// A record to be appended.
#[derive(Clone, Copy, Debug)]
pub struct Append<'a> {
    /// Position before it; its own number is one more.
    pub after: LogPosition,
    /// Position of the record; the log must end one before.
    pub position: LogPosition,
    /// Bytes of the record, at most [`MAX_RECORD_BYTES`].
    pub bytes: &'a [u8],
}

impl Append<'_> {
    /// See [`LogPosition::id`].
    pub fn id(&self) -> String {
        self.position.id()
    }

    /// Returns the error for a log that has something else at its number.
    pub fn displaced_by(&self, entry: LogEntry<'_>) -> AppendError {
        match self.after.read_entry(entry) {
            Ok(RecordView { kind: None, .. }) => AppendError::Displaced,
            _ => AppendError::Refused(format!(
                "another node has written record {} of the log",
                self.position.number
            )),
        }
    }
}

/// Why a record is not known to be in the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// No answer, or one that leaves it open. The same record will be appended again.
    #[error("{0}")]
    Unknown(String),
    /// Something that does not count is at its number ([`LogPosition::passed`]): the next number may be free.
    #[error("a record that does not count is at its place")]
    Displaced,
    /// The log will never accept it, because another record is at its place: another node has claimed the log.
    #[error("{0}")]
    Refused(String),
}

/// A log with one writer at a time. The module has what it must guarantee.
pub trait Journal: Send {
    /// Appends a record directly behind the last one that this writer appended or read, and waits until it is durable.
    /// It must not wait for ever; seconds are what its caller, a thread of its own, can bear.
    ///
    /// # Errors
    /// [`AppendError::Unknown`]: the call is repeated with the same record, and must return `Ok` without appending it
    /// twice if it was appended the first time. [`AppendError::Displaced`]: the contents are appended again with the next
    /// number ([`Append::displaced_by`] decides this). [`AppendError::Refused`]: the store writes nothing any more, and what
    /// was not acknowledged stays so.
    fn append(&mut self, record: &Append<'_>) -> Result<(), AppendError>;

    /// The lease without which nothing may be acknowledged; asked once, when the store starts. `None`: there is nobody
    /// else, as in a test.
    fn lease(&self) -> Option<Arc<Lease>> {
        None
    }
}
