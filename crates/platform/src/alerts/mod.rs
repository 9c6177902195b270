//! Alerts: rules about what sensors measure, and what is or was wrong by them.
//!
//! `types` says what rule and alert are, `machine` when one is raised (no I/O, event time), `defaults`
//! which rules a twin begins with, `evaluate` applies them to what comes, `webhooks` is who is told, `delivery`
//! what and `attempts` when, `rules` and `handlers` what can be asked.

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

pub(crate) use types::{Notice, Severity};

use crate::app::App;
use crate::text::Name;

/// Publishes new and cleared alerts: retained for as long as they are raised.
pub(crate) fn tell(app: &App, twin: &Name, notices: &[Notice]) {
    for Notice { alert, .. } in notices {
        let topic = format!("fulmar/{twin}/alert/{}", alert.id);
        let over = alert.cleared_at.is_some();
        app.announcements.publish(topic.clone(), alert, !over);
        if over {
            app.announcements.clear_retained(topic);
        }
    }
    if !notices.is_empty() {
        app.deliveries.notify_one();
    }
}
