//! Sensors: the units in homes that measure, as a register.
//!
//! A unit nobody has registered registers itself with its first measurement, without a home.

pub(crate) mod handlers;
pub(crate) mod types;

pub(crate) use types::{NewSensor, Sensor};
