//! Readings of sensors: their type, their text format ([`mod@line`]), sensors with Linux drivers ([`iio`]), and a
//! simulator of homes ([`homes`]).
//!
//! Not here: MQTT, clocks, and processing of readings. Time is passed in; only [`iio`] reads files.
#![forbid(unsafe_code)]

mod dice;
pub mod homes;
pub mod iio;
pub mod line;
mod reading;

pub use reading::{
    MAX_DEVICE_LETTERS, MAX_QUANTITY_LETTERS, Reading, instant, is_device, is_quantity, unit,
};
