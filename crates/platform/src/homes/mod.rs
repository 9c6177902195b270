//! Homes: places with sensors, their last measurements and whether an alert is raised.

pub(crate) mod handlers;
pub(crate) mod types;

pub(crate) use types::{Home, NewHome};
