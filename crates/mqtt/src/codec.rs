//! From bytes to packets: find the frame, then decode it (section 2).
//!
//! [`peek_frame`] reads the fixed header only: a packet over the limit is refused before its body has arrived, and
//! calling it again for an incomplete one costs nothing.

use crate::error::DecodeError;
use crate::packet::Packet;
use crate::types::Version;
use crate::wire::{MAX_VARIABLE, variable};

pub use crate::frame::Frame;

/// The packet at the start of `buffer`; `None` when it is not complete yet.
///
/// # Errors
/// The length field is malformed or exceeds `max_packet_bytes`, or no packet has such a first byte.
#[inline]
pub fn peek_frame(
    buffer: &[u8],
    max_packet_bytes: usize,
) -> Result<Option<Frame<'_>>, DecodeError> {
    let Some(len) = packet_len(buffer, max_packet_bytes)? else { return Ok(None) };
    let Some(packet) = buffer.get(..len.total) else {
        // Don't wait for the body of something that cannot be a packet, such as an HTTP request.
        return check_first_byte(buffer[0]).map(|()| None);
    };
    Ok(Some(Frame { first: packet[0], body: &packet[len.header..], len: len.total }))
}

/// Whether a packet of either version can begin with `first`: its type, and the flags that its type
/// requires (section 2.1.3).
fn check_first_byte(first: u8) -> Result<(), DecodeError> {
    match (first >> 4, first & 0x0F) {
        (3, flags) if flags & 0x06 == 0x06 => Err(DecodeError::QoS),
        (3, flags) if flags & 0x0E == 0x08 => Err(DecodeError::Flags),
        (3, _) | (6 | 8 | 10, 2) | (1 | 2 | 4 | 5 | 7 | 9 | 11..=15, 0) => Ok(()),
        (0, _) => Err(DecodeError::PacketType(0)),
        _ => Err(DecodeError::Flags),
    }
}

/// Largest packet the protocol can express, in bytes (section 2.1.4).
pub const MAX_PACKET_BYTES: usize = 5 + MAX_VARIABLE;

/// Length of the packet at the start of `buffer`, even if its body has not arrived; `None` if the length field itself
/// is incomplete. For readers that reserve room.
///
/// # Errors
/// As [`peek_frame`].
#[inline]
pub fn packet_len(
    buffer: &[u8],
    max_packet_bytes: usize,
) -> Result<Option<PacketLen>, DecodeError> {
    let Some((_, rest)) = buffer.split_first() else { return Ok(None) };
    let Some((remaining, length_bytes)) = variable(rest)? else { return Ok(None) };
    let header = 1 + length_bytes;
    let total = header + remaining;
    if total > max_packet_bytes {
        return Err(DecodeError::TooLarge { size: total, limit: max_packet_bytes });
    }
    Ok(Some(PacketLen { header, total }))
}

/// The lengths in a fixed header, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketLen {
    /// The fixed header's.
    pub header: usize,
    /// The whole packet's.
    pub total: usize,
}

/// Decodes a frame. CONNECT contains its version; for all others it is the connection's.
///
/// # Errors
/// Says what is wrong; [`DecodeError::reason`] is the answer to give.
#[inline]
pub fn decode<'a>(frame: &Frame<'a>, version: Version) -> Result<Packet<'a>, DecodeError> {
    Packet::decode(frame, version)
}
