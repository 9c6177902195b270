//! PostgreSQL: a connection that reconnects, and where its SQL and values differ from SQLite's.
//!
//! The driver is asynchronous; each connection has a runtime of its own that runs while somebody waits for
//! an answer, so that callers are threads that may block: the writer's and those that read, never a task.
//! Every wait has an end.

mod address;
mod connection;
mod reconnecting;
mod tables;
mod tls;
mod values;

pub use address::Address;
pub(super) use reconnecting::connect;
