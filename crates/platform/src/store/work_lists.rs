//! Work lists in the database.

use super::prelude::*;
use super::readings::IN_TIME;
use super::{meters, readings};
use crate::work_lists::types::{
    ListQuery, NewWorkList, Task, TaskMeter, TaskState, WorkList, WorkListChange,
};

const COLUMNS: &str = "w.id, w.name, w.assignee, w.state, w.due, w.created_at,
    (SELECT count(*) FROM task t WHERE t.twin = w.twin AND t.work_list = w.id),
    (SELECT count(*) FROM task t WHERE t.twin = w.twin AND t.work_list = w.id AND t.state = 'read'),
    (SELECT count(*) FROM task t WHERE t.twin = w.twin AND t.work_list = w.id AND t.state = 'unreachable'),
    '\"' || w.revision || '\"', w.seq";

from_row! {
    WorkList { id, name, assignee, state, due, created_at, total, done, unreachable, etag }
}

pub(crate) fn get(db: TwinDb<'_>, id: Uuid) -> Result<Option<WorkList>> {
    let sql = format!("SELECT {COLUMNS} FROM work_list w WHERE w.twin = ?1 AND w.id = ?2");
    db.find(&sql, params![db.twin, id])
}

/// Whether there is such a list and, with a reader, whether it is theirs or not assigned.
pub(crate) fn visible(db: TwinDb<'_>, id: Uuid, reader: Option<&Name>) -> Result<bool> {
    let list = get(db, id)?;
    Ok(list.is_some_and(|list| {
        reader.is_none_or(|reader| list.assignee.is_none_or(|assignee| assignee == *reader))
    }))
}

/// Up to `limit` lists after the one with this number, oldest first, each with its number; with a reader only theirs and
/// those not assigned.
pub(crate) fn list(
    db: TwinDb<'_>,
    query: &ListQuery,
    only_of: Option<&Name>,
    after: Option<i64>,
    limit: usize,
) -> Result<Vec<(WorkList, i64)>> {
    let mut filter = Filter::default();
    filter.and("w.twin = ?", [Box::new(db.twin)]);
    filter.and_if("(w.assignee IS NULL OR w.assignee = ?)", only_of.map(|reader| &**reader));
    filter.and_if("w.assignee = ?", query.assignee.as_deref());
    filter.and_if("w.state = ?", query.state);
    filter.and_if("w.seq > ?", after);
    let select = format!("SELECT {COLUMNS} FROM work_list w");
    filter.list(db, &select, "w.seq", limit)
}

/// The list's meters, with the newest reading for the list that holds; one from the future only if there is no other.
pub(crate) fn tasks(db: TwinDb<'_>, list: Uuid, now: Time) -> Result<Vec<Task>> {
    let sql = format!(
        "SELECT {}, k.state, k.note,
             (SELECT r.id FROM reading r WHERE r.twin = k.twin AND r.work_list = k.work_list
                 AND r.meter = k.meter AND r.holds = 1
              ORDER BY {IN_TIME} DESC, r.at DESC, r.seq DESC LIMIT 1)
         FROM task k JOIN meter m ON m.twin = k.twin AND m.id = k.meter
         WHERE k.twin = ?2 AND k.work_list = ?3 ORDER BY k.place",
        meters::COLUMNS
    );
    let rows = db.list_with(&sql, params![now, db.twin, list], |row| {
        let meter = TaskMeter::Whole(Box::new(meters::meter(row, now)?));
        let (state, note, reading) = row.read()?;
        Ok((Task { meter, state, reading: None, note }, reading))
    })?;
    let mut tasks = Vec::new();
    for (mut task, reading) in rows {
        if let Some(id) = reading {
            task.reading = readings::get(db, id)?;
        }
        tasks.push(task);
    }
    Ok(tasks)
}

/// Stores a new list.
pub(crate) fn add(db: TwinDb<'_>, id: Uuid, new: &NewWorkList, now: Time) -> Result<()> {
    let sql = "INSERT INTO work_list (twin, id, name, assignee, state, due, created_at, revision)
         VALUES (?1, ?2, ?3, ?4, 'open', ?5, ?6, 1)";
    db.execute(sql, params![db.twin, id, new.name, new.assignee, new.due, now])?;
    for (place, meter) in new.meters.iter().enumerate() {
        let sql = "INSERT INTO task (twin, work_list, meter, place, state) VALUES (?1, ?2, ?3, ?4, 'open')
         ON CONFLICT DO NOTHING";
        db.execute(sql, params![db.twin, id, meter, place])?;
    }
    Ok(())
}

