//! The header of a stream's source symbols (RFC 5740 section 4.2.1): `payload_len`, `payload_msg_start`,
//! `payload_offset`. It counts as a part of the symbol, so parity recovers it too.

use super::read::{Read, put16, put32};

/// Length of the header.
pub const SEGMENT_HEAD_BYTES: usize = 8;

/// A source symbol of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<'a> {
    /// The position in `data` at which the first message begins, if one does.
    pub message_start: Option<u16>,
    /// Position of `data` in the stream, modulo 2^32.
    pub offset: u32,
    /// Bytes of the stream; none at its end.
    pub data: &'a [u8],
}

impl<'a> Segment<'a> {
    /// Decodes a symbol, which may be padded with zeros. `None` if its header contradicts its length.
    #[must_use]
    pub fn decode(symbol: &'a [u8]) -> Option<Segment<'a>> {
        let mut read = Read(symbol);
        let length = read.u16().ok()?;
        let start = read.u16().ok()?;
        let offset = read.u32().ok()?;
        let data = read.bytes(length.into()).ok()?;
        // 0 means that there is none, so positions are counted from 1.
        let fits = start <= length;
        fits.then_some(Segment { message_start: start.checked_sub(1), offset, data })
    }

    /// Whether the stream ends here.
    #[must_use]
    pub fn is_end(&self) -> bool {
        self.data.is_empty()
    }

    /// Appends the symbol, without padding.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put16(out, self.data.len() as u16);
        put16(out, self.message_start.map_or(0, |start| start + 1));
        put32(out, self.offset);
        out.extend_from_slice(self.data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_says_where_a_message_begins() {
        let bytes = [0, 3, 0, 2, 0, 0, 1, 0, b'a', b'b', b'c', 0, 0];
        let segment = Segment { message_start: Some(1), offset: 256, data: b"abc" };
        assert_eq!(Segment::decode(&bytes), Some(segment));
        let mut again = Vec::new();
        segment.encode(&mut again);
        assert_eq!(again, bytes[..11]);
        assert!(Segment::decode(&[0; 8]).is_some_and(|segment| segment.is_end()));
    }

    #[test]
    fn a_head_that_lies_is_refused() {
        assert_eq!(Segment::decode(&[0, 3, 0, 0, 0, 0, 0, 0, b'a', b'b']), None, "too long");
        assert_eq!(Segment::decode(&[0, 1, 0, 2, 0, 0, 0, 0, b'a']), None, "begins behind itself");
        assert_eq!(Segment::decode(&[0; 7]), None);
    }
}
