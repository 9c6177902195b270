//! The end of a transfer (RFC 5740 sections 5.1 and 5.5): after all data, receivers are asked to acknowledge it until
//! they have done so, or nothing has advanced for too long.

use std::time::Duration;

use super::object::SentObject;
use super::{EOT_TIMES, End, Event, MIN_GRTT, Sender, Source};
use crate::NodeId;
use crate::wire::{CommandKind, SymbolId};

impl<S: Source> Sender<S> {
    /// Writes a flush, because there is no data to send.
    pub(super) fn put_tail(&mut self, now: Duration, out: &mut Vec<u8>) -> bool {
        let since = *self.tail_since.get_or_insert(now);
        if now < self.flush_at || self.objects.is_empty() {
            self.flush_at = self.flush_at.max(now + MIN_GRTT);
            return false;
        }
        self.flush_at =
            now + self.base.config.flush_interval(self.base.grtt(), self.base.peers.loss());
        if let End::Telling(times, complete) = self.end {
            self.base.put_command(CommandKind::Eot, out);
            if times <= 1 {
                self.end = End::Ended;
                self.events.push_back(Event::Ended { complete });
            } else {
                self.end = End::Telling(times - 1, complete);
            }
            return true;
        }
        self.flushes += 1;
        let lacking = self.base.peers.iter().filter(|peer| !peer.confirmed);
        let (object, at) = self.flush_target();
        self.base.put_flush(object, at, lacking, out);
        self.look_for_the_end(now, since);
        true
    }

    pub(super) fn flush_target(&self) -> (u16, SymbolId) {
        let object = self.objects.len().saturating_sub(1);
        let (block, symbol) = self.objects.get(object).map_or((0, 0), SentObject::last_symbol);
        (object as u16, SymbolId { block, symbol, block_len: symbol + 1 })
    }

    /// Ends when all receivers have everything, or nothing has advanced for too long. Feedback alone does not count: a
    /// receiver that cannot store an object requests nothing and acknowledges nothing, but answers probes.
    pub(super) fn look_for_the_end(&mut self, now: Duration, since: Duration) {
        if !matches!(self.end, End::Finishing) {
            return;
        }
        let confirmed = self.base.peers.iter().filter(|peer| peer.confirmed).count();
        let all = confirmed >= self.base.config.receivers
            && self.base.peers.iter().all(|peer| peer.confirmed);
        let broadcast = self.base.config.receivers == 0 && self.flushes < self.base.config.robust;
        let waited = now.saturating_sub(self.advanced_at.max(since));
        if all && !broadcast {
            self.end = End::Telling(EOT_TIMES, true);
        } else if waited > self.base.config.patience {
            self.end = End::Telling(EOT_TIMES, false);
        }
        if matches!(self.end, End::Telling(..)) {
            self.flush_at = self.flush_at.min(now + MIN_GRTT);
        }
    }

    pub(super) fn confirm(&mut self, now: Duration, node: NodeId) {
        let Some(peer) = self.base.peers.heard(now, node, None, None) else { return };
        if !std::mem::replace(&mut peer.confirmed, true) {
            self.events.push_back(Event::Confirmed(peer.clone()));
            self.advanced_at = now;
            if let Some(since) = self.tail_since {
                self.look_for_the_end(now, since);
            }
        }
    }
}
