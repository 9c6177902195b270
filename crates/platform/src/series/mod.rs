//! Time series: what was measured, as it is or summed up by steps, with its gaps.

pub(crate) mod export;
pub(crate) mod handlers;
pub(crate) mod step;
