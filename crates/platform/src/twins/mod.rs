//! Twins: an installation each, a utility's meters or homes with sensors, made by the server's admin.

pub(crate) mod handlers;
pub(crate) mod types;
