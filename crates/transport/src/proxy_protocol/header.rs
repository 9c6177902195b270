//! The header of the PROXY protocol, version 2 (binary; haproxy's proxy-protocol.txt section 2.2).
//!
//! Only the client's address is kept. TLVs and what follows the addresses are skipped without being stored, so that a
//! header of any length needs no more than [`MAX_KEPT_BYTES`]. Version 1 (text) is recognised and refused. What a
//! header means for a connection is decided elsewhere.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// First bytes of every header of version 2.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// First bytes of every header of version 1.
const VERSION_1: &[u8] = b"PROXY ";

/// Signature, version and command, family and protocol, length of what follows.
const FIXED_BYTES: usize = 16;

/// Lengths of the addresses and ports of two peers, in bytes.
const INET_BYTES: usize = 12;
const INET6_BYTES: usize = 36;
const UNIX_BYTES: usize = 216;

/// Bytes that a reader stores at most.
pub const MAX_KEPT_BYTES: usize = FIXED_BYTES + INET6_BYTES;

/// Addresses that a header has for a connection's client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// The proxy's client has this address.
    Proxied(SocketAddr),
    /// The connection is the proxy's own, such as a health check, or its client has no IP address.
    Own,
}

/// Why a header is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The text format.
    #[error(
        "its header has version 1 of the PROXY protocol; configure version 2 at the proxy (haproxy: send-proxy-v2)"
    )]
    Version1,
    /// Something else, such as a client that connected directly.
    #[error(
        "it did not begin with a header of the PROXY protocol; configure the proxy to send one, version 2 (haproxy: \
         send-proxy-v2)"
    )]
    Missing,
    /// A version, command, family or protocol that the specification does not define, or that is not TCP's.
    #[error("its header of the PROXY protocol has the unknown {0}")]
    Unknown(&'static str),
    /// The addresses do not fit into the length.
    #[error("its header of the PROXY protocol is too short for its addresses")]
    TooShort,
}

/// Reads one header from pieces of any size.
#[derive(Debug, Default)]
pub struct HeaderReader {
    kept: Vec<u8>,
    /// The header, and how many bytes of it remain to be skipped.
    known: Option<(Header, usize)>,
}

impl HeaderReader {
    /// Takes the next bytes. Returns how many of them belong to the header, and the header when it is complete.
    ///
    /// # Errors
    /// The bytes are not a header that is accepted here; nothing may follow then.
    pub fn receive(&mut self, input: &[u8]) -> Result<(usize, Option<Header>), HeaderError> {
        let mut used = 0;
        let (header, skip) = loop {
            if let Some(known) = self.known {
                break known;
            }
            match parse(&self.kept)? {
                Parsed::Incomplete { wanted } => {
                    let missing = wanted - self.kept.len();
                    let rest = &input[used..];
                    let take = missing.min(rest.len());
                    if take == 0 {
                        return Ok((used, None));
                    }
                    self.kept.extend_from_slice(&rest[..take]);
                    used += take;
                }
                Parsed::Complete { header, bytes } => {
                    self.known = Some((header, bytes - self.kept.len()));
                }
            }
        };
        let skipped = skip.min(input.len() - used);
        self.known = Some((header, skip - skipped));
        Ok((used + skipped, (skip == skipped).then_some(header)))
    }

    /// Number of bytes that can be read without reading beyond the header; 0 when it is complete.
    pub fn wanted(&self) -> usize {
        match (&self.known, parse(&self.kept)) {
            (Some((_, skip)), _) => *skip,
            (None, Ok(Parsed::Incomplete { wanted })) => wanted - self.kept.len(),
            (None, _) => 0,
        }
    }
}

enum Parsed {
    /// More than is there; what comes next ends here.
    Incomplete { wanted: usize },
    /// The header, and its length with everything that is skipped.
    Complete { header: Header, bytes: usize },
}

fn parse(kept: &[u8]) -> Result<Parsed, HeaderError> {
    let compared = kept.len().min(SIGNATURE.len());
    if kept[..compared] != SIGNATURE[..compared] {
        let text = kept.iter().zip(VERSION_1).all(|(byte, expected)| byte == expected);
        return Err(if text { HeaderError::Version1 } else { HeaderError::Missing });
    }
    let Some((fixed, addresses)) = kept.split_first_chunk::<FIXED_BYTES>() else {
        return Ok(Parsed::Incomplete { wanted: FIXED_BYTES });
    };
    let [.., version_command, family_protocol, high, low] = *fixed;
    let length = usize::from(u16::from_be_bytes([high, low]));
    let bytes = FIXED_BYTES + length;
    let own = Ok(Parsed::Complete { header: Header::Own, bytes });
    match version_command {
        // LOCAL: the rest must be ignored.
        0x20 => return own,
        0x21 => {}
        _ if version_command >> 4 != 2 => return Err(HeaderError::Unknown("version")),
        _ => return Err(HeaderError::Unknown("command")),
    }
    let needed = match family_protocol {
        0x00 => return own,
        0x11 => INET_BYTES,
        0x21 => INET6_BYTES,
        0x31 => UNIX_BYTES,
        _ => return Err(HeaderError::Unknown("address family or protocol")),
    };
    if length < needed {
        return Err(HeaderError::TooShort);
    }
    if needed == UNIX_BYTES {
        return own;
    }
    if addresses.len() < needed {
        return Ok(Parsed::Incomplete { wanted: FIXED_BYTES + needed });
    }
    let source = if needed == INET_BYTES { inet(addresses) } else { inet6(addresses) };
    let source = source.ok_or(HeaderError::TooShort)?;
    Ok(Parsed::Complete { header: Header::Proxied(source), bytes })
}

