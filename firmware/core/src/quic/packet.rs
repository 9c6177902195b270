//! Packet headers (RFC 9000, section 17): what can be read of a packet without keys. No decryption.

use crate::bytes::Reader;

/// QUIC version 1.
pub(crate) const VERSION: u32 = 1;
/// No connection ID is longer.
pub(crate) const MAX_ID_BYTES: usize = 20;
/// Length of the connection ID that we make up for the server: no shorter is allowed.
pub(super) const OUR_CHOICE_BYTES: usize = 8;

/// A packet number space; also the encryption level that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Initial = 0,
    Handshake = 1,
    /// 0-RTT packets, which only clients send, and 1-RTT packets.
    Data = 2,
}

pub(crate) const SPACES: [Space; 3] = [Space::Initial, Space::Handshake, Space::Data];

/// A connection ID.
#[derive(Clone, Copy)]
pub(crate) struct Id {
    bytes: [u8; MAX_ID_BYTES],
    len: u8,
}

impl Id {
    pub(crate) const EMPTY: Self = Self { bytes: [0; MAX_ID_BYTES], len: 0 };

    /// [`None`] if it is too long to be one.
    pub(crate) fn new(bytes: &[u8]) -> Option<Self> {
        let mut id = Self::EMPTY;
        id.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        id.len = bytes.len() as u8;
        Some(id)
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len.into()).unwrap_or_default()
    }
}

/// A packet from the server, up to its packet number.
pub(crate) enum Header<'a> {
    /// Version Negotiation, with what follows the connection IDs.
    VersionNegotiation { destination: &'a [u8], source: &'a [u8], versions: &'a [u8] },
    /// Retry, with its token; the integrity tag is the last 16 bytes.
    Retry { source: Id, token: &'a [u8] },
    /// A packet with a protected packet number at `number_at`, ending at `end`.
    Protected { space: Space, source: Option<Id>, number_at: usize, end: usize },
}

/// Reads the header at the beginning of `datagram`; [`None`] if it is not one we can do anything with, and
/// then neither with what follows. Our own connection ID is empty.
#[inline(never)]
pub(crate) fn parse(datagram: &[u8]) -> Option<Header<'_>> {
    let mut reader = Reader::new(datagram);
    let first = reader.u8()?;
    if first & 0x80 == 0 {
        let header = Header::Protected {
            space: Space::Data,
            source: None,
            number_at: 1,
            end: datagram.len(),
        };
        return (first & 0x40 != 0).then_some(header);
    }
    let version = reader.u32()?;
    let destination = reader.block8()?.rest();
    let source = reader.block8()?.rest();
    if version == 0 {
        return Some(Header::VersionNegotiation { destination, source, versions: reader.rest() });
    }
    if version != VERSION || first & 0x40 == 0 || !destination.is_empty() {
        return None;
    }
    let source = Id::new(source)?;
    let space = match first >> 4 & 3 {
        0 => {
            reader.block_varint()?; // A server has no token for us.
            Space::Initial
        }
        2 => Space::Handshake,
        3 => {
            let token = reader.bytes(reader.rest().len().checked_sub(16)?)?;
            return Some(Header::Retry { source, token });
        }
        _ => return None,
    };
    let length = reader.varint()? as usize;
    let number_at = datagram.len() - reader.rest().len();
    let end = number_at + reader.bytes(length)?.len();
    Some(Header::Protected { space, source: Some(source), number_at, end })
}

/// The packet number whose lowest `bytes` bytes are `truncated` and that is next to `expected` (RFC 9000,
/// appendix A.3); [`None`] beyond 2³², where no connection of ours gets.
pub(crate) fn decode_number(expected: u32, truncated: u32, bytes: usize) -> Option<u32> {
    let window = 1u64 << (8 * bytes);
    let expected = u64::from(expected);
    let mut number = expected & !(window - 1) | u64::from(truncated);
    if number + window / 2 <= expected {
        number += window;
    } else if number > expected + window / 2 && number >= window {
        number -= window;
    }
    u32::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_9000_a_3_sample_packet_number_decoding() {
        assert_eq!(decode_number(0xa82f_30eb, 0x9b32, 2), Some(0xa82f_9b32));
        assert_eq!(decode_number(0, 0, 1), Some(0));
        assert_eq!(decode_number(0x101, 0xff, 1), Some(0xff));
        assert_eq!(decode_number(0xff, 0x02, 1), Some(0x102));
        assert_eq!(decode_number(u32::MAX, 0x01, 1), None);
    }

    #[test]
    fn truncated_headers_are_nothing() {
        let packet = [0xc0, 0, 0, 0, 1, 0, 2, 7, 7, 0, 4, 1, 2, 3, 4];
        assert!(matches!(parse(&packet), Some(Header::Protected { number_at: 11, end: 15, .. })));
        for len in 0..packet.len() {
            assert!(parse(&packet[..len]).is_none(), "{len}");
        }
        assert!(parse(&[0x00; 40]).is_none(), "without the fixed bit");
    }
}
