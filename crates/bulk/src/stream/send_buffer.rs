//! The send buffer of a stream: bytes as source symbols of blocks, the oldest block first.

use std::collections::VecDeque;
use std::time::Duration;

use crate::rs::Code;
use crate::sender::Block;
use crate::wire::{SEGMENT_HEAD_BYTES, Segment};

pub(super) struct BufferedBlock {
    /// Symbols of the segment, each padded with zeros.
    bytes: Vec<u8>,
    pub(super) repair: Block,
    /// When each of its source symbols was last sent.
    pub(super) sent: Vec<Duration>,
}

/// The send buffer; see the module.
#[derive(Default)]
pub(super) struct SendBuffer {
    blocks: VecDeque<BufferedBlock>,
    /// Number of the first block that is kept.
    first: u64,
    block_symbols: u16,
    symbol_bytes: usize,
    capacity: usize,
    /// The position of the symbol that is being filled.
    end: u64,
    /// The bytes of that symbol so far.
    filling: Vec<u8>,
    message_start: Option<u16>,
    /// The next byte begins a message.
    begins: bool,
    offset: u32,
    closed: bool,
}

impl SendBuffer {
    /// `symbol_bytes` are the data of a symbol, without its header.
    pub(super) fn new(block_symbols: u16, symbol_bytes: usize, capacity: usize) -> SendBuffer {
        SendBuffer { block_symbols, symbol_bytes, capacity, begins: true, ..SendBuffer::default() }
    }

    /// The length of a symbol with its header.
    pub(super) fn vector_bytes(&self) -> usize {
        self.symbol_bytes + SEGMENT_HEAD_BYTES
    }

    /// All symbols before this position may be sent.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    pub(super) fn first(&self) -> u64 {
        self.first
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn held(&self) -> usize {
        self.blocks.len()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn block_of(&self, place: u64) -> (u64, u16) {
        let symbols = u64::from(self.block_symbols);
        (place / symbols, (place % symbols) as u16)
    }

    /// Whether there is room for one more symbol.
    pub(super) fn has_room(&self) -> bool {
        self.block_of(self.end).0 < self.first + self.capacity as u64
    }

    /// Accepts as many bytes as there is room for; returns how many.
    pub(super) fn write(&mut self, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        while !rest.is_empty() && !self.closed && self.has_room() {
            if std::mem::take(&mut self.begins) && self.message_start.is_none() {
                self.message_start = Some(self.filling.len() as u16);
            }
            let (now, later) =
                rest.split_at(rest.len().min(self.symbol_bytes - self.filling.len()));
            self.filling.extend_from_slice(now);
            rest = later;
            if self.filling.len() == self.symbol_bytes {
                self.flush();
            }
        }
        bytes.len() - rest.len()
    }

    /// The next byte begins a message.
    pub(super) fn end_message(&mut self) {
        self.begins = true;
    }

    /// Lets the written bytes be sent, although their symbol is not full.
    pub(super) fn flush(&mut self) {
        if !self.filling.is_empty() {
            self.push_symbol();
        }
    }

    /// Ends the stream. Returns false if there was no room for its end.
    pub(super) fn close(&mut self) -> bool {
        self.flush();
        if !self.closed && self.has_room() {
            self.message_start = None;
            self.push_symbol();
            self.closed = true;
        }
        self.closed
    }

    fn push_symbol(&mut self) {
        let (block, symbol) = self.block_of(self.end);
        let vector = self.vector_bytes();
        let symbols = usize::from(self.block_symbols);
        while self.first + self.blocks.len() as u64 <= block {
            self.blocks.push_back(BufferedBlock {
                bytes: vec![0; symbols * vector],
                repair: Block::default(),
                sent: vec![Duration::ZERO; symbols],
            });
        }
        let (message_start, offset) = (self.message_start.take(), self.offset);
        let mut encoded = Vec::with_capacity(vector);
        Segment { message_start, offset, data: &self.filling }.encode(&mut encoded);
        self.offset = self.offset.wrapping_add(self.filling.len() as u32);
        self.filling.clear();
        let index = (block - self.first) as usize;
        if let Some(kept) = self.blocks.get_mut(index) {
            kept.bytes[usize::from(symbol) * vector..][..encoded.len()].copy_from_slice(&encoded);
        }
        self.end += 1;
    }

    /// Drops the blocks before this one.
    pub(super) fn release(&mut self, to: u64) {
        while self.first < to && self.blocks.pop_front().is_some() {
            self.first += 1;
        }
    }

    pub(super) fn block(&mut self, block: u64) -> Option<&mut BufferedBlock> {
        let index = block.checked_sub(self.first)?;
        self.blocks.get_mut(usize::try_from(index).ok()?)
    }

    /// Writes a symbol, source or parity, into `out`. Only full blocks have parity. Returns whether the symbol
    /// exists.
    pub(super) fn symbol(&self, code: &Code, block: u64, symbol: u8, out: &mut Vec<u8>) -> bool {
        let index = block.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        let Some(kept) = index.and_then(|index| self.blocks.get(index)) else { return false };
        let vector = self.vector_bytes();
        out.clear();
        let number = usize::from(symbol);
        match number.checked_sub(self.block_symbols.into()) {
            None => {
                let symbol = &kept.bytes[number * vector..][..vector];
                let length = usize::from(u16::from_be_bytes([symbol[0], symbol[1]]));
                out.extend_from_slice(&symbol[..SEGMENT_HEAD_BYTES + length]);
            }
            Some(parity) => {
                out.resize(vector, 0);
                code.parity(parity, &kept.bytes, out);
            }
        }
        true
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn segment(send_buffer: &SendBuffer, block: u64, symbol: u8) -> (Option<u16>, u32, Vec<u8>) {
        let mut out = Vec::new();
        assert!(send_buffer.symbol(&Code::new(2, 1).unwrap(), block, symbol, &mut out));
        let Segment { message_start, offset, data } = Segment::decode(&out).unwrap();
        (message_start, offset, data.to_vec())
    }

    #[test]
    fn bytes_become_symbols_that_know_where_messages_begin() {
        let mut send_buffer = SendBuffer::new(2, 4, 2);
        assert_eq!(send_buffer.write(b"abcdef"), 6);
        assert_eq!(send_buffer.end(), 1, "what is not full waits");
        send_buffer.end_message();
        assert_eq!(send_buffer.write(b"g"), 1);
        send_buffer.flush();
        assert_eq!(segment(&send_buffer, 0, 0), (Some(0), 0, b"abcd".to_vec()));
        assert_eq!(segment(&send_buffer, 0, 1), (Some(2), 4, b"efg".to_vec()));
        assert!(send_buffer.close());
        assert_eq!(segment(&send_buffer, 1, 0), (None, 7, Vec::new()));
        assert_eq!(send_buffer.write(b"h"), 0, "after the end");
    }

    #[test]
    fn it_takes_no_more_than_it_has_room_for() {
        let mut send_buffer = SendBuffer::new(2, 4, 2);
        assert_eq!(send_buffer.write(&[1; 100]), 16);
        assert!(!send_buffer.close());
        send_buffer.release(1);
        assert_eq!(send_buffer.write(&[1; 100]), 8);
        assert_eq!((send_buffer.first(), send_buffer.held()), (1, 2));
        assert!(
            !send_buffer.symbol(&Code::new(2, 1).unwrap(), 0, 0, &mut Vec::new()),
            "it is gone"
        );
    }
}
