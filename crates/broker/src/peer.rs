//! What a transport reports about a connection, and the types that transport and broker share.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use fulmar_auth::{PeerIdentity, User};

/// Identifies a connection within its worker. The transport chooses it, and does not reuse it while an event for the
/// earlier connection could still arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// Names a stream within its connection: the QUIC stream identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamKey(pub u64);

impl StreamKey {
    /// The control stream; the only one of TCP, TLS and WebSocket connections.
    pub const CONTROL: StreamKey = StreamKey(0);

    /// Whether the server cannot send on it: a client's unidirectional stream (RFC 9000 section 2.1). Packets received
    /// on it belong to the control flow and are answered on the control stream.
    #[must_use]
    pub fn is_unidirectional(self) -> bool {
        self.0 & 2 != 0
    }
}

/// The transport of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransportKind {
    /// Plain TCP.
    Tcp,
    /// TLS over TCP.
    Tls,
    /// WebSocket over TCP.
    Ws,
    /// WebSocket over TLS.
    Wss,
    /// QUIC.
    Quic,
    /// WebTransport over HTTP/3.
    WebTransport,
    /// CoAP over UDP: one connection for all peers without credentials.
    Coap,
    /// CoAP over DTLS: one connection per user.
    Coaps,
    /// MQTT-SN over UDP.
    MqttSn,
}

/// How the bytes of a connection come to its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// From the worker's own socket.
    Socket,
    /// From HTTP: another thread copies them, with buffers of its own.
    Tunnel,
}

impl Via {
    /// What it takes beside the connection, in bytes: two buffers of 4 KiB (`pump` of `fulmar-http`), a task, a pair of
    /// sockets and the stream of HTTP/2 or HTTP/3.
    fn memory_bytes(self) -> usize {
        match self {
            Via::Socket => 0,
            Via::Tunnel => 9 << 10,
        }
    }
}

fulmar_text::names!(
    TransportKind:
    Tcp = "tcp",
    Tls = "tls",
    Ws = "ws",
    Wss = "wss",
    Quic = "quic",
    WebTransport = "webtransport",
    Coap = "coap",
    Coaps = "coaps",
    MqttSn = "mqtt-sn",
);

impl TransportKind {
    /// Its index in [`TransportKind::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }

    /// What an idle connection takes in memory, in bytes, as measured (`fulmar bench connections`), and rounded up.
    pub(crate) fn memory_bytes(self, via: Via) -> usize {
        let own = match self {
            TransportKind::Tcp => 2 << 10,
            TransportKind::Ws
            | TransportKind::WebTransport
            | TransportKind::Coap
            | TransportKind::Coaps
            | TransportKind::MqttSn => 3 << 10,
            TransportKind::Tls | TransportKind::Wss => 8 << 10,
            TransportKind::Quic => 24 << 10,
        };
        own + via.memory_bytes()
    }
}

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a listener requires of clients.
#[derive(Clone, Debug)]
pub struct ListenerPolicy {
    /// Its name in logs.
    pub name: Box<str>,
    /// Whether clients without credentials are accepted.
    pub allow_anonymous: bool,
}

/// The other end of a connection, as known to the transport.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its address when the connection began.
    pub address: SocketAddr,
    /// The transport of the connection.
    pub transport: TransportKind,
    /// Its user, from a verified client certificate.
    pub identity: Option<PeerIdentity>,
    /// The listener that accepted it.
    pub listener: Arc<ListenerPolicy>,
}

impl Peer {
    /// Whether it is the program itself, which is no client.
    pub(crate) fn is_program(&self) -> bool {
        User::is_program(self.identity.as_ref().map(PeerIdentity::user))
    }
}

/// State of one QUIC connection and its path, for `$SYS`, metrics and the `http` port. Counts
/// are since the connection began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct TransportStats {
    /// When this was measured, in milliseconds since the Unix epoch.
    pub measured_ms: u64,
    /// Smoothed round-trip time in microseconds.
    pub rtt_us: u64,
    /// Congestion window in bytes.
    pub cwnd_bytes: u64,
    /// Largest datagram the path is known to carry, in bytes.
    pub mtu_bytes: u16,
    /// Times the congestion window was reduced.
    pub congestion_events: u64,
    /// Packets sent.
    pub sent_packets: u64,
    /// Packets declared lost.
    pub lost_packets: u64,
    /// Bytes of datagrams sent, without those of copies.
    pub sent_bytes: u64,
    /// Copies of datagrams sent because the path loses packets.
    pub copies: u64,
    /// Bytes of those copies.
    pub copied_bytes: u64,
    /// Bytes of datagrams received.
    pub received_bytes: u64,
    /// Streams open now, the control stream included.
    pub streams: u32,
    /// Streams ever opened.
    pub streams_opened: u32,
    /// Times the peer's address changed.
    pub migrations: u32,
    /// Whether early data was accepted.
    pub early_data: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tunnel_counts_with_its_buffers() {
        for kind in [TransportKind::Wss, TransportKind::WebTransport] {
            let tunnel = kind.memory_bytes(Via::Tunnel) - kind.memory_bytes(Via::Socket);
            assert!(tunnel >= 2 * (4 << 10), "{kind}: {tunnel}");
        }
    }
}
