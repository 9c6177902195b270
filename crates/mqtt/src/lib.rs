//! MQTT 3.1.1 and 5.0 without I/O: packets, topic names and filters, the delivery state of a
//! session, and the stream headers of MQTT over QUIC.
//!
//! Nothing here reads a socket or a clock. Decoding borrows from the input and checks sizes before
//! anything is allocated; encoding appends to the caller's buffer. Read in this order: [`codec`]
//! (bytes to [`Packet`] and back), [`packet`], [`topic`], [`session`], [`flow`].
//!
//! Section numbers are those of the OASIS MQTT 5.0 specification; where 3.1.1 differs it says so.
#![forbid(unsafe_code)]

pub mod ack;
pub mod codec;
mod error;
pub mod flow;
pub mod packet;
pub mod properties;
pub mod publish;
pub mod reason;
pub mod session;
pub mod topic;
mod types;
mod wire;

pub use error::DecodeError;
pub use packet::Packet;
pub use properties::{Properties, Property, PropertyBuf};
pub use reason::ReasonCode;
pub use types::{PacketId, QoS, Version};
