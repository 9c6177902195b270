//! Listeners and connections: sockets in, the broker core's calls out.
//!
//! [`Server`] runs one worker per core. A worker is one event loop that owns its listeners (SO_REUSEPORT), its
//! connections and its [`fulmar_broker::Shard`]; connections never move, and workers share nothing but the broker.
//! Each worker has a thread, but under little load one thread runs them all. There is no async runtime: a turn of the
//! loop reads everything first and writes everything last, which makes bursts cheap.
//!
//! Read in this order: `server` (threads), `scheduler` (which thread runs which worker), `run` (their loops),
//! `coalesce` (when they pause), `listen` (binding), `worker` (a turn of the loop),
//! `connection` (over TCP, TLS or WebSocket), `layers` (a proxy's header in `proxy_protocol`, TLS in `secure`,
//! WebSocket in `ws`),
//! `incomplete_packet` (received bytes of a packet that is not complete), `handoff` (connections accepted
//! elsewhere). Beside them are `quic`, which has its own kind of connection, and `tls` with `tickets`:
//! certificates, and how early data stays single-use.
#![warn(missing_docs)]

mod clock;
mod coalesce;
mod config;
mod connection;
mod error;
mod handoff;
mod incomplete_bytes;
mod incomplete_packet;
mod layers;
mod listen;
mod origin;
pub mod proxy_protocol;
mod quic;
mod run;
mod scheduler;
mod secure;
mod server;
mod socket;
pub mod tickets;
mod timer;
pub mod tls;
mod unread;
mod worker;
pub mod ws;

pub use clock::Clock;
pub use config::{
    Carrier, Identify, ListenerConfig, QuicListener, ServerConfig, SharedTls, TlsSettings,
    TransportLimits,
};
pub use error::StartError;
pub use handoff::{AllowedSilence, Framing, Handoff};
pub use listen::{listening_socket, receive_buffer};
pub use origin::{Origins, authority, is_loopback};
pub use quic::{
    ExtendedTls, HandshakeData, HandshakePressure, Losses, NoServerId, QuicKeys, QuicSettings,
    RetryPolicy, ServerId, Silence, SilenceAction, has_suspicious_pieces,
};
pub use server::Server;
