//! Every bound of the client, in bytes unless the name says otherwise. The constants are what a
//! [`Client`](crate::Client) is sized by; what the peer sends beyond them is refused by the protocol's means.

/// The largest datagram sent, and the smallest that carries the first flight (RFC 9000, section 14.1).
pub const DATAGRAM_BYTES: usize = 1200;
/// The largest datagram the server may send: what fits an Ethernet frame over IPv4.
pub const RECEIVE_DATAGRAM_BYTES: usize = 1472;
/// The memory for what is received: while the handshake lasts, its messages in any order (RFC 9000,
/// section 7.5, wants 4096 bytes at least); afterwards half for each stream.
pub const RECEIVE_BYTES: usize = 4096;
/// Bytes received on a stream and not yet taken; no MQTT packet to the client may be larger.
pub const STREAM_RECEIVE_BYTES: usize = RECEIVE_BYTES / 2;
/// Bytes written on a stream and not yet acknowledged.
pub const STREAM_SEND_BYTES: usize = 1024;
/// Streams, all bidirectional and opened by the client: 0 carries the MQTT session, 1 further messages.
pub const STREAMS: usize = 2;
/// A ClientHello, pre-shared key included; afterwards messages that come after the handshake.
pub const HELLO_BYTES: usize = 1024;
/// The identity of a session ticket, as the server makes it; a longer ticket is not kept.
pub const TICKET_IDENTITY_BYTES: usize = 512;
/// A ticket as [`Client::ticket`](crate::Client::ticket) gives it.
pub const TICKET_BYTES: usize = TICKET_IDENTITY_BYTES + 58;
/// A token from a Retry packet; with a longer one the connection fails.
pub const TOKEN_BYTES: usize = 300;
/// A cookie from a HelloRetryRequest; with a longer one the connection fails.
pub const COOKIE_BYTES: usize = 256;
/// Ack-eliciting packets on their way.
pub const SENT_PACKETS: usize = 16;
/// Ranges kept of what came out of order: packet numbers, parts of streams.
pub const RANGES: usize = 6;
/// The server's name.
pub const SERVER_NAME_BYTES: usize = 64;
/// QoS 1 messages sent and not yet acknowledged.
pub const INFLIGHT_MESSAGES: usize = 8;
/// Time limit of a handshake in milliseconds, however often the server answers.
pub const HANDSHAKE_MS: u32 = 30_000;
