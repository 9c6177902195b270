//! The sending side of a stream: sends new symbols, repairs from the buffer, and flushes while there is nothing new.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::send_buffer::SendBuffer;
use super::{symbol_id, unwrap_block};
use crate::NodeId;
use crate::sender::{
    Base, ConfigError, EOT_TIMES, MARGIN_BEFORE, MIN_GRTT, Peer, Progress, SenderConfig,
    symbols_for,
};
use crate::wire::{
    AckKind, CommandKind, Fec, Feedback, FeedbackKind, Fti, Message, ObjectList, ObjectMessage,
    flags,
};

/// The interval of flushes when no receiver has answered for a long time.
const RARELY: Duration = Duration::from_secs(1);
/// Data for this time at the current rate, or two blocks, may wait to be sent for the first time, because waiting
/// data is late.
const AHEAD: Duration = Duration::from_millis(100);
/// The probability with which the last symbol before a pause may be lost: it is sent again, within the rate, until
/// the loss of all copies is less likely than this. A request for it would take a round trip.
const LATE: f64 = 0.1;
const MOST_COPIES: u8 = 7;
/// The interval between copies, so that one burst of losses does not take them all.
const COPY_AFTER: Duration = Duration::from_millis(2);
const MAX_COPIES: usize = 1024;

/// A stream's settings.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamConfig {
    /// The sender's settings. `symbol_bytes` are those of the stream; 8 more are added to each.
    pub sender: SenderConfig,
    /// Bytes kept for repairs, at least four blocks. Receivers hold the same amount.
    pub buffer_bytes: usize,
    /// Whether a full buffer drops the oldest block even if receivers lack it. Otherwise, no data is accepted until
    /// all receivers have the oldest block.
    pub push: bool,
}

/// Events of a stream's sender.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A receiver has acknowledged everything, to the end.
    Confirmed(Peer),
    /// A receiver was silent for too long and is not waited for any more.
    Left(NodeId),
    /// The end, or there is no receiver left to wait for.
    Ended {
        /// Whether all expected receivers have everything.
        complete: bool,
    },
}

#[derive(Debug, PartialEq)]
enum End {
    Open,
    /// The end is announced this many more times.
    Telling(u32, bool),
    Ended,
}

struct Copy {
    at: Duration,
    place: u64,
    left: u8,
}

/// A sender of one stream.
pub struct StreamSender {
    pub(super) base: Base,
    push: bool,
    pub(super) send_buffer: SendBuffer,
    /// All symbols before this position have been sent.
    pub(super) cursor: u64,
    /// Blocks with repairs to send.
    pub(super) repairs: VecDeque<u64>,
    copies: VecDeque<Copy>,
    /// Up to which position each receiver has everything.
    acked: BTreeMap<NodeId, u64>,
    left: Vec<NodeId>,
    /// Blocks sent completely, and when.
    sent_blocks: VecDeque<(Duration, u64)>,
    /// The position that receivers are asked to acknowledge while more is sent.
    mark: u64,
    ask_at: Duration,
    pub(super) flush_at: Duration,
    flushes: u32,
    /// Since when expected receivers are missing.
    alone_since: Duration,
    pub(super) squelch: bool,
    end: End,
    events: VecDeque<Event>,
    payload: Vec<u8>,
}

impl StreamSender {
    /// A sender of an empty stream.
    ///
    /// # Errors
    /// The configuration makes no sense.
    pub fn new(config: StreamConfig, now: Duration) -> Result<StreamSender, ConfigError> {
        let StreamConfig { sender, buffer_bytes, push } = config;
        let (symbols, bytes) = (sender.block_symbols.into(), usize::from(sender.symbol_bytes));
        let base = Base::new(sender, now)?;
        let capacity = buffer_bytes / (usize::from(symbols) * bytes);
        Ok(StreamSender {
            base,
            push,
            send_buffer: SendBuffer::new(symbols, bytes, capacity.max(4)),
            cursor: 0,
            repairs: VecDeque::new(),
            copies: VecDeque::new(),
            acked: BTreeMap::new(),
            left: Vec::new(),
            sent_blocks: VecDeque::new(),
            mark: 0,
            ask_at: now,
            flush_at: now,
            flushes: 0,
            alone_since: now,
            squelch: false,
            end: End::Open,
            events: VecDeque::new(),
            payload: Vec::new(),
        })
    }

