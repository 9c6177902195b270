//! Meters: what a utility has in the field, and what is known of each.
//!
//! Keys go in and never out. `types` says what a meter is, `handlers` what can be asked.

pub(crate) mod handlers;
pub(crate) mod types;

pub(crate) use types::{
    Expected, LastReading, Medium, Meter, Method, NewMeter, Protection, RadioAddress,
};
