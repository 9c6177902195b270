//! The endpoint over HTTP/3 with h3's own client: responses, limits, MQTT over WebTransport, certificates that
//! change, draining. HTTP/1.1 and HTTP/2 share the code after their handshakes, so only differences are tested here;
//! third-party clients are in tests/interop and tests/browser.
#![allow(clippy::unwrap_used)]

mod budgets;
mod connections;
mod requests;
mod site;
mod webtransport;
