//! A QUIC and MQTT 5 client for microcontrollers.
//!
//! [`Client`] is the type that matters: it takes datagrams and the time and gives datagrams, [`Event`]s and
//! the next deadline. Inside are QUIC v1 (RFC 9000, 9001, 9002) and TLS 1.3 (RFC 8446) with X25519,
//! AES-128-GCM and SHA-256, resumption and 0-RTT, and the part of MQTT 5.0 a sensor needs.
//!
//! There is no operating system, allocation, socket, clock, random number generator or flash driver in
//! here: the caller owns those. What arrives from the network is hostile until proven otherwise; every
//! buffer is bounded by a constant in [`limits`].
//!
//! ```
//! use fulmar_tiny::{Client, Instant, KeyPair, Options, QoS, Session, Trust};
//!
//! // On a board this is a static: it is zero all over and so takes no flash, and nothing of it is ever
//! // copied over the stack.
//! let mut client = Client::new();
//! let server_key = [7; 32]; // what the server proves to hold
//! let entropy = [42; 32]; // from the board's random number generator
//! let key = KeyPair::new(&[43; 32]); // so is this, and may be made while there is nothing else to do
//! let options = Options {
//!     server_name: "broker.example",
//!     trust: Trust::Ed25519(&server_key),
//!     resume: None,
//!     session: Session { client_id: "sensor-1", keep_alive_s: 60, ..Session::default() },
//! };
//! let now = Instant::from_millis(0);
//! client.connect(&options, &key, &entropy, now).expect("the options fit");
//! client.publish("home/radon", b"37", QoS::AtLeastOnce).expect("there is room");
//! let mut datagram = [0; 1200];
//! while let Some(length) = client.poll_transmit(&mut datagram, now) {
//!     // Send datagram[..length] to the server, then wait until a datagram comes for
//!     // client.receive() or client.deadline() is due for client.on_deadline().
//!     assert_eq!(length, 1200, "a first datagram is padded");
//! }
//! ```
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

#[cfg(not(any(feature = "ed25519", feature = "p256")))]
compile_error!("without the feature ed25519, p256 or x509 no server can be trusted");

mod bytes;
mod client;
mod crypto;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod limits;
mod mqtt;
mod options;
mod quic;
mod time;
mod tls;

pub use client::{Client, Event, Message};
pub use error::{CloseReason, Error};
pub use options::{KeyPair, Options, QoS, Resume, Session, Trust};
pub use time::Instant;
