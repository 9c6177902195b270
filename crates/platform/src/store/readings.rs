//! Readings in the database, and what follows from them for their meters.

use uuid::Uuid;

use super::filter::Filter;
use super::sql::{DatabaseError, OptionalExtension as _, Result, params, params_from_iter};
use super::{Db, reports};
use crate::meters::Method;
use crate::number::Place;
use crate::readings::types::Flag;
use crate::readings::{NewReading, Reading};
use crate::text::Name;
use crate::time::Time;

/// A reading to be stored.
pub(crate) struct Row<'a> {
    pub(crate) twin: &'a Name,
    pub(crate) new: &'a NewReading,
    pub(crate) unit: &'a str,
    pub(crate) reader: &'a Name,
    pub(crate) now: Time,
    pub(crate) flags: &'a [Flag],
}

/// Which readings are asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query {
    pub(crate) meter: Option<Name>,
    pub(crate) work_list: Option<Uuid>,
    pub(crate) since: Option<Time>,
    pub(crate) until: Option<Time>,
    pub(crate) method: Option<Method>,
    /// Time and number of the last one of the page before.
    pub(crate) after: Option<(Time, i64)>,
}

const COLUMNS: &str = "r.id, r.meter, r.at, r.value, r.unit, r.method, r.photo, r.lat, r.lon, r.rssi_dbm, r.note,
    r.implausible_confirmed, r.work_list, r.reader, r.device, r.received_at, r.flags,
    (SELECT string_agg(c.other, ' ' ORDER BY c.other) FROM reading_conflict c WHERE c.twin = r.twin AND c.reading = r.id),
    r.seq";

fn uuid(text: &str) -> Result<Uuid> {
    text.parse().map_err(|_| DatabaseError::Column(0))
}

fn reading(row: &super::sql::Row<'_>) -> Result<Reading> {
    let optional = |at: usize| -> Result<Option<Uuid>> {
        row.get::<Option<String>>(at)?.as_deref().map(uuid).transpose()
    };
    let (flags, others): (String, Option<String>) = (row.get(16)?, row.get(17)?);
    Ok(Reading {
        id: uuid(&row.get::<String>(0)?)?,
        meter: row.get(1)?,
        at: row.get(2)?,
        value: row.get(3)?,
        unit: row.get(4)?,
        method: row.get(5)?,
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
    })
}

pub(crate) fn get(db: &Db, twin: &str, id: Uuid) -> Result<Option<Reading>> {
    let sql = format!("SELECT {COLUMNS} FROM reading r WHERE r.twin = ?1 AND r.id = ?2");
    db.prepare_cached(&sql)?.query_row(params![twin, id.to_string()], reading).optional()
}

/// Up to `limit` readings by the time they were taken, each with its number.
pub(crate) fn list(
    db: &Db,
    twin: &str,
    query: &Query,
    limit: usize,
) -> Result<Vec<(Reading, i64)>> {
    let mut filter = Filter::default();
    filter.and("r.twin = ?", [Box::new(twin)]);
    filter.and_if("r.meter = ?", query.meter.as_deref());
    filter.and_if("r.work_list = ?", query.work_list.map(|list| list.to_string()));
    filter.and_if("r.at >= ?", query.since);
    filter.and_if("r.at < ?", query.until);
    filter.and_if("r.method = ?", query.method);
    if let Some((at, seq)) = query.after {
        filter.and("(r.at, r.seq) > (?, ?)", [Box::new(at), Box::new(seq)]);
    }
    let order = "ORDER BY r.at, r.seq";
    let sql = format!("SELECT {COLUMNS} FROM reading r{} {order} LIMIT ?", filter.sql());
    let mut rows = db.prepare_cached(&sql)?;
    let limit_value: &dyn super::sql::ToSql = &limit;
    let values = filter.values().chain([limit_value]);
    let rows = rows.query_map(params_from_iter(values), |row| Ok((reading(row)?, row.get(18)?)))?;
    rows.collect()
}

/// A reading of the same reader, meter, time, value and way, under another id.
pub(crate) fn same(db: &Db, twin: &str, new: &NewReading, reader: &str) -> Result<Option<String>> {
    let mut rows = db.prepare_cached(
        "SELECT id FROM reading WHERE twin = ?1 AND meter = ?2 AND at = ?3 AND value = ?4 AND method = ?5
         AND reader = ?6 AND device IS NOT DISTINCT FROM ?7",
    )?;
    let values = params![twin, new.meter, new.at, new.value, new.method, reader, new.device];
    rows.query_row(values, |row| row.get(0)).optional()
}

