#![doc = include_str!("../README.md")]
//!
//! Read in this order: [`mapping`], [`identity`], [`outbox`], [`uplink_scheduler`], [`refusals`], [`batch`], [`forward`].
#![forbid(unsafe_code)]

pub mod batch;
mod error;
pub mod forward;
pub mod identity;
pub mod mapping;
pub mod outbox;
pub mod refusals;
pub mod uplink_scheduler;

pub use error::Error;
