//! Forgetting what is no longer to be kept, a part at a time.
//!
//! Sums by the hour and the day are kept up with every measurement, so that nothing has to be made of
//! what is forgotten.

use super::prelude::*;
use super::series_rows::Table;
use crate::settings::Monitoring;

/// Rows forgotten at once: some milliseconds of the writer's time.
const PART: usize = 5000;
/// Cost of a series besides, in rows.
const ROWS_PER_SERIES: usize = 10;
/// Series looked at at once.
const SERIES_AT_ONCE: usize = 2000;

/// The tables with what is kept for some time, and since when.
pub(crate) fn kept(settings: &Monitoring, now: Time) -> [(Table, Time); 3] {
    Table::ALL.map(|table| {
        let since = match table {
            Table::Measurements => settings.raw_since(now),
            Table::Hours => settings.hours_since(now),
            Table::Days => settings.days_since(now),
        };
        (table, since)
    })
}

/// Series with rows from before `until`.
#[derive(Debug)]
pub(crate) struct Old {
    /// Their numbers, each once.
    pub(crate) series: Vec<i64>,
    /// The last one looked at, after which it goes on; none at the end.
    pub(crate) last: Option<i64>,
}

/// Looks at some of the series with a number greater than `after`.
pub(crate) fn find(db: &Db, table: Table, until: Time, after: i64) -> Result<Old> {
    let sql = "SELECT max(seq) FROM (SELECT seq FROM series WHERE seq > ?1 ORDER BY seq LIMIT ?2) AS part";
    let last: Option<i64> = db.get(sql, params![after, SERIES_AT_ONCE])?;
    let Some(last) = last else { return Ok(Old { series: Vec::new(), last: None }) };
    let series = db.list(
        &format!(
            "SELECT seq FROM series s WHERE seq > ?1 AND seq <= ?2 AND EXISTS
         (SELECT 1 FROM {} t WHERE t.series = s.seq AND t.at < ?3) ORDER BY seq",
            table.name()
        ),
        params![after, last, until],
    )?;
    Ok(Old { series, last: Some(last) })
}

/// Forgets a part of what these series have from before `until`. Returns how many of them have nothing of it any more.
pub(crate) fn forget(db: &Db, table: Table, series: &[i64], until: Time) -> Result<usize> {
    let mut left = PART;
    for (done, series) in series.iter().enumerate() {
        if left == 0 {
            return Ok(done);
        }
        let rows = table.forget(db, *series, until, left)?;
        if rows == left {
            return Ok(done);
        }
        left = (left - rows).saturating_sub(ROWS_PER_SERIES);
    }
    Ok(series.len())
}

