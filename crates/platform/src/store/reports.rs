//! Queries for reports.

use uuid::Uuid;

use super::readings::IN_TIME;
use super::sql::{OptionalExtension as _, Result, Row, params};
use super::{Db, meters, work_lists};
use crate::meters::Meter;
use crate::reports::Sample;
use crate::reports::leaks::{Flow, continuous_flow};
use crate::text::Name;
use crate::time::Time;
use crate::work_lists::types::{ListState, TaskState, WorkList};

fn sample(row: &Row<'_>) -> Result<Sample> {
    Ok(Sample { at: row.get(0)?, value: row.get(1)? })
}

/// The meter's newest reading at or before `at`.
pub(crate) fn newest_until(db: &Db, twin: &str, meter: &str, at: Time) -> Result<Option<Sample>> {
    let sql = format!(
        "SELECT at, value FROM reading r WHERE twin = ?1 AND meter = ?2 AND at <= ?3
         AND holds = 1 AND {IN_TIME} ORDER BY at DESC, seq DESC LIMIT 1"
    );
    db.prepare_cached(&sql)?.query_row(params![twin, meter, at], sample).optional()
}

/// The meter's oldest reading at or after `at`.
pub(crate) fn oldest_from(db: &Db, twin: &str, meter: &str, at: Time) -> Result<Option<Sample>> {
    let sql = format!(
        "SELECT at, value FROM reading r WHERE twin = ?1 AND meter = ?2 AND at >= ?3
         AND holds = 1 AND {IN_TIME} ORDER BY at, seq LIMIT 1"
    );
    db.prepare_cached(&sql)?.query_row(params![twin, meter, at], sample).optional()
}

/// The meter's flow up to its last reading, if continuous; only for water.
pub(crate) fn flow(db: &Db, twin: &str, meter: &str) -> Result<Option<Flow>> {
    let mut rows = db.prepare_cached(
        "SELECT last_at FROM meter WHERE twin = ?1 AND id = ?2 AND last_at IS NOT NULL
         AND medium IN ('water', 'warm_water')",
    )?;
    let last: Option<Time> = rows.query_row([twin, meter], |row| row.get(0)).optional()?;
    let Some(last) = last else { return Ok(None) };
    continuous_flow(last, |at| newest_until(db, twin, meter, at))
}

/// Sets or clears `leak_since`; an existing value is kept.
pub(super) fn note_flow(db: &Db, twin: &str, meter: &str) -> Result<()> {
    let since = flow(db, twin, meter)?.map(|flow| flow.since);
    let mut update = db.prepare_cached(
        "UPDATE meter SET leak_since = CASE WHEN CAST(?3 AS BIGINT) IS NOT NULL THEN coalesce(leak_since, ?3) END
         WHERE twin = ?1 AND id = ?2",
    )?;
    update.execute(params![twin, meter, since]).map(drop)
}

/// Up to `limit` meters with a continuous flow, by identifier, and since when.
pub(crate) fn leaks(
    db: &Db,
    twin: &str,
    after: Option<&str>,
    limit: usize,
    now: Time,
) -> Result<Vec<(Meter, Time)>> {
    let sql = format!(
        "SELECT {}, m.leak_since FROM meter m WHERE m.twin = ?2 AND m.leak_since IS NOT NULL
         AND m.id > ?3 ORDER BY m.id LIMIT ?4",
        meters::COLUMNS
    );
    let mut rows = db.prepare_cached(&sql)?;
    let rows = rows.query_map(params![now, twin, after.unwrap_or_default(), limit], |row| {
        Ok((meters::meter(row, now)?, row.get(meters::COLUMN_COUNT)?))
    })?;
    rows.collect()
}

/// A meter that should have been read for a work list.
pub(crate) struct MissedTask {
    pub(crate) meter: Meter,
    pub(crate) list: Uuid,
    pub(crate) list_name: String,
    pub(crate) assignee: Option<Name>,
    pub(crate) list_state: ListState,
    pub(crate) due: Option<Time>,
    pub(crate) state: TaskState,
    pub(crate) note: Option<String>,
    /// The list's number and the place in it; sorted by these.
    pub(crate) key: (i64, i64),
}

