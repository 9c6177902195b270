//! Readings: taken by hand, by photo or by radio; sent as often as it takes, stored once.
//!
//! `types` says what a reading is, `intake` what becomes of one that is sent, `handlers` what can be
//! asked, `corrections` what becomes of one afterwards.

pub(crate) mod corrections;
pub(crate) mod handlers;
pub(crate) mod intake;
pub(crate) mod types;

pub(crate) use types::{NewReading, Reading, ReadingResult, Status};
