//! Readings in the database, and their effects on meters.

use uuid::Uuid;

use super::filter::Filter;
use super::reports::{OFFSET, RegisterValue};
use super::sql::{DatabaseError, OptionalExtension as _, Result, params};
use super::{Db, reports};
use crate::meters::Method;
use crate::number::Place;
use crate::paging::Order;
use crate::readings::types::{Change, Flag, Original, Proof};
use crate::readings::{NewReading, Reading};
use crate::text::Name;
use crate::time::Time;

/// A reading to be stored.
pub(crate) struct Row<'a> {
    pub(crate) twin: &'a Name,
    pub(crate) new: &'a NewReading,
    pub(crate) unit: &'a str,
    /// The list for which it was sent, or whose entry it completes.
    pub(crate) work_list: Option<Uuid>,
    pub(crate) reader: &'a Name,
    pub(crate) now: Time,
    pub(crate) flags: &'a [Flag],
    pub(crate) proof: Proof,
}

/// Selects readings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query {
    pub(crate) meter: Option<Name>,
    pub(crate) work_list: Option<Uuid>,
    pub(crate) since: Option<Time>,
    pub(crate) until: Option<Time>,
    pub(crate) method: Option<Method>,
    /// Only readings in an open conflict, or only others.
    pub(crate) conflict: Option<bool>,
    pub(crate) order: Order,
    /// Time and number of the last one of the previous page.
    pub(crate) after: Option<(Time, i64)>,
}

const COLUMNS: &str = "r.id, r.meter, r.at, r.value, r.unit, r.method, r.photo, r.lat, r.lon, r.rssi_dbm, r.note,
    r.implausible_confirmed, r.work_list, r.reader, r.device, r.received_at, r.flags,
    (SELECT string_agg(c.other, ' ' ORDER BY c.other) FROM reading_conflict c WHERE c.twin = r.twin AND c.reading = r.id),
    r.seq, r.revision, r.sent_value, r.sent_at, k.action, k.changed_by, k.changed_at, k.reason, r.protection,
    CASE WHEN ' ' || r.flags || ' ' LIKE '% unproven %' THEN r.doubt END";
/// Whether reading `r` was not in the future when it came: the time of one that was is unknown until it is corrected.
pub(super) const IN_TIME: &str = "' ' || r.flags || ' ' NOT LIKE '% future %'";
/// With the last entry of each reading's audit trail.
const FROM: &str = "FROM reading r LEFT JOIN reading_change k ON k.seq = r.last_change";

fn uuid(text: &str) -> Result<Uuid> {
    text.parse().map_err(|_| DatabaseError::Column(0))
}

fn reading(row: &super::sql::Row<'_>) -> Result<Reading> {
    let optional = |at: usize| -> Result<Option<Uuid>> {
        row.get::<Option<String>>(at)?.as_deref().map(uuid).transpose()
    };
    let (flags, others): (String, Option<String>) = (row.get(16)?, row.get(17)?);
    let (revision, action): (i64, Option<_>) = (row.get(19)?, row.get(22)?);
    let original = row.get::<Option<f64>>(20)?.zip(row.get(21)?);
    let changed = match action {
        Some(action) => {
            Some(Change { action, by: row.get(23)?, at: row.get(24)?, reason: row.get(25)? })
        }
        None => None,
    };
    Ok(Reading {
        id: uuid(&row.get::<String>(0)?)?,
        meter: row.get(1)?,
        at: row.get(2)?,
        value: row.get(3)?,
        unit: row.get(4)?,
        method: row.get(5)?,
        protection: row.get(26)?,
        doubt: row.get(27)?,
        photo: optional(6)?,
        place: Place::from_columns(row.get(7)?, row.get(8)?),
        rssi_dbm: row.get(9)?,
        note: row.get(10)?,
        implausible_confirmed: row.get(11)?,
        work_list: optional(12)?,
        reader: row.get(13)?,
        device: row.get(14)?,
        received_at: row.get(15)?,
        conflict_with: others
            .unwrap_or_default()
            .split_whitespace()
            .map(uuid)
            .collect::<Result<_>>()?,
        flags: flags.split_whitespace().filter_map(Flag::from_word).collect(),
        original: original.map(|(value, at)| Original { value, at }),
        changed,
        etag: format!("\"{revision}\""),
    })
}

pub(crate) fn get(db: &Db, twin: &str, id: Uuid) -> Result<Option<Reading>> {
    let sql = format!("SELECT {COLUMNS} {FROM} WHERE r.twin = ?1 AND r.id = ?2");
    db.prepare_cached(&sql)?.query_row(params![twin, id.to_string()], reading).optional()
}

