//! Frames of wireless M-Bus meters, as receivers in the field hand them over: decrypted here, where the
//! keys are, and stored as readings.
//!
//! Each frame has its own outcome. A repeated message counts once, however its unprotected bytes were changed: within
//! minutes, it is another receiver's copy or a repeated upload; later, or with an older counter than the meter had
//! at that time, it is a replay. Another copy can prove a message that did not count. The history is in the database. `proof`
//! decides whether a message counts.

pub(crate) mod handlers;
pub(crate) mod intake;
pub(crate) mod proof;
pub(crate) mod types;
