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
