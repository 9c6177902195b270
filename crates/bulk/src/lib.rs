#![doc = include_str!("../README.md")]
//!
//! Read in this order: [`wire`] (messages), `partition` and `rs` (objects become symbols), `sender`, `receiver`,
//! [`stream`], [`encryption`].
#![forbid(unsafe_code)]

pub mod encryption;
mod gf;
mod partition;
mod quantize;
mod receiver;
mod rs;
mod sender;
pub mod stream;
pub mod wire;

pub use partition::{Partition, Unfit};
pub use quantize::{group_size, quantize_group, quantize_rtt, rtt};
pub use receiver::{
    Event as ReceiverEvent, ObjectKey, Progress as ReceiverProgress, Receiver, ReceiverConfig,
    Storage,
};
pub use rs::{Code, MAX_SYMBOLS};
pub use sender::{
    ConfigError, Event as SenderEvent, Kind, ObjectError, Peer, Progress as SenderProgress, Sender,
    SenderConfig, Source,
};

/// Identifies a participant; neither 0 nor 0xFFFF_FFFF (RFC 5740, section 4.1).
pub type NodeId = u32;
