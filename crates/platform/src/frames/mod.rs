//! Frames of wireless M-Bus meters, as receivers in the field hand them over: decrypted here, where the
//! keys are, and stored as readings.
//!
//! Each frame has its own outcome. A repeated frame counts once: within minutes, it is another receiver's copy or a
//! repeated upload; later, or with an older counter than the meter had at that time, it is a replay. The history is
//! in the database.

pub(crate) mod handlers;
pub(crate) mod intake;
pub(crate) mod types;
