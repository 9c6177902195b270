//! Readings in the database, and their effects on meters.

use super::prelude::*;
use super::reports;
use super::reports::{OFFSET, RegisterValue};
use crate::paging::Order;
use crate::readings::types::{Change, Flag, Original, Proof, ReadingQuery};
use crate::readings::{NewReading, Reading};

/// A reading to be stored.
pub(crate) struct NewRow<'a> {
    pub(crate) new: &'a NewReading,
    pub(crate) unit: &'a str,
    /// The list for which it was sent, or whose entry it completes.
    pub(crate) work_list: Option<Uuid>,
    pub(crate) reader: &'a Name,
    pub(crate) now: Time,
    pub(crate) flags: &'a [Flag],
    pub(crate) proof: Proof,
}

const COLUMNS: &str = "r.id, r.meter, r.at, r.value, r.unit, r.method, r.protection,
    CASE WHEN ' ' || r.flags || ' ' LIKE '% unproven %' THEN r.doubt END, r.photo, r.lat, r.lon, r.rssi_dbm, r.note,
    r.implausible_confirmed, r.work_list, r.reader, r.device, r.received_at,
    (SELECT string_agg(c.other, ' ' ORDER BY c.other) FROM reading_conflict c WHERE c.twin = r.twin AND c.reading = r.id),
    r.flags, r.sent_value, r.sent_at, k.action, k.changed_by, k.changed_at, k.reason, '\"' || r.revision || '\"', r.seq";
/// Whether reading `r` was not in the future when it came: the time of one that was is unknown until it is corrected.
pub(super) const IN_TIME: &str = "' ' || r.flags || ' ' NOT LIKE '% future %'";
/// With the last entry of each reading's audit trail.
const FROM: &str = "FROM reading r LEFT JOIN reading_change k ON k.seq = r.last_change";

from_row! {
    Reading {
        id, meter, at, value, unit, method, protection, doubt, photo, place, rssi_dbm, note, implausible_confirmed, work_list,
        reader, device, received_at, conflict_with, flags, original, changed, etag,
    }
}

impl FromRow for Option<Original> {
    fn from_row(row: &mut Row<'_>) -> Result<Self> {
        Ok(row.read::<Option<_>>()?.map(|(value, at)| Original { value, at }))
    }
}

impl FromRow for Option<Change> {
    fn from_row(row: &mut Row<'_>) -> Result<Self> {
        let (action, by, at, reason): (Option<_>, Option<_>, Option<_>, _) = row.read()?;
        let done = action.zip(by).zip(at);
        Ok(done.map(|((action, by), at)| Change { action, by, at, reason }))
    }
}

pub(crate) fn get(db: TwinDb<'_>, id: Uuid) -> Result<Option<Reading>> {
    let sql = format!("SELECT {COLUMNS} {FROM} WHERE r.twin = ?1 AND r.id = ?2");
    db.find(&sql, params![db.twin, id])
}

/// The conditions, and the order.
fn conditions<'a>(
    twin: &'a str,
    query: &'a ReadingQuery,
    after: Option<(Time, i64)>,
) -> (Filter<'a>, &'static str) {
    // Open conflicts are few: only their own index is fast.
    let (list, method) = match query.conflict {
        Some(true) => ("(r.work_list || '') = ?", "(r.method || '') = ?"),
        _ => ("r.work_list = ?", "r.method = ?"),
    };
    // A later page starts in the index where the previous one ended, not at the beginning.
    let at = after.map(|(at, _)| at);
    let asked = query.order.unwrap_or_default();
    let (since, until) = match asked {
        Order::Asc => (query.since.max(at), query.until),
        Order::Desc => {
            let end = at.map(|at| Time(at.0.saturating_add(1)));
            (query.since, query.until.into_iter().chain(end).min())
        }
    };
    let mut filter = Filter::default();
    filter.and("r.twin = ?", [Box::new(twin)]);
    filter.and_if("r.meter = ?", query.meter.as_deref());
    filter.and_if(list, query.work_list);
    filter.and_if("r.at >= ?", since);
    filter.and_if("r.at < ?", until);
    filter.and_if(method, query.method);
    match query.conflict {
        // Written as a literal, because the partial index could not be used otherwise.
        Some(true) => filter.and("r.contested = 1", []),
        Some(false) => filter.and("r.contested = 0", []),
        None => &mut filter,
    };
    let (behind, order) = match asked {
        Order::Asc => ("(r.at, r.seq) > (?, ?)", "r.at, r.seq"),
        Order::Desc => ("(r.at, r.seq) < (?, ?)", "r.at DESC, r.seq DESC"),
    };
    if let Some((at, seq)) = after {
        filter.and(behind, [Box::new(at), Box::new(seq)]);
    }
    (filter, order)
}

