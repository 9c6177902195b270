//! Work lists in the database.

use uuid::Uuid;

use super::filter::{Filter, given, set_given};
use super::readings::IN_TIME;
use super::sql::{OptionalExtension as _, Result, params};
use super::{Db, meters, readings};
use crate::text::Name;
use crate::time::Time;
use crate::work_lists::types::{ListState, Task, TaskMeter, TaskState, WorkList};

/// Which lists are asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query {
    /// Only those of this reader and those not assigned.
    pub(crate) visible_to: Option<Name>,
    pub(crate) assignee: Option<Name>,
    pub(crate) state: Option<ListState>,
    /// Number of the last one of the page before.
    pub(crate) after: Option<i64>,
}

const COLUMNS: &str = "w.id, w.name, w.assignee, w.state, w.due, w.created_at, w.revision,
    (SELECT count(*) FROM task t WHERE t.twin = w.twin AND t.work_list = w.id),
    (SELECT count(*) FROM task t WHERE t.twin = w.twin AND t.work_list = w.id AND t.state = 'read'),
    (SELECT count(*) FROM task t WHERE t.twin = w.twin AND t.work_list = w.id AND t.state = 'unreachable'),
    w.seq";

fn work_list(row: &super::sql::Row<'_>) -> Result<WorkList> {
    let id: String = row.get(0)?;
    let revision: i64 = row.get(6)?;
    Ok(WorkList {
        id: id.parse().unwrap_or_default(),
        name: row.get(1)?,
        assignee: row.get(2)?,
        state: row.get(3)?,
        due: row.get(4)?,
        created_at: row.get(5)?,
        total: row.get(7)?,
        done: row.get(8)?,
        unreachable: row.get(9)?,
        etag: format!("\"{revision}\""),
    })
}

pub(crate) fn get(db: &Db, twin: &str, id: Uuid) -> Result<Option<WorkList>> {
    let sql = format!("SELECT {COLUMNS} FROM work_list w WHERE w.twin = ?1 AND w.id = ?2");
    db.prepare_cached(&sql)?.query_row(params![twin, id.to_string()], work_list).optional()
}

/// Whether there is such a list and, with a reader, whether it is theirs or not assigned.
pub(crate) fn visible(db: &Db, twin: &str, id: Uuid, reader: Option<&Name>) -> Result<bool> {
    let list = get(db, twin, id)?;
    Ok(list.is_some_and(|list| {
        reader.is_none_or(|reader| list.assignee.is_none_or(|assignee| assignee == *reader))
    }))
}

/// Up to `limit` lists, oldest first, each with its number.
pub(crate) fn list(
    db: &Db,
    twin: &str,
    query: &Query,
    limit: usize,
) -> Result<Vec<(WorkList, i64)>> {
    let mut filter = Filter::default();
    filter.and("w.twin = ?", [Box::new(twin)]);
    filter.and_if("(w.assignee IS NULL OR w.assignee = ?)", query.visible_to.as_deref());
    filter.and_if("w.assignee = ?", query.assignee.as_deref());
    filter.and_if("w.state = ?", query.state);
    filter.and_if("w.seq > ?", query.after);
    let select = format!("SELECT {COLUMNS} FROM work_list w");
    filter.list(db, &select, "w.seq", limit, |row| Ok((work_list(row)?, row.get(10)?)))
}

/// The list's meters, with the newest reading for the list that holds; one from the future only if there is no other.
pub(crate) fn tasks(db: &Db, twin: &str, list: Uuid, now: Time) -> Result<Vec<Task>> {
    let at = meters::COLUMN_COUNT;
    let sql = format!(
        "SELECT {}, k.state, k.note,
             (SELECT r.id FROM reading r WHERE r.twin = k.twin AND r.work_list = k.work_list
                 AND r.meter = k.meter AND r.holds = 1
              ORDER BY {IN_TIME} DESC, r.at DESC, r.seq DESC LIMIT 1)
         FROM task k JOIN meter m ON m.twin = k.twin AND m.id = k.meter
         WHERE k.twin = ?2 AND k.work_list = ?3 ORDER BY k.place",
        meters::COLUMNS
    );
    let mut rows = db.prepare_cached(&sql)?;
    let rows = rows.query_map(params![now, twin, list.to_string()], |row| {
        let task = Task {
            meter: TaskMeter::Whole(Box::new(meters::meter(row, now)?)),
            state: row.get(at)?,
            reading: None,
            note: row.get(at + 1)?,
        };
        Ok((task, row.get::<Option<String>>(at + 2)?))
    })?;
    let mut tasks = Vec::new();
    for row in rows {
        let (mut task, reading) = row?;
        if let Some(id) = reading.and_then(|id| id.parse().ok()) {
            task.reading = readings::get(db, twin, id)?;
        }
        tasks.push(task);
    }
    Ok(tasks)
}

/// A list to be stored.
pub(crate) struct New<'a> {
    pub(crate) id: Uuid,
    pub(crate) name: &'a str,
    pub(crate) assignee: Option<&'a Name>,
    pub(crate) due: Option<Time>,
    pub(crate) meters: &'a [Name],
}

