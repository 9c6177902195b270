//! Reading and writing of the basic data types (section 1.5). Not public: packets are.

use crate::error::DecodeError;
use crate::search::has;
use crate::types::PacketId;

/// The largest value of a variable byte integer.
pub(crate) const MAX_VARIABLE: usize = 268_435_455;

/// A cursor over the bytes of one packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    #[inline]
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    #[inline]
    pub(crate) fn rest(self) -> &'a [u8] {
        self.bytes
    }

    #[inline]
    pub(crate) fn bytes(&mut self, n: usize) -> Result<&'a [u8], DecodeError> {
        let (head, tail) = self.bytes.split_at_checked(n).ok_or(DecodeError::Length)?;
        self.bytes = tail;
        Ok(head)
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.bytes(1)?[0])
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        let b = self.bytes(2)?;
        Ok(u16::from_be_bytes([b[0], b[1]]))
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        let b = self.bytes(4)?;
        Ok(u32::from_be_bytes([b[0], b[1], b[2], b[3]]))
    }

    #[inline]
    pub(crate) fn packet_id(&mut self) -> Result<PacketId, DecodeError> {
        PacketId::new(self.u16()?).ok_or(DecodeError::PacketId)
    }

    #[inline]
    pub(crate) fn variable(&mut self) -> Result<usize, DecodeError> {
        let (value, used) = variable(self.bytes)?.ok_or(DecodeError::Length)?;
        self.bytes = &self.bytes[used..];
        Ok(value)
    }

    /// Binary data with a two-byte length.
    #[inline]
    pub(crate) fn binary(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = self.u16()?;
        self.bytes(usize::from(length))
    }

    #[inline]
    pub(crate) fn string(&mut self) -> Result<&'a str, DecodeError> {
        let bytes = self.binary()?;
        let text = std::str::from_utf8(bytes).map_err(|_| DecodeError::String)?;
        if has(bytes, [0]) {
            return Err(DecodeError::String);
        }
        Ok(text)
    }
}

/// The reader must have come to its end.
pub(crate) fn end(reader: Reader<'_>) -> Result<(), DecodeError> {
    if reader.is_empty() { Ok(()) } else { Err(DecodeError::Length) }
}

/// A variable byte integer at the start of `bytes` and its length; `None` when cut short.
#[inline]
pub(crate) fn variable(bytes: &[u8]) -> Result<Option<(usize, usize)>, DecodeError> {
    match bytes {
        // Nearly every length is one or two bytes.
        [only @ 0..0x80, ..] => Ok(Some((usize::from(*only), 1))),
        [low, high @ 1..0x80, ..] => {
            Ok(Some((usize::from(low & 0x7F) | usize::from(*high) << 7, 2)))
        }
        _ => long_variable(bytes),
    }
}

fn long_variable(bytes: &[u8]) -> Result<Option<(usize, usize)>, DecodeError> {
    let mut value = 0usize;
    for (i, &byte) in bytes.iter().take(4).enumerate() {
        value |= usize::from(byte & 0x7F) << (7 * i);
        if byte & 0x80 == 0 {
            // [MQTT-1.5.5-1]: the encoding must be the shortest one.
            if i > 0 && byte == 0 {
                return Err(DecodeError::VariableByteInteger);
            }
            return Ok(Some((value, i + 1)));
        }
    }
    if bytes.len() >= 4 { Err(DecodeError::VariableByteInteger) } else { Ok(None) }
}

/// Bytes `value` takes as a variable byte integer.
pub(crate) fn variable_len(value: usize) -> usize {
    match value {
        0..128 => 1,
        128..16_384 => 2,
        16_384..2_097_152 => 3,
        _ => 4,
    }
}

/// Appends a variable byte integer; values over the maximum are cut to it.
#[inline]
pub(crate) fn put_variable(out: &mut Vec<u8>, value: usize) {
    if value < 128 {
        out.push(value as u8);
    } else {
        let (field, length) = variable_field(value);
        out.extend_from_slice(&field[..length]);
    }
}

/// A variable byte integer and how many bytes of the array it takes.
fn variable_field(value: usize) -> ([u8; 4], usize) {
    let mut value = value.min(MAX_VARIABLE);
    let mut field = [0; 4];
    let mut length = 0;
    loop {
        field[length] = (value & 0x7F) as u8;
        value >>= 7;
        if value == 0 {
            return (field, length + 1);
        }
        field[length] |= 0x80;
        length += 1;
    }
}

/// Appends binary data with its length; what is over 65,535 bytes is cut off.
#[inline]
pub(crate) fn put_binary(out: &mut Vec<u8>, bytes: &[u8]) {
    let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(&bytes[..usize::from(length)]);
}

/// Appends a string with its length; what is over 65,535 bytes is cut off, between characters.
#[inline]
pub(crate) fn put_string(out: &mut Vec<u8>, text: &str) {
    put_binary(out, fitting(text).as_bytes());
}

/// Returns the longest beginning of `text` that a string of the protocol holds.
#[inline]
pub(crate) fn fitting(text: &str) -> &str {
    &text[..text.floor_char_boundary(usize::from(u16::MAX))]
}

pub(crate) fn put_packet_id(out: &mut Vec<u8>, id: PacketId) {
    out.extend_from_slice(&id.get().to_be_bytes());
}

/// Appends a packet whose body `write` appends. The length field is widened afterwards if the body
/// turns out longer than 127 bytes, which packets written this way seldom are.
pub(crate) fn put_packet(out: &mut Vec<u8>, first: u8, write: impl FnOnce(&mut Vec<u8>)) {
    out.push(first);
    put_measured(out, write);
}

/// Appends what `write` appends behind its length as a variable byte integer.
pub(crate) fn put_measured(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.push(0);
    write(out);
    let length = out.len() - at - 1;
    let (field, field_len) = variable_field(length);
    if field_len > 1 {
        out.extend_from_slice(&field[1..field_len]);
        out[at + 1..].rotate_right(field_len - 1);
    }
    out[at] = field[0];
}