/// Up to `limit` readings by the time they were taken, each with its number.
pub(crate) fn list(
    db: TwinDb<'_>,
    query: &ReadingQuery,
    after: Option<(Time, i64)>,
    limit: usize,
) -> Result<Vec<(Reading, i64)>> {
    let (filter, order) = conditions(db.twin, query, after);
    filter.list(db, &selected(), order, limit)
}

fn selected() -> String {
    format!("SELECT {COLUMNS} {FROM}")
}

/// A reading by the same reader, of the same meter, time, value and method, under another identifier, among the meter's
/// first ones of that time: no honest meter has more than a few.
pub(crate) fn same(db: TwinDb<'_>, new: &NewReading, reader: &str) -> Result<Option<String>> {
    let values = params![db.twin, new.meter, new.at, new.value, new.method, reader, new.device];
    let sql = "SELECT r.id FROM (SELECT id, value, method, reader, device FROM reading
                           WHERE twin = ?1 AND meter = ?2 AND at = ?3 LIMIT 256) r
         WHERE r.value = ?4 AND r.method = ?5 AND r.reader = ?6 AND r.device IS NOT DISTINCT FROM ?7";
    if let Some(found) = db.find(sql, values)? {
        return Ok(Some(found));
    }
    let sql =
        "SELECT id FROM reading WHERE twin = ?1 AND meter = ?2 AND sent_at = ?3 AND sent_value = ?4
         AND method = ?5 AND reader = ?6 AND device IS NOT DISTINCT FROM ?7";
    db.find(sql, values)
}

pub(crate) fn insert(db: TwinDb<'_>, row: &NewRow<'_>) -> Result<()> {
    let new = row.new;
    let (lat, lon) = Place::columns(new.place);
    let NewRow { unit, work_list, reader, now, flags, proof, .. } = row;
    let columns = columns!(
        new; id, meter, at, value, unit = unit, method, photo, lat = lat, lon = lon, rssi_dbm, note, implausible_confirmed,
        work_list = work_list, reader = reader, device, received_at = now, flags = words(flags),
        contested = flags.contains(&Flag::Conflict), holds = holds(flags), protection = proof.protection,
        doubt = proof.doubt
    );
    filter::insert(db, "reading", columns)
}

/// Whether a reading with these flags counts.
pub(crate) fn holds(flags: &[Flag]) -> bool {
    !flags.iter().any(|flag| matches!(flag, Flag::Superseded | Flag::Withdrawn | Flag::Unproven))
}

fn words(flags: &[Flag]) -> String {
    let words: Vec<&str> = flags.iter().map(|flag| flag.word()).collect();
    words.join(" ")
}

/// Sets a reading's flags, and the fields that depend on them.
pub(crate) fn set_flags(db: TwinDb<'_>, id: Uuid, flags: &[Flag]) -> Result<()> {
    let contested = flags.contains(&Flag::Conflict);
    let sql = "UPDATE reading SET flags = ?3, holds = ?4, contested = ?5, revision = revision + 1
         WHERE twin = ?1 AND id = ?2";
    db.execute(sql, params![db.twin, id, words(flags), holds(flags), contested]).map(drop)
}

/// The content of the meter's newest message with a key until `at`, of those that count, since its key or address changed or
/// it was exchanged. Earlier versions did not record the protection.
pub(crate) fn newest_by_key(
    db: TwinDb<'_>,
    meter: &str,
    unit: &str,
    at: Time,
) -> Result<Option<f64>> {
    let sql = format!(
        "SELECT value FROM reading r WHERE twin = ?1 AND meter = ?2 AND at <= ?3 AND holds = 1 AND {IN_TIME}
         AND method = 'radio' AND unit = ?4 AND protection IS DISTINCT FROM 'unauthenticated'
         AND seq > coalesce((SELECT radio_after FROM meter m WHERE m.twin = ?1 AND m.id = ?2), 0)
         AND at >= coalesce((SELECT max(e.at) FROM meter_exchange e WHERE e.twin = ?1 AND e.meter = ?2 AND e.at <= ?3
                             AND e.withdrawn_at IS NULL), at)
         ORDER BY at DESC, seq DESC LIMIT 1"
    );
    db.find(&sql, params![db.twin, meter, at, unit])
}