/// Changes an existing list.
pub(crate) fn change(db: TwinDb<'_>, id: Uuid, change: &WorkListChange) -> Result<()> {
    filter::change(db, "work_list", &id, changes!(change; name, assignee, state, due))
}

fn touch(db: TwinDb<'_>, id: Uuid) -> Result<()> {
    filter::change(db, "work_list", &id, &[])
}

/// Notes that there is a reading of the meter; whether the meter is on the list.
pub(crate) fn mark_read(db: TwinDb<'_>, list: Uuid, meter: &str) -> Result<bool> {
    let sql = "UPDATE task SET state = 'read' WHERE twin = ?1 AND work_list = ?2 AND meter = ?3";
    let marked = db.execute(sql, params![db.twin, list, meter])?;
    touch(db, list)?;
    Ok(marked == 1)
}

/// Notes on all open lists that there is a reading of the meter, taken at `at`, which was sent for none of them:
/// the radio brought it, or somebody who had no list before them. Lists that were made later still want
/// one. Gives the lists it did work of, oldest first; with a reader only theirs and those not assigned.
pub(crate) fn tick(
    db: TwinDb<'_>,
    meter: &str,
    at: Time,
    reader: Option<&Name>,
) -> Result<Vec<Uuid>> {
    let sql = "SELECT w.id FROM task t JOIN work_list w ON w.twin = t.twin AND w.id = t.work_list
         WHERE t.twin = ?1 AND t.meter = ?2 AND t.state <> 'read' AND w.state = 'open' AND w.created_at <= ?3
         AND (CAST(?4 AS TEXT) IS NULL OR w.assignee IS NULL OR w.assignee = ?4) ORDER BY w.seq";
    let lists = db.list(sql, params![db.twin, meter, at, reader])?;
    for list in &lists {
        mark_read(db, *list, meter)?;
    }
    Ok(lists)
}

/// Whether a reading of task `t`'s list holds, without its end: which others do as well.
const HELD: &str =
    "EXISTS (SELECT 1 FROM reading r WHERE r.twin = t.twin AND r.meter = t.meter AND r.holds = 1
     AND (r.work_list = t.work_list";

/// Gives work back after a reading of the meter no longer counts, or counts again: a task is read as long as a
/// reading of its list, or one taken since the list was made, holds. Gives the lists that changed.
pub(crate) fn recount(db: TwinDb<'_>, meter: &str) -> Result<Vec<Uuid>> {
    let lost = format!("t.state = 'read' AND NOT {HELD} OR r.at >= w.created_at AND {IN_TIME}))");
    let won = format!("t.state = 'open' AND {HELD}))");
    let mut changed = Vec::new();
    for (state, condition) in [("open", lost), ("read", won)] {
        let sql = format!(
            "SELECT w.id FROM task t JOIN work_list w ON w.twin = t.twin AND w.id = t.work_list
             WHERE t.twin = ?1 AND t.meter = ?2 AND w.state = 'open' AND {condition}"
        );
        for id in db.list::<Uuid>(&sql, [db.twin, meter])? {
            let sql =
                "UPDATE task SET state = ?4 WHERE twin = ?1 AND work_list = ?2 AND meter = ?3";
            db.execute(sql, params![db.twin, id, meter, state])?;
            touch(db, id)?;
            changed.push(id);
        }
    }
    Ok(changed)
}

/// Sets what became of a meter on the list; whether it is on it. The task stays read while a reading holds, as in
/// [`recount`]: phones send readings first, and what another one noted before may come later.
pub(crate) fn set_task(
    db: TwinDb<'_>,
    list: Uuid,
    meter: &str,
    state: Option<TaskState>,
    note: Option<Option<&str>>,
) -> Result<bool> {
    let sql = format!(
        "UPDATE task AS t SET note = CASE WHEN ?5 THEN ?6 ELSE t.note END,
             state = CASE WHEN t.state = 'read' AND {HELD} OR {IN_TIME} AND r.at >=
                 (SELECT w.created_at FROM work_list w WHERE w.twin = t.twin AND w.id = t.work_list)))
             THEN 'read' ELSE coalesce(?4, t.state) END
         WHERE t.twin = ?1 AND t.work_list = ?2 AND t.meter = ?3"
    );
    let values = params![db.twin, list, meter, state, note.is_some(), note.flatten()];
    Ok(db.execute(&sql, values)? == 1)
}
