//! The form of a record: a header that chains it to the one before, a body, and a checksum.
//!
//! ```text
//! version 1 | epoch 8 | number 8 | checksum of the record before 4 | kind 1 | body | checksum 4
//! ```
//!
//! Numbers are little-endian; the checksum, with which a record of any version ends, is CRC-32 over all bytes before it.
//! It detects damage and records that are mixed up, not forgery: a program that can read the log can write anything.

use super::{LogEntry, LogPosition, MAX_RECORD_BYTES};

const VERSION: u8 = 2;
/// The oldest version that is read: without testators.
const OLDEST: u8 = 1;
const HEADER: usize = 22;
const CHECKSUM: usize = 4;
/// Longest name of a node in bytes.
const MAX_NAME: usize = 255;

/// The process that claims a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimant<'a> {
    /// The node's name.
    pub node: &'a str,
    /// A random number, another one for each claim. Without it, two processes that have the same name by mistake would
    /// append the same bytes, and each would consider the log its own; and so would a process that claims again, but has
    /// read the log only up to the place of its own earlier claim.
    pub incarnation: u64,
}

/// Purpose of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind<'a> {
    /// Operations, and more of the same group in the next record.
    Part(&'a [u8]),
    /// Operations, the last of their group.
    Group(&'a [u8]),
    /// This node is the writer from here on.
    Claim(Claimant<'a>),
    /// The writer has stopped in order; nobody need wait for its lease to end.
    Release,
}

impl<'a> RecordKind<'a> {
    fn encode(self, out: &mut Vec<u8>) {
        match self {
            RecordKind::Part(body) => {
                out.push(0);
                out.extend_from_slice(body);
            }
            RecordKind::Group(body) => {
                out.push(1);
                out.extend_from_slice(body);
            }
            RecordKind::Claim(claimant) => {
                out.push(2);
                out.extend_from_slice(&claimant.incarnation.to_le_bytes());
                out.extend_from_slice(claimant.node.as_bytes());
            }
            RecordKind::Release => out.push(3),
        }
    }

    fn from_code(code: u8, body: &'a [u8]) -> Result<RecordKind<'a>, RecordError> {
        match code {
            0 => Ok(RecordKind::Part(body)),
            1 => Ok(RecordKind::Group(body)),
            2 => claimant(body).map(RecordKind::Claim),
            3 if body.is_empty() => Ok(RecordKind::Release),
            _ => Err(RecordError::Malformed("unknown kind")),
        }
    }
}

fn claimant(body: &[u8]) -> Result<Claimant<'_>, RecordError> {
    let (incarnation, node) =
        body.split_first_chunk().ok_or(RecordError::Malformed("a claim is too short"))?;
    if node.len() > MAX_NAME {
        return Err(RecordError::Malformed("a node's name is too long"));
    }
    let node = std::str::from_utf8(node)
        .map_err(|_| RecordError::Malformed("a node's name is not UTF-8"))?;
    Ok(Claimant { node, incarnation: u64::from_le_bytes(*incarnation) })
}

/// Why a record does not continue the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// A newer Fulmar wrote it.
    #[error(
        "the record has version {0}, and this Fulmar reads versions up to {VERSION}: upgrade it"
    )]
    TooNew(u8),
    /// The bytes are damaged, or never were a record.
    #[error("not a valid record: {0}")]
    Malformed(&'static str),
    /// It is not the one that follows.
    #[error("after {after} comes record {found} of epoch {epoch}: records are missing or mixed up")]
    Broken {
        /// Where the reader is.
        after: LogPosition,
        /// The record's number.
        found: u64,
        /// The record's epoch.
        epoch: u64,
    },
}

/// A record that was read, and whether it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordView<'a> {
    /// Where the reader is behind it.
    pub position: LogPosition,
    /// Contents of the record; `None` if it does not count and was never acknowledged: an earlier writer appended it
    /// after a later one had claimed the log, or a stranger did.
    pub kind: Option<RecordKind<'a>>,
}

