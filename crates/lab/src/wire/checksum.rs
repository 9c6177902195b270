//! Internet checksums: whole, and updated for a changed field (RFC 1624, equation 3).
//!
//! Checksums of rewritten packets are always *updated*: recomputing would repair a packet that the link has
//! corrupted, and its receiver would accept wrong bytes.

use super::{PacketView, Protocol};

/// The one's complement sum of the parts, complemented. Every part but the last has an even length.
pub(crate) fn internet(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u64;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        }
    }
    !fold(sum)
}

fn fold(mut sum: u64) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The checksum after `old` was replaced by `new` (both of even length) in what it covers.
pub(crate) fn update(checksum: u16, old: &[u8], new: &[u8]) -> u16 {
    let mut sum = u64::from(!checksum);
    for pair in old.chunks_exact(2) {
        sum += u64::from(!u16::from_be_bytes([pair[0], pair[1]]));
    }
    for pair in new.chunks_exact(2) {
        sum += u64::from(u16::from_be_bytes([pair[0], pair[1]]));
    }
    !fold(sum)
}

/// Updates the checksum at `at` in a packet after `old` was replaced by `new` in what it covers.
pub(crate) fn update_at(packet: &mut [u8], at: usize, old: &[u8], new: &[u8]) {
    let sum = u16::from_be_bytes([packet[at], packet[at + 1]]);
    packet[at..at + 2].copy_from_slice(&update(sum, old, new).to_be_bytes());
}

/// Where the transport checksum of a packet lies, if it has one that is in use.
pub(crate) fn position(view: &PacketView<'_>) -> Option<usize> {
    let at = view.transport_range().start;
    match (view.protocol(), view.ports()) {
        (Protocol::Tcp, Some(_)) => Some(at + 16),
        // Zero means that a UDP datagram over IPv4 carries none.
        (Protocol::Udp, Some(_)) if view.transport()[6..8] != [0, 0] => Some(at + 6),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_example_of_rfc_1071() {
        assert_eq!(internet(&[&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]]), !0xddf2);
    }

    proptest! {
        #[test]
        fn an_update_equals_a_new_computation(
            mut bytes in proptest::collection::vec(any::<u8>(), 8..64),
            new in any::<[u8; 4]>(),
        ) {
            bytes.truncate(bytes.len() & !1);
            // An all-zero range has two representations of zero; real packets are never all zero.
            bytes[7] |= 1;
            let before = internet(&[&bytes]);
            let old = [bytes[0], bytes[1], bytes[2], bytes[3]];
            bytes[..4].copy_from_slice(&new);
            prop_assert_eq!(update(before, &old, &new), internet(&[&bytes]));
        }
    }
}
