//! Queries for reports.

use super::prelude::*;
use super::readings::IN_TIME;
use super::{meters, work_lists};
use crate::meters::LastReading;
use crate::reports::leaks::{Flow, continuous_flow};
use crate::reports::{Leak, Missed, MissedBy, Overall, Progress, Sample};
use crate::work_lists::types::ListQuery;

/// A value that a register showed: of a reading that counts, or of an exchange, which put the register in place.
pub(crate) struct RegisterValue {
    pub(crate) last: LastReading,
    /// Added to the value, it gives the count that goes on across exchanges.
    pub(crate) offset: f64,
}

impl RegisterValue {
    /// The count that goes on across exchanges.
    pub(crate) fn count(self) -> Sample {
        Sample { at: self.last.at, value: self.last.value + self.offset }
    }
}

/// The offset of the register in place at the time of `r`.
pub(super) const OFFSET: &str =
    "(SELECT coalesce(sum(e.final_value - e.first_value), 0.0) FROM meter_exchange e
    WHERE e.twin = ?1 AND e.meter = ?2 AND e.at <= r.at AND e.withdrawn_at IS NULL)";

/// The first value in this order of those whose time compares so with `at`: of readings, and of exchanges. Of both at one
/// time, the exchange came before.
fn shown(
    db: TwinDb<'_>,
    meter: &str,
    at: Time,
    [readings, exchanges]: [&str; 2],
    order: &str,
) -> Result<Option<RegisterValue>> {
    let sql = format!(
        "SELECT value, unit, at, method, protection, {OFFSET} FROM (
             SELECT * FROM (SELECT at, value, unit, method, protection, seq FROM reading r
                 WHERE twin = ?1 AND meter = ?2 AND at {readings} ?3 AND holds = 1 AND {IN_TIME}
                 ORDER BY at {order}, seq {order} LIMIT 1) AS sent
             UNION ALL
             SELECT * FROM (SELECT e.at, e.first_value, m.unit, 'manual', NULL, 0
                 FROM meter_exchange e JOIN meter m ON m.twin = e.twin AND m.id = e.meter
                 WHERE e.twin = ?1 AND e.meter = ?2 AND e.at {exchanges} ?3 AND e.withdrawn_at IS NULL
                 ORDER BY e.at {order} LIMIT 1) AS entered
         ) AS r ORDER BY at {order}, seq {order} LIMIT 1"
    );
    db.find(&sql, params![db.twin, meter, at])
}

from_row! {
    LastReading { value, unit, at, method, protection }
    RegisterValue { last, offset }
    MissedBy { id, name, assignee, state, due }
    Overall { work_lists, total, done, unreachable, open }
}

/// The value that the meter showed last at or before `at`.
pub(crate) fn newest_until(db: TwinDb<'_>, meter: &str, at: Time) -> Result<Option<RegisterValue>> {
    shown(db, meter, at, ["<="; 2], "DESC")
}

/// The value that the register in place at `at` showed before.
pub(crate) fn newest_before(
    db: TwinDb<'_>,
    meter: &str,
    at: Time,
) -> Result<Option<RegisterValue>> {
    shown(db, meter, at, ["<", "<="], "DESC")
}

/// The value that the meter showed first at or after `at`.
pub(crate) fn oldest_from(db: TwinDb<'_>, meter: &str, at: Time) -> Result<Option<RegisterValue>> {
    shown(db, meter, at, [">="; 2], "ASC")
}

/// The meter's flow up to its last reading, if continuous; only for water.
pub(crate) fn flow(db: TwinDb<'_>, meter: &str) -> Result<Option<Flow>> {
    let sql = "SELECT last_at FROM meter WHERE twin = ?1 AND id = ?2 AND last_at IS NOT NULL
         AND medium IN ('water', 'warm_water')";
    let last: Option<Time> = db.find(sql, [db.twin, meter])?;
    let Some(last) = last else { return Ok(None) };
    let count = |at| Ok(newest_until(db, meter, at)?.map(RegisterValue::count));
    continuous_flow(last, count)
}

