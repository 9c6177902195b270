//! Fuzz target of `fulmar-client`: its session machine with a hostile server.
//!
//! The machine and its dependencies are compiled in as source files: it is not public, and the rest of the crate
//! (QUIC, TLS, an async runtime) would take minutes to build with counters.

#[allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    clippy::doc_markdown,
    reason = "a part of another crate"
)]
#[path = "../../src"]
mod client {
    pub(crate) mod error;
    pub(crate) mod machine;
    pub(crate) mod message;
    pub(crate) mod options;
    pub(crate) mod url;
}
mod server;

/// TLS is not fuzzed here.
#[allow(unreachable_pub, reason = "as it is in the crate itself")]
mod tickets {
    #[derive(Clone, Default)]
    pub struct Tickets(());
}

// The paths under which the sources find each other.
use client::{error, machine, message, options, url};

pub use server::server;
