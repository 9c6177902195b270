//! Readings that contradict each other, until somebody decides.
//!
//! All readings of a meter for a list may contradict each other. If each pair were recorded, the record would grow with the
//! square of their number; therefore a reading records no more than [`MOST_RECORDED`] others. Each has the flag, and
//! records one at least; a decision about more looks them up.

use super::prelude::*;
use crate::readings::types::Flag;
use crate::readings::{NewReading, Reading};

/// Others that a reading records: more than read one meter for one list.
const MOST_RECORDED: usize = 16;
/// A new reading is compared with this many of its meter for its list. Honest devices send a few.
const COMPARED: usize = 256;
/// Readings that one decision changes; after it, the rest is still in conflict.
pub(crate) const DECIDED_AT_ONCE: usize = 1000;

/// A reading that another one contradicts.
pub(crate) struct Rival {
    id: Uuid,
    /// Whether it was in a conflict before.
    contested: bool,
}

/// True where the times of `r` and ?7 are on one side of all exchanges: values of two registers contradict nothing.
const SAME_REGISTER: &str =
    "NOT EXISTS (SELECT 1 FROM meter_exchange e WHERE e.twin = ?1 AND e.meter = ?3
    AND e.withdrawn_at IS NULL AND (e.at <= r.at) <> (e.at <= ?7))";

from_row!(Rival { id, contested });

/// Readings of the same meter for the same list, by another device or reader, with a different value: those in no conflict
/// first, of these the oldest.
pub(crate) fn rivals(
    db: TwinDb<'_>,
    list: Uuid,
    new: &NewReading,
    reader: &str,
) -> Result<Vec<Rival>> {
    let sql = format!(
        "SELECT r.id, r.contested FROM (
             SELECT id, contested, seq, at, value, reader, device FROM reading
             WHERE twin = ?1 AND work_list = ?2 AND meter = ?3 AND method <> 'radio' AND holds = 1
             LIMIT {COMPARED}) r
         WHERE r.value <> ?4 AND (r.device IS DISTINCT FROM ?5 OR r.reader <> ?6) AND {SAME_REGISTER}
         ORDER BY r.contested, r.seq"
    );
    let values = params![db.twin, list, new.meter, new.value, new.device, reader, new.at];
    db.list(&sql, values)
}

/// Records that a new reading and these contradict each other; they get the flag.
pub(crate) fn begin(db: TwinDb<'_>, new: Uuid, rivals: &[Rival]) -> Result<()> {
    for (place, rival) in rivals.iter().enumerate() {
        if place < MOST_RECORDED {
            record(db, new, rival.id)?;
        } else if rival.contested {
            break;
        }
        record(db, rival.id, new)?;
        if !rival.contested {
            flag(db, rival.id)?;
        }
    }
    Ok(())
}

/// Records that `reading` and `other` contradict each other, in `reading`, if it has room.
fn record(db: TwinDb<'_>, reading: Uuid, other: Uuid) -> Result<()> {
    let sql = format!(
        "INSERT INTO reading_conflict (twin, reading, other)
         SELECT CAST(?1 AS TEXT), CAST(?2 AS TEXT), CAST(?3 AS TEXT)
         WHERE (SELECT count(*) FROM reading_conflict c WHERE c.twin = ?1 AND c.reading = ?2) < {MOST_RECORDED}
         ON CONFLICT DO NOTHING"
    );
    db.execute(&sql, params![db.twin, reading, other]).map(drop)
}

/// Sets the flag of a reading that has it not yet.
pub(crate) fn flag(db: TwinDb<'_>, id: Uuid) -> Result<()> {
    let word = Flag::Conflict.word();
    let sql = format!(
        "UPDATE reading SET flags = CASE WHEN flags = '' THEN '{word}' ELSE flags || ' {word}' END, contested = 1,
             revision = revision + 1
         WHERE twin = ?1 AND id = ?2 AND contested = 0"
    );
    db.execute(&sql, params![db.twin, id]).map(drop)
}

