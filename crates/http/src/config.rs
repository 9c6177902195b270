//! The configuration of an endpoint, and its limits.
//!
//! The broker limits MQTT connections; these are the limits of HTTP around them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fulmar_broker::{ListenerPolicy, MemoryGauge};
use fulmar_congestion::Congestion;
use fulmar_transport::proxy_protocol::Proxies;
use fulmar_transport::tls::ServerTls;
use fulmar_transport::{Origins, QuicKeys, ServerId};
use http::HeaderMap;

use crate::bodies::BodyBudget;

/// The protocol by which an ACME server validates a name (RFC 8737 section 4).
pub const ACME_ALPN: &[u8] = b"acme-tls/1";

/// The smallest buffer for an HTTP/1.1 request's headers that hyper accepts, in bytes.
pub const MIN_HEADER_BYTES: u32 = 8 * 1024;

/// One address; TCP and UDP where pages are served, UDP where only WebTransport is.
#[derive(Clone, Debug)]
pub struct Address {
    /// The address; port 0 lets the system choose a port that is free for both TCP and UDP. IPv6 addresses accept
    /// IPv6 only.
    pub address: SocketAddr,
    /// The requirements for MQTT clients that connect through it.
    pub policy: Arc<ListenerPolicy>,
    /// The proxies through which all TCP clients connect; `None` if they connect directly.
    pub proxies: Option<Arc<Proxies>>,
}

/// Addresses, contents and limits of an endpoint.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// Where to listen.
    pub addresses: Vec<Address>,
    /// Certificate, client verification and tickets, shared with the other listeners.
    pub tls: ServerTls,
    /// For TLS handshakes over TCP whose client offers [`ACME_ALPN`] only. They ask for no client certificate, and
    /// nothing is served. With it, answers of `addresses` have Strict-Transport-Security.
    pub challenges: Option<Arc<rustls::ServerConfig>>,
    /// UDP addresses with the certificate below, for pages whose browsers do not trust the CA of the other
    /// certificate. Requests are answered there too.
    pub webtransport: Vec<Address>,
    /// A short-lived certificate that browsers accept by its hash.
    pub webtransport_tls: ServerTls,
    /// QUIC secrets that outlive the process.
    pub keys: QuicKeys,
    /// The node of a cluster that QUIC's connection IDs name.
    pub server_id: Option<ServerId>,
    /// Origins of pages that may open MQTT connections. The endpoint's own are added.
    pub origins: Arc<Origins>,
    /// Whether safe requests may come in a returning client's first packets (0-RTT).
    pub early_data: bool,
    /// Congestion control for HTTP/3.
    pub congestion: Congestion,
    /// Whether the POST to a path changes nothing when it is repeated (RFC 8470 section 4), so that it may be early data.
    pub is_repeatable: fn(&str) -> bool,
    /// Whether HTTP/3 tries datagrams of more than 1200 bytes.
    pub mtu_discovery: bool,
    /// Bounds.
    pub limits: Limits,
    /// The memory for bodies.
    pub bodies: BodyBudget,
    /// Check that decides which requests have more of it; `None` for none.
    pub knows: Option<Knows>,
    /// Measurements of the process' memory.
    pub memory: Arc<MemoryGauge>,
}

/// Decides whether a request's headers have a valid token, and whose.
#[derive(Clone)]
pub struct Knows(Arc<Account>);

/// The account whose valid token these headers have.
type Account = dyn Fn(&HeaderMap) -> Option<Box<str>> + Send + Sync;

impl Knows {
    /// `account` names the account whose valid token the headers have, at once and from memory.
    pub fn new(account: impl Fn(&HeaderMap) -> Option<Box<str>> + Send + Sync + 'static) -> Knows {
        Knows(Arc::new(account))
    }

    pub(crate) fn account(&self, headers: &HeaderMap) -> Option<Box<str>> {
        (self.0)(headers)
    }
}

fulmar_text::opaque_debug!(Knows);

fulmar_text::with_defaults! {
    /// Limits of the endpoint. A client that exceeds one gets an error response or is disconnected, and is counted.
    #[derive(Clone, Debug)]
    pub struct Limits {
        /// Concurrent connections, TCP and QUIC each. Above, idle ones are closed.
        pub max_connections: usize = 10_000,
        /// Time for a TLS or QUIC handshake.
        pub handshake_timeout: Duration = Duration::from_secs(10),
        /// Time from the first to the last byte of a request's headers.
        pub header_timeout: Duration = Duration::from_secs(10),
        /// Size of a request's headers, in bytes; HTTP/1.1 uses at least [`MIN_HEADER_BYTES`].
        pub max_header_bytes: u32 = 16 * 1024,
        /// Size of a request's body, in bytes (413).
        pub max_body_bytes: usize = 8 * 1024 * 1024,
        /// Time from a request's headers to its response's (503).
        pub request_timeout: Duration = Duration::from_secs(30),
        /// Time for which a connection without MQTT may be idle, and for which the next part of a response may wait.
        pub idle_timeout: Duration = Duration::from_secs(60),
        /// Concurrent requests per connection.
        pub max_concurrent_requests: u32 = 64,
        /// Time for one direction of a connection, MQTT's or TCP's, to end after the other.
        pub linger: Duration = Duration::from_secs(2),
    }
}

impl Limits {
    /// The buffer for an HTTP/1.1 request's headers, in bytes.
    pub(crate) fn http1_buffer_bytes(&self) -> usize {
        self.max_header_bytes.max(MIN_HEADER_BYTES) as usize
    }
}
