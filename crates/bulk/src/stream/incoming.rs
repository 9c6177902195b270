//! A stream that is being received: symbols of blocks until all earlier ones have arrived, and parity until a block
//! is complete.

use std::collections::{BTreeMap, VecDeque};

use super::unwrap_block;
use crate::receiver::ranges_of;
use crate::rs::Code;
use crate::sender::Symbols;
use crate::wire::{Fec, Fti, Level, SEGMENT_HEAD_BYTES, Segment, SymbolId, Writer};

/// A receiver that joins within this many blocks of the beginning requests everything from the beginning.
const FROM_THE_BEGINNING: u64 = 256;

/// The approximate memory of a block besides its symbols.
const BLOCK_OVERHEAD_BYTES: usize = 256;
/// The most blocks, all of which are examined when something arrives.
const MAX_BLOCKS: usize = 1 << 12;

/// A piece of a stream that a receiver returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// The next bytes.
    Data(Vec<u8>),
    /// Bytes are missing here for good; their number, if it is known. The data after the gap begins with a message.
    Lost(Option<u32>),
    /// The stream ends here.
    End,
}

#[derive(Debug)]
struct Block {
    have: Symbols,
    sources: u16,
    bytes: Vec<u8>,
    parity: Vec<(u8, Vec<u8>)>,
}

/// A stream that is being received.
pub(super) struct Incoming {
    pub(super) object: u16,
    pub(super) fec: Fec,
    fti: Fti,
    code: Code,
    blocks: BTreeMap<u64, Block>,
    capacity: u64,
    /// The next position to read.
    read: u64,
    /// All symbols before this position have been sent.
    frontier: u64,
    /// The offset of the next byte; `None` before the first byte was read.
    offset: Option<u32>,
    /// Skips to the beginning of a message.
    seeking: bool,
    /// Data was given up since the last byte.
    broken: bool,
    /// It was joined after the stream's beginning.
    late: bool,
    ended: bool,
    pub(super) recovered: u64,
}

impl Incoming {
    /// A stream whose first received message is of this block; or why it cannot be received. At most `bytes` of data
    /// are held, and as much parity.
    pub(super) fn open(
        object: u16,
        fec: Fec,
        block: u32,
        fti: Fti,
        bytes: usize,
    ) -> Result<Incoming, String> {
        let code = Code::new(fti.max_block.into(), fti.parity.into()).ok_or("no such code")?;
        if fti.symbol_bytes == 0 {
            return Err("symbols without bytes".into());
        }
        let vector = usize::from(fti.symbol_bytes) + SEGMENT_HEAD_BYTES;
        let block_bytes = vector * usize::from(fti.max_block);
        // Counts the overhead of blocks, because a sender may make them tiny.
        let capacity = (bytes / (block_bytes + BLOCK_OVERHEAD_BYTES)).min(MAX_BLOCKS) as u64;
        if capacity < 2 {
            return Err(format!("blocks of {block_bytes} bytes are too long"));
        }
        let first = if u64::from(block) < FROM_THE_BEGINNING { 0 } else { u64::from(block) };
        let place = first * u64::from(fti.max_block);
        Ok(Incoming {
            object,
            fec,
            fti,
            code,
            blocks: BTreeMap::new(),
            capacity,
            read: place,
            frontier: place,
            offset: None,
            seeking: true,
            broken: false,
            late: first > 0,
            ended: false,
            recovered: 0,
        })
    }

    fn symbols(&self) -> u64 {
        self.fti.max_block.into()
    }

    fn vector(&self) -> usize {
        usize::from(self.fti.symbol_bytes) + SEGMENT_HEAD_BYTES
    }

