//! Rules for several nodes of which one serves, as state machines without I/O and clock: which node tries to serve, how
//! long it may acknowledge, and which part of the log is still needed.
//!
//! What decides who writes is elsewhere: the log accepts a record only at its end (`fulmar_store::journal`). A lease
//! alone could not: a process can be paused between looking at its lease and writing. The lease has two purposes. It
//! keeps the nodes from contending, and it covers what needs no record, such as a publication without a subscriber.
//!
//! ```text
//! serves      stands by
//!   │            │
//!   ├─ renews each second ──▶ control record ◀── watches ──┤
//!   │  3 s after it SENT the last renewal that succeeded:  │  4 s after it SAW the last change:
//!   │  acknowledges nothing                                │  takes the lease by compare-and-swap,
//!   ▼                                                      ▼  then claims the log
//! ```
//!
//! With clocks whose rates differ by at most a tenth, the first ends before the second: 3 s / 0.9 < 4 s / 1.1.
//!
//! # To take over
//!
//! 1. [`Watch::observe`] says that the lease is free. The node swaps the control record, and has a [`Holder`].
//! 2. It reads the log to its end, and appends its claim there. The claim behind a position is always the same record, so
//!    whatever the answer is, it reads on: if its own claim comes, it is the writer; if another record comes, it claims
//!    again behind that; if none comes, it appends the same record again.
//! 3. It serves. Every record behind its claim is its own, as the log accepts no other.
//!
//! To hand over, it stops acknowledging, appends a release, and marks the control record as released: another node need
//! not wait.
#![forbid(unsafe_code)]

mod lease;
mod retention;

pub use lease::{EXPIRY, Holder, LEASE, RENEW, UNANSWERED, Watch};
pub use retention::{KEPT_SNAPSHOTS, purge_up_to};
