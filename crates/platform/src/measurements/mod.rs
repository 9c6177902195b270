//! Measurements: what sensors in homes send, as often as it takes, stored once.
//!
//! `types` says what one is, `units` in which units, `message` how it arrives over MQTT, `intake` what
//! becomes of it, `handlers` how it arrives over HTTP.

pub(crate) mod handlers;
pub(crate) mod intake;
pub(crate) mod message;
pub(crate) mod types;
pub(crate) mod units;

pub(crate) use types::{NewMeasurement, Quantity};
