//! Frames of wireless M-Bus meters, as receivers in the field hand them over: decrypted here, where the
//! keys are, and stored as readings.
//!
//! Each frame has an outcome of its own. What was heard before counts once: the same frame within
//! minutes is another receiver's copy or the same upload again; later, or behind what the meter had
//! counted already at that time, it is a replay. What is remembered is in the database.

pub(crate) mod handlers;
pub(crate) mod intake;
pub(crate) mod types;
