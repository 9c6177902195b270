//! Homes: places with sensors, what was measured there last and whether an alert is raised.

pub(crate) mod handlers;
pub(crate) mod types;

pub(crate) use types::{Home, NewHome};
