//! The header of a PROXY protocol from a hostile proxy, cut anywhere, beside a decoder that has all of it at once and
//! follows proxy-protocol.txt section 2.2 field by field.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use fulmar_mqtt_fuzz::heap;

use crate::header::{Header, HeaderReader};

/// What a reader may allocate, in bytes: a vector that doubles up to the kept bytes.
const MAX_BYTES: usize = 256;

#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Incomplete,
    Refused,
    /// The header, and its length.
    Header(Header, usize),
}

/// How much the reader gets at a time, then what the proxy sends.
pub fn proxy_header(data: &[u8]) {
    let Some((cut, wire)) = data.split_first() else { return };
    let wanted = naive(wire);
    assert_eq!(read(wire, usize::from(*cut) + 1), wanted);
    assert_eq!(read(wire, wire.len().max(1)), wanted);
}

fn read(wire: &[u8], cut: usize) -> Seen {
    let (mut reader, mut at) = (HeaderReader::default(), 0);
    while at < wire.len() {
        let piece = &wire[at..wire.len().min(at + cut)];
        let (result, used) = heap::measure(|| reader.receive(piece));
        assert!(used.peak_bytes <= MAX_BYTES, "{used:?}");
        match result {
            Err(_) => return Seen::Refused,
            Ok((used, None)) => {
                assert!(used == piece.len() && reader.wanted() > 0);
                at += used;
            }
            Ok((used, Some(header))) => {
                assert_eq!(reader.wanted(), 0);
                return Seen::Header(header, at + used);
            }
        }
    }
    Seen::Incomplete
}

fn naive(wire: &[u8]) -> Seen {
    const SIGNATURE: &[u8] = b"\x0D\x0A\x0D\x0A\x00\x0D\x0A\x51\x55\x49\x54\x0A";
    if !wire.iter().zip(SIGNATURE).all(|(byte, expected)| byte == expected) {
        return Seen::Refused;
    }
    if wire.len() < 16 {
        return Seen::Incomplete;
    }
    let length = usize::from(u16::from_be_bytes([wire[14], wire[15]]));
    let (header, addresses) = match (wire[12], wire[13]) {
        (0x20, _) | (0x21, 0x00) => (Header::Own, 0),
        (0x21, 0x11) => (Header::Own, 12),
        (0x21, 0x21) => (Header::Own, 36),
        (0x21, 0x31) => (Header::Own, 216),
        _ => return Seen::Refused,
    };
    if length < addresses {
        return Seen::Refused;
    }
    let Some(rest) = wire.get(16..16 + length) else { return Seen::Incomplete };
    let octets = |at: usize| u16::from_be_bytes([rest[at], rest[at + 1]]);
    let header = match addresses {
        12 => {
            let ip = Ipv4Addr::new(rest[0], rest[1], rest[2], rest[3]);
            Header::Proxied(SocketAddr::new(ip.into(), octets(8)))
        }
        36 => {
            let ip = Ipv6Addr::from([0, 2, 4, 6, 8, 10, 12, 14].map(octets));
            let ip = ip.to_ipv4_mapped().map_or(ip.into(), Into::into);
            Header::Proxied(SocketAddr::new(ip, octets(32)))
        }
        _ => header,
    };
    Seen::Header(header, 16 + length)
}
