#![doc = include_str!("../README.md")]
//!
//! Read in this order: [`codec`] (bytes to [`Packet`] and back), [`packet`], [`topic`], [`session`], [`flow`]. Where
//! 3.1.1 differs from 5.0, the sources say so.
#![forbid(unsafe_code)]

pub mod ack;
pub mod codec;
mod error;
pub mod flow;
mod frame;
pub mod packet;
pub mod properties;
pub mod publish;
pub mod reason;
mod search;
pub mod session;
pub mod topic;
mod types;
mod wire;

pub use error::DecodeError;
pub use packet::Packet;
pub use properties::{Properties, Property, PropertyBuf};
pub use reason::ReasonCode;
pub use types::{PacketId, QoS, Version};
