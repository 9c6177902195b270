//! What can be asked of readings.

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::intake::{Sender, Taken, take_all};
use super::{NewReading, Reading, ReadingResult};
use crate::accounts::caller::{Call, Id, Member};
use crate::app::App;
use crate::extract::{Each, Params, Unread, at_most};
use crate::meters::Method;
use crate::paging::{self, Order};
use crate::problem::Problem;
use crate::respond::{Answer, Conditions, Page, json, open_numbers};
use crate::role::{Deed, Role};
use crate::store::readings::{self, Query};
use crate::store::{Db, work_lists};
use crate::text::Name;
use crate::time::Time;

/// Readings sent at once.
pub(crate) const MAX_READINGS: usize = 1000;

/// Which readings.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ReadingQuery {
    meter: Option<Name>,
    work_list: Option<Uuid>,
    /// Taken at this time or later.
    since: Option<Time>,
    /// Taken before this time.
    until: Option<Time>,
    method: Option<Method>,
    /// Only readings in an unresolved conflict (true), or only the others (false).
    conflict: Option<bool>,
    /// Which end comes first: `asc`, the oldest, unless given; `desc`, the newest.
    order: Option<Order>,
    /// Maximum number of items.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
    /// `next` of the previous page.
    cursor: Option<String>,
}

/// The twin's readings, by the time they were taken
#[utoipa::path(get, path = "/{twin}/reading", tag = "readings", params(ReadingQuery),
    responses((status = 200, body = Page<Reading>)))]
pub(crate) async fn list(
    Call(app, member): Call,
    Params(query): Params<ReadingQuery>,
    conditions: Conditions,
) -> Answer {
    member.may(Deed::LookAtReadings)?;
    let limit = paging::limit(query.limit, paging::MOST)?;
    let wanted = Query {
        meter: query.meter,
        work_list: query.work_list,
        since: query.since,
        until: query.until,
        method: query.method,
        conflict: query.conflict,
        order: query.order.unwrap_or_default(),
        after: open_numbers(query.cursor.as_deref())?.map(|(at, seq)| (Time(at), seq)),
    };
    let rows =
        app.store.read(move |db| Ok(readings::list(db, &member.twin, &wanted, limit + 1)?)).await?;
    let cursor = |reading: &Reading, seq: &i64| format!("{} {seq}", reading.at.0);
    conditions.json(&Page::of_rows(rows, limit, cursor))
}

/// One reading
#[utoipa::path(get, path = "/{twin}/reading/{id}", tag = "readings", params(("id" = Uuid, Path)),
    responses((status = 200, body = Reading)))]
pub(crate) async fn show(Call(app, member): Call, Id(id): Id, conditions: Conditions) -> Answer {
    member.may(Deed::LookAtReadings)?;
    let id = as_uuid(&id)?;
    let reading = app.store.read(move |db| existing(db, &member.twin, id)).await?;
    conditions.json_tagged(&reading, &reading.etag)
}

pub(super) fn as_uuid(id: &Name) -> Result<Uuid, Problem> {
    id.parse().map_err(|_| Problem::not_found("reading"))
}

pub(super) fn existing(db: &Db, twin: &Name, id: Uuid) -> Result<Reading, Problem> {
    readings::get(db, twin, id)?.ok_or_else(|| Problem::not_found("reading"))
}

/// Readings that are sent.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Upload {
    #[serde(deserialize_with = "at_most::<MAX_READINGS, _, _>")]
    #[schema(value_type = Vec<NewReading>, max_items = 1000)]
    items: Vec<Each<NewReading>>,
}

/// Results, in the order of the request.
#[derive(Serialize, ToSchema)]
pub(crate) struct UploadResults {
    results: Vec<ReadingResult>,
}

/// Send readings
///
/// Each has an outcome of its own. What is sent twice is stored once.
#[utoipa::path(post, path = "/{twin}/reading", tag = "readings", request_body = Upload,
    responses((status = 200, body = UploadResults)))]
pub(crate) async fn add(Call(app, member): Call, body: Unread<Upload>) -> Answer {
    member.may(Deed::Read)?;
    let upload = body.read().await?;
    if upload.items.len() > MAX_READINGS {
        return Err(Problem::too_large(format!("at most {MAX_READINGS} readings at once")));
    }
    let sender = sender(&member);
    let (results, stored, lists) = app
        .store
        .write(move |db| {
            let Taken { results, stored, lists } = take_all(db, &sender, upload.items)?;
            Ok((results, stored_readings(db, &sender.twin, stored)?, lists))
        })
        .await?;
    announce(&app, &member.twin, &stored);
    announce_lists(&app, &member.twin, lists).await?;
    json(StatusCode::OK, &UploadResults { results })
}

/// The sender for the intake.
pub(crate) fn sender(member: &Member) -> Sender {
    Sender {
        twin: member.twin.clone(),
        reader: member.name().clone(),
        own_lists_only: member.role == Role::Reader,
        reads: member.role.may(Deed::Read),
        now: Time::now(),
    }
}

/// The readings of these ids.
pub(crate) fn stored_readings(
    db: &Db,
    twin: &Name,
    ids: Vec<Uuid>,
) -> Result<Vec<Reading>, Problem> {
    ids.into_iter().map(|id| existing(db, twin, id)).collect()
}

/// Publishes new readings.
pub(crate) fn announce(app: &App, twin: &Name, stored: &[Reading]) {
    for reading in stored {
        app.announcements.publish(
            format!("fulmar/{twin}/reading/{}", reading.meter),
            reading,
            false,
        );
    }
}

/// Publishes the progress of these work lists.
pub(crate) async fn announce_lists(
    app: &App,
    twin: &Name,
    mut lists: Vec<Uuid>,
) -> Result<(), Problem> {
    lists.sort_unstable();
    lists.dedup();
    if lists.is_empty() {
        return Ok(());
    }
    let of = twin.clone();
    let lists = app.store.read(move |db| {
        let found = lists.into_iter().map(|list| work_lists::get(db, &of, list));
        Ok(found.collect::<crate::store::sql::Result<Vec<_>>>()?)
    });
    for list in lists.await?.into_iter().flatten() {
        crate::work_lists::handlers::announce(app, twin, &list);
    }
    Ok(())
}
