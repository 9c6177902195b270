//! Instances: devices in the field, commands to them and what they tell of themselves.

pub(crate) mod handlers;
pub(crate) mod types;