    /// Whether bytes would be accepted now.
    #[must_use]
    pub fn has_room(&self) -> bool {
        if self.send_buffer.is_closed() || self.end != End::Open {
            return false;
        }
        let waiting = self.send_buffer.end().saturating_sub(self.cursor);
        let block = u64::from(self.base.config.block_symbols);
        let symbol = u64::from(self.base.config.symbol_bytes);
        let ahead = self.rate() * AHEAD.as_millis() as u64 / 1000 / symbol;
        let most = ahead.max(2 * block).min(block * self.send_buffer.capacity() as u64 / 2);
        // With `push`, unsent data does not block the writer either.
        self.push || waiting < most && self.send_buffer.has_room()
    }

    /// Accepts as many bytes as there is room for, and returns how many. Bytes that do not fill a symbol wait for
    /// more, or for [`StreamSender::flush`].
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while taken < bytes.len() && self.has_room() {
            // One block at a time, so that little more waits than may.
            let block = usize::from(self.base.config.block_symbols)
                * usize::from(self.base.config.symbol_bytes);
            let piece = &bytes[taken..bytes.len().min(taken + block)];
            let now = self.send_buffer.write(piece);
            taken += now;
            self.base.progress.total_bytes += now as u64;
            if now < piece.len() {
                if !self.push {
                    break;
                }
                self.drop_oldest();
            }
        }
        if taken > 0 {
            self.flushes = 0;
        }
        taken
    }

    /// The next byte begins a message. Receivers that join late or lose data continue at such a position.
    pub fn end_message(&mut self) {
        self.send_buffer.end_message();
    }

    /// Sends the written bytes now, even if a datagram could hold more.
    pub fn flush(&mut self) {
        self.send_buffer.flush();
    }

    /// Ends the stream; data written before is still delivered to all. Returns false if there was no room for its
    /// end; then call this again.
    pub fn close(&mut self) -> bool {
        if !self.send_buffer.close() && self.push {
            self.drop_oldest();
        }
        self.send_buffer.close()
    }

    fn drop_oldest(&mut self) {
        let first = self.send_buffer.first() + 1;
        self.send_buffer.release(first);
        self.cursor = self.cursor.max(self.place(first, 0));
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Progress of the transfer. `total_bytes` have been written.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let peers = self.base.peers.iter().cloned().collect();
        let flushing = self.cursor == self.send_buffer.end();
        Progress { grtt: self.base.grtt(), flushing, peers, ..self.base.progress.clone() }
    }

    /// Sending rate in bytes per second, including IPv4 and UDP headers.
    #[must_use]
    pub fn rate(&self) -> u64 {
        self.base.rate()
    }

    fn place(&self, block: u64, symbol: u16) -> u64 {
        block * u64::from(self.base.config.block_symbols) + u64::from(symbol)
    }

    /// When [`StreamSender::poll_transmit`] next has a datagram; `None` at the end.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        if self.end == End::Ended {
            return None;
        }
        if !self.repairs.is_empty() || self.cursor < self.send_buffer.end() || self.squelch {
            return Some(self.base.next_at);
        }
        let copy = self.copies.front().map(|copy| copy.at);
        let idle = [Some(self.base.probe_at), Some(self.flush_at), copy];
        Some(self.base.next_at.max(idle.into_iter().flatten().min().unwrap_or_default()))
    }

    /// Puts the next datagram that is due into `out`; call this until it returns `false`.
    pub fn poll_transmit(&mut self, now: Duration, out: &mut Vec<u8>) -> bool {
        if self.deadline().is_none_or(|deadline| deadline > now) {
            return false;
        }
        out.clear();
        self.base.measure();
        self.release(now);
        if !self.write_next(now, out) {
            return false;
        }
        self.base.sent(now, out);
        true
    }

    fn write_next(&mut self, now: Duration, out: &mut Vec<u8>) -> bool {
        if now >= self.base.probe_at {
            self.base.put_probe(now, out);
            return true;
        }
        if std::mem::take(&mut self.squelch) {
            let (object, at) = (0, symbol_id(self.send_buffer.first(), 0, 0, Fec::default()));
            let invalid = ObjectList::default();
            self.base.put_command(CommandKind::Squelch { object, at, invalid }, out);
            return true;
        }
        if self.is_to_ask(now) {
            self.ask_at = now + self.base.grtt() / 4;
            self.put_flush(self.mark, out);
            return true;
        }
        self.put_repair(now, out)
            || self.put_new(now, out)
            || self.put_copy(now, out)
            || self.put_tail(now, out)
    }

    fn put_symbol(
        &mut self,
        now: Duration,
        block: u64,
        symbol: u8,
        again: u8,
        out: &mut Vec<u8>,
    ) -> bool {
        if !self.send_buffer.symbol(&self.base.code, block, symbol, &mut self.payload) {
            return false;
        }
        let config = &self.base.config;
        let blocks = self.send_buffer.capacity() as u64;
        let block_len = u16::from(config.block_symbols);
        let fti = Fti {
            // For a stream, this is the amount that the sender keeps.
            object_bytes: blocks * u64::from(block_len) * u64::from(config.symbol_bytes),
            symbol_bytes: config.symbol_bytes,
            max_block: block_len,
            parity: config.parity_symbols.into(),
        };
        let message = ObjectMessage {
            head: self.base.head(),
            flags: flags::STREAM | again,
            fec: Fec::default(),
            object: 0,
            symbol: Some(symbol_id(block, symbol.into(), block_len, Fec::default())),
            // In every message, so that a receiver that joins late or loses many can start at once.
            fti: Some(fti),
            rate: None,
            payload: &self.payload,
        };
        Message::Object(message).encode(out);
        if again != 0 || u16::from(symbol) >= block_len {
            self.base.progress.repair_bytes += self.base.config.datagram_bytes(out);
        }
        if let Some(kept) = self.send_buffer.block(block)
            && let Some(sent) = kept.sent.get_mut(usize::from(symbol))
        {
            *sent = now;
        }
        self.base.recent.sent(now, 0, block as u32);
        true
    }

    fn put_repair(&mut self, now: Duration, out: &mut Vec<u8>) -> bool {
        let symbols = u16::from(self.base.config.block_symbols);
        while let Some(&number) = self.repairs.front() {
            let block = self.send_buffer.block(number);
            let next = block.and_then(|kept| {
                let next = kept.repair.next(symbols);
                kept.repair.queued = next.is_some();
                next
            });
            let Some((symbol, again)) = next else {
                self.repairs.pop_front();
                continue;
            };
            let repair = if again { flags::REPAIR | flags::EXPLICIT } else { flags::REPAIR };
            if self.put_symbol(now, number, symbol, repair, out) {
                if u16::from(symbol) < symbols {
                    self.copy_later(now, self.place(number, symbol.into()));
                }
                return true;
            }
        }
        false
    }

    fn put_new(&mut self, now: Duration, out: &mut Vec<u8>) -> bool {
        if self.cursor >= self.send_buffer.end() {
            return false;
        }
        let place = self.cursor;
        let (block, symbol) = self.send_buffer.block_of(place);
        self.cursor += 1;
        (self.flushes, self.flush_at) = (0, now + self.flush_interval());
        if symbol + 1 == u16::from(self.base.config.block_symbols) {
            self.block_sent(now, block);
        }
        self.copy_later(now, place);
        // A block is no longer than the code.
        self.put_symbol(now, block, symbol as u8, 0, out)
    }

    /// A block is full and sent: if more data waits, parity is sent with it before any request.
    fn block_sent(&mut self, now: Duration, number: u64) {
        if self.sent_blocks.len() < self.send_buffer.capacity() {
            self.sent_blocks.push_back((now, number));
        }
        let config = &self.base.config;
        let symbols = u16::from(config.block_symbols);
        let live = self.cursor >= self.send_buffer.end();
        let wanted = symbols_for(symbols, self.base.peers.loss(), MARGIN_BEFORE);
        let parity = wanted.saturating_sub(symbols).min(config.parity_symbols.into());
        if let Some(kept) = self.send_buffer.block(number)
            && !live
            && parity > 0
        {
            // Parity may have been requested before.
            let had = kept.repair.parity_sent + kept.repair.parity_due;
            kept.repair.parity_due += parity.saturating_sub(had);
            if !std::mem::replace(&mut kept.repair.queued, true) {
                self.repairs.push_back(number);
            }
        }
    }

    /// Schedules another copy of a symbol that no other follows, if it may have been lost.
    fn copy_later(&mut self, now: Duration, place: u64) {
        let loss = self.base.peers.loss();
        let live = self.cursor >= self.send_buffer.end();
        if !live || loss <= LATE || self.copies.len() >= MAX_COPIES {
            return;
        }
        let copies = (LATE.ln() / loss.ln()).ceil() - 1.0;
        let left = (copies as u8).min(MOST_COPIES);
        self.copies.push_back(Copy { at: now + COPY_AFTER, place, left });
    }

    fn put_copy(&mut self, now: Duration, out: &mut Vec<u8>) -> bool {
        while let Some(copy) = self.copies.front() {
            if copy.at > now {
                return false;
            }
            let Some(Copy { place, left, .. }) = self.copies.pop_front() else { return false };
            if left == 0 || self.peers_at() > place {
                continue;
            }
            if left > 1 {
                self.copies.push_back(Copy { at: now + COPY_AFTER, place, left: left - 1 });
            }
            let (block, symbol) = self.send_buffer.block_of(place);
            if self.put_symbol(now, block, symbol as u8, flags::REPAIR | flags::EXPLICIT, out) {
                return true;
            }
        }
        false
    }

    fn flush_interval(&self) -> Duration {
        if self.flushes > self.base.config.robust {
            return RARELY;
        }
        self.base.config.flush_interval(self.base.grtt(), self.base.peers.loss())
    }

    /// The receivers that are waited for.
    fn present(&self) -> impl Iterator<Item = &Peer> {
        self.base.peers.iter().filter(|peer| !self.left.contains(&peer.node))
    }

    fn acked(&self, node: NodeId) -> u64 {
        self.acked.get(&node).copied().unwrap_or(0)
    }

    /// The position up to which all receivers have everything; the beginning until enough of them are known.
    fn peers_at(&self) -> u64 {
        let least = self.present().map(|peer| self.acked(peer.node)).min();
        let enough = self.present().count() >= self.base.config.receivers;
        least.filter(|_| enough).unwrap_or(0)
    }

    /// Drops blocks that all receivers have, and gives up silent receivers.
    fn release(&mut self, now: Duration) {
        let patience = self.base.config.patience;
        let silent = |peer: &Peer| now.saturating_sub(peer.heard) > patience;
        let gone: Vec<NodeId> =
            self.present().filter(|peer| silent(peer)).map(|peer| peer.node).collect();
        for node in gone {
            // This receiver has used up the time to wait for missing ones.
            self.alone_since = self.alone_since.min(now.saturating_sub(patience));
            self.left.push(node);
            self.events.push_back(Event::Left(node));
        }
        if !self.push {
            let everybody = if self.base.config.receivers == 0 && self.present().count() == 0 {
                self.cursor
            } else {
                self.peers_at()
            };
            let to = self.send_buffer.block_of(everybody.min(self.cursor)).0;
            self.send_buffer.release(to);
        }
        self.look_for_the_end(now);
    }

    /// Whether to ask receivers what they have while more is sent, so that it need not be kept.
    fn is_to_ask(&mut self, now: Duration) -> bool {
        let old = now.saturating_sub(self.base.grtt().mul_f64(1.5));
        while let Some((_, block)) = self.sent_blocks.pop_front_if(|(at, _)| *at <= old) {
            self.mark = self.place(block + 1, 0);
        }
        let held = self.send_buffer.held() > self.send_buffer.capacity() / 4;
        !self.push && held && now >= self.ask_at && self.peers_at() < self.mark
    }

    fn put_flush(&self, place: u64, out: &mut Vec<u8>) {
        let lacking = self.present().filter(|peer| self.acked(peer.node) < place);
        let (block, symbol) = self.send_buffer.block_of(place.saturating_sub(1));
        let at = symbol_id(block, symbol, self.base.config.block_symbols.into(), Fec::default());
        self.base.put_flush(0, at, lacking, out);
    }

    /// Writes a flush, because there is no data to send.
    fn put_tail(&mut self, now: Duration, out: &mut Vec<u8>) -> bool {
        if now < self.flush_at {
            return false;
        }
        self.flush_at = now + self.flush_interval();
        if let End::Telling(times, complete) = self.end {
            self.base.put_command(CommandKind::Eot, out);
            self.end = End::Telling(times - 1, complete);
            if times <= 1 {
                self.end = End::Ended;
                self.events.push_back(Event::Ended { complete });
            }
            return true;
        }
        let known = self.present().count() > 0 && self.peers_at() >= self.cursor;
        if self.cursor == 0 || known && !self.send_buffer.is_closed() {
            self.flush_at = now + RARELY;
            return false;
        }
        self.flushes += 1;
        self.put_flush(self.cursor, out);
        true
    }

    fn look_for_the_end(&mut self, now: Duration) {
        let config = &self.base.config;
        let enough = self.present().count() >= config.receivers;
        if enough || self.send_buffer.end() == 0 || self.push && !self.send_buffer.is_closed() {
            self.alone_since = now;
        }
        if self.end != End::Open {
            return;
        }
        let all_sent = self.send_buffer.is_closed() && self.cursor == self.send_buffer.end();
        let told = config.receivers > 0 || self.flushes >= config.robust;
        let confirmed = self.present().count() == 0 || self.peers_at() >= self.cursor;
        if all_sent && enough && told && confirmed {
            self.end = End::Telling(EOT_TIMES, true);
        } else if now.saturating_sub(self.alone_since) >= config.patience {
            self.end = End::Telling(EOT_TIMES, false);
        } else {
            return;
        }
        (self.flushes, self.flush_at) = (0, self.flush_at.min(now + MIN_GRTT));
        self.copies.clear();
        if self.end == End::Telling(EOT_TIMES, false) {
            self.repairs.clear();
            self.cursor = self.send_buffer.end();
        }
    }

    /// Receives a datagram.
    pub fn receive(&mut self, now: Duration, datagram: &[u8]) {
        if let Some(feedback) = self.base.decode(datagram) {
            self.feedback(now, &feedback);
        }
    }

    fn feedback(&mut self, now: Duration, feedback: &Feedback<'_>) {
        let node = feedback.source;
        let heard = self.base.receive_feedback(now, feedback);
        if !heard.is_known {
            self.base.progress.strange += 1;
            return;
        }
        self.left.retain(|&left| left != node);
        let busy = self.cursor < self.send_buffer.end() || !self.repairs.is_empty();
        self.base.report(now, &heard, feedback, busy);
        match feedback.kind {
            FeedbackKind::Nack(requests) => {
                self.base.progress.nacks += 1;
                self.nack(now, node, heard.echo, requests);
            }
            FeedbackKind::Ack(AckKind::Flush { object: 0, at, .. }, _) => {
                let near = self.send_buffer.block_of(self.cursor).0;
                let block = unwrap_block(at.block, near, Fec::default());
                let place = self.place(block, at.symbol) + 1;
                // An acknowledgement of data that has not been sent is invalid.
                if place <= self.cursor {
                    self.confirm(node, place);
                }
            }
            FeedbackKind::Ack(..) => {}
        }
        self.release(now);
    }

    fn confirm(&mut self, node: NodeId, place: u64) {
        let acked = self.acked.entry(node).or_insert(0);
        *acked = (*acked).max(place);
        let all = self.send_buffer.is_closed() && *acked == self.send_buffer.end();
        if let Some(peer) = self.base.peers.get_mut(node)
            && all
            && !std::mem::replace(&mut peer.confirmed, true)
        {
            self.events.push_back(Event::Confirmed(peer.clone()));
        }
    }
}