/// Encodes the record that follows `after`, in `epoch`.
fn encode(after: LogPosition, epoch: u64, kind: RecordKind<'_>, out: &mut Vec<u8>) -> LogPosition {
    out.clear();
    out.push(VERSION);
    out.extend_from_slice(&epoch.to_le_bytes());
    let number = after.number + 1;
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&after.checksum.to_le_bytes());
    kind.encode(out);
    let checksum = crc32fast::hash(out);
    out.extend_from_slice(&checksum.to_le_bytes());
    LogPosition { epoch, number, checksum }
}

/// Bytes of a body that fit into a record.
pub(crate) const fn max_body() -> usize {
    MAX_RECORD_BYTES - HEADER - CHECKSUM
}

impl LogPosition {
    /// Reads the record that follows this position.
    ///
    /// # Errors
    /// See [`RecordError`]; the reader must not go on.
    pub fn read(self, bytes: &[u8]) -> Result<RecordView<'_>, RecordError> {
        let short = RecordError::Malformed("too short");
        let (covered, checksum) = bytes.split_last_chunk::<CHECKSUM>().ok_or(short.clone())?;
        if bytes.len() > MAX_RECORD_BYTES {
            return Err(RecordError::Malformed("too long"));
        }
        let checksum = u32::from_le_bytes(*checksum);
        if crc32fast::hash(covered) != checksum {
            return Err(RecordError::Malformed("wrong checksum"));
        }
        // Every version ends with the checksum, so that damage is no newer version.
        let &version = covered.first().ok_or(short.clone())?;
        if !(OLDEST..=VERSION).contains(&version) {
            return Err(RecordError::TooNew(version));
        }
        let (header, body) = covered.split_at_checked(HEADER).ok_or(short)?;
        let word = |from: usize| header.get(from..).and_then(|h| h.first_chunk::<8>());
        let epoch = word(1).map_or(0, |w| u64::from_le_bytes(*w));
        let number = word(9).map_or(0, |w| u64::from_le_bytes(*w));
        let before = header.get(17..).and_then(|h| h.first_chunk::<4>());
        let before = before.map_or(0, |w| u32::from_le_bytes(*w));
        let kind = RecordKind::from_code(header[HEADER - 1], body)?;
        let position = LogPosition { epoch, number, checksum };
        if epoch < self.epoch {
            return Ok(RecordView { position: self.passed(), kind: None });
        }
        let claims = matches!(kind, RecordKind::Claim(_));
        let follows = Some(number) == self.number.checked_add(1) && before == self.checksum;
        if !follows || claims != (epoch > self.epoch) {
            return Err(RecordError::Broken { after: self, found: number, epoch });
        }
        Ok(RecordView { position, kind: Some(kind) })
    }

    /// Reads what the log has behind this position; the module has the reasons.
    ///
    /// # Errors
    /// See [`RecordError`]: a node's record that does not continue the log. The reader must not go on.
    pub fn read_entry(self, entry: LogEntry<'_>) -> Result<RecordView<'_>, RecordError> {
        match self.read(entry.bytes) {
            Err(_) if !entry.conditional => Ok(RecordView { position: self.passed(), kind: None }),
            read => read,
        }
    }

    /// The position behind something that does not count: it has a number, and nothing refers to it.
    pub fn passed(self) -> LogPosition {
        LogPosition { number: self.number + 1, ..self }
    }

    /// Encodes the record that follows this position in the same epoch, and returns its position.
    pub fn next(self, kind: RecordKind<'_>, out: &mut Vec<u8>) -> LogPosition {
        encode(self, self.epoch, kind, out)
    }

    /// The record with which a process claims the log behind this position, and its position.
    ///
    /// A name of more than 255 bytes is cut.
    pub fn claim(self, claimant: Claimant<'_>) -> (LogPosition, Vec<u8>) {
        let mut bytes = Vec::new();
        let node = &claimant.node[..claimant.node.floor_char_boundary(MAX_NAME)];
        let kind = RecordKind::Claim(Claimant { node, ..claimant });
        let position = encode(self, self.epoch + 1, kind, &mut bytes);
        (position, bytes)
    }
}
