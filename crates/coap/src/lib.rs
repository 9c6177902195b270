#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod block;
mod channel;
mod client;
pub mod dtls;
mod echo;
pub mod links;
mod message;
pub mod psk;
mod response;
mod server;
pub mod topics;

pub use block::MAX_SZX;
pub use channel::Timing;
pub use client::{Call, CallId, Client, ClientEvent, ClientLimits, Failure};
pub use message::{Code, Method, code};
pub use response::Response;
pub use server::{
    Event, Exchange, Limits, ObservationId, Observe, Peer, Rejected, Request, Server, Trust,
};
