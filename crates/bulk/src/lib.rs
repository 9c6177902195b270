//! Bulk objects over bad links, without I/O: NORM (RFC 5740), which repairs losses by negative
//! acknowledgements and Reed-Solomon parity (RFC 5510, FEC encoding 5) instead of stopping.
//!
//! A [`Sender`] has objects to send, a [`Receiver`] puts them into a [`Storage`]. Both take
//! datagrams and a time and give datagrams, events and the time at which they want to be asked
//! again. Nothing here reads a socket, a file or a clock. A [`guard`] at each end keeps strangers out; without
//! it, whoever can send to the receivers' port can forge. A [`stream`] has no end and gives bytes as they come. Not
//! implemented: NORM's own congestion control; the rate is given, or found out in another way.
//!
//! Read in this order: [`wire`] (messages), `partition` and `rs` (objects become symbols), `sender`,
//! `receiver`, [`stream`], [`guard`].
#![forbid(unsafe_code)]

mod gf;
pub mod guard;
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
