//! What an endpoint is started with, and its bounds.
//!
//! Bounds of MQTT connections are the broker's; here are those of HTTP around them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fulmar_broker::ListenerPolicy;
use fulmar_congestion::Congestion;
use fulmar_transport::Origins;
use fulmar_transport::QuicKeys;
use fulmar_transport::tls::ServerTls;
use http::HeaderMap;

use crate::bodies::BodyBudget;

/// The protocol by which an ACME server validates a name (RFC 8737 section 4).
pub const ACME_ALPN: &[u8] = b"acme-tls/1";

/// One address; TCP and UDP where pages are served, UDP where only WebTransport is.
#[derive(Clone, Debug)]
pub struct Address {
    /// Where; port 0 lets the system choose one that is free for both. IPv6 addresses take IPv6 only.
    pub address: SocketAddr,
    /// What is demanded of MQTT clients that come through it.
    pub policy: Arc<ListenerPolicy>,
}

/// What to serve and within which bounds.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// Where to listen.
    pub addresses: Vec<Address>,
    /// Certificate, client verification and tickets, shared with the other listeners.
    pub tls: ServerTls,
    /// For handshakes over TCP whose client offers [`ACME_ALPN`] and nothing else. Clients' certificates are
    /// not asked for then, and nothing is served.
    pub challenges: Option<Arc<rustls::ServerConfig>>,
    /// Where to listen, over UDP, with the certificate below: for pages whose browsers do not know the other
    /// certificate's authority. Requests are answered there too.
    pub webtransport: Vec<Address>,
    /// A short-lived certificate that browsers take by its hash.
    pub webtransport_tls: ServerTls,
    /// Secrets of QUIC that outlive the process.
    pub keys: QuicKeys,
    /// Pages that may open MQTT connections. The endpoint's own are added.
    pub origins: Arc<Origins>,
    /// Whether safe requests may come in a returning client's first packets (0-RTT).
    pub early_data: bool,
    /// Congestion control of what HTTP/3 sends.
    pub congestion: Congestion,
    /// Whether HTTP/3 tries datagrams of more than 1200 bytes.
    pub mtu_discovery: bool,
    /// Bounds.
    pub limits: Limits,
    /// How many bytes of bodies may be in memory.
    pub bodies: BodyBudget,
    /// Which requests have more of that; `None` for none.
    pub knows: Option<Knows>,
}

/// Tells whether a request's headers show a good token.
#[derive(Clone)]
pub struct Knows(Arc<dyn Fn(&HeaderMap) -> bool + Send + Sync>);

impl Knows {
    /// What tells it, at once and from memory.
    pub fn new(token: impl Fn(&HeaderMap) -> bool + Send + Sync + 'static) -> Knows {
        Knows(Arc::new(token))
    }

    pub(crate) fn token(&self, headers: &HeaderMap) -> bool {
        (self.0)(headers)
    }
}

impl std::fmt::Debug for Knows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Knows")
    }
}

/// Bounds of the endpoint. Whoever meets one gets an answer or is disconnected, and is counted.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at a time, TCP and QUIC each. Above, those that ask for nothing make room.
    pub max_connections: usize,
    /// Time for a TLS or QUIC handshake.
    pub handshake_timeout: Duration,
    /// Time from the first byte of a request's headers to the last.
    pub header_timeout: Duration,
    /// Size of a request's headers, in bytes.
    pub max_header_bytes: u32,
    /// Size of a request's body, in bytes (413).
    pub max_body_bytes: usize,
    /// Time from a request's headers to its answer's (503).
    pub request_timeout: Duration,
    /// Time a connection without MQTT may carry nothing, and an answer's next part may wait.
    pub idle_timeout: Duration,
    /// Requests a connection may have open at once.
    pub max_concurrent_requests: u32,
    /// Time the other direction of a connection, MQTT's or TCP's, has to end when one has.
    pub linger: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_connections: 10_000,
            handshake_timeout: Duration::from_secs(10),
            header_timeout: Duration::from_secs(10),
            max_header_bytes: 16 * 1024,
            max_body_bytes: 8 * 1024 * 1024,
            request_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(60),
            max_concurrent_requests: 64,
            linger: Duration::from_secs(2),
        }
    }
}