    /// Whether the beginning of the stream is missing.
    pub(super) fn is_late(&self) -> bool {
        self.late
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// The position of a symbol on the wire.
    pub(super) fn place(&self, at: SymbolId) -> u64 {
        let block = unwrap_block(at.block, self.frontier / self.symbols(), self.fec);
        block * self.symbols() + u64::from(at.symbol).min(self.symbols())
    }

    /// All symbols before this position have been sent.
    pub(super) fn sent(&mut self, place: u64) {
        // A sender keeps no more than it announces, so a position far ahead is another stream or invalid; it causes a
        // gap.
        self.frontier = self.frontier.max(place);
        let block = place.saturating_sub(1) / self.symbols();
        self.make_room(block);
    }

    /// Whether everything before a position has been read.
    pub(super) fn has_read(&self, place: u64) -> bool {
        self.read >= place
    }

    /// Receives a symbol. Returns false if it is invalid, and true even if it is no longer useful.
    pub(super) fn receive(&mut self, at: SymbolId, fti: Option<Fti>, payload: &[u8]) -> bool {
        let (symbols, vector) = (self.fti.max_block, self.vector());
        let Ok(number) = u8::try_from(at.symbol) else { return false };
        let source = at.symbol < symbols;
        let fits = if source {
            Segment::decode(payload).is_some() && payload.len() <= vector
        } else {
            payload.len() == vector && at.symbol < symbols + self.fti.parity
        };
        if !fits || fti.is_some_and(|fti| fti != self.fti) {
            return false;
        }
        let place = self.place(at);
        let block = unwrap_block(at.block, self.frontier / self.symbols(), self.fec);
        // Parity goes out when its block is full.
        self.sent(if source { place + 1 } else { (block + 1) * self.symbols() });
        if (block + 1) * self.symbols() <= self.read {
            return true;
        }
        let held = self.blocks.entry(block).or_insert_with(|| Block {
            have: Symbols::default(),
            sources: 0,
            bytes: vec![0; usize::from(symbols) * vector],
            parity: Vec::new(),
        });
        let whole = held.sources == symbols;
        if whole || !held.have.insert(number) {
            return true;
        }
        if source {
            held.bytes[usize::from(number) * vector..][..payload.len()].copy_from_slice(payload);
            held.sources += 1;
        } else {
            held.parity.push((number, payload.to_vec()));
        }
        if held.sources < symbols && held.sources + held.parity.len() as u16 >= symbols {
            self.recover(block);
        }
        true
    }

    /// There are enough symbols: computes the missing ones.
    fn recover(&mut self, block: u64) {
        let (symbols, vector) = (self.fti.max_block, self.vector());
        let Some(held) = self.blocks.get_mut(&block) else { return };
        let missing: Vec<usize> =
            (0..symbols).filter(|&n| !held.have.contains(n as u8)).map(usize::from).collect();
        let parity = std::mem::take(&mut held.parity).into_iter();
        let parity =
            parity.map(|(number, bytes)| (usize::from(number) - usize::from(symbols), bytes));
        if self.code.recover(&mut held.bytes, vector, &missing, parity.collect()) {
            held.sources = symbols;
            missing.iter().for_each(|&symbol| {
                held.have.insert(symbol as u8);
            });
            self.recovered += missing.len() as u64;
        }
    }

    /// There are too many blocks: drops the oldest.
    fn make_room(&mut self, block: u64) {
        let least = (block + 1).saturating_sub(self.capacity);
        if self.read / self.symbols() < least {
            self.give_up(least);
        }
    }

    /// Blocks before this one are lost for good.
    pub(super) fn give_up(&mut self, block: u64) {
        let place = block * self.symbols();
        if place <= self.read {
            return;
        }
        self.read = place;
        self.frontier = self.frontier.max(place);
        self.blocks = self.blocks.split_off(&block);
        if self.offset.is_some() {
            self.broken = true;
        } else {
            self.late = true;
        }
        self.seeking = true;
    }

    /// The sender has dropped everything before a block. A receiver that has read nothing yet starts at the sender's
    /// present position.
    pub(super) fn squelched(&mut self, block: u32) {
        let here = self.frontier.saturating_sub(1) / self.symbols();
        let least = unwrap_block(block, here, self.fec);
        if least * self.symbols() <= self.read {
            return;
        }
        self.give_up(if self.offset.is_none() { least.max(here) } else { least });
    }

    /// Reads the next piece, if it is there.
    pub(super) fn read(&mut self) -> Option<Piece> {
        let (symbols, vector) = (self.symbols(), self.vector());
        while !self.ended {
            let (number, symbol) = (self.read / symbols, self.read % symbols);
            let block = self.blocks.get(&number)?;
            if !block.have.contains(symbol as u8) {
                return None;
            }
            let Some(segment) = Segment::decode(&block.bytes[symbol as usize * vector..][..vector])
            else {
                // Parity recovered it, but it is not a symbol of a stream.
                (self.broken, self.seeking) = (true, true);
                self.next();
                continue;
            };
            let start = segment.message_start.map(usize::from);
            let from = match (self.seeking, start) {
                (false, _) => 0,
                (true, Some(start)) => start,
                (true, None) if segment.is_end() => 0,
                (true, None) => {
                    self.next();
                    continue;
                }
            };
            let offset = segment.offset.wrapping_add(from as u32);
            let before = self.offset.replace(offset);
            self.seeking = false;
            if std::mem::take(&mut self.broken) {
                return Some(Piece::Lost(before.map(|before| offset.wrapping_sub(before))));
            }
            let data = segment.data[from..].to_vec();
            self.ended = segment.is_end();
            self.offset = Some(offset.wrapping_add(data.len() as u32));
            self.next();
            return Some(if self.ended { Piece::End } else { Piece::Data(data) });
        }
        None
    }

    fn next(&mut self) {
        self.read += 1;
        if self.read.is_multiple_of(self.symbols()) {
            self.blocks.remove(&(self.read / self.symbols() - 1));
        }
    }

    /// Whether a symbol that was sent is missing.
    pub(super) fn lacks(&self) -> bool {
        if self.ended || self.read >= self.frontier {
            return false;
        }
        let symbols = self.symbols();
        (self.read / symbols..=(self.frontier - 1) / symbols).any(|number| {
            let Some(block) = self.blocks.get(&number) else { return true };
            let first = self.read.max(number * symbols);
            let end = self.frontier.min((number + 1) * symbols);
            let lacks = |place| !block.have.contains((place % symbols) as u8);
            u64::from(block.sources) < symbols && (first..end).any(lacks)
        })
    }

    /// Requests missing data: for full blocks the number of symbols that they lack, preferably parity; for the last
    /// block the symbols themselves.
    pub(super) fn write_requests(&self, writer: &mut Writer) {
        let (symbols, object) = (self.fti.max_block, self.object);
        let name =
            |block: u64, symbol: u16| (object, super::symbol_id(block, symbol, symbols, self.fec));
        let (open, passed) = (self.frontier / self.symbols(), self.frontier % self.symbols());
        let mut block = self.read / self.symbols();
        while block <= open {
            let untouched = |block: &u64| !self.blocks.contains_key(block);
            if block < open && untouched(&block) {
                let last = (block..open).take_while(untouched).last().unwrap_or(block);
                let level = Level { block: true, ..Level::default() };
                if !writer.push(level, name(block, 0), name(last, 0)) {
                    return;
                }
                block = last + 1;
                continue;
            }
            let ranges = match self.blocks.get(&block) {
                Some(held) if block < open => {
                    let count = held.sources + held.parity.len() as u16;
                    ranges_of(&held.have, count, symbols, self.fti.parity)
                }
                held => {
                    let none = Symbols::default();
                    let have = held.map_or(none, |held| held.have);
                    let from = if block == self.read / self.symbols() { self.read } else { 0 };
                    missing(&have, (from % self.symbols()) as u16, passed as u16)
                }
            };
            for (first, last) in ranges {
                let level = Level { segment: true, ..Level::default() };
                if !writer.push(level, name(block, first), name(block, last)) {
                    return;
                }
            }
            block += 1;
        }
    }
}

/// Missing source symbols of a block that is not full.
fn missing(have: &Symbols, from: u16, to: u16) -> Vec<(u16, u16)> {
    let mut ranges: VecDeque<(u16, u16)> = VecDeque::new();
    for symbol in (from..to).filter(|&symbol| !have.contains(symbol as u8)) {
        match ranges.back_mut() {
            Some((_, last)) if *last + 1 == symbol => *last = symbol,
            _ => ranges.push_back((symbol, symbol)),
        }
    }
    ranges.into()
}
