//! The broker's durable state in SQLite, with group commit.
//!
//! It implements [`fulmar_broker::storage::Storage`]: the broker hands over batches of operations and waits, without
//! blocking, until their number is reported durable. The store does not decide what is worth keeping, does not expire
//! anything and knows no rule of MQTT. It stores the operations, and returns the state in order at the next start.
//!
//! # Life of an operation
//!
//! ```text
//!  broker worker            inbox               group                writer thread
//!  submit(batch) ──────▶ chunks of whole ──▶ pairs that undo ──▶ one transaction, fsync
//!        │               batches (mutex)     each other vanish      │
//!        ◀── Seq                                                    ▼
//!  committed() ≥ Seq ◀──────────────────────────── publish Seq, call `wake`
//! ```
//!
//! 1. [`SqliteStorage::submit`](fulmar_broker::storage::Storage::submit) appends the batch to the
//!    inbox under a short lock and returns its number. It never waits for the disk.
//! 2. The writer takes all batches that have arrived (`inbox`) and adds them to a group (`group`): an `Enqueue` whose
//!    `Dequeue` is already there costs no disk work.
//! 3. The group is written in one transaction with statements prepared once (`tables`). SQLite
//!    runs in WAL mode with `synchronous=FULL`: a commit is one append and one fsync, and what is
//!    committed survives kill -9 and power loss.
//! 4. The writer publishes the number and calls the broker's `wake`. While it was busy the next
//!    group has formed by itself; a lone operation on an idle broker is committed at once.
//! 5. If the disk is full or fails, the transaction is rolled back, `failure()` returns the error, and the
//!    same group is tried again with growing pauses until it succeeds or the storage is closed.
//!
//! # A log outside this process
//!
//! With a [`journal::Journal`], step 3 appends the group to a log that several machines keep, and step 4 follows from
//! that alone. The database is written up to a second later, and has its position in the log in the same transaction.
//! On other machines a [`Follower`] reads the log into a database of its own, until it takes over.
//!
//! # Schema (version 1, `schema`)
//!
//! | table | key | holds |
//! |---|---|---|
//! | `session` | session | client identifier, user, expiry |
//! | `flow` | session, flow | flags and expiry of a persistent flow |
//! | `subscription` | session, filter | flow, options, identifier |
//! | `message` | id | topic, properties, payload; stored once however many queues hold it |
//! | `queue` | session, flow, position | reference to a message, how it is delivered, how far it is |
//! | `inbound` | session, flow, packet id | QoS 2 identifiers received and not yet released |
//! | `retained` | topic | reference to a message |
//! | `meta` | name | highest numbers given out; whether the last shutdown was clean; what clocks showed (`fulmar_mirror`) |
//!
//! The writer counts in memory how many rows refer to each message. The counts are not on disk; they are rebuilt at
//! open, when all rows are read anyway. All numbers are unsigned 64-bit integers in Rust, and have the same bits in
//! SQLite's signed integers on disk.
#![forbid(unsafe_code)]

mod columns;
mod error;
mod follower;
mod group;
mod handle;
mod inbox;
pub mod journal;
mod lease;
mod log;
mod options;
mod restore;
mod rows;
mod schema;
mod share;
mod snapshot;
mod stats;
mod tables;
mod weight;
mod writer;

pub use error::Error;
pub use follower::{FollowError, Follower};
pub use handle::SqliteStorage;
pub use journal::Applied;
pub use lease::Lease;
pub use options::Options;
pub use rows::{FOLLOWED, Rows, SeeChange, SeeRow};
pub use rusqlite::Error as SqliteError;
pub use schema::inspect;
pub use share::{RowChange, ShareError};
pub use stats::{COMMIT_BUCKETS_US, Stats};
pub use writer::is_transient;
