//! The content of requests: objects, infos, whole blocks, and of other blocks the number of missing symbols.

use crate::partition::Partition;
use crate::sender::Symbols;
use crate::wire::{Fec, Level, SymbolId, Writer};

use super::incoming::{Incoming, Partial};

const SEGMENT: Level = Level { segment: true, block: false, info: false, object: false };
const BLOCK: Level = Level { segment: false, block: true, info: false, object: false };
const INFO: Level = Level { segment: false, block: false, info: true, object: false };
const OBJECT: Level = Level { segment: false, block: false, info: true, object: true };

fn at(block: u32, symbol: u16, parts: &Partition) -> SymbolId {
    SymbolId { block, symbol, block_len: parts.symbols(block) }
}

/// Requests an object of which nothing was received.
pub(super) fn unknown(object: u16, writer: &mut Writer) -> bool {
    let all = (object, SymbolId::default());
    writer.push(OBJECT, all, all)
}

/// Requests what is missing of an object's blocks before `end`. Returns whether all of it fitted.
pub(super) fn missing(object: u16, incoming: &Incoming, end: u32, writer: &mut Writer) -> bool {
    let parts = &incoming.partition;
    if incoming.needs_info() {
        let whole = (object, at(0, 0, parts));
        if !writer.push(INFO, whole, whole) {
            return false;
        }
    }
    let mut block = incoming.prefix;
    let end = end.min(parts.blocks());
    while block < end {
        if incoming.is_done(block) {
            block += 1;
            continue;
        }
        let Some(partial) = incoming.partial.get(&block) else {
            let nothing_received =
                |block: &u32| !incoming.is_done(*block) && !incoming.partial.contains_key(block);
            let last = (block + 1..end).take_while(nothing_received).last().unwrap_or(block);
            if !writer.push(BLOCK, (object, at(block, 0, parts)), (object, at(last, 0, parts))) {
                return false;
            }
            block = last + 1;
            continue;
        };
        for (first, last) in ranges(partial, parts.symbols(block), incoming.parity()) {
            let [first, last] = [first, last].map(|symbol| (object, at(block, symbol, parts)));
            if !writer.push(SEGMENT, first, last) {
                return false;
            }
        }
        block += 1;
    }
    true
}

/// Ranges with the number of symbols the block needs: parity after the last that was received, because the sender
/// continues there; then lost parity, then source symbols.
fn ranges(partial: &Partial, symbols: u16, parity: u16) -> Vec<(u16, u16)> {
    let parities = if partial.no_room { 0 } else { parity };
    ranges_of(&partial.have, partial.count(), symbols, parities)
}

/// The same for a block of which `count` symbols were received, and of whose parity the first `parity` symbols are
/// useful.
pub(crate) fn ranges_of(set: &Symbols, count: u16, symbols: u16, parity: u16) -> Vec<(u16, u16)> {
    let is_received = |symbol: u16| u8::try_from(symbol).is_ok_and(|symbol| set.contains(symbol));
    let end = (symbols + parity).min(256);
    let after =
        (symbols..end).rev().find(|&symbol| is_received(symbol)).map_or(symbols, |last| last + 1);
    let (parities, lost) = if parity == 0 { (0..0, 0..0) } else { (after..end, symbols..after) };
    let order = parities.chain(lost).chain(0..symbols);
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    let needed = symbols.saturating_sub(count);
    for symbol in order.filter(|&symbol| !is_received(symbol)).take(needed.into()) {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == symbol => *last = symbol,
            _ => ranges.push((symbol, symbol)),
        }
    }
    ranges
}

/// A writer of requests for an object with this FEC.
pub(super) fn writer(limit: usize, fec: Fec) -> Writer {
    Writer::new(limit, fec)
}
