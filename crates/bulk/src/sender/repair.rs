//! Turns the requests of NACKs into repairs of blocks.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use super::peers::symbols_for;
use super::{Sender, Source};
use crate::NodeId;
use crate::wire::{CommandKind, Fec, Form, Level, Requests, Span, SymbolId, Writer, flags};

/// Symbols whose time of sending is remembered.
const MAX_RECENT: usize = 1 << 16;
/// The most symbols that a NACK may name.
const MAX_NAMED: usize = 1 << 16;

/// The symbols sent recently, the latest last.
#[derive(Debug, Default)]
pub(crate) struct Recent(VecDeque<(Duration, u16, u32)>);

impl Recent {
    pub(crate) fn sent(&mut self, now: Duration, object: u16, block: u32) {
        if self.0.len() == MAX_RECENT {
            self.0.pop_front();
        }
        self.0.push_back((now, object, block));
    }

    /// Returns the number of symbols of each block that were sent after a time.
    pub(crate) fn since(&self, time: Duration) -> HashMap<(u16, u32), u16> {
        let mut count = HashMap::new();
        for &(_, object, block) in self.0.iter().rev().take_while(|(at, ..)| *at > time) {
            *count.entry((object, block)).or_insert(0) += 1;
        }
        count
    }
}

/// A NACK's request for a block.
#[derive(Default)]
struct BlockRequest {
    count: u16,
    named: Vec<u8>,
}

impl<S: Source> Sender<S> {
    pub(super) fn nack(
        &mut self,
        now: Duration,
        node: NodeId,
        echo: Option<Duration>,
        requests: Requests<'_>,
        has_report: bool,
    ) {
        let flying = self.base.recent.since(self.base.seen(now, echo));
        let (wanted, mut fresh) = (self.wanted(requests), false);
        if !has_report {
            self.estimate_loss(now, node, &wanted);
        }
        let loss = self.base.peers.loss_of(node);
        let near_end = self.near_end(self.cursor.0, self.cursor.1);
        let margin = self.base.margin(near_end);
        let parity = self.base.config.parity_symbols.into();
        for ((object, number), wanted) in wanted {
            let outgoing = &mut self.objects[usize::from(object)];
            let symbols = outgoing.partition.symbols(number);
            let block = &mut outgoing.blocks[number as usize];
            let under_way = flying.get(&(object, number)).copied().unwrap_or(0) + block.due();
            let missing = symbols_for(wanted.count, loss, margin).max(1).saturating_sub(under_way);
            block.requested = true;
            block.schedule_repairs(missing, symbols, parity, &wanted.named);
            if block.due() > 0 && !std::mem::replace(&mut block.queued, true) {
                self.repairs.push_back((object, number));
                fresh = true;
            }
        }
        if fresh && self.base.is_group() {
            // Other receivers may be about to request the same.
            self.advertise_at.get_or_insert(now + self.base.grtt() / 8);
        }
        if near_end {
            self.flush_at = self.flush_at.max(now);
        }
    }

    /// The requests for blocks that have been sent. Requests for info are handled here.
    fn wanted(&mut self, requests: Requests<'_>) -> BTreeMap<(u16, u32), BlockRequest> {
        let mut wanted = BTreeMap::new();
        let mut named = 0;
        for span in requests.spans() {
            for object in span.first.0..=span.last.0 {
                let index = usize::from(object);
                if index >= self.objects.len() || self.objects[index].withdrawn {
                    self.squelch = true;
                    break;
                }
                if index > self.cursor.0 {
                    break;
                }
                if span.level.info || span.level.object {
                    self.objects[index].info_due = true;
                }
                // After receiving the info, the receiver knows which parts of the object it has.
                let tells = self.objects[index].flags & flags::INFO != 0;
                if span.level.object && tells && self.base.config.ask_first {
                    continue;
                }
                self.wanted_of(object, &span, &mut wanted, &mut named);
            }
        }
        wanted
    }

