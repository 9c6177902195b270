//! Sensors that are removed, and what they measured, a part at a time.
//!
//! A sensor and its series go at once, and with them all that shows them. Their measurements can be millions: a list of
//! removed series says what is still to be deleted.

use super::prelude::*;
use super::series_rows::Table;
use crate::measurements::Quantity;

/// Rows deleted at once, as in `retention`.
pub(crate) const PART: usize = 5000;
/// Cost of a series besides, in rows: statements, and the announcement that it has no value any more.
const ROWS_PER_SERIES: usize = 10;

/// After all measurements.
const EVER: Time = Time(i64::MAX);

/// The number of the last series that was removed. SQLite would give it again, and an export that runs would read the
/// measurements of another sensor.
const LAST: &str = "series";

/// A series that is gone.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Removed {
    pub(crate) twin: Name,
    pub(crate) device: Name,
    pub(crate) quantity: Quantity,
}

from_row!(Removed { twin, device, quantity });

/// Removes up to `limit` of a sensor's series with their rules' states, and the sensor if these are all. Returns the
/// quantities, and whether it is gone.
pub(crate) fn remove_sensor(
    db: TwinDb<'_>,
    device: &str,
    limit: usize,
) -> Result<(Vec<Quantity>, bool)> {
    let sql = "SELECT seq, quantity FROM series WHERE twin = ?1 AND device = ?2 ORDER BY quantity LIMIT ?3";
    let rows = db.list(sql, params![db.twin, device, limit + 1])?;
    let is_all = rows.len() <= limit;
    let series: Vec<(i64, Quantity)> = rows.into_iter().take(limit).collect();
    // By the rules, as the key has them before the series: otherwise all states of the twin would be searched.
    for (seq, quantity) in &series {
        let sql =
            "INSERT INTO removed_series (series, twin, device, quantity) VALUES (?1, ?2, ?3, ?4)";
        db.execute(sql, params![seq, db.twin, device, quantity])?;
        let sql = "DELETE FROM alert_state WHERE twin = ?1 AND series = ?2
         AND rule IN (SELECT id FROM alert_rule WHERE twin = ?1 AND quantity = ?3)";
        db.execute(sql, params![db.twin, seq, quantity])?;
        db.execute("DELETE FROM series WHERE seq = ?1", [*seq])?;
    }
    if let Some(last) = series.iter().map(|(seq, _)| *seq).max() {
        note_last(&db, last)?;
    }
    if is_all {
        db.execute("DELETE FROM sensor WHERE twin = ?1 AND device = ?2", [db.twin, device])?;
    }
    Ok((series.into_iter().map(|(_, quantity)| quantity).collect(), is_all))
}

fn note_last(db: &Db, series: i64) -> Result<()> {
    let sql = "INSERT INTO counter (name, last) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET
             last = CASE WHEN excluded.last > counter.last THEN excluded.last ELSE counter.last END";
    db.execute(sql, params![LAST, series]).map(drop)
}

/// The number of a series that was just made: another one, if a series that was removed had it.
pub(crate) fn never_given(db: &Db, series: i64) -> Result<i64> {
    let last: Option<i64> = db.find("SELECT last FROM counter WHERE name = ?1", [LAST])?;
    // It is the greatest of all series, so that the one after the last removed is free.
    let Some(free) = last.filter(|last| series <= *last).map(|last| last + 1) else {
        return Ok(series);
    };
    db.execute("UPDATE series SET seq = ?2 WHERE seq = ?1", [series, free])?;
    Ok(free)
}

/// Whether something of removed series is still to be deleted.
pub(crate) fn is_left(db: &Db) -> Result<bool> {
    db.exists("SELECT 1 FROM removed_series LIMIT 1", ())
}

/// Deletes up to `limit` rows of removed series. Returns those of which nothing is left, unless they have come back.
pub(crate) fn forget(db: &Db, limit: usize) -> Result<Vec<Removed>> {
    let sql = "SELECT series, twin, device, quantity FROM removed_series ORDER BY series LIMIT ?1";
    let rows: Vec<(i64, Removed)> = db.list(sql, [limit / ROWS_PER_SERIES + 1])?;
    let (mut gone, mut left) = (Vec::new(), limit);
    for (series, removed) in rows {
        for table in Table::ALL {
            left = left.saturating_sub(table.forget(db, series, EVER, left)?);
            if left == 0 {
                return Ok(gone);
            }
        }
        db.execute("DELETE FROM removed_series WHERE series = ?1", [series])?;
        if !is_back(db, &removed)? {
            gone.push(removed);
        }
        left = left.saturating_sub(ROWS_PER_SERIES);
        if left == 0 {
            break;
        }
    }
    Ok(gone)
}

fn is_back(db: &Db, Removed { twin, device, quantity }: &Removed) -> Result<bool> {
    let sql = "SELECT 1 FROM series WHERE twin = ?1 AND device = ?2 AND quantity = ?3";
    db.exists(sql, params![twin, device, quantity])
}

#[cfg(test)]
#[path = "removed_tests.rs"]
mod tests;