/// Forgets a part of the identifiers that measurements came with; whether there is more. What comes again under one
/// that is forgotten is too old to be taken: devices' clocks may be a day ahead.
pub(crate) fn forget_identifiers(db: &Db, settings: &Monitoring, now: Time) -> Result<bool> {
    let day = settings.raw_since(now).0.div_euclid(DAY_MS) - 1;
    Ok(db.execute(
        "DELETE FROM measurement_id WHERE (twin, id) IN
         (SELECT twin, id FROM measurement_id WHERE day < ?1 LIMIT ?2)",
        params![day, PART],
    )? == PART)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::store::measurements::{self, Sample};
    use crate::store::sql::{Database, Purpose};
    use crate::store::{Store, twins};
    use crate::text::Name;
    use crate::time::HOUR_MS;
    use crate::twins::types::TwinKind;

    /// Forgets all that is old. Returns how many rows each part had.
    fn pass(db: &Db, settings: &Monitoring, now: Time) -> Result<Vec<usize>> {
        let mut parts = Vec::new();
        for (table, until) in kept(settings, now) {
            let mut after = 0;
            loop {
                let mut old = find(db, table, until, after)?;
                while !old.series.is_empty() {
                    let before = rows(db, table)?;
                    let done = forget(db, table, &old.series, until)?;
                    old.series.drain(..done);
                    parts.push(before - rows(db, table)?);
                }
                let Some(last) = old.last else { break };
                assert!(last > after, "it goes on");
                after = last;
            }
        }
        while forget_identifiers(db, settings, now)? {}
        Ok(parts)
    }

    fn rows(db: &Db, table: Table) -> Result<usize> {
        db.get(&format!("SELECT count(*) FROM {}", table.name()), ())
    }

    /// A store with a sensor that has this many series.
    fn with_series(count: usize) -> (tempfile::TempDir, Store, Vec<i64>) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), &Database::File, Purpose::Server).unwrap();
        let series = store.write_now(move |db| {
            let twin: Name = "t".parse().unwrap();
            twins::add(db.within(&twin), "T", TwinKind::Homes, None, Time(0))?;
            crate::store::sensors::register(db.within(&twin), &twin)?;
            let add =
                |n| Ok(measurements::add_series(db.within("t"), "t", &format!("q{n}"), "")?.seq);
            Ok((0..count).map(add).collect::<Result<Vec<i64>>>()?)
        });
        (folder, store, series.unwrap())
    }

    const KEPT: Monitoring = Monitoring { raw_days: 2, hour_days: 4, day_days: 6 };

    #[test]
    fn measurements_of_one_moment_are_forgotten_in_parts() {
        let (_folder, store, series) = with_series(1);
        let parts = store.write_now(move |db| {
            let sample =
                |n| Sample { series: series[0], at: Time(0), value: f64::from(n), id: None };
            let samples: Vec<Sample> = (0..2 * PART as u32 + 1).map(sample).collect();
            for samples in samples.chunks(1000) {
                measurements::insert(db.within("t"), samples, Time(0))?;
            }
            Ok(pass(db, &KEPT, Time(10 * DAY_MS))?)
        });
        // Of measurements, and of a sum by the hour and one by the day.
        assert_eq!(parts.unwrap(), [PART, PART, 1, 1, 1]);
    }

    #[test]
    fn all_of_many_series_are_found_and_each_is_looked_at_once() {
        let (_folder, store, series) = with_series(SERIES_AT_ONCE + 2);
        store
            .write_now(move |db| {
                let twin: Name = "t".parse().unwrap();
                let old = [series[0], series[SERIES_AT_ONCE - 1], series[SERIES_AT_ONCE + 1]];
                let sample = |series| Sample { series, at: Time(0), value: 1.0, id: None };
                measurements::insert(db.within(&twin), &old.map(sample), Time(0))?;
                let until = KEPT.raw_since(Time(10 * DAY_MS));
                let first = find(db, Table::Measurements, until, 0)?;
                assert_eq!(first.series, old[..2]);
                let second = find(db, Table::Measurements, until, first.last.unwrap())?;
                assert_eq!((second.series.as_slice(), second.last), (&old[2..], Some(old[2])));
                assert_eq!(find(db, Table::Measurements, until, old[2])?.last, None);
                // A series costs more than its row: not all in one part.
                for at in 0..2 {
                    let sample = |series: &i64| Sample {
                        series: *series,
                        at: Time(at),
                        value: 2.0,
                        id: None,
                    };
                    let samples: Vec<Sample> = series.iter().map(sample).collect();
                    measurements::insert(db.within(&twin), &samples, Time(0))?;
                }
                let parts = pass(db, &KEPT, Time(10 * DAY_MS))?;
                assert!(parts.iter().all(|rows| *rows <= 2 * PART / ROWS_PER_SERIES), "{parts:?}");
                assert_eq!(rows(db, Table::Measurements)?, 0);
                Ok(())
            })
            .unwrap();
    }

    #[test]
    fn what_is_old_is_forgotten_and_its_sums_stay() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), &Database::File, Purpose::Server).unwrap();
        let settings = KEPT;
        let day = |day: i64| Time(day * DAY_MS);
        let counts = store.write_now(move |db| {
            let twin: Name = "t".parse().unwrap();
            twins::add(db.within(&twin), "T", TwinKind::Homes, None, Time(0))?;
            crate::store::sensors::register(db.within(&twin), &twin)?;
            let series = measurements::add_series(db.within("t"), "t", "radon", "Bq/m³")?.seq;
            for n in 0..10 {
                let hours: Vec<Sample> = (0..24)
                    .map(|hour| {
                        let at = day(n).plus_ms(hour * HOUR_MS);
                        let id = Some(format!("{n}-{hour}"));
                        Sample { series, at, value: 1.0, id }
                    })
                    .collect();
                measurements::insert(db.within(&twin), &hours, day(n))?;
            }
            pass(db, &settings, day(10))?;
            let count = |table: &str| -> Result<(i64, i64)> {
                let sql = format!("SELECT count(*), coalesce(min(at), 0) FROM {table}");
                db.get(&sql, ())
            };
            let ids: i64 = db.get("SELECT count(*) FROM measurement_id", ())?;
            Ok([count("measurement")?, count("series_hour")?, count("series_day")?, (ids, 0)])
        });
        let expected = [(48, 8 * DAY_MS), (96, 6 * DAY_MS), (6, 4 * DAY_MS), (72, 0)];
        assert_eq!(counts.unwrap(), expected);
    }
}