    fn wanted_of(
        &self,
        object: u16,
        span: &Span,
        wanted: &mut BTreeMap<(u16, u32), BlockRequest>,
        named: &mut usize,
    ) {
        let Level { segment, block, object: whole, .. } = span.level;
        let parts = self.objects[usize::from(object)].partition;
        // The block at the cursor is being sent; later blocks will be.
        let sent =
            if usize::from(object) == self.cursor.0 { self.cursor.1 } else { parts.blocks() };
        let (first, last) =
            if whole { (0, u32::MAX) } else { (span.first.1.block, span.last.1.block) };
        for number in first..sent.min(last.saturating_add(1)) {
            let symbols = parts.symbols(number);
            let (from, to) = match span.form {
                _ if whole || block => (0, symbols.saturating_sub(1)),
                _ if !segment || first != last => break,
                Form::Erasures => {
                    (symbols, symbols.saturating_add(span.first.1.symbol).saturating_sub(1))
                }
                _ => (span.first.1.symbol, span.last.1.symbol),
            };
            let end = symbols + u16::from(self.base.config.parity_symbols);
            let entry: &mut BlockRequest = wanted.entry((object, number)).or_default();
            for symbol in from..=to.min(end.saturating_sub(1)) {
                // A request cannot be for more symbols than the block has.
                if *named >= MAX_NAMED || entry.count >= symbols {
                    break;
                }
                *named += 1;
                entry.count += 1;
                entry.named.push(symbol as u8);
            }
        }
    }

    /// Estimates the loss of receivers that do not report it, from what they lack of blocks sent once.
    fn estimate_loss(
        &mut self,
        now: Duration,
        node: NodeId,
        wanted: &BTreeMap<(u16, u32), BlockRequest>,
    ) {
        let (mut missing, mut sent) = (0, 0);
        for (&(object, number), wanted) in wanted {
            let object = &self.objects[usize::from(object)];
            let block = object.blocks[number as usize];
            if !block.requested {
                missing += u32::from(wanted.count);
                sent += u32::from(object.partition.symbols(number));
            }
        }
        let Some(peer) = self.base.peers.heard(now, node, None, None) else { return };
        if sent > 0 {
            let share = f64::from(missing) / f64::from(sent);
            peer.loss = (0.75 * peer.loss + 0.25 * share).min(0.9);
        }
    }

    /// The next repair of a block.
    pub(super) fn put_repair(&mut self, now: Duration, out: &mut Vec<u8>) -> bool {
        while let Some(&(id, number)) = self.repairs.front() {
            let object = &mut self.objects[usize::from(id)];
            let symbols = object.partition.symbols(number);
            let block = &mut object.blocks[number as usize];
            let next = if object.withdrawn { None } else { block.next(symbols) };
            let Some((symbol, again)) = next else {
                block.queued = false;
                self.repairs.pop_front();
                continue;
            };
            let repair = if again { flags::REPAIR | flags::EXPLICIT } else { flags::REPAIR };
            if self.put_symbol(now, id, number, symbol, repair, out) {
                return true;
            }
        }
        false
    }

    /// The approximate size of all repairs.
    pub(super) fn repair_bytes(&self) -> u64 {
        let block =
            u64::from(self.base.config.block_symbols) * u64::from(self.base.config.symbol_bytes);
        self.repairs.len() as u64 * block
    }

    /// Writes an announcement of the repairs for the group. Returns whether there are any.
    pub(super) fn put_advertisement(&self, out: &mut Vec<u8>) -> bool {
        let mut writer = Writer::new(self.base.config.symbol_bytes.into(), Fec::default());
        let level = Level { segment: true, ..Level::default() };
        let mut limit = false;
        for &(id, block) in &self.repairs {
            let object = &self.objects[usize::from(id)];
            let due = object.blocks[block as usize].due();
            if due == 0 {
                continue;
            }
            let symbols = object.partition.symbols(block);
            let at = |symbol| (id, SymbolId { block, symbol, block_len: symbols });
            // Receivers only count them; which symbols they are does not matter.
            if !writer.push(level, at(symbols), at((symbols + due - 1).min(255))) {
                limit = true;
                break;
            }
        }
        if writer.requests().is_empty() {
            return false;
        }
        self.base.put_command(CommandKind::RepairAdv { requests: writer.requests(), limit }, out);
        true
    }
}
