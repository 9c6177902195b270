//! The purpose of a packet, as far as an observer without keys can see it.
//!
//! TCP: SYN, FIN and RST open and close; TLS handshake records (RFC 8446, 5.1: types 20 and 22) are
//! handshake, any other payload is data, none is an acknowledgement. In TLS 1.3 the handshake's
//! encrypted part looks like data, and so counts.
//! QUIC (RFC 9000, 17): long headers are handshake but for 0-RTT, which is data. Short headers are
//! encrypted: those too short for anything but an acknowledgement are taken for one, so that the
//! shortest data packets are miscounted.

use serde::{Deserialize, Serialize};

use crate::wire::{PacketView, Protocol};

/// A packet's purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Setting a connection up
    Handshake = 0,
    /// Carrying what the connection is for
    Data = 1,
    /// Acknowledging, carrying nothing
    Ack = 2,
    /// Closing a TCP connection
    Close = 3,
    /// ICMP and everything else
    Other = 4,
}

impl Kind {
    /// All of them, in the order of their numbers.
    pub const ALL: [Kind; 5] = [Kind::Handshake, Kind::Data, Kind::Ack, Kind::Close, Kind::Other];
}

/// A QUIC packet's first byte and what follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuicHeader {
    /// Initial, Handshake, Retry or version negotiation.
    Long,
    /// 0-RTT.
    Early,
    /// After the handshake, with its latency spin bit.
    Short {
        /// Bit 0x20, which is not encrypted (RFC 9000, 17.4).
        spin: bool,
    },
}

/// The longest UDP payload that counts as an acknowledgement: flags, a connection ID of 8 and a packet number of up
/// to 4 bytes, an ACK frame of about 13 and the AEAD's 16.
const ACK_BYTES: usize = 42;

/// Versions 1 and 2 (RFC 9000, RFC 9369) and negotiation.
const VERSIONS: [u32; 3] = [1, 0x6b33_43cf, 0];

/// Whether a datagram begins a QUIC connection: a long header of a known version. The QUIC bit says
/// nothing, for a client that comes back may send it as 0 (RFC 9287 section 3.1).
pub fn begins_quic(payload: &[u8]) -> bool {
    let version = payload.get(1..5).and_then(|bytes| bytes.try_into().ok());
    payload.first().is_some_and(|first| first & 0x80 != 0)
        && version.is_some_and(|version| VERSIONS.contains(&u32::from_be_bytes(version)))
}

/// Reads the first QUIC header of a datagram that is known to be QUIC's.
pub fn quic_header(payload: &[u8]) -> Option<QuicHeader> {
    let first = *payload.first()?;
    if first & 0x80 == 0 {
        return Some(QuicHeader::Short { spin: first & 0x20 != 0 });
    }
    let version = payload.get(1..5)?;
    // Version 2 numbers its packet types differently (RFC 9369, 3.2).
    let early = if version == 0x6b33_43cfu32.to_be_bytes() { 2 } else { 1 };
    let is_early = version != [0; 4] && (first >> 4) & 3 == early;
    Some(if is_early { QuicHeader::Early } else { QuicHeader::Long })
}

/// A packet's purpose; `quic`: whether its flow has begun as QUIC.
pub fn kind(view: &PacketView<'_>, quic: bool) -> Kind {
    let payload = view.payload();
    match view.protocol() {
        Protocol::Tcp => match view.tcp() {
            Some(tcp) if tcp.syn => Kind::Handshake,
            Some(tcp) if tcp.fin || tcp.rst => Kind::Close,
            _ if payload.is_empty() => Kind::Ack,
            _ if is_tls_handshake(payload) => Kind::Handshake,
            _ => Kind::Data,
        },
        Protocol::Udp if quic => match quic_header(payload) {
            Some(QuicHeader::Long) => Kind::Handshake,
            Some(QuicHeader::Short { .. }) if payload.len() <= ACK_BYTES => Kind::Ack,
            _ => Kind::Data,
        },
        Protocol::Udp => Kind::Data,
        _ => Kind::Other,
    }
}

fn is_tls_handshake(payload: &[u8]) -> bool {
    matches!(payload, [20 | 22, 3, 0..=4, ..])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::testing::{tcp, udp};

    const A: [u8; 4] = [198, 18, 0, 2];
    const B: [u8; 4] = [198, 18, 1, 2];

    #[test]
    fn tcp_is_told_by_flags_and_records() {
        let table: [(u8, &[u8], Kind); 7] = [
            (0x02, b"", Kind::Handshake),
            (0x12, b"", Kind::Handshake),
            (0x10, b"", Kind::Ack),
            (0x18, &[22, 3, 1, 0, 5, 1], Kind::Handshake),
            (0x18, &[23, 3, 3, 0, 5, 1], Kind::Data),
            (0x18, b"\x10\x0c\0\x04MQTT", Kind::Data),
            (0x11, b"", Kind::Close),
        ];
        for (flags, payload, expected) in table {
            let packet = tcp(A, 4000, B, 8883, 1, flags, payload);
            assert_eq!(kind(&PacketView::parse(&packet).unwrap(), false), expected, "{flags:x}");
        }
    }

    #[test]
    fn quic_is_told_by_its_headers() {
        let long = |first: u8, version: u32| {
            let mut payload = vec![first];
            payload.extend_from_slice(&version.to_be_bytes());
            payload.resize(100, 0);
            payload
        };
        assert!(begins_quic(&long(0xc0, 1)) && !begins_quic(&long(0xc0, 99)));
        assert!(begins_quic(&long(0x80, 1)));
        assert!(!begins_quic(&long(0x40, 1)) && !begins_quic(&[0xc0]));
        assert_eq!(quic_header(&long(0xc0, 1)), Some(QuicHeader::Long));
        assert_eq!(quic_header(&long(0xd0, 1)), Some(QuicHeader::Early));
        assert_eq!(quic_header(&long(0xe0, 0x6b33_43cf)), Some(QuicHeader::Early));
        assert_eq!(quic_header(&[0x60]), Some(QuicHeader::Short { spin: true }));
        assert_eq!(quic_header(&[]), None);
        let kind_of = |payload: &[u8]| {
            let packet = udp(A, 4000, B, 14_567, payload);
            kind(&PacketView::parse(&packet).unwrap(), true)
        };
        assert_eq!(kind_of(&[0x40; 38]), Kind::Ack);
        assert_eq!(kind_of(&[0x40; 60]), Kind::Data);
        assert_eq!(kind_of(&long(0xc0, 1)), Kind::Handshake);
    }
}
