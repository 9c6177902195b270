//! PostgreSQL: a connection that is made anew when it is lost, and what of SQL and values is different.
//!
//! The driver is asynchronous; each connection has a runtime of its own that runs while somebody waits for
//! an answer, so that callers are threads that may block: the writer's and those that read, never a task.
//! Every wait has an end.

mod address;
mod link;
mod session;
mod tables;
mod tls;
mod values;

pub use address::{Address, Database};
pub(crate) use link::Prepared;
pub(crate) use session::{Purpose, Session};
pub(super) use tokio_postgres::Row;
pub(super) use values::value;