/// The conditions, and the order.
fn conditions<'a>(twin: &'a str, query: &'a Query) -> (Filter<'a>, &'static str) {
    // Open conflicts are few: only their own index is fast.
    let (list, method) = match query.conflict {
        Some(true) => ("(r.work_list || '') = ?", "(r.method || '') = ?"),
        _ => ("r.work_list = ?", "r.method = ?"),
    };
    // A later page starts in the index where the previous one ended, not at the beginning.
    let at = query.after.map(|(at, _)| at);
    let (since, until) = match query.order {
        Order::Asc => (query.since.max(at), query.until),
        Order::Desc => {
            let end = at.map(|at| Time(at.0.saturating_add(1)));
            (query.since, query.until.into_iter().chain(end).min())
        }
    };
    let mut filter = Filter::default();
    filter.and("r.twin = ?", [Box::new(twin)]);
    filter.and_if("r.meter = ?", query.meter.as_deref());
    filter.and_if(list, query.work_list.map(|list| list.to_string()));
    filter.and_if("r.at >= ?", since);
    filter.and_if("r.at < ?", until);
    filter.and_if(method, query.method);
    match query.conflict {
        // Written as a literal, because the partial index could not be used otherwise.
        Some(true) => filter.and("r.contested = 1", []),
        Some(false) => filter.and("r.contested = 0", []),
        None => &mut filter,
    };
    let (behind, order) = match query.order {
        Order::Asc => ("(r.at, r.seq) > (?, ?)", "r.at, r.seq"),
        Order::Desc => ("(r.at, r.seq) < (?, ?)", "r.at DESC, r.seq DESC"),
    };
    if let Some((at, seq)) = query.after {
        filter.and(behind, [Box::new(at), Box::new(seq)]);
    }
    (filter, order)
}

/// Up to `limit` readings by the time they were taken, each with its number.
pub(crate) fn list(
    db: &Db,
    twin: &str,
    query: &Query,
    limit: usize,
) -> Result<Vec<(Reading, i64)>> {
    let (filter, order) = conditions(twin, query);
    filter.list(db, &selected(), order, limit, |row| Ok((reading(row)?, row.get(18)?)))
}

fn selected() -> String {
    format!("SELECT {COLUMNS} {FROM}")
}

/// A reading by the same reader, of the same meter, time, value and method, under another identifier, among the meter's
/// first ones of that time: no honest meter has more than a few.
pub(crate) fn same(db: &Db, twin: &str, new: &NewReading, reader: &str) -> Result<Option<String>> {
    let mut rows = db.prepare_cached(
        "SELECT r.id FROM (SELECT id, value, method, reader, device FROM reading
                           WHERE twin = ?1 AND meter = ?2 AND at = ?3 LIMIT 256) r
         WHERE r.value = ?4 AND r.method = ?5 AND r.reader = ?6 AND r.device IS NOT DISTINCT FROM ?7",
    )?;
    let values = params![twin, new.meter, new.at, new.value, new.method, reader, new.device];
    if let Some(found) = rows.query_row(values, |row| row.get(0)).optional()? {
        return Ok(Some(found));
    }
    let mut corrected = db.prepare_cached(
        "SELECT id FROM reading WHERE twin = ?1 AND meter = ?2 AND sent_at = ?3 AND sent_value = ?4
         AND method = ?5 AND reader = ?6 AND device IS NOT DISTINCT FROM ?7",
    )?;
    corrected.query_row(values, |row| row.get(0)).optional()
}

pub(crate) fn insert(db: &Db, row: &Row<'_>) -> Result<()> {
    let new = row.new;
    let (lat, lon) = Place::columns(new.place);
    let mut insert = db.prepare_cached(
        "INSERT INTO reading (twin, id, meter, at, value, unit, method, photo, lat, lon, rssi_dbm, note,
                              implausible_confirmed, work_list, reader, device, received_at, flags,
                              contested, holds, protection, doubt)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22)",
    )?;
    insert.execute(params![
        row.twin,
        new.id.to_string(),
        new.meter,
        new.at,
        new.value,
        row.unit,
        new.method,
        new.photo.map(|photo| photo.to_string()),
        lat,
        lon,
        new.rssi_dbm,
        new.note,
        new.implausible_confirmed,
        row.work_list.map(|list| list.to_string()),
        row.reader,
        new.device,
        row.now,
        words(row.flags),
        row.flags.contains(&Flag::Conflict),
        holds(row.flags),
        row.proof.protection,
        row.proof.doubt,
    ])?;
    Ok(())
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
pub(crate) fn set_flags(db: &Db, twin: &str, id: Uuid, flags: &[Flag]) -> Result<()> {
    let mut update = db.prepare_cached(
        "UPDATE reading SET flags = ?3, holds = ?4, contested = ?5, revision = revision + 1
         WHERE twin = ?1 AND id = ?2",
    )?;
    let contested = flags.contains(&Flag::Conflict);
    update.execute(params![twin, id.to_string(), words(flags), holds(flags), contested]).map(drop)
}

