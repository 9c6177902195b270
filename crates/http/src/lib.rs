//! One address for HTTP/1.1 and HTTP/2 over TLS and HTTP/3 over QUIC, all answered by one axum
//! `Router`; and MQTT over WebSocket and WebTransport at `/mqtt`, which goes to the broker's workers.
//!
//! This crate has no pages and no MQTT: the router answers requests, and MQTT's bytes go to `fulmar-transport`
//! through its handoff. One thread with one runtime serves all addresses.
//!
//! Read in this order: `endpoint` (binding, running, draining); `tcp` with `handshake`, and `h3`, which accept
//! connections; `connection_slots` (which connections close at the limit) and `request_smuggling` with `request_scanner`
//! (well-formed HTTP/1.1);
//! `request_handler`, `host_header` and `limited_router` with `bodies` (memory for bodies), through which every request
//! passes; `rest` (unread request bodies); `unread_response`, and `answer_space` (memory for those); `while_allowed` (whose
//! caller's rights end);
//! `transport::Origins` (whose pages may connect); `websocket` and `h3::session` (MQTT), `pump` (its bytes). `plain` is a
//! port without TLS. `compression` is a middleware for routers whose answers may be compressed. `password_login` checks passwords, for handlers that have users.
//! `problem` has the error responses of APIs, `signature` signs webhooks.
//!
//! Specifications: RFC 9110, 9112, 9113, 9114, 7838 (Alt-Svc), 8470 (early data), 8441 and 9220 (extended
//! CONNECT), draft-ietf-webtrans-http3-02, which is what browsers speak.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod answer_space;
mod bind;
mod bodies;
mod compression;
mod config;
mod connection_slots;
mod endpoint;
mod h3;
mod handshake;
mod host_header;
mod idle;
mod limited_router;
mod metrics;
pub mod objects;
#[cfg(feature = "schema")]
pub mod openapi;
pub mod password_login;
mod plain;
mod problem;
mod proxy_header;
mod pump;
pub mod rate;
mod request_handler;
mod request_scanner;
mod request_smuggling;
mod rest;
mod signature;
mod stop_signal;
mod tcp;
mod unread_response;
mod websocket;
mod while_allowed;

pub use answer_space::{AnswerRoom, AnswerSpace, AnswerTotals, NoRoom, PART_BYTES};
pub use bodies::BodyBudget;
pub use compression::{CodingError, accepts, compress, decompress};
pub use config::{ACME_ALPN, Address, EndpointConfig, Knows, Limits, MIN_HEADER_BYTES};
pub use endpoint::{Bound, Endpoint, StartError};
pub use metrics::Metrics;
pub use plain::Plain;
pub use problem::Problem;
pub use signature::sign_webhook;
pub use while_allowed::{NoLongerAllowed, while_allowed};