/// Source address, destination address, source port, destination port.
fn inet(addresses: &[u8]) -> Option<SocketAddr> {
    let address = Ipv4Addr::from(*addresses.first_chunk::<4>()?);
    let port = *addresses.get(8..10)?.first_chunk()?;
    Some(SocketAddr::new(IpAddr::V4(address), u16::from_be_bytes(port)))
}

fn inet6(addresses: &[u8]) -> Option<SocketAddr> {
    let address = Ipv6Addr::from(*addresses.first_chunk::<16>()?);
    let port = *addresses.get(32..34)?.first_chunk()?;
    // An IPv4 client counts as itself, whichever socket the proxy has.
    Some(SocketAddr::new(IpAddr::V6(address).to_canonical(), u16::from_be_bytes(port)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A header as a proxy would write it.
    fn write(version_command: u8, family_protocol: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [&SIGNATURE[..], &[version_command, family_protocol], &length, rest].concat()
    }

    fn proxied(source: SocketAddr, tlvs: &[u8]) -> Vec<u8> {
        let port = source.port().to_be_bytes();
        let (family, addresses) = match source.ip() {
            IpAddr::V4(ip) => (0x11, [&ip.octets()[..], &[192, 0, 2, 1]].concat()),
            IpAddr::V6(ip) => (0x21, [&ip.octets()[..], &[0xFE; 16]].concat()),
        };
        write(0x21, family, &[&addresses[..], &port, &[0x07, 0x5B], tlvs].concat())
    }

    /// The header, and what follows it.
    fn read(wire: &[u8], cut: usize) -> Result<(Option<Header>, Vec<u8>), HeaderError> {
        let (mut reader, mut rest) = (HeaderReader::default(), wire);
        while !rest.is_empty() {
            let piece = &rest[..cut.min(rest.len())];
            let (used, header) = reader.receive(piece)?;
            assert!(reader.kept.len() <= MAX_KEPT_BYTES);
            rest = &rest[used..];
            if header.is_some() {
                assert_eq!(reader.wanted(), 0);
                return Ok((header, rest.to_vec()));
            }
            assert!(used == piece.len() && reader.wanted() > 0);
        }
        Ok((None, Vec::new()))
    }

    proptest! {
        #[test]
        fn what_a_proxy_writes_is_read_however_it_is_cut(
            source in any::<SocketAddr>(),
            tlvs in prop::collection::vec(any::<u8>(), 0..600),
            after in prop::collection::vec(any::<u8>(), 0..50),
            cut in 1..700usize,
        ) {
            let wire = [proxied(source, &tlvs), after.clone()].concat();
            let canonical = SocketAddr::new(source.ip().to_canonical(), source.port());
            let wanted = (Some(Header::Proxied(canonical)), after);
            prop_assert_eq!(read(&wire, cut), Ok(wanted));
        }

        #[test]
        fn pieces_make_no_difference(wire in prop::collection::vec(any::<u8>(), 0..80), cut in 1..80usize) {
            for wire in [wire.clone(), [&SIGNATURE[..], &wire].concat()] {
                // A connection ends at an error: bytes after it do not count.
                prop_assert_eq!(read(&wire, cut).is_err(), read(&wire, wire.len().max(1)).is_err());
            }
        }
    }

    #[test]
    fn a_connection_of_the_proxys_own_has_no_other_address() {
        let after = b"\x10";
        for header in [
            write(0x20, 0x00, b""),
            write(0x20, 0x11, &[1; 12]),
            write(0x20, 0xFF, &[1; 3]),
            write(0x21, 0x00, &[9; 30]),
            write(0x21, 0x31, &[b'/'; 216]),
        ] {
            let wire = [&header[..], after].concat();
            assert_eq!(read(&wire, 7), Ok((Some(Header::Own), after.to_vec())), "{header:x?}");
        }
    }

    #[test]
    fn everything_else_is_refused_with_its_reason() {
        let unknown = HeaderError::Unknown;
        for (wire, error) in [
            (b"PROXY TCP4 192.0.2.7 192.0.2.1 5 1883\r\n".to_vec(), HeaderError::Version1),
            (b"\x10\x0d\x00\x04MQTT\x05".to_vec(), HeaderError::Missing),
            (b"GET /mqtt HTTP/1.1\r\n".to_vec(), HeaderError::Missing),
            (b"\r\n\r\n\0\r\nQUIZ\n".to_vec(), HeaderError::Missing),
            (write(0x11, 0x11, &[0; 12]), unknown("version")),
            (write(0x22, 0x11, &[0; 12]), unknown("command")),
            (write(0x21, 0x12, &[0; 12]), unknown("address family or protocol")),
            (write(0x21, 0x41, &[0; 12]), unknown("address family or protocol")),
            (write(0x21, 0x11, &[0; 11]), HeaderError::TooShort),
            (write(0x21, 0x21, &[0; 35]), HeaderError::TooShort),
            (write(0x21, 0x31, &[0; 215]), HeaderError::TooShort),
        ] {
            assert_eq!(read(&wire, 1), Err(error), "{wire:x?}");
        }
    }
}