/// Sets or clears `leak_since`; an existing value is kept.
pub(super) fn note_flow(db: TwinDb<'_>, meter: &str) -> Result<()> {
    let since = flow(db, meter)?.map(|flow| flow.since);
    let sql = "UPDATE meter SET leak_since = CASE WHEN CAST(?3 AS BIGINT) IS NOT NULL THEN coalesce(leak_since, ?3) END
         WHERE twin = ?1 AND id = ?2";
    db.execute(sql, params![db.twin, meter, since]).map(drop)
}

/// Up to `limit` meters with a continuous flow, by identifier.
pub(crate) fn leaks(
    db: TwinDb<'_>,
    after: Option<&str>,
    limit: usize,
    now: Time,
) -> Result<Vec<Leak>> {
    let sql = format!(
        "SELECT {}, m.leak_since FROM meter m WHERE m.twin = ?2 AND m.leak_since IS NOT NULL
         AND m.id > ?3 ORDER BY m.id LIMIT ?4",
        meters::COLUMNS
    );
    db.list_with(&sql, params![now, db.twin, after.unwrap_or_default(), limit], |row| {
        let meter = meters::meter(row, now)?;
        let least_per_hour = flow(db, &meter.id)?.map(|flow| flow.least_per_hour);
        Ok(Leak { meter, since: row.read()?, least_per_hour })
    })
}

/// Up to `limit` missed meters, of one list or of all, after the key of a list's number and a place in it, each with
/// its key.
pub(crate) fn missed(
    db: TwinDb<'_>,
    list: Option<Uuid>,
    seq: i64,
    place: i64,
    limit: usize,
    now: Time,
) -> Result<Vec<(Missed, (i64, i64))>> {
    let sql = format!(
        "SELECT {}, w.id, w.name, w.assignee, w.state, w.due, t.state, t.note, w.seq, t.place
         FROM work_list w JOIN task t ON t.twin = w.twin AND t.work_list = w.id
         JOIN meter m ON m.twin = t.twin AND m.id = t.meter
         WHERE w.twin = ?2 AND (CAST(?3 AS TEXT) IS NULL OR w.id = ?3) AND {} AND (w.seq, t.place) > (?4, ?5)
         ORDER BY w.seq, t.place LIMIT ?6",
        meters::COLUMNS,
        meters::MISSED
    );
    db.list_with(&sql, params![now, db.twin, list, seq, place, limit], |row| {
        let meter = meters::meter(row, now)?;
        let (work_list, state, note, key) = row.read()?;
        Ok((Missed { meter, work_list, state, note }, key))
    })
}

/// Up to `limit` work lists, oldest first, each with its number.
pub(crate) fn progress(
    db: TwinDb<'_>,
    after: Option<i64>,
    limit: usize,
    now: Time,
) -> Result<Vec<(Progress, i64)>> {
    let missed = format!(
        "SELECT count(*) FROM work_list w JOIN task t ON t.twin = w.twin AND t.work_list = w.id
         JOIN meter m ON m.twin = t.twin AND m.id = t.meter WHERE w.twin = ?2 AND w.id = ?3 AND {}",
        meters::MISSED
    );
    let readings = format!(
        "SELECT count(DISTINCT CASE WHEN EXISTS (SELECT 1 FROM reading_conflict c
                                                 WHERE c.twin = r.twin AND c.reading = r.id)
                               THEN r.meter END), max(CASE WHEN {IN_TIME} THEN r.at END)
         FROM reading r WHERE r.twin = ?1 AND r.work_list = ?2"
    );
    let lists = work_lists::list(db, &ListQuery::default(), None, after, limit)?.into_iter();
    let detailed = lists.map(|(list, number)| {
        let missed = db.get(&missed, params![now, db.twin, list.id])?;
        let (conflicts, last_reading_at) = db.get(&readings, params![db.twin, list.id])?;
        let open = list.total.saturating_sub(list.done + list.unreachable);
        Ok((Progress { list, open, missed, conflicts, last_reading_at }, number))
    });
    detailed.collect()
}

/// The progress of all of a twin's work lists.
pub(crate) fn overall(db: TwinDb<'_>) -> Result<Overall> {
    let sql = "SELECT (SELECT count(*) FROM work_list WHERE twin = ?1), count(*),
                   count(CASE WHEN state = 'read' THEN 1 END),
                   count(CASE WHEN state = 'unreachable' THEN 1 END),
                   count(CASE WHEN state = 'open' THEN 1 END)
               FROM task WHERE twin = ?1";
    db.get(sql, [db.twin])
}
