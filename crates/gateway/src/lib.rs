//! What a gateway is made of, without sockets, threads or a clock: which topics cross and under which
//! names ([`mapping`]), by what a message is known for ever ([`stamp`]), how messages wait on disk
//! ([`outbox`]), which goes next ([`drain`]), which wait for an operator ([`refusals`]), and how small ones travel together ([`batch`]).
//!
//! The program's `serve/upstream` puts them between its own broker and the one upstream. Nothing here
//! speaks MQTT beyond its properties, and nothing decides whether a message is worth keeping but the
//! operator's bounds.
#![forbid(unsafe_code)]

pub mod batch;
pub mod drain;
mod error;
pub mod mapping;
pub mod outbox;
pub mod refusals;
pub mod stamp;

pub use error::Error;
