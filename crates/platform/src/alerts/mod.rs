//! Alerts: rules for sensors' measurements, and violations of them.
//!
//! `types` defines rules and alerts, `machine` decides when an alert is raised (no I/O, event time), `defaults` has
//! the rules of a new twin, `evaluate` applies rules to measurements as they arrive, `webhooks` manages the addresses
//! to which alerts are sent, `delivery` is an event for one of them, `attempts` schedules the attempts, and `rules` and
//! `handlers` serve the API.

mod attempts;
pub(crate) mod defaults;
pub(crate) mod delivery;
pub(crate) mod evaluate;
pub(crate) mod handlers;
pub(crate) mod machine;
pub(crate) mod rules;
pub(crate) mod types;
pub(crate) mod webhook_allowlist;
pub(crate) mod webhooks;

pub(crate) use types::{AlertNotification, Severity};

use crate::app::App;
use crate::text::Name;

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
