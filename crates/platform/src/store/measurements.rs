//! Measurements in the database: each once, and their sums per hour and per day.
//!
//! The sums are updated with every measurement, so that they are always correct, and remain when measurements are
//! deleted.

use std::collections::BTreeMap;

use super::prelude::*;
use super::removed;

/// A quantity of a device.
#[derive(Clone, Debug)]
pub(crate) struct SeriesRow {
    pub(crate) seq: i64,
    pub(crate) unit: String,
    pub(crate) last_at: Option<Time>,
}

/// A measurement of a series, to be stored.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) series: i64,
    pub(crate) at: Time,
    pub(crate) value: f64,
    pub(crate) id: Option<String>,
}

/// The sums over a period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sums {
    pub(crate) sum: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) count: u64,
}

impl Sums {
    fn from_value(value: f64) -> Sums {
        Sums { sum: value, low: value, high: value, count: 1 }
    }

    fn add(&mut self, other: Sums) {
        self.sum += other.sum;
        self.low = self.low.min(other.low);
        self.high = self.high.max(other.high);
        self.count += other.count;
    }
}

from_row! {
    SeriesRow { seq, unit, last_at }
    Sums { sum, low, high, count }
    Label { device, quantity, unit, room, home, home_name }
}

/// The series of this device and quantity, if there is one.
pub(crate) fn find(db: TwinDb<'_>, device: &str, quantity: &str) -> Result<Option<SeriesRow>> {
    let sql =
        "SELECT seq, unit, last_at FROM series WHERE twin = ?1 AND device = ?2 AND quantity = ?3";
    db.find(sql, [db.twin, device, quantity])
}

/// Creates a series of this device, which must exist, and quantity, of which there must be none.
pub(crate) fn add_series(
    db: TwinDb<'_>,
    device: &str,
    quantity: &str,
    unit: &str,
) -> Result<SeriesRow> {
    let sql =
        "INSERT INTO series (twin, device, quantity, unit) VALUES (?1, ?2, ?3, ?4) RETURNING seq";
    let seq = db.get(sql, [db.twin, device, quantity, unit])?;
    let seq = removed::never_given(&db, seq)?;
    Ok(SeriesRow { seq, unit: unit.to_owned(), last_at: None })
}

/// Number of series that a device has.
pub(crate) fn count_quantities(db: TwinDb<'_>, device: &str) -> Result<usize> {
    let sql = "SELECT count(*) FROM series WHERE twin = ?1 AND device = ?2";
    db.get(sql, [db.twin, device])
}

/// Number of series that the twin has.
pub(crate) fn count_series(db: TwinDb<'_>) -> Result<usize> {
    let sql = "SELECT count(*) FROM series WHERE twin = ?1";
    db.get(sql, [db.twin])
}

/// Whether a measurement with this identifier was stored.
pub(crate) fn is_known(db: TwinDb<'_>, id: &str) -> Result<bool> {
    let sql = "SELECT 1 FROM measurement_id WHERE twin = ?1 AND id = ?2";
    db.exists(sql, [db.twin, id])
}

/// Stores the last measurement of a series.
pub(crate) fn set_last(db: &Db, series: i64, at: Time, value: f64) -> Result<()> {
    let sql = "UPDATE series SET last_at = ?2, last_value = ?3 WHERE seq = ?1";
    db.execute(sql, params![series, at, value]).map(drop)
}

/// Stores new measurements; returns for each whether it was new.
pub(crate) fn insert(db: TwinDb<'_>, samples: &[Sample], now: Time) -> Result<Vec<bool>> {
    let mut hours: BTreeMap<(i64, i64), Sums> = BTreeMap::new();
    let mut days: BTreeMap<(i64, i64), Sums> = BTreeMap::new();
    let today = now.0.div_euclid(DAY_MS);
    let mut fresh = Vec::with_capacity(samples.len());
    for sample in samples {
        let new = match &sample.id {
            Some(id) => insert_named(db, id, today, sample)?,
            None => insert_copy(&db, sample, 0)?,
        };
        if new {
            for (sums, length_ms) in [(&mut hours, HOUR_MS), (&mut days, DAY_MS)] {
                let begins = sample.at.0.div_euclid(length_ms) * length_ms;
                let sums = sums.entry((sample.series, begins));
                let value = Sums::from_value(sample.value);
                sums.and_modify(|sums| sums.add(value)).or_insert(value);
            }
        }
        fresh.push(new);
    }
    add_sums(&db, "series_hour", hours)?;
    add_sums(&db, "series_day", days)?;
    Ok(fresh)
}

/// Stores a measurement with an identifier, unless the identifier is known.
fn insert_named(db: TwinDb<'_>, id: &str, today: i64, sample: &Sample) -> Result<bool> {
    if db.execute(
        "INSERT INTO measurement_id (twin, id, day) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
        params![db.twin, id, today],
    )? == 0
    {
        return Ok(false);
    }
    let mut copy = 0;
    while !insert_copy(&db, sample, copy)? {
        let sql = "SELECT max(copy) FROM measurement WHERE series = ?1 AND at = ?2 AND value = ?3";
        let last: i64 = db.get(sql, params![sample.series, sample.at, sample.value])?;
        copy = last + 1;
    }
    Ok(true)
}

