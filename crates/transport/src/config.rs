//! What a [`crate::Server`] is started with: listeners and the bounds of the transports.
//!
//! Bounds of MQTT itself (packet size, queues, connections) are the broker's
//! [`fulmar_broker::Limits`]; those here are about sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fulmar_broker::{ListenerPolicy, PeerIdentity, TransportKind};
use parking_lot::RwLock;
use rustls::pki_types::CertificateDer;

use crate::origin::Origins;
use crate::proxy_protocol::Proxies;
use crate::quic::QuicSettings;
use crate::tls::ServerTls;

/// Addresses to listen on, and bounds.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Worker threads; at least 1 and the number the broker was made for.
    pub workers: usize,
    /// Time for which a worker that is often woken for a datagram pauses before it waits, so that one wake-up
    /// brings several; zero for no pauses.
    pub coalesce: Duration,
    /// Where to listen.
    pub listeners: Vec<ListenerConfig>,
    /// Where to listen for QUIC.
    pub quic: Vec<QuicListener>,
    /// Pages that may open WebSockets.
    pub origins: Arc<Origins>,
    /// Bounds of the transports.
    pub limits: TransportLimits,
}

/// One UDP address for QUIC clients.
#[derive(Clone, Debug)]
pub struct QuicListener {
    /// Where; port 0 lets the system choose. IPv6 addresses take IPv6 only.
    pub address: SocketAddr,
    /// Requirements of clients' certificates.
    pub policy: Arc<ListenerPolicy>,
    /// Certificate and client verification.
    pub tls: ServerTls,
    /// QUIC's own settings.
    pub settings: QuicSettings,
}

/// One address clients may connect to.
#[derive(Clone, Debug)]
pub struct ListenerConfig {
    /// Where; port 0 lets the system choose. IPv6 addresses take IPv6 only.
    pub address: SocketAddr,
    /// The way in which MQTT is carried there.
    pub carrier: Carrier,
    /// Requirements of clients' certificates.
    pub policy: Arc<ListenerPolicy>,
    /// The proxies through which all clients connect; `None` if they connect directly.
    pub proxies: Option<Arc<Proxies>>,
}

/// The way in which a TCP listener carries MQTT: with TLS or not, in WebSocket frames or not.
#[derive(Clone, Debug)]
pub struct Carrier {
    /// TLS settings; `None` for a plain listener.
    pub tls: Option<TlsSettings>,
    /// Whether MQTT is carried in WebSocket frames.
    pub websocket: bool,
}

impl Carrier {
    /// MQTT right over TCP.
    pub const TCP: Carrier = Carrier { tls: None, websocket: false };
    /// MQTT in WebSocket frames over TCP.
    pub const WS: Carrier = Carrier { tls: None, websocket: true };

    /// Name in `$SYS`, metrics and logs.
    pub fn kind(&self) -> TransportKind {
        match (self.tls.is_some(), self.websocket) {
            (false, false) => TransportKind::Tcp,
            (true, false) => TransportKind::Tls,
            (false, true) => TransportKind::Ws,
            (true, true) => TransportKind::Wss,
        }
    }
}

/// Names a client by the chain of its verified certificate, its own first; `None` if that has no name.
pub type Identify = fn(&[CertificateDer<'_>]) -> Option<PeerIdentity>;

/// TLS of one or several listeners.
#[derive(Clone)]
pub struct TlsSettings {
    /// Certificate, ALPN and client verification; exchanged while listening. Early data must be
    /// off (`max_early_data_size` 0).
    pub config: Arc<SharedTls>,
    /// Reads the user's name from a verified client certificate.
    pub identify: Identify,
}

fulmar_text::opaque_debug!(TlsSettings {});

/// A TLS configuration that can be exchanged; connections begun before keep theirs.
pub struct SharedTls(RwLock<Arc<rustls::ServerConfig>>);

impl SharedTls {
    /// Shares `config`.
    pub fn new(config: Arc<rustls::ServerConfig>) -> SharedTls {
        SharedTls(RwLock::new(config))
    }

    /// The configuration for the next connection.
    pub fn current(&self) -> Arc<rustls::ServerConfig> {
        Arc::clone(&self.0.read())
    }

    /// Uses `config` for connections from now on.
    pub fn replace(&self, config: Arc<rustls::ServerConfig>) {
        *self.0.write() = config;
    }
}

fulmar_text::with_defaults! {
    /// Bounds of the transports.
    #[derive(Clone, Debug)]
    pub struct TransportLimits {
        /// Time a client has for a proxy's header, the TLS handshake and the WebSocket upgrade together.
        pub handshake_timeout: Duration = Duration::from_secs(10),
        /// Time a closed connection is kept so that the peer reads why before a reset can overtake it.
        pub linger: Duration = Duration::from_secs(2),
        /// Bytes of incomplete packets a worker holds over all its connections; the connection that
        /// would exceed it is closed with 0x97 (Quota exceeded).
        pub max_partial_bytes_per_worker: usize = 256 * 1024 * 1024,
        /// Bytes of incomplete packets one QUIC connection may have the server hold, over all its
        /// streams; one that would exceed it is closed with 0x97. Never less than two packets of the
        /// largest size.
        pub max_partial_bytes_per_connection: usize = 4 * 1024 * 1024,
        /// Bytes read from one connection before others have their turn.
        pub max_read_bytes_per_turn: usize = 256 * 1024,
    }
}