pub(crate) fn add(db: &Db, twin: &Name, new: &New<'_>, now: Time) -> Result<()> {
    let id = new.id.to_string();
    db.execute(
        "INSERT INTO work_list (twin, id, name, assignee, state, due, created_at, revision)
         VALUES (?1, ?2, ?3, ?4, 'open', ?5, ?6, 1)",
        params![twin, id, new.name, new.assignee, new.due, now],
    )?;
    let mut insert = db.prepare_cached(
        "INSERT INTO task (twin, work_list, meter, place, state) VALUES (?1, ?2, ?3, ?4, 'open')
         ON CONFLICT DO NOTHING",
    )?;
    for (place, meter) in new.meters.iter().enumerate() {
        insert.execute(params![twin, id, meter, place])?;
    }
    Ok(())
}

/// What can be changed of a list; the outer `None` leaves it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Change {
    pub(crate) name: Option<String>,
    pub(crate) assignee: Option<Option<Name>>,
    pub(crate) state: Option<ListState>,
    pub(crate) due: Option<Option<Time>>,
}

pub(crate) fn change(db: &Db, twin: &str, id: Uuid, change: &Change) -> Result<()> {
    let id = id.to_string();
    let values = [
        ("name", given(&change.name)),
        ("assignee", given(&change.assignee)),
        ("state", given(&change.state)),
        ("due", given(&change.due)),
    ];
    set_given(db, "work_list", (twin, &id), &values)?;
    touch(db, twin, &id)
}

fn touch(db: &Db, twin: &str, id: &str) -> Result<()> {
    let mut update = db.prepare_cached(
        "UPDATE work_list SET revision = revision + 1 WHERE twin = ?1 AND id = ?2",
    )?;
    update.execute([twin, id]).map(drop)
}

/// Notes that there is a reading of the meter; whether the meter is on the list.
pub(crate) fn mark_read(db: &Db, twin: &str, list: Uuid, meter: &str) -> Result<bool> {
    let list = list.to_string();
    let mut update = db.prepare_cached(
        "UPDATE task SET state = 'read' WHERE twin = ?1 AND work_list = ?2 AND meter = ?3",
    )?;
    let marked = update.execute([twin, &list, meter])?;
    touch(db, twin, &list)?;
    Ok(marked == 1)
}

/// Notes on all open lists that there is a reading of the meter, taken at `at`, which was sent for none of them:
/// the radio brought it, or somebody who had no list before them. Lists that were made later still want
/// one. Gives the lists it did work of, oldest first; with a reader only theirs and those not assigned.
pub(crate) fn tick(
    db: &Db,
    twin: &str,
    meter: &str,
    at: Time,
    reader: Option<&Name>,
) -> Result<Vec<Uuid>> {
    let mut rows = db.prepare_cached(
        "SELECT w.id FROM task t JOIN work_list w ON w.twin = t.twin AND w.id = t.work_list
         WHERE t.twin = ?1 AND t.meter = ?2 AND t.state <> 'read' AND w.state = 'open' AND w.created_at <= ?3
         AND (CAST(?4 AS TEXT) IS NULL OR w.assignee IS NULL OR w.assignee = ?4) ORDER BY w.seq",
    )?;
    let ids = rows.query_map(params![twin, meter, at, reader], |row| row.get::<String>(0))?;
    let mut lists = Vec::new();
    for id in ids {
        let id = id?.parse().unwrap_or_default();
        mark_read(db, twin, id, meter)?;
        lists.push(id);
    }
    Ok(lists)
}

/// Whether a reading of task `t`'s list holds, without its end: which others do as well.
const HELD: &str =
    "EXISTS (SELECT 1 FROM reading r WHERE r.twin = t.twin AND r.meter = t.meter AND r.holds = 1
     AND (r.work_list = t.work_list";

/// Gives work back after a reading of the meter no longer counts, or counts again: a task is read as long as a
/// reading of its list, or one taken since the list was made, holds. Gives the lists that changed.
pub(crate) fn recount(db: &Db, twin: &str, meter: &str) -> Result<Vec<Uuid>> {
    let lost = format!("t.state = 'read' AND NOT {HELD} OR r.at >= w.created_at AND {IN_TIME}))");
    let won = format!("t.state = 'open' AND {HELD}))");
    let mut changed = Vec::new();
    for (state, condition) in [("open", lost), ("read", won)] {
        let sql = format!(
            "SELECT w.id FROM task t JOIN work_list w ON w.twin = t.twin AND w.id = t.work_list
             WHERE t.twin = ?1 AND t.meter = ?2 AND w.state = 'open' AND {condition}"
        );
        let mut rows = db.prepare_cached(&sql)?;
        let ids = rows.query_map([twin, meter], |row| row.get::<String>(0))?;
        let mut set = db.prepare_cached(
            "UPDATE task SET state = ?4 WHERE twin = ?1 AND work_list = ?2 AND meter = ?3",
        )?;
        for id in ids {
            let id = id?;
            set.execute([twin, &id, meter, state])?;
            touch(db, twin, &id)?;
            changed.push(id.parse().unwrap_or_default());
        }
    }
    Ok(changed)
}

/// Sets what became of a meter on the list; whether it is on it. The task stays read while a reading holds, as in
/// [`recount`]: phones send readings first, and what another one noted before may come later.
pub(crate) fn set_task(
    db: &Db,
    twin: &str,
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
    let mut update = db.prepare_cached(&sql)?;
    let values = params![twin, list.to_string(), meter, state, note.is_some(), note.flatten()];
    Ok(update.execute(values)? == 1)
}
