//! Time series: measurements, singly or summed up by steps, with gaps.

pub(crate) mod export;
pub(crate) mod handlers;
pub(crate) mod step;
