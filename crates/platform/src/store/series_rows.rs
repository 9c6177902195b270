//! Deleting a series' rows, a bounded number at a time: its measurements, and its sums by the hour and the day.

use super::Db;
use super::sql::{OptionalExtension as _, Result, params};
use crate::time::Time;

/// Where a series' rows are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Table {
    Measurements,
    Hours,
    Days,
}

impl Table {
    pub(crate) const ALL: [Table; 3] = [Table::Measurements, Table::Hours, Table::Days];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Table::Measurements => "measurement",
            Table::Hours => "series_hour",
            Table::Days => "series_day",
        }
    }

    /// Deletes up to `limit` rows of a series from before `until`, the oldest first; `limit` is at least one. Returns
    /// how many there were: fewer than `limit` if nothing is left.
    pub(crate) fn forget(self, db: &Db, series: i64, until: Time, limit: usize) -> Result<usize> {
        match self {
            Table::Measurements => forget_measurements(db, series, until, limit),
            Table::Hours | Table::Days => forget_sums(db, self.name(), series, until, limit),
        }
    }
}

/// By the whole key: there can be any number of measurements of one moment.
fn forget_measurements(db: &Db, series: i64, until: Time, limit: usize) -> Result<usize> {
    let mut last = db.prepare_cached(
        "SELECT at, value, copy FROM measurement WHERE series = ?1 AND at < ?2
         ORDER BY at, value, copy LIMIT 1 OFFSET ?3",
    )?;
    let last = last.query_row(params![series, until, limit - 1], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?))
    });
    let Some((at, value, copy)): Option<(Time, f64, i64)> = last.optional()? else {
        let mut delete =
            db.prepare_cached("DELETE FROM measurement WHERE series = ?1 AND at < ?2")?;
        return delete.execute(params![series, until]);
    };
    let mut delete = db.prepare_cached(
        "DELETE FROM measurement WHERE series = ?1 AND (at, value, copy) <= (?2, ?3, ?4)",
    )?;
    delete.execute(params![series, at, value, copy])
}

fn forget_sums(db: &Db, table: &str, series: i64, until: Time, limit: usize) -> Result<usize> {
    let mut last = db.prepare_cached(&format!(
        "SELECT at FROM {table} WHERE series = ?1 AND at < ?2 ORDER BY at LIMIT 1 OFFSET ?3"
    ))?;
    let last: Option<Time> =
        last.query_row(params![series, until, limit - 1], |row| row.get(0)).optional()?;
    let until = last.map_or(until, |last| last.plus_ms(1));
    let mut delete =
        db.prepare_cached(&format!("DELETE FROM {table} WHERE series = ?1 AND at < ?2"))?;
    delete.execute(params![series, until])
}
