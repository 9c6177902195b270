//! An object that is being sent: the repair state of its blocks, and its symbols.

use std::collections::VecDeque;
use std::io;

use crate::partition::Partition;
use crate::rs::Code;

/// Blocks cached in memory, so that repairs of several blocks in turn do not read each block again.
const CACHED_BLOCKS: usize = 16;

/// The source of an object's bytes.
pub trait Source {
    /// Fills `to` with the bytes from `offset` on, all of which are within the object.
    ///
    /// # Errors
    /// They cannot be read; the object is withdrawn then.
    fn read(&mut self, offset: u64, to: &mut [u8]) -> io::Result<()>;
}

impl Source for Vec<u8> {
    fn read(&mut self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(offset).ok().and_then(|offset| self.get(offset..));
        let from = from.and_then(|from| from.get(..to.len()));
        to.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// A set of symbol numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Symbols([u64; 4]);

impl Symbols {
    pub(crate) fn insert(&mut self, symbol: u8) -> bool {
        let (word, bit) = (&mut self.0[usize::from(symbol / 64)], 1 << (symbol % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    pub(crate) fn contains(&self, symbol: u8) -> bool {
        self.0[usize::from(symbol / 64)] & (1 << (symbol % 64)) != 0
    }

    fn pop(&mut self) -> Option<u8> {
        let word = self.0.iter().position(|&word| word != 0)?;
        let bit = self.0[word].trailing_zeros();
        self.0[word] &= self.0[word] - 1;
        Some(word as u8 * 64 + bit as u8)
    }

    pub(crate) fn len(&self) -> u16 {
        self.0.iter().map(|word| word.count_ones() as u16).sum()
    }
}

/// The repairs that a block still needs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Block {
    /// Parity symbols sent so far; the next has this number.
    pub(crate) parity_sent: u16,
    /// Fresh parity symbols to send.
    pub(crate) parity_due: u16,
    /// Symbols to send again as they are.
    pub(crate) explicit: Symbols,
    /// Whether it is in the queue of repairs.
    pub(crate) queued: bool,
    /// Whether a receiver has requested any symbol of it.
    pub(crate) requested: bool,
}

impl Block {
    pub(crate) fn due(&self) -> u16 {
        self.parity_due + self.explicit.len()
    }

    /// Adds `count` symbols to the repairs: first requested source symbols, because a receiver that requests them
    /// cannot use parity; then fresh parity while there is some; then requested parity again.
    pub(crate) fn schedule_repairs(&mut self, count: u16, symbols: u16, parity: u16, named: &[u8]) {
        let (sources, others): (Vec<u8>, Vec<u8>) =
            named.iter().partition(|&&symbol| u16::from(symbol) < symbols);
        let mut left = count;
        let mut add = |this: &mut Self, symbols: &[u8]| {
            for &symbol in symbols {
                if left > 0 && this.explicit.insert(symbol) {
                    left -= 1;
                }
            }
            left
        };
        let left = add(self, &sources);
        let fresh = left.min(parity - (self.parity_sent + self.parity_due).min(parity));
        self.parity_due += fresh;
        if left > fresh {
            let repeated: Vec<u8> = others.into_iter().take(usize::from(left - fresh)).collect();
            add(self, &repeated);
        }
    }

    /// The next repair, and whether its symbol was sent before.
    pub(crate) fn next(&mut self, symbols: u16) -> Option<(u8, bool)> {
        if let Some(symbol) = self.explicit.pop() {
            return Some((symbol, true));
        }
        self.parity_due = self.parity_due.checked_sub(1)?;
        let symbol = symbols + self.parity_sent;
        self.parity_sent += 1;
        Some((u8::try_from(symbol).ok()?, false))
    }
}

/// An object that is being sent.
pub(super) struct SentObject<S> {
    pub(super) info: Vec<u8>,
    pub(super) flags: u8,
    pub(super) partition: Partition,
    pub(super) blocks: Vec<Block>,
    pub(super) info_due: bool,
    pub(super) withdrawn: bool,
    source: S,
    /// Whole blocks, padded with zeros, the most recently used first; the last one makes room.
    cache: VecDeque<(u32, Vec<u8>)>,
}

impl<S: Source> SentObject<S> {
    pub(super) fn new(partition: Partition, info: Vec<u8>, flags: u8, source: S) -> SentObject<S> {
        let blocks = vec![Block::default(); partition.blocks() as usize];
        let (info_due, cache) = (true, VecDeque::new());
        SentObject { info, flags, partition, blocks, info_due, withdrawn: false, source, cache }
    }

    /// The object's last symbol.
    pub(super) fn last_symbol(&self) -> (u32, u16) {
        let block = self.partition.blocks().saturating_sub(1);
        (block, self.partition.symbols(block).saturating_sub(1))
    }

    fn block(&mut self, block: u32) -> io::Result<&[u8]> {
        let at = self.cache.iter().position(|(cached, _)| *cached == block);
        if let Some(used) = at.and_then(|at| self.cache.remove(at)) {
            self.cache.push_front(used);
        } else {
            let symbols = usize::from(self.partition.symbols(block));
            let mut bytes = vec![0; symbols * usize::from(self.partition.symbol_bytes())];
            let length = self.partition.block_bytes(block);
            self.source.read(self.partition.offset(block), &mut bytes[..length])?;
            self.cache.truncate(CACHED_BLOCKS - 1);
            self.cache.push_front((block, bytes));
        }
        Ok(&self.cache[0].1)
    }

    /// A symbol, source or parity; parity is made in `scratch`.
    pub(super) fn symbol<'a>(
        &'a mut self,
        code: &Code,
        block: u32,
        symbol: u8,
        scratch: &'a mut Vec<u8>,
    ) -> io::Result<&'a [u8]> {
        let symbols = self.partition.symbols(block);
        let length = usize::from(self.partition.symbol_bytes());
        let within = self.partition.block_bytes(block);
        let bytes = self.block(block)?;
        if u16::from(symbol) < symbols {
            let start = usize::from(symbol) * length;
            // The object's last symbol may be shorter.
            return Ok(&bytes[start..within.min(start + length)]);
        }
        scratch.clear();
        scratch.resize(length, 0);
        code.parity(usize::from(u16::from(symbol) - symbols), bytes, scratch);
        Ok(scratch)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_block_owes_fresh_parity_before_it_repeats_symbols() {
        let mut block = Block::default();
        block.schedule_repairs(4, 4, 2, &[1, 5, 4]);
        assert_eq!((block.parity_due, block.due()), (2, 4));
        let sent: Vec<_> = std::iter::from_fn(|| block.next(4)).collect();
        assert_eq!(sent, [(1, true), (5, true), (4, false), (5, false)]);
        block.schedule_repairs(2, 4, 2, &[5]);
        assert_eq!(block.next(4), Some((5, true)), "there is no fresh parity any more");
        assert_eq!(block.next(4), None);
    }

    /// A source that counts how often it is read.
    struct CountingSource {
        reads: usize,
    }

    impl Source for CountingSource {
        fn read(&mut self, _: u64, _: &mut [u8]) -> io::Result<()> {
            self.reads += 1;
            Ok(())
        }
    }

    #[test]
    fn the_least_recently_used_block_makes_room() {
        let parts = Partition::new(64, 1, 2).unwrap();
        let blocks = u32::try_from(CACHED_BLOCKS).unwrap();
        assert!(parts.blocks() > blocks);
        let mut object = SentObject::new(parts, vec![], 0, CountingSource { reads: 0 });
        for block in (0..blocks).chain([0, blocks]) {
            object.block(block).unwrap();
        }
        assert_eq!(object.source.reads, CACHED_BLOCKS + 1);
        for block in [0].into_iter().chain(2..=blocks) {
            object.block(block).unwrap();
        }
        assert_eq!(object.source.reads, CACHED_BLOCKS + 1, "all but block 1 are cached");
        object.block(1).unwrap();
        assert_eq!(object.source.reads, CACHED_BLOCKS + 2);
    }

    #[test]
    fn the_last_symbol_is_short_and_counts_as_padded_for_parity() {
        let parts = Partition::new(5, 4, 2).unwrap();
        let code = Code::new(2, 1).unwrap();
        let mut object = SentObject::new(parts, vec![], 0, b"abcde".to_vec());
        let mut out = Vec::new();
        assert_eq!(object.symbol(&code, 0, 1, &mut out).unwrap(), b"e");
        let mut parity = vec![0; 4];
        code.parity(0, b"abcde\0\0\0", &mut parity);
        assert_eq!(object.symbol(&code, 0, 2, &mut out).unwrap(), parity);
    }
}
