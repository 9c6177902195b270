//! What can be asked of work lists.

use super::types::{
    FullWorkList, ListQuery, MAX_TASKS, MeterId, NewWorkList, TaskMeter, WorkList, WorkListChange,
};
use crate::prelude::*;
use crate::readings::handlers::{sender, stored_readings};
use crate::readings::intake::{ReadingIntake, take_all};
use crate::readings::types::MAX_READINGS;
use crate::readings::{Reading, ReadingResult};
use crate::store::meters;
use crate::store::work_lists;

/// Whose lists only are seen.
fn only_of(member: &Member) -> Option<&Name> {
    (member.role == Role::Reader).then(|| member.name())
}

/// The twin's work lists
///
/// Readers see their own and those not assigned.
#[utoipa::path(get, path = "/{twin}/work_list", tag = "work lists", params(ListQuery),
    responses((status = 200, body = Page<WorkList>)))]
pub(crate) async fn list(Lookup(app, member, query, conditions): Lookup<ListQuery>) -> Answer {
    member.may(Deed::LookAtWork)?;
    let limit = paging::limit(query.limit, paging::MOST)?;
    let (only, after) = (only_of(&member).cloned(), open_number(query.cursor.as_deref())?);
    let rows = member
        .read(&app, move |db| Ok(work_lists::list(db, &query, only.as_ref(), after, limit + 1)?));
    conditions.json(&Page::of_rows(rows.await?, limit, |_: &WorkList, seq| seq.to_string()))
}

fn existing(db: &Db, member: &Member, id: &Name) -> Result<WorkList> {
    let nothing = || Problem::missing("work list");
    let id: Uuid = id.parse().map_err(|_| nothing())?;
    let list = work_lists::get(db.within(&member.twin), id)?.ok_or_else(nothing)?;
    match (only_of(member), &list.assignee) {
        (Some(me), Some(assignee)) if me != assignee => Err(nothing()),
        _ => Ok(list),
    }
}

/// Extent in which a work list is shown.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ShowQuery {
    /// False for the ids of its meters alone, for clients that have the meters.
    #[param(default = true)]
    meters: Option<bool>,
}

/// One work list with its meters
#[utoipa::path(get, path = "/{twin}/work_list/{id}", tag = "work lists",
    params(("id" = Uuid, Path), ShowQuery), responses((status = 200, body = FullWorkList)))]
pub(crate) async fn show(
    Call(app, member): Call,
    Id(id): Id,
    Params(query): Params<ShowQuery>,
    conditions: Conditions,
) -> Answer {
    member.may(Deed::LookAtWork)?;
    let full = app.store.read(move |db| {
        let list = existing(db, &member, &id)?;
        let mut tasks = work_lists::tasks(db.within(&member.twin), list.id, Time::now())?;
        for task in tasks.iter_mut().filter(|_| query.meters == Some(false)) {
            if let TaskMeter::Whole(meter) = &task.meter {
                task.meter = TaskMeter::Id(MeterId { id: meter.id.clone() });
            }
        }
        Ok(FullWorkList { list, tasks })
    });
    conditions.json(&full.await?)
}

/// Create a work list
#[utoipa::path(post, path = "/{twin}/work_list", tag = "work lists", request_body = NewWorkList,
    responses((status = 201, body = WorkList)))]
pub(crate) async fn add(Call(app, member): Call, body: Unread<NewWorkList>) -> Answer {
    member.may(Deed::Manage)?;
    let new = body.read().await?;
    if new.meters.len() > MAX_TASKS {
        return Err(Problem::too_large(format!("at most {MAX_TASKS} meters on a list")));
    }
    check_assignee(&app, &member.twin, new.assignee.as_ref())?;
    let list = member.write(&app, move |db| {
        for (at, meter) in new.meters.iter().enumerate() {
            if !meters::exists(db, meter)? {
                return Err(Problem::invalid(format!("meters[{at}]"), "there is no such meter"));
            }
        }
        let id = Uuid::new_v4();
        work_lists::add(db, id, &new, Time::now())?;
        work_lists::get(db, id)?.ok_or_else(|| Problem::missing("work list"))
    });
    let list = list.await?;
    announce(&app, &member.twin, &list);
    json(StatusCode::CREATED, &list)
}

