//! The value of Block1 and Block2 (RFC 7959 section 2.2): the block's number and size, and whether more follow.

/// The largest size exponent: blocks of 1024 bytes.
pub const MAX_SZX: u8 = 6;

/// Block numbers have 20 bits.
const MAX_NUMBER: u32 = (1 << 20) - 1;

/// A block of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// Number, counted in blocks of this size; below 2^20.
    pub(crate) number: u32,
    /// Whether further blocks follow.
    pub(crate) more: bool,
    /// 0 to [`MAX_SZX`]: blocks have 2^(szx + 4) bytes.
    pub(crate) szx: u8,
}

impl Block {
    /// Reads an option's value; `None` if it is invalid.
    pub(crate) fn read(value: &[u8]) -> Option<Block> {
        if value.len() > 3 {
            return None;
        }
        let raw = value.iter().fold(0, |raw, byte| raw << 8 | u32::from(*byte));
        let szx = (raw & 7) as u8;
        // 7 is reserved over UDP (RFC 7959 section 2.2).
        (szx <= MAX_SZX).then_some(Block { number: raw >> 4, more: raw & 8 != 0, szx })
    }

    /// The option's value in its shortest form.
    pub(crate) fn write(self) -> Vec<u8> {
        uint(self.number << 4 | u32::from(self.more) << 3 | u32::from(self.szx))
    }

    /// Bytes in a block.
    pub(crate) fn size(self) -> usize {
        size(self.szx)
    }

    /// Offset of the block in the body.
    pub(crate) fn offset(self) -> usize {
        self.number as usize * self.size()
    }

    /// The block of size `szx` that begins at `offset`, a multiple of its size, in a body of `len` bytes, and
    /// the bytes it has. `None` past the end, or past the largest number of 20 bits.
    pub(crate) fn at(
        offset: usize,
        szx: u8,
        len: usize,
    ) -> Option<(Block, std::ops::Range<usize>)> {
        if offset > len || (offset == len && offset > 0) {
            return None;
        }
        let number = u32::try_from(offset / size(szx)).ok().filter(|&n| n <= MAX_NUMBER)?;
        let end = len.min(offset + size(szx));
        Some((Block { number, more: end < len, szx }, offset..end))
    }
}

/// Bytes in a block of this size exponent.
pub(crate) fn size(szx: u8) -> usize {
    1 << (szx.min(MAX_SZX) + 4)
}

/// An unsigned number in an option: big-endian without leading zeros (RFC 7252 section 3.2).
pub(crate) fn uint(value: u32) -> Vec<u8> {
    let bytes = value.to_be_bytes();
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    bytes[zeros..].to_vec()
}

/// Reads what [`uint`] writes; `None` if it is longer than four bytes.
pub(crate) fn read_uint(value: &[u8]) -> Option<u32> {
    (value.len() <= 4).then(|| value.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_rfc() {
        // RFC 7959 section 3.1: 2:0/0/128 and so on.
        let block = Block { number: 2, more: true, szx: 3 };
        assert_eq!(block.write(), [0x2B]);
        assert_eq!(Block::read(&[0x2B]), Some(block));
        assert_eq!(Block::read(&[]), Some(Block { number: 0, more: false, szx: 0 }));
        assert_eq!(Block { number: 0, more: false, szx: 0 }.write(), Vec::<u8>::new());
        assert_eq!(Block { number: 1000, more: false, szx: 6 }.write(), [0x3E, 0x86]);
        assert_eq!(Block::read(&[0x07]), None, "size exponent 7");
        assert_eq!(Block::read(&[1, 2, 3, 4]), None);
    }

    #[test]
    fn a_body_is_cut_at_its_end() {
        assert_eq!(Block::at(0, 6, 0).unwrap().1, 0..0);
        let (block, range) = Block::at(1024, 6, 1500).unwrap();
        assert_eq!((block.number, block.more, range), (1, false, 1024..1500));
        assert!(Block::at(0, 6, 1025).unwrap().0.more);
        assert!(Block::at(1024, 6, 1024).is_none());
        assert!(Block::at(2048, 6, 1024).is_none());
    }
}
