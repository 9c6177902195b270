#![doc = include_str!("../README.md")]
//!
//! `machine` is the protocol; `driver` moves bytes between it and connections, which `dial` makes to the one of several
//! `addresses`. `copying` has endpoints for other protocols over QUIC.
#![forbid(unsafe_code)]

mod addresses;
mod api;
mod copying;
mod dial;
mod driver;
mod error;
mod event_queue;
mod inbox;
mod machine;
mod message;
mod network;
mod options;
mod pending;
mod quic;
mod search;
mod socket;
mod streams;
mod tickets;
mod tls;
mod url;
mod websocket;

pub use api::{Client, Delivery, Event, Events, PathStats};
pub use copying::CopyingEndpoint;
pub use error::{Error, in_words};
pub use fulmar_congestion::Congestion;
pub use fulmar_mqtt::packet::{RetainHandling, SubscribeOptions};
pub use fulmar_mqtt::{Property, PropertyBuf, QoS, ReasonCode, Version};
pub use message::{Message, Receipt};
pub use options::{Backoff, Fallback, Options, Streams, TlsVersion, Trust, Will};
pub use url::{BrokerUrl, Transport};

/// For the simulator only, and not stable: a session without a connection.
#[doc(hidden)]
pub mod simulation {
    pub use crate::machine::{CONTROL, Machine, Outcome};
}
