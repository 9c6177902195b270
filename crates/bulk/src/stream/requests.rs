//! Turns the requests of a stream's receivers into repairs of blocks.

use std::collections::BTreeMap;
use std::time::Duration;

use super::sender::StreamSender;
use super::unwrap_block;
use crate::NodeId;
use crate::sender::symbols_for;
use crate::wire::{Fec, Form, Requests, Span};

/// The most symbols that a NACK may name.
const MAX_NAMED: usize = 1 << 16;

/// A NACK's requests by block: the number of symbols, and which.
type RequestsByBlock = BTreeMap<u64, Vec<u8>>;

impl StreamSender {
    pub(super) fn nack(
        &mut self,
        now: Duration,
        node: NodeId,
        echo: Option<Duration>,
        requests: Requests<'_>,
    ) {
        // Symbols sent later may still arrive.
        let seen = self.base.seen(now, echo);
        let flying = self.base.recent.since(seen);
        let wanted = self.wanted(requests);
        let (loss, live) = (self.base.peers.loss_of(node), self.cursor == self.send_buffer.end());
        let margin = self.base.margin(live);
        let symbols = u16::from(self.base.config.block_symbols);
        let parity = u16::from(self.base.config.parity_symbols);
        let (open, sent) = self.send_buffer.block_of(self.cursor);
        for (number, named) in wanted {
            let Some(block) = self.send_buffer.block(number) else { continue };
            if number == open {
                // There is no parity yet. A request for parity shows that something is missing, but not which symbol.
                let all = named.iter().any(|&symbol| u16::from(symbol) >= sent);
                for symbol in 0..sent as u8 {
                    let missing = all || named.contains(&symbol);
                    if missing && block.sent[usize::from(symbol)] <= seen {
                        block.repair.explicit.insert(symbol);
                    }
                }
            } else {
                let under_way = flying.get(&(0, number as u32)).copied().unwrap_or(0);
                let count = (named.len() as u16).min(symbols);
                let needed = symbols_for(count, loss, margin).max(1);
                let missing = needed.saturating_sub(under_way + block.repair.due());
                block.repair.schedule_repairs(missing, symbols, parity, &named);
            }
            if block.repair.due() > 0 && !std::mem::replace(&mut block.repair.queued, true) {
                self.repairs.push_back(number);
            }
        }
        if self.repairs.is_empty() && live {
            // The missing data may still arrive; if not, the receiver requests it again.
            self.flush_at = self.flush_at.max(now);
        }
    }

    /// The requests for blocks that are kept and have been sent.
    fn wanted(&mut self, requests: Requests<'_>) -> RequestsByBlock {
        let (mut wanted, mut named) = (RequestsByBlock::new(), 0);
        let (open, sent) = self.send_buffer.block_of(self.cursor);
        let config = &self.base.config;
        let end = u16::from(config.block_symbols) + u16::from(config.parity_symbols);
        for span in requests.spans() {
            if span.first.0 != 0 {
                // There is no other object; NRL's receivers also request objects before this one.
                self.squelch = true;
                continue;
            }
            let Span { form, level, first, last } = span;
            let near = |block| unwrap_block(block, open, Fec::default());
            let (from, to) = match level.object {
                true => (self.send_buffer.first(), open),
                false => (near(first.1.block), near(last.1.block)),
            };
            self.squelch |= from < self.send_buffer.first() && (level.segment || level.block);
            let whole = level.object || level.block;
            if !whole && (!level.segment || from != to) {
                continue;
            }
            for block in from.max(self.send_buffer.first())..=to.min(open) {
                let here = if block == open { sent } else { self.base.config.block_symbols.into() };
                let (low, high) = match form {
                    _ if whole => (0, here),
                    Form::Erasures => (here, here.saturating_add(first.1.symbol)),
                    _ => (first.1.symbol, last.1.symbol.saturating_add(1)),
                };
                let of = wanted.entry(block).or_default();
                for symbol in low..high.min(end) {
                    if named >= MAX_NAMED || of.len() >= 256 {
                        break;
                    }
                    named += 1;
                    of.push(symbol as u8);
                }
            }
        }
        wanted
    }
}