/// Whether [`MOST_UNPROVEN`] readings of the meter that do not count came within the last day: no more are stored.
pub(crate) fn has_many_unproven(db: TwinDb<'_>, meter: &str, now: Time) -> Result<bool> {
    let sql =
        "SELECT count(*) FROM (SELECT 1 FROM reading WHERE twin = ?1 AND meter = ?2 AND holds = 0
                   AND received_at > ?3 LIMIT ?4) r";
    let since = now.plus_ms(-crate::time::DAY_MS);
    let count: u32 = db.get(sql, params![db.twin, meter, since, MOST_UNPROVEN])?;
    Ok(count >= MOST_UNPROVEN)
}

/// Readings of a meter that do not count, stored per day.
const MOST_UNPROVEN: u32 = 100;

/// Sets what a reading by radio shows, and what shows that.
pub(crate) fn set_value(
    db: TwinDb<'_>,
    id: Uuid,
    value: f64,
    unit: &str,
    proof: Proof,
) -> Result<()> {
    let sql = "UPDATE reading SET value = ?3, unit = ?4, protection = ?5, doubt = ?6 WHERE twin = ?1 AND id = ?2";
    let values = params![db.twin, id, value, unit, proof.protection, proof.doubt];
    db.execute(sql, values).map(drop)
}

/// Sets the list whose entry the reading completes.
pub(crate) fn set_work_list(db: TwinDb<'_>, id: Uuid, list: Uuid) -> Result<()> {
    let sql = "UPDATE reading SET work_list = ?3 WHERE twin = ?1 AND id = ?2";
    db.execute(sql, params![db.twin, id, list]).map(drop)
}

/// The value that the rate of consumption until `last` counts from, as the last one's register would have shown it, and its
/// time: the first that is not above the last. A meter that starts again without an exchange has been exchanged, too.
pub(crate) fn rate_start(
    db: TwinDb<'_>,
    meter: &str,
    last: &RegisterValue,
) -> Result<Option<(f64, Time)>> {
    let offset = if last.offset == 0.0 { "0.0" } else { OFFSET };
    // Sums of fractions differ with their order, and no register shows millionths.
    let sql = format!(
        "SELECT value + {offset} - ?5, at FROM reading r WHERE twin = ?1 AND meter = ?2 AND at >= ?3 AND at <= ?4
         AND holds = 1 AND {IN_TIME} AND value + {offset} - ?5 - 0.000001 <= ?6 ORDER BY at, seq LIMIT 1"
    );
    let RegisterValue { last, offset } = last;
    let since = last.at.plus_ms(-RATE_OVER_MS);
    let values = params![db.twin, meter, since, last.at, *offset, last.value];
    db.find(&sql, values)
}

/// Updates the meter's first and last value, and whether its flow pauses, after a reading or an exchange was added or
/// changed. Readings from the future do not count: nothing could be compared with them for years.
pub(crate) fn update_meter(db: TwinDb<'_>, meter: &str, now: Time) -> Result<()> {
    let shown = reports::newest_before(db, meter, Time(i64::MAX))?;
    let first = shown.as_ref().map(|last| rate_start(db, meter, last)).transpose()?.flatten();
    let (first_value, first_at) = first.unzip();
    let (value, at, method, protection) = match shown.map(|shown| shown.last) {
        Some(last) => (Some(last.value), Some(last.at), Some(last.method), last.protection),
        None => (None, None, None, None),
    };
    let sql = "UPDATE meter SET last_value = ?3, last_at = ?4, last_method = ?5, last_protection = ?6, first_value = ?7,
             first_at = ?8, expected_low = NULL, expected_high = NULL, revision = revision + 1, changed_at = ?9
         WHERE twin = ?1 AND id = ?2";
    let values = params![db.twin, meter, value, at, method, protection, first_value, first_at, now];
    db.execute(sql, values)?;
    reports::note_flow(db, meter)
}

/// The period over which consumption is averaged.
const RATE_OVER_MS: i64 = 400 * crate::time::DAY_MS;

#[cfg(test)]
#[path = "readings_tests.rs"]
mod tests;