/// The content of the meter's newest message with a key until `at`, of those that count, since its key or address changed or
/// it was exchanged. Earlier versions did not record the protection.
pub(crate) fn newest_by_key(
    db: &Db,
    twin: &str,
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
    db.prepare_cached(&sql)?.query_row(params![twin, meter, at, unit], |row| row.get(0)).optional()
}

/// Whether [`MOST_UNPROVEN`] readings of the meter that do not count came within the last day: no more are stored.
pub(crate) fn has_many_unproven(db: &Db, twin: &str, meter: &str, now: Time) -> Result<bool> {
    let sql =
        "SELECT count(*) FROM (SELECT 1 FROM reading WHERE twin = ?1 AND meter = ?2 AND holds = 0
                   AND received_at > ?3 LIMIT ?4) r";
    let since = now.plus_ms(-crate::time::DAY_MS);
    let count: u32 = db
        .prepare_cached(sql)?
        .query_row(params![twin, meter, since, MOST_UNPROVEN], |row| row.get(0))?;
    Ok(count >= MOST_UNPROVEN)
}

/// Readings of a meter that do not count, stored per day.
const MOST_UNPROVEN: u32 = 100;

/// Sets what a reading by radio shows, and what shows that.
pub(crate) fn set_value(
    db: &Db,
    twin: &str,
    id: Uuid,
    value: f64,
    unit: &str,
    proof: Proof,
) -> Result<()> {
    let sql = "UPDATE reading SET value = ?3, unit = ?4, protection = ?5, doubt = ?6 WHERE twin = ?1 AND id = ?2";
    let values = params![twin, id.to_string(), value, unit, proof.protection, proof.doubt];
    db.execute(sql, values).map(drop)
}

/// Sets the list whose entry the reading completes.
pub(crate) fn set_work_list(db: &Db, twin: &str, id: Uuid, list: Uuid) -> Result<()> {
    let sql = "UPDATE reading SET work_list = ?3 WHERE twin = ?1 AND id = ?2";
    db.execute(sql, params![twin, id.to_string(), list.to_string()]).map(drop)
}

/// The value that the rate of consumption until `last` counts from, as the last one's register would have shown it, and its
/// time: the first that is not above the last. A meter that starts again without an exchange has been exchanged, too.
pub(crate) fn rate_start(
    db: &Db,
    twin: &str,
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
    let values = params![twin, meter, since, last.at, *offset, last.value];
    db.prepare_cached(&sql)?.query_row(values, |row| Ok((row.get(0)?, row.get(1)?))).optional()
}

/// Updates the meter's first and last value, and whether its flow pauses, after a reading or an exchange was added or
/// changed. Readings from the future do not count: nothing could be compared with them for years.
pub(crate) fn update_meter(db: &Db, twin: &str, meter: &str, now: Time) -> Result<()> {
    let shown = reports::newest_before(db, twin, meter, Time(i64::MAX))?;
    let first = shown.as_ref().map(|last| rate_start(db, twin, meter, last)).transpose()?.flatten();
    let (first_value, first_at) = first.unzip();
    let (value, at, method, protection) = match shown.map(|shown| shown.last) {
        Some(last) => (Some(last.value), Some(last.at), Some(last.method), last.protection),
        None => (None, None, None, None),
    };
    let sql = "UPDATE meter SET last_value = ?3, last_at = ?4, last_method = ?5, last_protection = ?6, first_value = ?7,
             first_at = ?8, expected_low = NULL, expected_high = NULL, revision = revision + 1, changed_at = ?9
         WHERE twin = ?1 AND id = ?2";
    let values = params![twin, meter, value, at, method, protection, first_value, first_at, now];
    db.prepare_cached(sql)?.execute(values)?;
    reports::note_flow(db, twin, meter)
}

/// The period over which consumption is averaged.
const RATE_OVER_MS: i64 = 400 * crate::time::DAY_MS;

#[cfg(test)]
#[path = "readings_tests.rs"]
mod tests;
