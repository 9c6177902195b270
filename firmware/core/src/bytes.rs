//! Reading and writing fields in bounded memory: big-endian integers, QUIC's variable-length integers
//! (RFC 9000, section 16), blocks with their length in front. Nothing here panics or reads past an end.

/// Takes fields off the front of a slice; [`None`] once there is too little.
#[derive(Clone)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    #[inline(never)]
    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    /// A big-endian integer of `count` bytes, at most 4.
    #[inline(never)]
    fn integer(&mut self, count: usize) -> Option<u32> {
        Some(self.bytes(count)?.iter().fold(0, |value, byte| value << 8 | u32::from(*byte)))
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.integer(1).map(|value| value as u8)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.integer(2).map(|value| value as u16)
    }

    pub(crate) fn u24(&mut self) -> Option<usize> {
        self.integer(3).map(|value| value as usize)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.integer(4)
    }

    /// A variable-length integer, cut down to `u32::MAX`: limits beyond that are no limits to us, and
    /// offsets and packet numbers beyond it are refused by whoever reads them.
    #[inline(never)]
    pub(crate) fn varint(&mut self) -> Option<u32> {
        let first = self.u8()?;
        let high = u32::from(first & 0x3f);
        match first >> 6 {
            0 => Some(high),
            1 => Some(high << 8 | self.integer(1)?),
            2 => Some(high << 24 | self.integer(3)?),
            _ => {
                let upper = high << 24 | self.integer(3)?;
                let lower = self.integer(4)?;
                Some(if upper == 0 { lower } else { u32::MAX })
            }
        }
    }

    /// Reads the bytes behind a length of one byte.
    pub(crate) fn block8(&mut self) -> Option<Reader<'a>> {
        let length = self.u8()?;
        self.bytes(length.into()).map(Self::new)
    }

    /// Reads the bytes behind a length of two bytes.
    pub(crate) fn block16(&mut self) -> Option<Reader<'a>> {
        let length = self.u16()?;
        self.bytes(length.into()).map(Self::new)
    }

    /// Reads the bytes behind a length of three bytes.
    #[cfg(feature = "x509")]
    pub(crate) fn block24(&mut self) -> Option<Reader<'a>> {
        let length = self.u24()?;
        self.bytes(length).map(Self::new)
    }

    /// Reads the bytes behind a length that is a variable-length integer.
    pub(crate) fn block_varint(&mut self) -> Option<Reader<'a>> {
        let length = self.varint()?;
        self.bytes(length as usize).map(Self::new)
    }
}

/// The bytes that `value` takes as a variable-length integer.
pub(crate) fn varint_len(value: u32) -> usize {
    match value {
        0..64 => 1,
        64..0x4000 => 2,
        0x4000..0x4000_0000 => 4,
        _ => 8,
    }
}

/// Puts fields into a slice, one after the other. What does not fit is left out and remembered:
/// [`finish`](Writer::finish) tells.
pub(crate) struct Writer<'a> {
    buffer: &'a mut [u8],
    at: usize,
    overflow: bool,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, at: 0, overflow: false }
    }

    /// Number of bytes written.
    pub(crate) fn len(&self) -> usize {
        self.at
    }

    /// Number of bytes for which there is room.
    pub(crate) fn room(&self) -> usize {
        self.buffer.len() - self.at
    }

    /// Bytes written so far.
    pub(crate) fn written(&self) -> &[u8] {
        self.buffer.get(..self.at).unwrap_or_default()
    }

    /// The length of all, or [`None`] if it did not fit.
    pub(crate) fn finish(self) -> Option<usize> {
        (!self.overflow).then_some(self.at)
    }

    #[inline(never)]
    pub(crate) fn write_bytes(&mut self, bytes: &[u8]) {
        match self.buffer.get_mut(self.at..).and_then(|free| free.get_mut(..bytes.len())) {
            Some(place) => {
                place.copy_from_slice(bytes);
                self.at += bytes.len();
            }
            None => self.overflow = true,
        }
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.write_bytes(&[value]);
    }

    pub(crate) fn u16(&mut self, value: usize) {
        // Every slice in here is shorter than 2^16.
        self.write_bytes(&(value as u16).to_be_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.write_bytes(&value.to_be_bytes());
    }

    #[inline(never)]
    pub(crate) fn varint(&mut self, value: u32) {
        match varint_len(value) {
            1 => self.u8(value as u8),
            2 => self.u16(value as usize | 0x4000),
            4 => self.u32(value | 0x8000_0000),
            _ => {
                self.u32(0xc000_0000);
                self.u32(value);
            }
        }
    }

    /// Leaves room for a length of two bytes; [`close16`](Self::close16) fills it in.
    pub(crate) fn open16(&mut self) -> usize {
        self.u16(0);
        self.at
    }

    /// Fills in the length of what was written since [`open16`](Self::open16) gave `mark`.
    pub(crate) fn close16(&mut self, mark: usize) {
        self.set16(mark.wrapping_sub(2), self.at - mark);
    }

    /// Puts `value` at `at`, where something has been written already.
    pub(crate) fn set16(&mut self, at: usize, value: usize) {
        if let Some(place) = self.buffer.get_mut(at..).and_then(|rest| rest.get_mut(..2)) {
            place.copy_from_slice(&(value as u16).to_be_bytes());
        }
    }

    /// Fills with zeros up to a length of `len`, as far as there is room.
    pub(crate) fn pad(&mut self, len: usize) {
        let end = len.min(self.buffer.len());
        if let Some(place) = self.buffer.get_mut(self.at..end) {
            place.fill(0);
            self.at = end;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn rfc_9000_a_1_sample_variable_length_integers() {
        let read = |bytes: &[u8]| Reader::new(bytes).varint();
        assert_eq!(read(&[0x9d, 0x7f, 0x3e, 0x7d]), Some(494_878_333));
        assert_eq!(read(&[0x7b, 0xbd]), Some(15_293));
        assert_eq!(read(&[0x25]), Some(37));
        assert_eq!(read(&[0x40, 0x25]), Some(37));
        let beyond = [0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c];
        assert_eq!(read(&beyond), Some(u32::MAX), "cut down");
        assert_eq!(read(&beyond[..7]), None);
        assert_eq!(read(&[]), None);
    }

    #[test]
    fn integers_come_back_as_they_were_written() {
        for value in [0, 63, 64, 0x3fff, 0x4000, 0x3fff_ffff, 0x4000_0000, u32::MAX] {
            let mut buffer = [0; 8];
            let mut writer = Writer::new(&mut buffer);
            writer.varint(value);
            assert_eq!(writer.finish(), Some(varint_len(value)));
            assert_eq!(Reader::new(&buffer).varint(), Some(value));
        }
    }

    #[test]
    fn what_does_not_fit_is_left_out_and_told() {
        let mut buffer = [0; 3];
        let mut writer = Writer::new(&mut buffer);
        writer.u16(1);
        writer.u16(2);
        assert_eq!(writer.len(), 2);
        assert_eq!(writer.finish(), None);
    }
}
