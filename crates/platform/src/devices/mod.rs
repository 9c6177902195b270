//! Devices in the field, commands to them, and their telemetry. The API's paths and schemas call them instances.

pub(crate) mod handlers;
pub(crate) mod types;
