//! Requests for alerts.

use super::types::{Alert, AlertEvent, AlertQuery};
use super::{AlertNotification, evaluate};
use crate::prelude::*;
use crate::store::alerts;

/// Alerts, the latest first
#[utoipa::path(get, path = "/{twin}/alert", tag = "alerts", params(AlertQuery),
    responses((status = 200, body = Page<Alert>)))]
pub(crate) async fn list(Lookup(app, member, query, conditions): Lookup<AlertQuery>) -> Answer {
    member.may(Deed::Report)?;
    let limit = paging::limit(query.limit, paging::MOST)?;
    let before = open_number(query.cursor.as_deref())?;
    let found =
        member.read(&app, move |db| Ok(alerts::list(db, &query, before, limit + 1)?)).await?;
    conditions.json(&Page::of_rows(found, limit, |_: &Alert, number| number.to_string()))
}

fn find(db: TwinDb<'_>, id: &Name) -> Result<Alert> {
    let id: Option<Uuid> = id.parse().ok();
    let alert = id.map(|id| alerts::get(db, id)).transpose()?.flatten();
    alert.ok_or_else(|| Problem::missing("alert"))
}

/// One alert
#[utoipa::path(get, path = "/{twin}/alert/{id}", tag = "alerts", params(("id" = Uuid, Path)),
    responses((status = 200, body = Alert)))]
pub(crate) async fn show(Call(app, member): Call, Id(id): Id, conditions: Conditions) -> Answer {
    member.may(Deed::Report)?;
    let alert = member.read(&app, move |db| find(db, &id));
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
pub(crate) async fn acknowledge(Edit(app, member, id, _, said): Edit<Acknowledgement>) -> Answer {
    member.may(Deed::Manage)?;
    let name = member.name().clone();
    let acknowledged = member.write(&app, move |db| {
        let now = Time::now();
        let mut alert = find(db, &id)?;
        let first = alert.acknowledged_at.is_none();
        if first {
            (alert.acknowledged_at, alert.acknowledged_by) = (Some(now), Some(name));
        }
        if let Some(note) = said.note {
            alert.note = Some(note.to_string());
        }
        let alert = alert.finished();
        alerts::update(db, &alert)?;
        let notification = first.then(|| alert.notification(AlertEvent::Acknowledged));
        let notifications: Vec<_> = notification.into_iter().collect();
        evaluate::remember(db, &notifications, now)?;
        Ok((alert, notifications))
    });
    let (alert, notifications) = acknowledged.await?;
    announce(&app, &member.twin, &notifications);
    Conditions::default().json(&alert)
}

/// Publishes new and cleared alerts: retained for as long as they are raised.
pub(crate) fn announce(app: &App, twin: &Name, notifications: &[AlertNotification]) {
    for AlertNotification { alert, .. } in notifications {
        let topic = format!("fulmar/{twin}/alert/{}", alert.id);
        let over = alert.cleared_at.is_some();
        app.announcements.publish(topic.clone(), alert, !over);
        if over {
            app.announcements.clear_retained(topic);
        }
    }
    if !notifications.is_empty() {
        app.deliveries.notify_one();
    }
}
