//! QUIC: an endpoint for each address family, the control stream, 0-RTT, rebinding.
//!
//! Conventions of today's MQTT-over-QUIC servers: ALPN `mqtt`, the first bidirectional stream is
//! the control stream.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, Endpoint, IdleTimeout, TransportConfig, VarInt};

use crate::dial::Link;
use crate::error::Error;

/// Bytes that may be sent and not acknowledged. More does not help on the links this is for and
/// makes what comes later wait.
const SEND_WINDOW_BYTES: u64 = 256 * 1024;

/// Bytes the server may send before they are read.
const RECEIVE_WINDOW_BYTES: u32 = 1 << 20;

/// Silence after which a connection is lost, in milliseconds.
const IDLE_TIMEOUT_MS: u32 = 30_000;

/// Keeps NAT bindings open, which live 30 s and more.
const KEEP_ALIVE: Duration = Duration::from_secs(12);

/// Dials and remembers the endpoint and, in its TLS configuration, the tickets.
pub(crate) struct QuicDialer {
    config: ClientConfig,
    /// One for IPv4 and one for IPv6 once they are needed, since both may be tried at a time; a lock
    /// because they are rebound from elsewhere.
    endpoints: Mutex<[Option<Endpoint>; 2]>,
}

/// What is special about a link over QUIC.
pub(crate) struct QuicLink {
    pub(crate) connection: Connection,
    endpoint: Endpoint,
    /// Tells whether the server took the early data, when the link was made with such.
    pub(crate) early: Option<quinn::ZeroRttAccepted>,
}

impl QuicDialer {
    pub(crate) fn new(mut tls: rustls::ClientConfig) -> Result<QuicDialer, Error> {
        tls.alpn_protocols = vec![b"mqtt".to_vec()];
        tls.enable_early_data = true;
        let crypto = QuicClientConfig::try_from(tls)
            .map_err(|error| Error::Options(format!("TLS for QUIC: {error}")))?;
        let mut transport = TransportConfig::default();
        transport
            .send_window(SEND_WINDOW_BYTES)
            .stream_receive_window(VarInt::from_u32(RECEIVE_WINDOW_BYTES))
            .receive_window(VarInt::from_u32(RECEIVE_WINDOW_BYTES))
            .max_concurrent_bidi_streams(VarInt::from_u32(0))
            .max_concurrent_uni_streams(VarInt::from_u32(0))
            .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(IDLE_TIMEOUT_MS))))
            .keep_alive_interval(Some(KEEP_ALIVE));
        let mut config = ClientConfig::new(Arc::new(crypto));
        config.transport_config(Arc::new(transport));
        Ok(QuicDialer { config, endpoints: Mutex::new([None, None]) })
    }

    /// The endpoint of the address's family.
    fn endpoint(&self, address: SocketAddr) -> std::io::Result<Endpoint> {
        let ipv6 = address.is_ipv6();
        let mut endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &mut endpoints[usize::from(ipv6)];
        if let Some(endpoint) = slot {
            return Ok(endpoint.clone());
        }
        Ok(slot.insert(Endpoint::client(any(ipv6))?).clone())
    }

    /// Connects and opens the control stream, in the first flight if there is a ticket.
    pub(crate) async fn dial(&self, address: SocketAddr, host: &str) -> Result<Link, String> {
        let text = |error: &dyn std::error::Error| error.to_string();
        let endpoint = self.endpoint(address).map_err(|error| text(&error))?;
        let connecting = endpoint
            .connect_with(self.config.clone(), address, host)
            .map_err(|error| text(&error))?;
        let (connection, early) = match connecting.into_0rtt() {
            Ok((connection, accepted)) => (connection, Some(accepted)),
            Err(connecting) => (connecting.await.map_err(|error| text(&error))?, None),
        };
        QuicLink { connection, endpoint, early }.open().await
    }

    /// Moves to new sockets; connections follow by migration.
    pub(crate) fn rebind(&self) -> std::io::Result<()> {
        let endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        for endpoint in endpoints.iter().flatten() {
            endpoint.rebind(UdpSocket::bind(any(endpoint.local_addr()?.is_ipv6()))?)?;
        }
        Ok(())
    }
}

impl QuicLink {
    /// Opens the control stream.
    pub(crate) async fn open(self) -> Result<Link, String> {
        let (send, receive) = self.connection.open_bi().await.map_err(|error| error.to_string())?;
        Ok(Link::quic(receive, send, self))
    }

    /// Ends the connection and waits until the server has been told.
    pub(crate) async fn close(&self) {
        self.connection.close(VarInt::from_u32(0), b"");
        self.endpoint.wait_idle().await;
    }
}

fn any(ipv6: bool) -> SocketAddr {
    match ipv6 {
        true => (Ipv6Addr::UNSPECIFIED, 0).into(),
        false => (Ipv4Addr::UNSPECIFIED, 0).into(),
    }
}
