//! Fuzz target of `fulmar-http`: the requests of a connection of HTTP/1.1, as far as it reads them itself. The grammar is
//! httparse's and hyper's to fuzz, HTTP/2 and HTTP/3 are h2's and h3's.
//!
//! The scanner is compiled in as a source file: it is no part of the crate's interface, and the rest of it (QUIC, TLS, an
//! async runtime) would take minutes to build with counters.

mod request_reader;
#[allow(dead_code, unreachable_pub, reason = "a part of another crate")]
#[path = "../../src/request_scanner.rs"]
mod request_scanner;
mod requests;

pub use requests::requests;