/// The readings that this one is in conflict with: the recorded ones, and if these cannot be all, the others as well, up to
/// [`DECIDED_AT_ONCE`].
pub(crate) fn opponents(db: TwinDb<'_>, reading: &Reading) -> Result<Vec<Uuid>> {
    let mut all = reading.conflict_with.clone();
    let found = undecided(db, reading, DECIDED_AT_ONCE)?;
    if found.len() > MOST_RECORDED {
        all.extend(found);
        all.sort_unstable();
        all.dedup();
    }
    Ok(all)
}

/// Up to `limit` readings in conflict, with whatever, that contradict this one.
fn undecided(db: TwinDb<'_>, reading: &Reading, limit: usize) -> Result<Vec<Uuid>> {
    let Some(list) = reading.work_list else { return Ok(Vec::new()) };
    let sql = format!(
        "SELECT id FROM reading r WHERE twin = ?1 AND work_list = ?2 AND meter = ?3 AND contested = 1 AND holds = 1
         AND value <> ?4 AND (device IS DISTINCT FROM ?5 OR reader <> ?6) AND {SAME_REGISTER} AND id <> ?8
         ORDER BY seq LIMIT ?9"
    );
    let Reading { id: own, meter, value, device, reader, at, .. } = reading;
    let values = params![db.twin, list, meter, *value, device, reader, at, own, limit];
    db.list(&sql, values)
}

/// Whether a reading contradicts more readings in conflict than `one`: it may have recorded that alone.
pub(crate) fn contradicts_more(db: TwinDb<'_>, reading: &Reading, one: Uuid) -> Result<bool> {
    Ok(undecided(db, reading, 2)?.iter().any(|other| *other != one))
}

/// Records again what a reading is in conflict with, after what it had recorded has been decided; whether anything is.
pub(crate) fn renew(db: TwinDb<'_>, reading: &Reading) -> Result<bool> {
    let rivals = undecided(db, reading, MOST_RECORDED)?;
    for rival in &rivals {
        record(db, reading.id, *rival)?;
        record(db, *rival, reading.id)?;
    }
    Ok(!rivals.is_empty())
}

/// Removes the record that these two readings contradict each other.
pub(crate) fn end(db: TwinDb<'_>, one: Uuid, other: Uuid) -> Result<()> {
    let delete = "DELETE FROM reading_conflict WHERE twin = ?1 AND reading = ?2 AND other = ?3";
    db.execute(delete, params![db.twin, one, other])?;
    db.execute(delete, params![db.twin, other, one]).map(drop)
}

/// Removes what a reading has recorded. That others record it is for [`forget_decided`].
pub(crate) fn forget(db: TwinDb<'_>, id: Uuid) -> Result<()> {
    let sql = "DELETE FROM reading_conflict WHERE twin = ?1 AND reading = ?2";
    db.execute(sql, params![db.twin, id]).map(drop)
}

/// Removes from readings of the same meter and list the records of those that no longer hold; gives the readings that had
/// such a record, up to [`DECIDED_AT_ONCE`].
pub(crate) fn forget_decided(db: TwinDb<'_>, reading: &Reading) -> Result<Vec<Uuid>> {
    let Some(list) = reading.work_list else { return Ok(Vec::new()) };
    let values = params![db.twin, list, reading.meter, DECIDED_AT_ONCE];
    let sql = "DELETE FROM reading_conflict WHERE twin = ?1
         AND reading IN (SELECT r.id FROM reading r WHERE r.twin = ?1 AND r.work_list = ?2 AND r.meter = ?3
                         AND r.contested = 1 ORDER BY r.seq LIMIT ?4)
         AND EXISTS (SELECT 1 FROM reading o WHERE o.twin = ?1 AND o.id = reading_conflict.other AND o.holds = 0)
         RETURNING reading";
    db.list(sql, values)
}
