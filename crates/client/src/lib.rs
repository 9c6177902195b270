//! MQTT 3.1.1 and 5.0 client over QUIC, TCP, TLS and WebSocket.
//!
//! [`Client::connect`] starts a task that keeps one session alive: it dials, replays what is not
//! acknowledged, subscribes again, and tells what happens through [`Events`]. [`Client`] is a handle
//! that can be cloned. The protocol itself is in `machine`, which does no I/O and reads no clock;
//! `driver` moves bytes between it and what `dial` brings.
//!
//! Not here: topic aliases towards the server, and a session that outlives the process: what is not
//! acknowledged when it ends is the application's to remember.
//!
//! ```no_run
//! # async fn example() -> Result<(), fulmar_client::Error> {
//! use fulmar_client::{Client, Message, Options};
//!
//! let (client, _events) = Client::connect(Options::new("quic://localhost")?)?;
//! client.publish(Message::new("plant/temperature", "21.5").qos1()).await?.await?;
//! client.disconnect().await;
//! # Ok(()) }
//! ```
#![forbid(unsafe_code)]

mod api;
mod dial;
mod driver;
mod error;
mod machine;
mod message;
mod network;
mod options;
mod pending;
mod quic;
mod socket;
mod streams;
mod tickets;
mod tls;
mod url;
mod websocket;

pub use api::{Client, Delivery, Event, Events, PathStats};
pub use error::Error;
pub use fulmar_congestion::Congestion;
pub use fulmar_mqtt::packet::{RetainHandling, SubscribeOptions};
pub use fulmar_mqtt::{Property, PropertyBuf, QoS, ReasonCode, Version};
pub use message::{Message, Receipt};
pub use options::{Backoff, Fallback, Options, Streams, TlsVersion, Trust, Will};
pub use url::{BrokerUrl, Transport};