fn insert_copy(db: &Db, sample: &Sample, copy: i64) -> Result<bool> {
    Ok(db.execute(
        "INSERT INTO measurement (series, at, value, copy) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT DO NOTHING",
        params![sample.series, sample.at, sample.value, copy],
    )? == 1)
}

fn add_sums(db: &Db, table: &str, all: BTreeMap<(i64, i64), Sums>) -> Result<()> {
    for ((series, at), sums) in all {
        db.execute(
            &format!(
        "INSERT INTO {table} (series, at, sum, low, high, count) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (series, at) DO UPDATE SET sum = {table}.sum + excluded.sum,
             low = CASE WHEN excluded.low < {table}.low THEN excluded.low ELSE {table}.low END,
             high = CASE WHEN excluded.high > {table}.high THEN excluded.high ELSE {table}.high END,
             count = {table}.count + excluded.count"
    ),
            params![series, at, sums.sum, sums.low, sums.high, sums.count],
        )?;
    }
    Ok(())
}

/// Up to `limit` measurements from `from` on, before `until`, by time.
pub(crate) fn raw(
    db: &Db,
    series: i64,
    from: Time,
    until: Time,
    limit: usize,
) -> Result<Vec<(Time, f64)>> {
    let sql = "SELECT at, value FROM measurement WHERE series = ?1 AND at >= ?2 AND at < ?3
         ORDER BY at, value, copy LIMIT ?4";
    db.list(sql, params![series, from, until, limit])
}

/// The times of the last measurements before `until`, the last one first.
pub(crate) fn times_before(db: &Db, series: i64, until: Time, limit: usize) -> Result<Vec<Time>> {
    let sql = "SELECT at FROM measurement WHERE series = ?1 AND at < ?2 ORDER BY at DESC LIMIT ?3";
    db.list(sql, params![series, until, limit])
}

/// PostgreSQL's sum of integers is not an integer.
const SUMMED: &str = "sum(sum), min(low), max(high), CAST(sum(count) AS BIGINT)";

/// Sums by steps that begin at multiples of `step_ms`, from the coarsest suitable table.
pub(crate) fn stepped(
    db: &Db,
    series: i64,
    from: Time,
    until: Time,
    step_ms: i64,
) -> Result<Vec<(Time, Sums)>> {
    let (table, columns) = match step_ms {
        step if step % DAY_MS == 0 => ("series_day", SUMMED),
        step if step % HOUR_MS == 0 => ("series_hour", SUMMED),
        _ => ("measurement", "sum(value), min(value), max(value), count(*)"),
    };
    // Steps before 1970 would need a division that rounds down.
    db.list(
        &format!(
            "SELECT at / ?4 * ?4 AS step, {columns} FROM {table}
         WHERE series = ?1 AND at >= ?2 AND at < ?3 GROUP BY step ORDER BY step"
        ),
        params![series, from, until, step_ms],
    )
}

/// Identifies a measurement of a series, in their order: time, value, number.
pub(crate) type RawKey = (Time, f64, i64);

/// Up to `limit` measurements of that range, after the key.
pub(crate) fn raw_after(
    db: &Db,
    series: i64,
    from: Time,
    until: Time,
    after: Option<RawKey>,
    limit: usize,
) -> Result<Vec<RawKey>> {
    let (at, value, copy) = after.unwrap_or((from.plus_ms(-1), f64::INFINITY, i64::MAX));
    let sql = "SELECT at, value, copy FROM measurement
         WHERE series = ?1 AND (at, value, copy) > (?2, ?3, ?4) AND at < ?5
         ORDER BY at, value, copy LIMIT ?6";
    db.list(sql, params![series, at, value, copy, until, limit])
}

/// A series' home, device and quantity.
#[derive(Clone, Debug)]
pub(crate) struct Label {
    pub(crate) device: Name,
    pub(crate) quantity: String,
    pub(crate) unit: String,
    pub(crate) room: Option<String>,
    pub(crate) home: Option<Name>,
    pub(crate) home_name: Option<String>,
}

/// The series of a home, device and quantity, or of all, by home, device and quantity.
pub(crate) fn series_of(
    db: TwinDb<'_>,
    home: Option<&str>,
    device: Option<&str>,
    quantity: Option<&str>,
) -> Result<Vec<i64>> {
    let sql = "SELECT x.seq FROM series x
         JOIN sensor s ON s.twin = x.twin AND s.device = x.device
         WHERE x.twin = ?1 AND (CAST(?2 AS TEXT) IS NULL OR s.home = ?2)
         AND (CAST(?3 AS TEXT) IS NULL OR x.device = ?3)
         AND (CAST(?4 AS TEXT) IS NULL OR x.quantity = ?4)
         ORDER BY s.home NULLS FIRST, x.device, x.quantity";
    db.list(sql, params![db.twin, home, device, quantity])
}

/// The label of a series that is still there.
pub(crate) fn label(db: &Db, series: i64) -> Result<Option<Label>> {
    let sql = "SELECT x.device, x.quantity, x.unit, s.room, s.home, h.name FROM series x
         JOIN sensor s ON s.twin = x.twin AND s.device = x.device
         LEFT JOIN home h ON h.twin = s.twin AND h.id = s.home
         WHERE x.seq = ?1";
    db.find(sql, [series])
}

#[cfg(test)]
#[path = "measurements_tests.rs"]
mod tests;
