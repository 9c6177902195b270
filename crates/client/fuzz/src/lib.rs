//! Fuzz target of `fulmar-client`: its session machine, at the hands of a hostile server.
//!
//! The machine and what it needs are compiled in as source files: it is no part of the crate's
//! interface, and the rest of it (QUIC, TLS, an async runtime) would take minutes to build with
//! counters.

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

/// TLS has no part in what is fuzzed.
#[allow(unreachable_pub, reason = "as it is in the crate itself")]
mod tickets {
    #[derive(Clone, Default)]
    pub struct Tickets(());
}

// Where the sources look for each other.
use client::{error, machine, message, options, url};

pub use server::server;
