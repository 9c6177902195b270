#![doc = include_str!("../README.md")]
//!
//! Read in this order: [`mapping`], [`identity`], [`outbox`], [`drain`], [`refusals`], [`batch`].
#![forbid(unsafe_code)]

pub mod batch;
pub mod drain;
mod error;
pub mod identity;
pub mod mapping;
pub mod outbox;
pub mod refusals;

pub use error::Error;
