//! Webhooks in the database, and the events that they have not received yet.

use std::borrow::Borrow;

use super::prelude::*;
use crate::alerts::delivery::{Delivery, Webhook};
use crate::alerts::types::{AlertNotification, Severity};

/// Events that wait for one webhook; beyond, the oldest are forgotten.
const MAX_WAITING: usize = 1000;

pub(crate) fn list(db: TwinDb<'_>) -> Result<Vec<Webhook>> {
    db.list("SELECT id, url, least_severity FROM webhook WHERE twin = ?1 ORDER BY id", [db.twin])
}

pub(crate) fn add(db: TwinDb<'_>, webhook: &Webhook, secret: &str) -> Result<()> {
    let Webhook { id, url, least_severity } = webhook;
    let sql =
        "INSERT INTO webhook (twin, id, url, least_severity, secret) VALUES (?1, ?2, ?3, ?4, ?5)";
    db.execute(sql, params![db.twin, id, url, least_severity, secret]).map(drop)
}

from_row!(Webhook { id, url, least_severity });

/// Whether there was one; its pending events are removed with it.
pub(crate) fn remove(db: TwinDb<'_>, id: Uuid) -> Result<bool> {
    let sql = "DELETE FROM webhook WHERE twin = ?1 AND id = ?2";
    Ok(db.execute(sql, params![db.twin, id])? == 1)
}

/// Stores events for the twin's webhooks; returns how many events were dropped for it.
pub(crate) fn enqueue(
    db: TwinDb<'_>,
    notifications: &[impl Borrow<AlertNotification>],
    now: Time,
) -> Result<u64> {
    if notifications.is_empty() {
        return Ok(0);
    }
    let mut forgotten = 0;
    let sql = "SELECT id, least_severity FROM webhook WHERE twin = ?1";
    for (webhook, least) in db.list::<(String, Severity)>(sql, [db.twin])? {
        let wanted: Vec<&AlertNotification> = notifications
            .iter()
            .map(Borrow::borrow)
            .filter(|notification| notification.alert.severity >= least)
            .collect();
        // Those before would be dropped for those after them.
        let excess = wanted.len().saturating_sub(MAX_WAITING);
        for notification in &wanted[excess..] {
            add_event(db, &webhook, notification, now)?;
        }
        if !wanted.is_empty() {
            forgotten += (excess + drop_oldest(db, &webhook)?) as u64;
        }
    }
    Ok(forgotten)
}

fn add_event(
    db: TwinDb<'_>,
    webhook: &str,
    notification: &AlertNotification,
    now: Time,
) -> Result<()> {
    let body = serde_json::to_string(notification)?;
    // A receiver recognizes repetitions by this number: it must never belong to another event. The tables' own
    // numbers are reused once the events with the greatest are deleted.
    let sql = "UPDATE counter SET last = last + 1 WHERE name = 'webhook_event' RETURNING last";
    let number: i64 = db.get(sql, ())?;
    let sql = "INSERT INTO webhook_event (seq, twin, webhook, body, attempts, due_at)
         VALUES (?1, ?2, ?3, ?4, 0, ?5)";
    db.execute(sql, params![number, db.twin, webhook, body, now]).map(drop)
}

const DROP_OLDEST: &str = "DELETE FROM webhook_event WHERE twin = ?1 AND webhook = ?2 AND seq <=
    (SELECT seq FROM webhook_event WHERE twin = ?1 AND webhook = ?2 ORDER BY seq DESC LIMIT 1 OFFSET ?3)";

/// Drops the events beyond those that may wait; returns how many.
fn drop_oldest(db: TwinDb<'_>, webhook: &str) -> Result<usize> {
    db.execute(DROP_OLDEST, params![db.twin, webhook, MAX_WAITING])
}

/// Up to `limit` events that are due: the oldest of each webhook, so that order is kept.
pub(crate) fn due(db: &Db, now: Time, limit: usize) -> Result<Vec<Delivery>> {
    db.list_with(
        "SELECT e.seq, w.url, w.secret, e.body, e.attempts FROM webhook_event e
         JOIN webhook w ON w.twin = e.twin AND w.id = e.webhook
         WHERE e.due_at <= ?1 AND e.seq =
             (SELECT min(seq) FROM webhook_event o WHERE o.twin = e.twin AND o.webhook = e.webhook)
         ORDER BY e.seq LIMIT ?2",
        params![now, limit],
        |row| {
            let (number, url, secret, body, attempts) = row.read()?;
            Ok(Delivery::new(number, url, secret, body, attempts))
        },
    )
}

/// Forgets an event.
pub(crate) fn forget(db: &Db, number: i64) -> Result<()> {
    db.execute("DELETE FROM webhook_event WHERE seq = ?1", [number]).map(drop)
}

/// Puts an event off.
pub(crate) fn postpone(db: &Db, number: i64, until: Time) -> Result<()> {
    let sql = "UPDATE webhook_event SET attempts = attempts + 1, due_at = ?2 WHERE seq = ?1";
    db.execute(sql, params![number, until]).map(drop)
}

#[cfg(test)]
#[path = "webhooks_tests.rs"]
mod tests;
