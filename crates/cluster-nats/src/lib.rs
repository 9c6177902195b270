//! What the nodes of a cluster share, in NATS JetStream: the log, records that are changed by compare-and-swap, and
//! snapshots.
//!
//! | in JetStream | holds |
//! |---|---|
//! | stream `FULMAR_LOG` | the log: a message is a record, and its sequence the record's number (`LogStream`) |
//! | key-value bucket `FULMAR_CONTROL` | which node serves, and every node's address (`Control`) |
//! | object store `FULMAR_SNAPSHOTS` | copies of the database, each with its position in the log (`Snapshots`) |
//!
//! Another Fulmar cluster on the same servers needs a NATS account of its own: the names are fixed.
//!
//! The functions wait, each with a limit, while a thread of this crate has the connection (`Connection`); call them
//! from ordinary threads. This crate has no rules about leases or claims: who calls it decides.
#![cfg(feature = "client")]

mod connection;
mod control;
mod error;
mod give_up;
mod log;
mod settings;
mod snapshots;
mod sweep;

pub use connection::Connection;
pub use control::{Control, Entry};
pub use error::{AppendError, Error};
pub use give_up::GiveUp;
pub use log::{Creation, LogState, LogStream, MAX_RECORD_BYTES, Record};
pub use settings::{MIN_SERVER, Settings};
pub use snapshots::{Snapshot, Snapshots};
pub use sweep::LEFT_OVER;

/// Replicas of everything in a cluster that survives the loss of a server.
pub const REPLICAS: usize = 3;
