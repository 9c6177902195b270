//! A reader of the log: checks that each record continues it, and puts the records of a group together.

use fulmar_broker::storage::Op;

use super::{Claimant, LogEntry, LogPosition, RecordError, RecordKind, decode};

/// Bytes of one group. The largest that a broker makes is a turn of its workers.
const MAX_GROUP_BYTES: usize = 1 << 30;

/// The kind of a record that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// Operations.
    Operations,
    /// A claim: this node writes from here on.
    Claimed {
        /// Name.
        node: String,
        /// See [`Claimant::incarnation`].
        incarnation: u64,
    },
    /// The writer has stopped in order.
    Released,
    /// Nothing that counts; how many such records this reader has passed over.
    Void(u64),
}

/// The state of a reader: where it is, and an unfinished group.
#[derive(Clone, Default)]
pub struct LogReader {
    read: LogPosition,
    whole: LogPosition,
    /// The beginning of a group whose last record has not come.
    part: Vec<u8>,
    claimed_by: Option<u64>,
    passed_over: u64,
}

fulmar_text::opaque_debug!(LogReader { read });

impl LogReader {
    /// A reader of what comes behind this record, which belongs to no unfinished group.
    pub fn new(after: LogPosition) -> LogReader {
        LogReader { read: after, whole: after, ..LogReader::default() }
    }

    /// The record that was read last; the next one must follow it.
    pub fn position(&self) -> LogPosition {
        self.read
    }

    /// The last record that belongs to no unfinished group.
    pub fn whole(&self) -> LogPosition {
        self.whole
    }

    /// The incarnation of the claim, if that was the last record.
    pub fn claimed_by(&self) -> Option<u64> {
        self.claimed_by
    }

    /// Reads what the log has next. The operations of a group are put into `ops` with its last record.
    ///
    /// # Errors
    /// The record does not continue the log, or is damaged: nothing of it was read.
    pub fn read(&mut self, entry: LogEntry<'_>, ops: &mut Vec<Op>) -> Result<Applied, RecordError> {
        let view = self.read.read_entry(entry)?;
        let Some(kind) = view.kind else { return Ok(self.pass_over()) };
        let mut claimed_by = None;
        let applied = match kind {
            RecordKind::Part(body) => {
                if self.part.len() + body.len() > MAX_GROUP_BYTES {
                    return Err(RecordError::Malformed("a group is too large"));
                }
                self.part.extend_from_slice(body);
                self.claimed_by = None;
                self.read = view.position;
                return Ok(Applied::Operations);
            }
            RecordKind::Group(body) => {
                match self.operations(body) {
                    // A forged one that continues the log, at which a node that serves gives way.
                    Err(_) if !entry.conditional => return Ok(self.pass_over()),
                    read => *ops = read?,
                }
                Applied::Operations
            }
            // What the last writer has not finished it has not acknowledged.
            RecordKind::Claim(Claimant { node, incarnation }) => {
                self.part = Vec::new();
                claimed_by = Some(incarnation);
                Applied::Claimed { node: node.to_owned(), incarnation }
            }
            RecordKind::Release => {
                self.part = Vec::new();
                Applied::Released
            }
        };
        self.claimed_by = claimed_by;
        self.read = view.position;
        self.whole = view.position;
        Ok(applied)
    }

    /// Something that does not count is behind the last record; a group that has begun can go on behind it.
    fn pass_over(&mut self) -> Applied {
        self.read = self.read.passed();
        if self.part.is_empty() {
            self.whole = self.read;
        }
        self.passed_over += 1;
        Applied::Void(self.passed_over)
    }

    /// The operations of a group that ends with `body`.
    fn operations(&mut self, body: &[u8]) -> Result<Vec<Op>, RecordError> {
        if self.part.is_empty() {
            return decode(body);
        }
        let before = self.part.len();
        self.part.extend_from_slice(body);
        let decoded = decode(&self.part);
        match decoded {
            Ok(_) => self.part = Vec::new(),
            Err(_) => self.part.truncate(before),
        }
        decoded
    }
}
