//! What can go wrong: what the caller asked for ([`Error`]) and how a connection ended ([`CloseReason`]).

use thiserror::Error;

/// Why a call did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no room in the send buffer now; acknowledgements make some. Call
    /// [`poll_transmit`](crate::Client::poll_transmit) and [`receive`](crate::Client::receive) first.
    #[error("no room in the send buffer now")]
    Full,
    /// A value that was asked for is larger than a bound in [`limits`](crate::limits).
    #[error("larger than the limits allow")]
    TooLarge,
    /// There is no connection, or it is ending.
    #[error("not connected")]
    NotConnected,
    /// The ticket is not one that [`Client::ticket`](crate::Client::ticket) gave, or the memory it was
    /// kept in has failed. Connect without it.
    #[error("not a ticket, or a damaged one")]
    BadTicket,
    /// An option has a value that cannot be sent, such as an empty server name or topic.
    #[error("an option or argument is not valid")]
    Invalid,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// [`Client::close`](crate::Client::close) was called.
    #[error("closed by us")]
    Local,
    /// Nothing came from the server for the agreed idle time.
    #[error("idle for too long")]
    IdleTimeout,
    /// The server did not come to the end of the handshake in
    /// [`HANDSHAKE_MS`](crate::limits::HANDSHAKE_MS).
    #[error("the handshake took too long")]
    HandshakeTimeout,
    /// The server lost its memory of the connection and said so (stateless reset).
    #[error("the server has forgotten the connection")]
    Reset,
    /// The server speaks no QUIC version that we do.
    #[error("the server does not speak QUIC version 1")]
    Version,
    /// The server is not whom we trust, or broke TLS; the number is the alert of RFC 8446, section 6, that
    /// it was told.
    #[error("TLS failed: alert {0}")]
    Tls(u8),
    /// The server broke the rules of QUIC; the number is the code of RFC 9000, section 20.1, it was told.
    #[error("QUIC failed: error {0:#x}")]
    Transport(u32),
    /// The server broke the rules of MQTT.
    #[error("the server broke the rules of MQTT")]
    Mqtt,
    /// The server closed the QUIC connection with a transport error (0x100 to 0x1ff are TLS alerts).
    #[error("closed by the server: error {0:#x}")]
    PeerTransport(u32),
    /// The server closed the connection with a code of the application's.
    #[error("closed by the server's application: code {0:#x}")]
    PeerApplication(u32),
    /// The server refused the MQTT session, or ended it; the number is MQTT's reason code.
    #[error("refused by the server: reason {0:#x}")]
    Refused(u8),
}