fn check_assignee(app: &App, twin: &Name, assignee: Option<&Name>) -> Result<()> {
    let Some(assignee) = assignee else { return Ok(()) };
    let account = app.account_cache.account(assignee);
    if account.is_some_and(|account| app.account_cache.role(&account, twin).is_some()) {
        return Ok(());
    }
    Err(Problem::invalid("assignee", "there is no such user in this twin"))
}

/// The list now, and the result for each reading.
#[derive(Serialize, ToSchema)]
pub(crate) struct WorkListResults {
    work_list: WorkList,
    results: Vec<ReadingResult>,
}

/// Change a work list, and send readings for it
///
/// Readers send readings and what became of tasks, and end the list; name, assignee and due date are
/// the office's.
#[utoipa::path(patch, path = "/{twin}/work_list/{id}", tag = "work lists",
    params(("id" = Uuid, Path)), request_body = WorkListChange,
    responses((status = 200, body = WorkListResults)))]
pub(crate) async fn change(
    Call(app, member): Call,
    Id(id): Id,
    conditions: Conditions,
    body: Unread<WorkListChange>,
) -> Answer {
    member.may(Deed::Read)?;
    let change = body.read().await?;
    if change.name.is_some() || change.assignee.is_some() || change.due.is_some() {
        member.may(Deed::Manage)?;
    }
    if change.readings.len() > MAX_READINGS || change.tasks.len() > MAX_READINGS {
        return Err(Problem::too_large(format!(
            "at most {MAX_READINGS} readings or tasks at once"
        )));
    }
    check_assignee(&app, &member.twin, change.assignee.as_ref().and_then(Option::as_ref))?;
    let twin = member.twin.clone();
    let changed = app.store.write(move |db| {
        let list = existing(db, &member, &id)?;
        conditions.hold(&list.etag)?;
        apply(db, &member, list.id, change)
    });
    let (results, stored) = changed.await?;
    crate::readings::handlers::announce(&app, &twin, &stored);
    announce(&app, &twin, &results.work_list);
    json(StatusCode::OK, &results)
}

fn apply(
    db: &Db,
    member: &Member,
    list: Uuid,
    mut change: WorkListChange,
) -> Result<(WorkListResults, Vec<Reading>)> {
    let db = db.within(&member.twin);
    let mut readings = std::mem::take(&mut change.readings);
    for reading in &mut readings {
        if let Ok(reading) = &mut reading.item {
            reading.work_list = Some(list);
        }
    }
    for (at, task) in change.tasks.iter().enumerate() {
        let note = task.note.as_ref().map(|note| note.as_deref());
        if !work_lists::set_task(db, list, &task.meter, task.state, note)? {
            let detail = "this meter is not on the list";
            return Err(Problem::invalid(format!("tasks[{at}].meter"), detail));
        }
    }
    let ReadingIntake { results, stored, .. } = take_all(db, &sender(member), readings)?;
    work_lists::change(db, list, &change)?;
    let work_list = work_lists::get(db, list)?;
    let work_list = work_list.ok_or_else(|| Problem::missing("work list"))?;
    Ok((WorkListResults { work_list, results }, stored_readings(db, stored)?))
}

/// Progress of a list.
#[derive(Serialize)]
struct Progress<'a> {
    id: Uuid,
    total: u64,
    done: u64,
    etag: &'a str,
}

/// Publishes the progress of the list.
pub(crate) fn announce(app: &App, twin: &Name, list: &WorkList) {
    let WorkList { id, total, done, etag, .. } = list;
    let progress = Progress { id: *id, total: *total, done: *done, etag };
    app.announcements.publish(format!("fulmar/{twin}/work_list/{id}"), &progress, false);
}
