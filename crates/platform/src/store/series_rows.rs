//! Deleting a series' rows, a bounded number at a time: its measurements, and its sums by the hour and the day.

use super::prelude::*;

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
    let sql = "SELECT at, value, copy FROM measurement WHERE series = ?1 AND at < ?2
         ORDER BY at, value, copy LIMIT 1 OFFSET ?3";
    let last: Option<(Time, f64, i64)> = db.find(sql, params![series, until, limit - 1])?;
    let Some((at, value, copy)) = last else {
        let sql = "DELETE FROM measurement WHERE series = ?1 AND at < ?2";
        return db.execute(sql, params![series, until]);
    };
    let sql = "DELETE FROM measurement WHERE series = ?1 AND (at, value, copy) <= (?2, ?3, ?4)";
    db.execute(sql, params![series, at, value, copy])
}

fn forget_sums(db: &Db, table: &str, series: i64, until: Time, limit: usize) -> Result<usize> {
    let sql = format!(
        "SELECT at FROM {table} WHERE series = ?1 AND at < ?2 ORDER BY at LIMIT 1 OFFSET ?3"
    );
    let last: Option<Time> = db.find(&sql, params![series, until, limit - 1])?;
    let until = last.map_or(until, |last| last.plus_ms(1));
    let sql = format!("DELETE FROM {table} WHERE series = ?1 AND at < ?2");
    db.execute(&sql, params![series, until])
}
