//! Forgetting what is no longer to be kept, a part at a time.
//!
//! Sums by the hour and the day are kept up with every measurement, so that nothing has to be made of
//! what is forgotten.

use super::Db;
use super::sql::{OptionalExtension as _, Result, params};
use crate::settings::Monitoring;
use crate::time::{DAY_MS, Time};

/// Rows forgotten at once: some milliseconds of the writer's time.
const PART: usize = 5000;

/// Forgets a part; whether there is more.
pub(crate) fn forget(db: &Db, settings: &Monitoring, now: Time) -> Result<bool> {
    let tables = [
        ("measurement", settings.raw_since(now)),
        ("series_hour", settings.hours_since(now)),
        ("series_day", settings.days_since(now)),
    ];
    for (table, until) in tables {
        if forget_of(db, table, until)? {
            return Ok(true);
        }
    }
    // What comes again under an identifier that is forgotten is too old to be taken: devices' clocks may
    // be a day ahead.
    let day = settings.raw_since(now).0.div_euclid(DAY_MS) - 1;
    let mut delete = db.prepare_cached(
        "DELETE FROM measurement_id WHERE (twin, id) IN
         (SELECT twin, id FROM measurement_id WHERE day < ?1 LIMIT ?2)",
    )?;
    Ok(delete.execute(params![day, PART])? == PART)
}

/// Forgets rows of one series that are older; whether there were any.
fn forget_of(db: &Db, table: &str, until: Time) -> Result<bool> {
    let mut old = db.prepare_cached(&format!(
        "SELECT seq FROM series s WHERE EXISTS
         (SELECT 1 FROM {table} t WHERE t.series = s.seq AND t.at < ?1) LIMIT 1"
    ))?;
    let series: Option<i64> = old.query_row([until], |row| row.get(0)).optional()?;
    let Some(series) = series else { return Ok(false) };
    let mut last = db.prepare_cached(&format!(
        "SELECT at FROM {table} WHERE series = ?1 AND at < ?2 ORDER BY at LIMIT 1 OFFSET ?3"
    ))?;
    let last: Option<Time> =
        last.query_row(params![series, until, PART], |row| row.get(0)).optional()?;
    let last = last.unwrap_or(until.plus_ms(-1));
    let mut delete =
        db.prepare_cached(&format!("DELETE FROM {table} WHERE series = ?1 AND at <= ?2"))?;
    Ok(delete.execute(params![series, last])? > 0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::store::measurements::{self, Sample};
    use crate::store::sql::{Database, Purpose};
    use crate::store::{Store, twins};
    use crate::time::HOUR_MS;
    use crate::twins::types::TwinKind;

    #[test]
    fn what_is_old_is_forgotten_and_its_sums_stay() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), &Database::File, Purpose::Server).unwrap();
        let settings = Monitoring { raw_days: 2, hour_days: 4, day_days: 6 };
        let day = |day: i64| Time(day * DAY_MS);
        let counts = store.write_now(move |db| {
            let twin = "t".parse().map_err(|_| crate::problem::Problem::not_found("twin"))?;
            twins::add(db, &twin, "T", TwinKind::Homes, None, Time(0))?;
            crate::store::sensors::register(db, &twin, &twin)?;
            let series = measurements::add_series(db, "t", "t", "radon", "Bq/m³")?.seq;
            for n in 0..10 {
                let hours: Vec<Sample> = (0..24)
                    .map(|hour| {
                        let at = day(n).plus_ms(hour * HOUR_MS);
                        let id = Some(format!("{n}-{hour}"));
                        Sample { series, at, value: 1.0, id }
                    })
                    .collect();
                measurements::insert(db, &twin, &hours, day(n))?;
            }
            while forget(db, &settings, day(10))? {}
            let count = |table: &str| -> Result<(i64, i64)> {
                let sql = format!("SELECT count(*), coalesce(min(at), 0) FROM {table}");
                db.query_row(&sql, (), |row| Ok((row.get(0)?, row.get(1)?)))
            };
            let ids: i64 =
                db.query_row("SELECT count(*) FROM measurement_id", (), |row| row.get(0))?;
            Ok([count("measurement")?, count("series_hour")?, count("series_day")?, (ids, 0)])
        });
        let expected = [(48, 8 * DAY_MS), (96, 6 * DAY_MS), (6, 4 * DAY_MS), (72, 0)];
        assert_eq!(counts.unwrap(), expected);
    }
}
