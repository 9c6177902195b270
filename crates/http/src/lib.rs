//! One address for HTTP/1.1 and HTTP/2 over TLS and HTTP/3 over QUIC, all answered by one axum
//! `Router`; and MQTT over WebSocket and WebTransport at `/mqtt`, which goes to the broker's workers.
//!
//! No handlers of its own and no MQTT: what is asked for is the router's affair, and MQTT's bytes are
//! handed to `fulmar-transport` through its handoff. One thread with one runtime serves all addresses.
//!
//! Read in this order: `endpoint` (binding, running, draining), `tcp` with `handshake` and `h3` (the two ways in),
//! `connection_slots` (which connections stay at the limit) and `strict` (what HTTP/1.1 must look like), `answer`
//! (what every request goes through), `host_header`, `limited_router` (limits and the router) with `bodies` (memory for bodies)
//! and `rest` (what is left of a body),
//! `transport::Origins` (whose pages may connect), `websocket` and `h3::session` (MQTT), `pump` (its bytes).
//! `plain` is a port without TLS.
//! Specifications: RFC 9110, 9112, 9113, 9114, 7838 (Alt-Svc), 8470 (early data), 8441 and 9220 (extended
//! CONNECT), draft-ietf-webtrans-http3-02, which is what browsers speak.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod answer;
mod bind;
mod bodies;
mod config;
mod connection_slots;
mod endpoint;
mod h3;
mod handshake;
mod host_header;
mod idle;
mod limited_router;
mod metrics;
mod network;
pub mod objects;
mod plain;
mod pump;
mod rest;
mod stop_signal;
mod strict;
mod tcp;
mod websocket;

use network::network;

pub use bodies::BodyBudget;
pub use config::{ACME_ALPN, Address, EndpointConfig, Knows, Limits};
pub use endpoint::{Bound, Endpoint, StartError};
pub use metrics::{Counts, Metrics};
pub use plain::Plain;
