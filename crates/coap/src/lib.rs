//! CoAP (RFC 7252) with observe (RFC 7641), block-wise transfer (RFC 7959), discovery (RFC 6690) and the
//! Echo option (RFC 9175): a [`Server`] for many peers, a [`Client`] for one, DTLS for both ([`dtls`]), and
//! how resources are topics ([`topics`]).
//!
//! No sockets and no clock: who drives them brings datagrams and the time, and takes datagrams, events and
//! the next deadline. Messages are read and written by the crate coap-lite; what is here is what a message
//! means and what has to be remembered for it, all of it bounded ([`Limits`]).
//!
//! Not here: proxies, multicast, OSCORE, CoAP over TCP.
#![forbid(unsafe_code)]

mod block;
mod channel;
mod client;
pub mod dtls;
mod echo;
pub mod links;
mod message;
mod response;
mod server;
pub mod topics;

pub use block::MAX_SZX;
pub use channel::Timing;
pub use client::{Call, CallId, Client, ClientEvent, ClientLimits, Failure};
pub use message::{Code, Method, code};
pub use response::Response;
pub use server::{Event, Exchange, Limits, ObservationId, Observe, Peer, Request, Server, Trust};
