//! Streams (NORM_OBJECT_STREAM, RFC 5740 section 3.1): bytes without a known end, in order, with marks where
//! messages begin.
//!
//! A [`StreamSender`] accepts bytes and keeps a limited number of blocks for repairs. Normally it keeps each block
//! until all receivers that it knows have acknowledged it, which blocks the writer; with `push`, it drops the oldest
//! block. A [`StreamReceiver`] returns bytes in order, and gaps where bytes are lost. Blocks are repaired by parity
//! like those of files; a block that is not full yet has no parity, so its symbols are repeated.
//!
//! Positions in a stream are counted in symbols from its beginning; on the wire they wrap. Not supported: several
//! streams of one sender, NORM_INFO for streams.

mod incoming;
mod receiver;
mod requests;
mod send_buffer;
mod sender;

pub use incoming::Piece;
pub use receiver::{Progress as StreamReceiverProgress, StreamReceiver, StreamReceiverConfig};
pub use sender::{Event as StreamEvent, StreamConfig, StreamSender};

use crate::wire::{Fec, SymbolId};

/// Blocks of streams are short, because only a full block has parity.
pub const STREAM_BLOCK_SYMBOLS: u8 = 32;

/// The block for a number on the wire, near a known block.
fn unwrap_block(wire: u32, near: u64, fec: Fec) -> u64 {
    let bits = if fec == Fec::ReedSolomon8 { 24 } else { 32 };
    let modulus = 1_u64 << bits;
    let ahead = u64::from(wire).wrapping_sub(near) & (modulus - 1);
    if ahead < modulus / 2 {
        near + ahead
    } else {
        // Before `near`; there is nothing before the beginning.
        (near + ahead).checked_sub(modulus).unwrap_or(u64::from(wire))
    }
}

/// A symbol's identifier on the wire.
fn symbol_id(block: u64, symbol: u16, block_len: u16, fec: Fec) -> SymbolId {
    let mask = if fec == Fec::ReedSolomon8 { 0xFF_FFFF } else { 0xFFFF_FFFF };
    SymbolId { block: (block & mask) as u32, symbol, block_len }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_numbers_wrap() {
        let fec = Fec::ReedSolomon8;
        for block in [0_u64, 5, (1 << 24) - 1, 1 << 24, (7 << 24) + 3] {
            for near in [block, block + 100, block.saturating_sub(100)] {
                let wire = symbol_id(block, 0, 1, fec).block;
                assert_eq!(unwrap_block(wire, near, fec), block, "near {near}");
            }
        }
    }
}
