#![doc = include_str!("../README.md")]
//!
//! Read in this order: [`mapping`], [`stamp`], [`outbox`], [`drain`], [`refusals`], [`batch`].
#![forbid(unsafe_code)]

pub mod batch;
pub mod drain;
mod error;
pub mod mapping;
pub mod outbox;
pub mod refusals;
pub mod stamp;

pub use error::Error;
