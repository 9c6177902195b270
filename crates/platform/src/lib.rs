//! The platform: a utility's meters, work lists, readings and devices behind a REST API.
//!
//! JSON over HTTP from one axum `Router`, its own SQLite database, accounts with roles in each twin (a
//! utility's installation). It speaks no MQTT: what changes comes out as [`Announcement`]s for whoever
//! publishes them. TLS, HTTP/3 and bounds of connections are the endpoint's.
//!
//! Read in this order: `routes` (what can be asked), `accounts` (who asks), then a folder a subject, each
//! with `types` and `handlers`; `store` is all there is of SQL. What comes from outside is checked where
//! it becomes a type (`text`, `number`, `time`, `extract`), answers are made in `respond` and `problem`.
#![forbid(unsafe_code)]

mod accounts;
mod admin;
mod error;
mod extract;
mod frames;
mod instances;
mod live;
mod meters;
mod number;
mod openapi;
mod paging;
mod photos;
mod platform;
mod problem;
mod readings;
mod reports;
mod respond;
mod role;
mod routes;
mod store;
mod text;
mod time;
mod topics;
mod twins;
mod work_lists;

pub use admin::{Admin, UserSummary, UserToAdd};
pub use error::Error;
pub use live::Announcement;
pub use platform::{Guest, Platform, Settings};
pub use role::Role;
