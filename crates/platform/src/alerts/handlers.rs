//! Requests for alerts.

use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::types::{Alert, AlertEvent, AlertNotification, AlertState};
use super::{announce, evaluate};
use crate::accounts::caller::{Call, Id};
use crate::extract::{Body, Params};
use crate::paging;
use crate::problem::Problem;
use crate::respond::{Answer, Conditions, Page, open_number};
use crate::role::Deed;
use crate::store::Db;
use crate::store::alerts::{self, Query};
use crate::text::{Name, Note};
use crate::time::Time;

/// Selects alerts.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AlertQuery {
    state: Option<AlertState>,
    /// Only of this home.
    home: Option<Name>,
    /// Only alerts noticed at this time or later.
    since: Option<Time>,
    /// The most alerts of a page.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
    /// The `next` of the previous page.
    cursor: Option<String>,
}

/// Alerts, the latest first
#[utoipa::path(get, path = "/{twin}/alert", tag = "alerts", params(AlertQuery),
    responses((status = 200, body = Page<Alert>)))]
pub(crate) async fn list(
    Call(app, member): Call,
    Params(query): Params<AlertQuery>,
    conditions: Conditions,
) -> Answer {
    member.may(Deed::Report)?;
    let limit = paging::limit(query.limit, paging::MOST)?;
    let before = open_number(query.cursor.as_deref())?;
    let AlertQuery { state, home, since, .. } = query;
    let wanted = Query { state, home, since, before };
    let found =
        app.store.read(move |db| Ok(alerts::list(db, &member.twin, &wanted, limit + 1)?)).await?;
    conditions.json(&Page::of_rows(found, limit, |_: &Alert, number| number.to_string()))
}

fn find(db: &Db, twin: &Name, id: &Name) -> Result<Alert, Problem> {
    let id: Option<Uuid> = id.parse().ok();
    let alert = id.map(|id| alerts::get(db, twin, id)).transpose()?.flatten();
    alert.ok_or_else(|| Problem::not_found("alert"))
}

/// One alert
#[utoipa::path(get, path = "/{twin}/alert/{id}", tag = "alerts", params(("id" = Uuid, Path)),
    responses((status = 200, body = Alert)))]
pub(crate) async fn show(Call(app, member): Call, Id(id): Id, conditions: Conditions) -> Answer {
    member.may(Deed::Report)?;
    let alert = app.store.read(move |db| find(db, &member.twin, &id));
    conditions.json(&alert.await?)
}

/// The content of an acknowledgement.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Acknowledgement {
    note: Option<Note>,
}

/// Acknowledge an alert
///
/// The alert stays raised until its cause is gone. The first user who acknowledged it is kept; a later note replaces
/// the earlier one.
#[utoipa::path(post, path = "/{twin}/alert/{id}/acknowledge", tag = "alerts",
    params(("id" = Uuid, Path)), request_body = Acknowledgement,
    responses((status = 200, body = Alert)))]
pub(crate) async fn acknowledge(
    Call(app, member): Call,
    Id(id): Id,
    Body(said): Body<Acknowledgement>,
) -> Answer {
    member.may(Deed::Manage)?;
    let (twin, name) = (member.twin.clone(), member.name().clone());
    let acknowledged = app.store.write(move |db| {
        let now = Time::now();
        let mut alert = find(db, &twin, &id)?;
        let first = alert.acknowledged_at.is_none();
        if first {
            (alert.acknowledged_at, alert.acknowledged_by) = (Some(now), Some(name));
        }
        if let Some(note) = said.note {
            alert.note = Some(note.to_string());
        }
        let alert = alert.finished();
        alerts::update(db, &twin, &alert)?;
        let notification =
            AlertNotification { event: AlertEvent::Acknowledged, alert: alert.clone() };
        let notifications = if first { vec![notification] } else { Vec::new() };
        evaluate::remember(db, &twin, &notifications, now)?;
        Ok((alert, notifications))
    });
    let (alert, notifications) = acknowledged.await?;
    announce(&app, &member.twin, &notifications);
    Conditions::default().json(&alert)
}
