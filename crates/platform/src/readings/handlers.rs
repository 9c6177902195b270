//! What can be asked of readings.

use super::intake::{ReadingIntake, Sender, take_all};
use super::types::{MAX_READINGS, ReadingQuery};
use super::{NewReading, Reading, ReadingResult};
use crate::prelude::*;
use crate::store::readings;
use crate::store::work_lists;

/// The twin's readings, by the time they were taken
#[utoipa::path(get, path = "/{twin}/reading", tag = "readings", params(ReadingQuery),
    responses((status = 200, body = Page<Reading>)))]
pub(crate) async fn list(Lookup(app, member, query, conditions): Lookup<ReadingQuery>) -> Answer {
    member.may(Deed::LookAtReadings)?;
    let limit = paging::limit(query.limit, paging::MOST)?;
    let after = open_numbers(query.cursor.as_deref())?.map(|(at, seq)| (Time(at), seq));
    let rows =
        member.read(&app, move |db| Ok(readings::list(db, &query, after, limit + 1)?)).await?;
    let cursor = |reading: &Reading, seq: &i64| format!("{} {seq}", reading.at.0);
    conditions.json(&Page::of_rows(rows, limit, cursor))
}

/// One reading
#[utoipa::path(get, path = "/{twin}/reading/{id}", tag = "readings", params(("id" = Uuid, Path)),
    responses((status = 200, body = Reading)))]
pub(crate) async fn show(Call(app, member): Call, Id(id): Id, conditions: Conditions) -> Answer {
    member.may(Deed::LookAtReadings)?;
    let id = as_uuid(&id)?;
    let reading = member.read(&app, move |db| existing(db, id)).await?;
    conditions.json_tagged(&reading, &reading.etag)
}

pub(super) fn as_uuid(id: &Name) -> Result<Uuid> {
    id.parse().map_err(|_| Problem::missing("reading"))
}

pub(super) fn existing(db: TwinDb<'_>, id: Uuid) -> Result<Reading> {
    readings::get(db, id)?.ok_or_else(|| Problem::missing("reading"))
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
    let taken = member.write(&app, move |db| {
        let ReadingIntake { results, stored, lists } = take_all(db, &sender, upload.items)?;
        Ok((results, stored_readings(db, stored)?, lists))
    });
    let (results, stored, lists) = taken.await?;
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

pub(crate) fn stored_readings(db: TwinDb<'_>, ids: Vec<Uuid>) -> Result<Vec<Reading>> {
    ids.into_iter().map(|id| existing(db, id)).collect()
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
pub(crate) async fn announce_lists(app: &App, twin: &Name, mut lists: Vec<Uuid>) -> Result<()> {
    lists.sort_unstable();
    lists.dedup();
    if lists.is_empty() {
        return Ok(());
    }
    let of = twin.clone();
    let lists = app.store.read(move |db| {
        let found = lists.into_iter().map(|list| work_lists::get(db.within(&of), list));
        Ok(found.collect::<crate::store::sql::Result<Vec<_>>>()?)
    });
    for list in lists.await?.into_iter().flatten() {
        crate::work_lists::handlers::announce(app, twin, &list);
    }
    Ok(())
}
