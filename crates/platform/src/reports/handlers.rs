//! What can be asked of reports.

use super::consumption::{MAX_POINTS, Point, Step, count, cuts, points, tidy};
use super::{Leak, Missed, Overall, Progress};
use crate::prelude::*;
use crate::store::reports::{self, RegisterValue};
use crate::store::{meters, work_lists};

/// Period of a report.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ConsumptionQuery {
    /// From the step that this is in; without it 3 days of hours, 60 days, or 24 months back.
    from: Option<Time>,
    /// Until the step that this is in; now, unless given. At most 1500 steps.
    to: Option<Time>,
    /// Days, unless given.
    step: Option<Step>,
}

/// A meter's consumption over time.
#[derive(Serialize, ToSchema)]
pub(crate) struct Consumption {
    meter: Name,
    /// The meter's unit.
    unit: String,
    step: Step,
    /// The time zone whose days and months these are: a name of IANA's database.
    time_zone: String,
    /// One a step; none if no reading is near.
    points: Vec<Point>,
}

/// Consumption over time
///
/// In full hours of UTC, or in days or months of the platform's time zone, where a day may have 23 or 25 hours. What the register showed when a step began is interpolated on a
/// straight line between the readings before and after, if they are at most three steps apart and
/// the register did not fall between them; an exchange is a reading of both registers. Otherwise it is null, and so is
/// the use of the steps it belongs to. Nothing is guessed beyond the last reading.
#[utoipa::path(get, path = "/{twin}/meter/{id}/consumption", tag = "reports",
    params(ConsumptionQuery), responses((status = 200, body = Consumption)))]
pub(crate) async fn consumption(
    Call(app, member): Call,
    Id(id): Id,
    Params(query): Params<ConsumptionQuery>,
    conditions: Conditions,
) -> Answer {
    member.may(Deed::Report)?;
    let step = query.step.unwrap_or(Step::Day);
    let to = query.to.unwrap_or_else(Time::now);
    let from = query.from.unwrap_or_else(|| to.plus_ms(-step.usual_ms()));
    if from >= to {
        return Err(Problem::invalid("from", "expected a time before `to`"));
    }
    let too_long = || Problem::invalid("from", format!("at most {MAX_POINTS} steps at once"));
    let zone = &app.settings.time_zone;
    let cuts = cuts(step, from, to, zone).ok_or_else(too_long)?;
    let name = zone.iana_name().unwrap_or("UTC").to_owned();
    let read = member.read(&app, move |db| used(db, &id, step, name, cuts));
    conditions.json(&read.await?)
}

/// Two look-ups a cut, however many readings there are.
fn used(
    db: TwinDb<'_>,
    id: &Name,
    step: Step,
    time_zone: String,
    cuts: Vec<Time>,
) -> Result<Consumption> {
    let meter = meters::get(db, id, Time::now())?;
    let meter = meter.ok_or_else(|| Problem::missing("meter"))?;
    let mut offsets = Vec::with_capacity(cuts.len());
    let counts = cuts.into_iter().map(|at| {
        let before = reports::newest_until(db, id, at)?;
        let after = reports::oldest_from(db, id, at)?;
        offsets.push(before.as_ref().map_or(0.0, |before| before.offset));
        Ok((at, count(step, at, before.map(RegisterValue::count), after.map(RegisterValue::count))))
    });
    let mut points = points(&counts.collect::<crate::store::sql::Result<Vec<_>>>()?);
    for (point, offset) in points.iter_mut().zip(offsets).filter(|(_, offset)| *offset != 0.0) {
        point.value = point.value.map(|count| tidy(count - offset));
    }
    Ok(Consumption { meter: meter.id, unit: meter.unit, step, time_zone, points })
}

/// Progress of work lists.
#[derive(Serialize, ToSchema)]
pub(crate) struct ProgressReport {
    all: Overall,
    items: Vec<Progress>,
    /// The `cursor` of the next page; null at the end.
    next: Option<String>,
}

/// Progress of work lists, oldest first
#[utoipa::path(get, path = "/{twin}/report/progress", tag = "reports", params(PageQuery),
    responses((status = 200, body = ProgressReport)))]
pub(crate) async fn progress(Lookup(app, member, query, conditions): Lookup<PageQuery>) -> Answer {
    member.may(Deed::Report)?;
    let limit = paging::limit(query.limit, paging::MOST)?;
    let after = open_number(query.cursor.as_deref())?;
    let read = member.read(&app, move |db| {
        let all = reports::overall(db)?;
        let lists = reports::progress(db, after, limit + 1, Time::now())?;
        Ok((all, lists))
    });
    let (all, lists) = read.await?;
    let Page { items, next } = Page::of_rows(lists, limit, |_, number| number.to_string());
    conditions.json(&ProgressReport { all, items, next })
}

page_query! {
    /// Filter of missed meters.
    MissedQuery, 1000 {
        /// Only those of this list.
        work_list: Uuid,
    }
}

/// Meters that were missed
///
/// Their work list is due or done, it has no reading of them, and none came since it was made. Once for
/// each such list.
#[utoipa::path(get, path = "/{twin}/report/missed", tag = "reports", params(MissedQuery),
    responses((status = 200, body = Page<Missed>)))]
pub(crate) async fn missed(Lookup(app, member, query, conditions): Lookup<MissedQuery>) -> Answer {
    member.may(Deed::Report)?;
    let limit = paging::limit(query.limit, paging::MOST)?;
    let (seq, place) = open_numbers(query.cursor.as_deref())?.unwrap_or((i64::MIN, i64::MIN));
    let read = app.store.read(move |db| {
        let (twin, list) = (&member.twin, query.work_list);
        if let Some(list) = list
            && !work_lists::visible(db.within(twin), list, None)?
        {
            return Err(Problem::missing("work list"));
        }
        Ok(reports::missed(db.within(twin), list, seq, place, limit + 1, Time::now())?)
    });
    let cursor = |_: &Missed, key: &(i64, i64)| format!("{} {}", key.0, key.1);
    conditions.json(&Page::of_rows(read.await?, limit, cursor))
}

/// Meters that may leak
///
/// Water meters whose register rose in every stretch of one to three hours of the 24 hours before their
/// last reading. Where readings are further apart than three hours nothing is suspected.
#[utoipa::path(get, path = "/{twin}/report/leaks", tag = "reports", params(PageQuery),
    responses((status = 200, body = Page<Leak>)))]
pub(crate) async fn leaks(Lookup(app, member, query, conditions): Lookup<PageQuery>) -> Answer {
    member.may(Deed::Report)?;
    let limit = paging::limit(query.limit, paging::MOST)?;
    let after = open_cursor(query.cursor.as_deref())?;
    let read = member
        .read(&app, move |db| Ok(reports::leaks(db, after.as_deref(), limit + 1, Time::now())?));
    let page = Page::cut(read.await?, limit, |leak: &Leak| leak.meter.id.to_string());
    conditions.json(&page)
}
