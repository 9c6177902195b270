//! Sensors: the units in homes that measure, as a register.
//!
//! A sensor that is not registered is registered with its first measurement, without a home.

pub(crate) mod handlers;
pub(crate) mod types;

pub(crate) use types::{NewSensor, Sensor};
