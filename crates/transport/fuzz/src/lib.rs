//! Fuzz targets of `fulmar-transport`: its own parsers, which are those of WebSocket and of proxies' headers. QUIC,
//! TLS and the HTTP grammar are quinn's, rustls's and httparse's to fuzz.
//!
//! The parsers are compiled in as source files: they are no part of the crate's interface, and the rest
//! of it (SQLite, QUIC) would take minutes to build with counters.

mod frames;
#[allow(dead_code, unreachable_pub, reason = "a part of another crate")]
#[path = "../../src/proxy_protocol/header.rs"]
mod header;
mod proxy_header;
mod upgrade;
#[allow(dead_code, unused_imports, unreachable_pub, reason = "a part of another crate")]
#[path = "../../src/ws/mod.rs"]
mod ws;

pub use frames::frames;
pub use proxy_header::proxy_header;
pub use upgrade::upgrade;
