//! A node's database behind the log, as tables, and the records behind it that belong to no whole group yet.

use fulmar_simulator::Tables;
use fulmar_store::journal::{LogEntry, LogPosition, RecordKind, RecordView, decode};

use crate::mistake::Mistake;

/// What was read.
pub(crate) enum Applied {
    /// Something that does not count.
    PassedOver,
    Record,
    Claimed(u64),
}

#[derive(Clone, Default)]
pub(crate) struct Reader {
    /// The last record read.
    pub(crate) at: LogPosition,
    /// The last one that belongs to no unfinished group.
    pub(crate) whole: LogPosition,
    part: Vec<u8>,
    pub(crate) tables: Tables,
}

impl Reader {
    pub(crate) fn new(at: LogPosition, tables: Tables) -> Reader {
        Reader { at, whole: at, part: Vec::new(), tables }
    }

    /// Reads what the log has next.
    ///
    /// # Errors
    /// The chain is broken.
    pub(crate) fn apply(
        &mut self,
        entry: LogEntry<'_>,
        mistake: Mistake,
    ) -> Result<Applied, String> {
        let number = self.at.number + 1;
        let view = match mistake {
            Mistake::NoChain => unchecked(entry.bytes).read_entry(entry),
            Mistake::EndsAtStrangers => self.at.read(entry.bytes),
            Mistake::PassesDamage => self.at.read_entry(LogEntry { conditional: false, ..entry }),
            _ => self.at.read_entry(entry),
        };
        let RecordView { position, kind } = view.map_err(|error| error.to_string())?;
        let Some(kind) = kind else {
            self.at = self.at.passed();
            if self.part.is_empty() {
                self.whole = self.at;
            }
            return Ok(Applied::PassedOver);
        };
        self.at = position;
        if mistake == Mistake::NoChain {
            // It counts for itself.
            self.at.number = number;
        }
        let mut applied = Applied::Record;
        match kind {
            RecordKind::Part(body) => {
                self.part.extend_from_slice(body);
                return Ok(applied);
            }
            RecordKind::Group(body) => {
                self.part.extend_from_slice(body);
                let ops = decode(&self.part).map_err(|error| error.to_string())?;
                ops.iter().for_each(|op| self.tables.apply(op));
            }
            RecordKind::Claim(claimant) => applied = Applied::Claimed(claimant.incarnation),
            RecordKind::Release => {}
        }
        self.part.clear();
        self.whole = self.at;
        Ok(applied)
    }
}

/// The position that a record continues.
fn unchecked(record: &[u8]) -> LogPosition {
    let word = |from: usize| record.get(from..from + 8).and_then(|bytes| bytes.try_into().ok());
    let epoch = word(1).map_or(0, u64::from_le_bytes);
    let number = word(9).map_or(0, u64::from_le_bytes).saturating_sub(1);
    let checksum = record.get(17..21).and_then(|bytes| bytes.try_into().ok());
    let checksum = checksum.map_or(0, u32::from_le_bytes);
    let claims = record.get(21) == Some(&2);
    LogPosition { epoch: epoch.saturating_sub(u64::from(claims)), number, checksum }
}
