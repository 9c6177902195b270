//! Fuzz targets of `fulmar-transport`: its own parsers, which are those of WebSocket, of proxies' headers, and of what
//! distinguishes workers, nodes and strangers in the headers of QUIC. The rest of QUIC, TLS and the HTTP grammar are
//! quinn's, rustls's and httparse's to fuzz.
//!
//! The parsers are compiled in as source files: they are no part of the crate's interface, and the rest
//! of it (SQLite, QUIC) would take minutes to build with counters.

mod datagram;
mod frames;
#[allow(dead_code, unreachable_pub, reason = "a part of another crate")]
#[path = "../../src/proxy_protocol/header.rs"]
mod header;
#[allow(unreachable_pub, reason = "a part of another crate")]
#[path = "../../src/quic/peek.rs"]
mod peek;
mod proxy_header;
#[allow(dead_code, unreachable_pub, reason = "a part of another crate")]
#[path = "../../src/quic/server_id.rs"]
mod server_id;
#[allow(dead_code, unreachable_pub, reason = "a part of another crate")]
#[path = "../../src/quic/steering.rs"]
mod steering;
mod upgrade;
#[allow(dead_code, unused_imports, unreachable_pub, reason = "a part of another crate")]
#[path = "../../src/ws/mod.rs"]
mod ws;

pub use datagram::datagram;
pub use frames::frames;
pub use proxy_header::proxy_header;
pub use upgrade::upgrade;
