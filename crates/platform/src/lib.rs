//! The platform: a utility's meters, work lists, readings and devices, and what sensors in homes
//! measure, behind a REST API.
//!
//! JSON over HTTP from one axum `Router`, a database of its own (SQLite, or PostgreSQL), accounts with roles in each
//! twin (a utility's installation). It speaks no MQTT: changes come out as [`Announcement`]s, which the server
//! publishes. TLS, HTTP/3 and limits of connections are the endpoint's.
//!
//! Read in this order: `routes` (what can be asked), `accounts` (who asks), `requests` and `app` (what handlers get), then a
//! folder a subject, each with `types` and `handlers`; `store` is all there is of SQL. Values and rows import nothing above
//! them, nor does the store: `scripts/counts arrows`. What comes from outside is checked where
//! it becomes a type (`text`, `number`, `time`, `extract`), answers are made in `respond` and `problem`.
#![forbid(unsafe_code)]

mod accounts;
mod admin;
mod alerts;
mod announcements;
mod app;
mod blocking;
mod change_log;
mod counts;
mod devices;
mod error;
mod extract;
mod frames;
mod homes;
mod in_hand;
mod log_limit;
mod measurements;
mod meters;
mod number;
mod openapi;
mod paging;
mod photo_space;
mod photos;
mod platform;
mod prelude;
mod problem;
mod readings;
mod reports;
mod requests;
mod respond;
mod role;
mod routes;
mod sensors;
mod series;
mod settings;
mod shared;
mod store;
mod table;
mod text;
mod time;
mod topics;
mod twins;
mod upkeep;
mod values;
mod work_lists;

pub use accounts::account_cache::{Losers, Loss};
pub use accounts::token::KEY_FILE;
pub use admin::{Admin, AdminAnswer, AdminCommand, CredentialSummary, UserSummary, UserToAdd};
pub use alerts::delivery::Delivery;
pub use alerts::webhook_allowlist::{InvalidAllowlistEntry, WebhookAllowlist};
pub use announcements::Announcement;
pub use counts::PlatformCounts;
pub use error::Error;
pub use fulmar_identity::TOKEN_PREFIX;
pub use measurements::message::SensorMessage;
pub use platform::Platform;
pub use role::Role;
pub use settings::{DiskLimits, Monitoring, Settings, time_zone};
pub use shared::SharedPlatform;
pub use store::sql::{Address, Database, DatabaseError};
pub use store::{DATABASE_FILE, copy};
pub use text::MAX_NAME;