/// Up to `limit` missed meters, of one list or of all, after the key `after`.
pub(crate) fn missed(
    db: &Db,
    twin: &str,
    list: Option<Uuid>,
    after: (i64, i64),
    limit: usize,
    now: Time,
) -> Result<Vec<MissedTask>> {
    let sql = format!(
        "SELECT {}, w.id, w.name, w.assignee, w.state, w.due, t.state, t.note, w.seq, t.place
         FROM work_list w JOIN task t ON t.twin = w.twin AND t.work_list = w.id
         JOIN meter m ON m.twin = t.twin AND m.id = t.meter
         WHERE w.twin = ?2 AND (CAST(?3 AS TEXT) IS NULL OR w.id = ?3) AND {} AND (w.seq, t.place) > (?4, ?5)
         ORDER BY w.seq, t.place LIMIT ?6",
        meters::COLUMNS,
        meters::MISSED
    );
    let at = meters::COLUMN_COUNT;
    let task = |row: &Row<'_>| {
        Ok(MissedTask {
            meter: meters::meter(row, now)?,
            list: row.get::<String>(at)?.parse().unwrap_or_default(),
            list_name: row.get(at + 1)?,
            assignee: row.get(at + 2)?,
            list_state: row.get(at + 3)?,
            due: row.get(at + 4)?,
            state: row.get(at + 5)?,
            note: row.get(at + 6)?,
            key: (row.get(at + 7)?, row.get(at + 8)?),
        })
    };
    let list = list.map(|list| list.to_string());
    let mut rows = db.prepare_cached(&sql)?;
    let rows = rows.query_map(params![now, twin, list, after.0, after.1, limit], task)?;
    rows.collect()
}

/// Counts that the list lacks.
pub(crate) struct Details {
    /// The number of meters whose readings contradict each other.
    pub(crate) conflicts: u64,
    pub(crate) missed: u64,
    /// When its newest reading was taken.
    pub(crate) last_reading_at: Option<Time>,
}

/// Up to `limit` work lists, oldest first, each with its number.
pub(crate) fn progress(
    db: &Db,
    twin: &str,
    after: Option<i64>,
    limit: usize,
    now: Time,
) -> Result<Vec<(WorkList, Details, i64)>> {
    let query = work_lists::Query { after, ..work_lists::Query::default() };
    let missed = format!(
        "SELECT count(*) FROM work_list w JOIN task t ON t.twin = w.twin AND t.work_list = w.id
         JOIN meter m ON m.twin = t.twin AND m.id = t.meter WHERE w.twin = ?2 AND w.id = ?3 AND {}",
        meters::MISSED
    );
    let mut missed = db.prepare_cached(&missed)?;
    let readings = format!(
        "SELECT count(DISTINCT CASE WHEN EXISTS (SELECT 1 FROM reading_conflict c
                                                 WHERE c.twin = r.twin AND c.reading = r.id)
                               THEN r.meter END), max(CASE WHEN {IN_TIME} THEN r.at END)
         FROM reading r WHERE r.twin = ?1 AND r.work_list = ?2"
    );
    let mut readings = db.prepare_cached(&readings)?;
    let lists = work_lists::list(db, twin, &query, limit)?.into_iter();
    let detailed = lists.map(|(list, number)| {
        let id = list.id.to_string();
        let missed = missed.query_row(params![now, twin, id], |row| row.get(0))?;
        let (conflicts, last_reading_at) =
            readings.query_row([twin, &id], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok((list, Details { conflicts, missed, last_reading_at }, number))
    });
    detailed.collect()
}

/// Counts over all of a twin's work lists.
pub(crate) struct Sums {
    pub(crate) work_lists: u64,
    pub(crate) total: u64,
    pub(crate) done: u64,
    pub(crate) unreachable: u64,
}

pub(crate) fn sums(db: &Db, twin: &str) -> Result<Sums> {
    let sql = "SELECT (SELECT count(*) FROM work_list WHERE twin = ?1), count(*),
                   count(CASE WHEN state = 'read' THEN 1 END),
                   count(CASE WHEN state = 'unreachable' THEN 1 END)
               FROM task WHERE twin = ?1";
    db.query_row(sql, [twin], |row| {
        let (work_lists, total) = (row.get(0)?, row.get(1)?);
        Ok(Sums { work_lists, total, done: row.get(2)?, unreachable: row.get(3)? })
    })
}
