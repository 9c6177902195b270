//! What the office asks: use over time, how far the work is, what was missed, what may leak, and tables
//! of readings to take away.
//!
//! `consumption` and `leaks` judge readings and know neither database nor clock; `handlers` asks the
//! database for them; `export` writes tables.

pub(crate) mod consumption;
pub(crate) mod export;
pub(crate) mod handlers;
pub(crate) mod leaks;

use crate::time::Time;

/// What a register showed at a moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) at: Time,
    pub(crate) value: f64,
}