/// Readings of the same meter for the same list, by another device or reader, that say something else.
pub(crate) fn rivals(
    db: &Db,
    twin: &str,
    list: Uuid,
    new: &NewReading,
    reader: &str,
) -> Result<Vec<Uuid>> {
    let mut rows = db.prepare_cached(
        "SELECT id FROM reading WHERE twin = ?1 AND work_list = ?2 AND meter = ?3 AND value <> ?4
         AND method <> 'radio' AND (device IS DISTINCT FROM ?5 OR reader <> ?6)
         AND ' ' || flags || ' ' NOT LIKE '% superseded %'",
    )?;
    let values = params![twin, list.to_string(), new.meter, new.value, new.device, reader];
    let ids = rows.query_map(values, |row| uuid(&row.get::<String>(0)?))?;
    ids.collect()
}

pub(crate) fn insert(db: &Db, row: &Row<'_>) -> Result<()> {
    let new = row.new;
    let (lat, lon) = Place::columns(new.place);
    let mut insert = db.prepare_cached(
        "INSERT INTO reading (twin, id, meter, at, value, unit, method, photo, lat, lon, rssi_dbm, note,
                              implausible_confirmed, work_list, reader, device, received_at, flags)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)",
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
        new.work_list.map(|list| list.to_string()),
        row.reader,
        new.device,
        row.now,
        words(row.flags),
    ])?;
    Ok(())
}

fn words(flags: &[Flag]) -> String {
    let words: Vec<&str> = flags.iter().map(|flag| flag.word()).collect();
    words.join(" ")
}

pub(crate) fn set_flags(db: &Db, twin: &str, id: Uuid, flags: &[Flag]) -> Result<()> {
    let mut update =
        db.prepare_cached("UPDATE reading SET flags = ?3 WHERE twin = ?1 AND id = ?2")?;
    update.execute(params![twin, id.to_string(), words(flags)]).map(drop)
}

/// Notes that two readings contradict each other, on both.
pub(crate) fn set_conflict(db: &Db, twin: &str, one: Uuid, other: Uuid) -> Result<()> {
    let mut insert = db.prepare_cached(
        "INSERT INTO reading_conflict (twin, reading, other) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
    )?;
    insert.execute(params![twin, one.to_string(), other.to_string()])?;
    insert.execute(params![twin, other.to_string(), one.to_string()])?;
    if let Some(mut known) = get(db, twin, other)?
        && !known.flags.contains(&Flag::Conflict)
    {
        known.flags.push(Flag::Conflict);
        set_flags(db, twin, other, &known.flags)?;
    }
    Ok(())
}

/// Forgets all conflicts a reading has.
pub(crate) fn clear_conflicts(db: &Db, twin: &str, id: Uuid) -> Result<()> {
    let sql = "DELETE FROM reading_conflict WHERE twin = ?1 AND (reading = ?2 OR other = ?2)";
    db.execute(sql, params![twin, id.to_string()]).map(drop)
}

/// Takes the meter's first and last reading from its readings, and whether its flow pauses, after one has
/// come or been superseded.
///
/// The rate of use counts from the first reading that is not above the last one: a meter that begins
/// again has been exchanged.
pub(crate) fn update_meter(db: &Db, twin: &str, meter: &str, now: Time) -> Result<()> {
    let mut update = db.prepare_cached(
        "UPDATE meter SET (last_value, last_at, last_method) =
             (SELECT value, at, method FROM reading r WHERE r.twin = ?1 AND r.meter = ?2
                 AND ' ' || flags || ' ' NOT LIKE '% superseded %' ORDER BY at DESC, seq DESC LIMIT 1)
         WHERE twin = ?1 AND id = ?2",
    )?;
    update.execute(params![twin, meter])?;
    let mut update = db.prepare_cached(
        "UPDATE meter SET (first_value, first_at) =
             (SELECT value, at FROM reading r WHERE r.twin = ?1 AND r.meter = ?2
                 AND r.value <= meter.last_value AND r.at >= meter.last_at - ?3 ORDER BY at, seq LIMIT 1),
             expected_low = NULL, expected_high = NULL, revision = revision + 1, changed_at = ?4
         WHERE twin = ?1 AND id = ?2",
    )?;
    update.execute(params![twin, meter, RATE_OVER_MS, now])?;
    reports::note_flow(db, twin, meter)
}

/// Use is averaged over this long.
const RATE_OVER_MS: i64 = 400 * crate::time::DAY_MS;
