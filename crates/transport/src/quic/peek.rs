//! Reads the first packet header of a datagram without keys (RFC 8999, RFC 9000 section 17), which is enough to
//! distinguish unknown clients from known ones before anything is computed.

/// The first packet of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstPacket {
    /// A packet with which a new connection may begin: an Initial or 0-RTT packet, or one of a version that is not
    /// ours.
    Early {
        /// It carries a token, which may prove its sender's address.
        token: bool,
    },
    /// A Handshake packet. Only a client that got the server's first flight can make one.
    Handshake {
        /// There is nothing else in the datagram.
        alone: bool,
    },
    /// A packet of an open connection.
    Short,
    /// Anything else.
    Other,
}

/// Types of packets with long headers.
const INITIAL: u8 = 0;
const ZERO_RTT: u8 = 1;
const HANDSHAKE: u8 = 2;

pub(super) fn first(datagram: &[u8]) -> FirstPacket {
    let Some(&flags) = datagram.first() else { return FirstPacket::Other };
    if flags & 0x80 == 0 {
        return FirstPacket::Short;
    }
    match flags >> 4 & 3 {
        INITIAL => FirstPacket::Early { token: has_token(datagram).unwrap_or(false) },
        ZERO_RTT => FirstPacket::Early { token: false },
        HANDSHAKE => FirstPacket::Handshake { alone: is_alone(datagram).unwrap_or(false) },
        _ => FirstPacket::Other,
    }
}

/// The destination connection ID of a long header.
pub(super) fn destination(datagram: &[u8]) -> Option<&[u8]> {
    let (length, rest) = datagram.get(5..)?.split_first()?;
    rest.get(..usize::from(*length))
}

/// Bytes behind the connection IDs of a long header.
fn after_ids(datagram: &[u8]) -> Option<&[u8]> {
    let mut rest = datagram.get(5..)?;
    for _ in 0..2 {
        let (length, after) = rest.split_first()?;
        rest = after.get(usize::from(*length)..)?;
    }
    Some(rest)
}

fn has_token(datagram: &[u8]) -> Option<bool> {
    Some(varint(after_ids(datagram)?)?.0 > 0)
}

/// Whether a packet whose connection IDs are followed by its length is all there is.
fn is_alone(datagram: &[u8]) -> Option<bool> {
    let (length, rest) = varint(after_ids(datagram)?)?;
    Some(length == rest.len() as u64)
}

/// A variable-length integer (RFC 9000 section 16), and what follows it.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let first = *bytes.first()?;
    let (number, rest) = bytes.split_at_checked(1 << (first >> 6))?;
    let value = number[1..].iter().fold(u64::from(first & 0x3F), |sum, b| sum << 8 | u64::from(*b));
    Some((value, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A long header with connection IDs of 8 and 0 bytes.
    fn long(kind: u8, rest: &[u8]) -> Vec<u8> {
        [&[0xC0 | kind << 4, 0, 0, 0, 1, 8], &[7; 8][..], &[0], rest].concat()
    }

    #[test]
    fn strangers_are_told_from_clients_by_the_header() {
        assert_eq!(first(&long(INITIAL, &[0, 1, 2])), FirstPacket::Early { token: false });
        assert_eq!(first(&long(INITIAL, &[0x40, 2, 9, 9])), FirstPacket::Early { token: true });
        assert_eq!(first(&long(ZERO_RTT, &[2, 9, 9])), FirstPacket::Early { token: false });
        assert_eq!(first(&long(HANDSHAKE, &[2, 9, 9])), FirstPacket::Handshake { alone: true });
        assert_eq!(
            first(&long(HANDSHAKE, &[2, 9, 9, 0xC0])),
            FirstPacket::Handshake { alone: false }
        );
        assert_eq!(first(&long(3, &[])), FirstPacket::Other);
        assert_eq!(first(&[0x40, 1, 2]), FirstPacket::Short);
        assert_eq!(first(&[]), FirstPacket::Other);
    }

    #[test]
    fn whatever_is_cut_off_is_read_within_its_bounds() {
        let whole = long(HANDSHAKE, &[0x80, 0, 0, 2, 9, 9]);
        assert_eq!(destination(&whole), Some(&[7; 8][..]));
        for end in 1..whole.len() {
            assert_eq!(
                destination(&whole[..end]),
                (end >= 14).then_some(&[7; 8][..]),
                "{end} bytes"
            );
            assert_eq!(
                first(&whole[..end]),
                FirstPacket::Handshake { alone: false },
                "{end} bytes"
            );
        }
    }
}
