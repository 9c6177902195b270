//! Divides an object into blocks of symbols: the algorithm of RFC 5052 section 9.1.
//!
//! Blocks differ by at most one symbol; the larger ones come first. Only the last symbol of the object may be
//! shorter.

use crate::rs::MAX_SYMBOLS;

/// FEC encoding 5 numbers blocks with 24 bits.
const MAX_BLOCKS: u64 = 1 << 24;

/// Why an object cannot be divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// Symbols of no bytes or blocks of no symbols.
    #[error("symbols need bytes and blocks need symbols")]
    Zero,
    /// More symbols per block than the code allows.
    #[error("at most {MAX_SYMBOLS} symbols to a block")]
    BlockTooLong,
    /// More blocks than can be numbered.
    #[error("the object has too many blocks")]
    TooManyBlocks,
}

/// An object's division into blocks and symbols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    bytes: u64,
    symbol_bytes: u16,
    /// The number of blocks, and how many of them have `small + 1` symbols.
    blocks: u32,
    large_blocks: u32,
    small: u16,
}

impl Partition {
    /// Divides `bytes` into symbols of `symbol_bytes` and blocks of at most `max_block` symbols. An
    /// empty object has no blocks.
    ///
    /// # Errors
    /// See [`Unfit`].
    pub fn new(bytes: u64, symbol_bytes: u16, max_block: u16) -> Result<Partition, Unfit> {
        if symbol_bytes == 0 || max_block == 0 {
            return Err(Unfit::Zero);
        }
        if usize::from(max_block) > MAX_SYMBOLS {
            return Err(Unfit::BlockTooLong);
        }
        let symbols = bytes.div_ceil(u64::from(symbol_bytes));
        let blocks = symbols.div_ceil(u64::from(max_block));
        if blocks > MAX_BLOCKS {
            return Err(Unfit::TooManyBlocks);
        }
        let small = symbols.checked_div(blocks).unwrap_or(0);
        let large_blocks = symbols - small * blocks;
        let small = u16::try_from(small).map_err(|_| Unfit::BlockTooLong)?;
        let [blocks, large_blocks] =
            [blocks, large_blocks].map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        Ok(Partition { bytes, symbol_bytes, blocks, large_blocks, small })
    }

    /// The object's length.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Length of every symbol but the object's last, which the code pads with zeros.
    #[must_use]
    pub fn symbol_bytes(&self) -> u16 {
        self.symbol_bytes
    }

    /// Number of blocks.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Source symbols of a block; 0 if there is no such block.
    #[must_use]
    pub fn symbols(&self, block: u32) -> u16 {
        match block {
            block if block >= self.blocks => 0,
            block if block < self.large_blocks => self.small + 1,
            _ => self.small,
        }
    }

    /// Where a block begins.
    #[must_use]
    pub fn offset(&self, block: u32) -> u64 {
        let symbols =
            u64::from(block) * u64::from(self.small) + u64::from(block.min(self.large_blocks));
        symbols * u64::from(self.symbol_bytes)
    }

    /// Bytes of the object in a block.
    #[must_use]
    pub fn block_bytes(&self, block: u32) -> usize {
        let most = u64::from(self.symbols(block)) * u64::from(self.symbol_bytes);
        let rest = self.bytes.saturating_sub(self.offset(block));
        usize::try_from(most.min(rest)).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn blocks_follow_each_other_and_cover_the_object() {
        for bytes in (0..3000).chain([100_000, 64_000_000]) {
            for (symbol, block) in [(7, 5), (100, 64), (1424, 255), (1, 16)] {
                let Ok(parts) = Partition::new(bytes, symbol, block) else { panic!("{bytes}") };
                if parts.blocks() > 100_000 {
                    continue;
                }
                let mut at = 0;
                for number in 0..parts.blocks() {
                    assert_eq!(parts.offset(number), at);
                    assert!((1..=block).contains(&parts.symbols(number)));
                    at += parts.block_bytes(number) as u64;
                }
                assert_eq!(at, bytes, "{symbol} {block}");
            }
        }
    }

    #[test]
    fn lengths_differ_by_one_symbol_at_most() {
        let parts = Partition::new(10 * 100 - 1, 100, 4).unwrap();
        let lengths: Vec<_> = (0..parts.blocks()).map(|block| parts.symbols(block)).collect();
        assert_eq!(lengths, [4, 3, 3]);
        assert_eq!(parts.block_bytes(2), 299);
        assert_eq!(parts.symbols(3), 0);
    }

    #[test]
    fn what_cannot_be_divided_is_refused() {
        assert_eq!(Partition::new(1, 0, 4), Err(Unfit::Zero));
        assert_eq!(Partition::new(1, 4, 0), Err(Unfit::Zero));
        assert_eq!(Partition::new(1, 4, 256), Err(Unfit::BlockTooLong));
        assert_eq!(Partition::new(u64::MAX, 1, 255), Err(Unfit::TooManyBlocks));
        assert_eq!(Partition::new(0, 4, 4).unwrap().blocks(), 0);
    }
}
