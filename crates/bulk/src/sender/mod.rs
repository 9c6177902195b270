//! The sending side (RFC 5740 sections 5.1, 5.2, 5.4 and 5.5): sends objects in order with repairs in between, and
//! flushes at the end until all receivers have acknowledged.
//!
//! One thing differs from the RFC's procedure. The probe time that a NACK echoes shows what the sender's clock was
//! when the NACK was written. So the sender knows which symbols of a block the receiver could not have seen yet,
//! counts those as sent, and repairs the rest at once, without aggregation interval and hold-off. Repair is fresh
//! parity while there is some, with a margin for the receiver's loss.

mod adapt;
mod base;
mod config;
mod object;
mod peers;
mod repair;
mod tail;

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

pub(crate) use base::{Base, EOT_TIMES, MARGIN_BEFORE};
pub use config::{ConfigError, Kind, ObjectError, SenderConfig};
pub(crate) use config::{DATAGRAM_OVERHEAD_BYTES, MIN_GRTT};
pub use object::Source;
pub(crate) use object::{Block, Symbols};
pub use peers::Peer;
pub(crate) use peers::symbols_for;

use crate::partition::Partition;
use crate::wire::{
    AckKind, CommandKind, Fec, Feedback, FeedbackKind, Fti, Message, ObjectList, ObjectMessage,
    SymbolId, flags,
};
use base::MARGIN_AT_END;
use config::MAX_OBJECTS;
use object::SentObject;
use peers::Peers;
use repair::Recent;

/// The object's info is repeated at this interval of blocks; it has no parity.
const INFO_EVERY_BLOCKS: u32 = 4;
/// After an object's first block, one in this many symbols carries the object's parameters, for late receivers. In
/// every message they would be a hundredth of all bytes.
const FTI_EVERY_SYMBOLS: u8 = 16;

/// Events of a sender.
#[derive(Debug)]
pub enum Event {
    /// A receiver has acknowledged everything.
    Confirmed(Peer),
    /// An object cannot be read and is withdrawn.
    Unreadable(u16, io::Error),
    /// The end: everything was sent and acknowledged, or the time to wait is over.
    Ended {
        /// Whether all expected receivers have everything.
        complete: bool,
    },
}

/// Progress of a sender.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// Bytes of all objects.
    pub total_bytes: u64,
    /// Bytes of objects that have been sent at least once.
    pub sent_once_bytes: u64,
    /// Datagrams sent.
    pub datagrams: u64,
    /// Their bytes, IPv4 and UDP headers included.
    pub sent_bytes: u64,
    /// Part of `sent_bytes` in datagrams with parity or repeated symbols.
    pub repair_bytes: u64,
    /// NACKs received.
    pub nacks: u64,
    /// Datagrams received that are invalid or for others.
    pub strange: u64,
    /// Longest round-trip time of the group.
    pub grtt: Duration,
    /// All new data has been sent.
    pub flushing: bool,
    /// The receivers that have sent something.
    pub peers: Vec<Peer>,
}

#[derive(Debug)]
enum End {
    Open,
    /// No more objects will be added.
    Finishing,
    /// Everything is acknowledged; the end is announced this many more times.
    Telling(u32, bool),
    Ended,
}

/// A sender of objects.
pub struct Sender<S> {
    base: Base,
    objects: VecDeque<SentObject<S>>,
    /// The next new symbol: object, block, symbol.
    cursor: (usize, u32, u16),
    /// Parity to send with the block at the cursor.
    first_parity: u16,
    /// Blocks with repairs to send.
    repairs: VecDeque<(u16, u32)>,
    flush_at: Duration,
    flushes: u32,
    advertise_at: Option<Duration>,
    squelch: bool,
    tail_since: Option<Duration>,
    /// When data, info or a repair was last sent, or a receiver confirmed that it has everything.
    advanced_at: Duration,
    end: End,
    events: VecDeque<Event>,
    /// Scratch for a parity symbol.
    parity: Vec<u8>,
}

impl<S: Source> Sender<S> {
    /// A sender without objects.
    ///
    /// # Errors
    /// The configuration makes no sense.
    pub fn new(config: SenderConfig, now: Duration) -> Result<Sender<S>, ConfigError> {
        Ok(Sender {
            base: Base::new(config, now)?,
            objects: VecDeque::new(),
            cursor: (0, 0, 0),
            first_parity: 0,
            repairs: VecDeque::new(),
            flush_at: now,
            flushes: 0,
            advertise_at: None,
            squelch: false,
            tail_since: None,
            advanced_at: now,
            end: End::Open,
            events: VecDeque::new(),
            parity: Vec::new(),
        })
    }

    /// Appends an object; returns its number. `info` goes with it as NORM_INFO.
    ///
    /// # Errors
    /// It is too long, there are too many, or the sender was called to finish.
    pub fn add(
        &mut self,
        source: S,
        bytes: u64,
        info: Vec<u8>,
        kind: Kind,
    ) -> Result<u16, ObjectError> {
        if !matches!(self.end, End::Open) {
            return Err(ObjectError::Finished);
        }
        if self.objects.len() >= MAX_OBJECTS {
            return Err(ObjectError::TooMany);
        }
        let config = &self.base.config;
        if info.len() > usize::from(config.symbol_bytes) {
            return Err(ObjectError::Info);
        }
        let partition = Partition::new(bytes, config.symbol_bytes, config.block_symbols.into())?;
        let mut flags = if kind == Kind::File { flags::FILE } else { 0 };
        if !info.is_empty() || bytes == 0 {
            flags |= flags::INFO;
        }
        let id = self.objects.len() as u16;
        self.objects.push_back(SentObject::new(partition, info, flags, source));
        self.base.progress.total_bytes += bytes;
        if self.base.config.ask_first {
            self.base.progress.sent_once_bytes += bytes;
            self.cursor = (self.objects.len(), 0, 0);
        }
        self.base.peers.unconfirm();
        (self.tail_since, self.flushes) = (None, 0);
        Ok(id)
    }

    /// No more objects will be added: the sender ends when all receivers have everything.
    pub fn finish(&mut self) {
        if matches!(self.end, End::Open) {
            self.end = End::Finishing;
        }
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Progress of the transfer.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let peers = self.base.peers.iter().cloned().collect();
        let (grtt, flushing) = (self.base.grtt(), self.tail_since.is_some());
        Progress { grtt, flushing, peers, ..self.base.progress.clone() }
    }

    /// Sending rate in bytes per second, including IPv4 and UDP headers.
    #[must_use]
    pub fn rate(&self) -> u64 {
        self.base.rate()
    }

    /// When [`Sender::poll_transmit`] next has a datagram; `None` at the end.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        if matches!(self.end, End::Ended) {
            return None;
        }
        let busy = !self.repairs.is_empty() || self.has_new() || self.info_due().is_some();
        if busy || self.squelch {
            return Some(self.base.next_at);
        }
        let idle = [Some(self.base.probe_at), Some(self.flush_at), self.advertise_at];
        Some(self.base.next_at.max(idle.into_iter().flatten().min().unwrap_or_default()))
    }

    fn has_new(&self) -> bool {
        self.cursor.0 < self.objects.len()
    }

    fn info_due(&self) -> Option<usize> {
        // Objects that have begun; the others come later.
        let begun = self.objects.iter().take(self.cursor.0 + 1);
        begun.into_iter().position(|object| object.info_due && !object.withdrawn)
    }

    /// Puts the next datagram that is due into `out`; call this until it returns `false`.
    pub fn poll_transmit(&mut self, now: Duration, out: &mut Vec<u8>) -> bool {
        if self.deadline().is_none_or(|deadline| deadline > now) {
            return false;
        }
        out.clear();
        self.base.measure();
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
        if self.squelch {
            self.squelch = false;
            let at = SymbolId::default();
            let gone = self.withdrawn();
            let invalid = ObjectList::from_bytes(&gone);
            self.base.put_command(CommandKind::Squelch { object: 0, at, invalid }, out);
            return true;
        }
        if self.advertise_at.is_some_and(|at| now >= at) {
            self.advertise_at = None;
            if self.put_advertisement(out) {
                return true;
            }
        }
        if self.put_object(now, out) {
            self.advanced_at = now;
            return true;
        }
        self.put_tail(now, out)
    }

    /// Writes a message of an object, if there is one to send.
    fn put_object(&mut self, now: Duration, out: &mut Vec<u8>) -> bool {
        if let Some(object) = self.info_due() {
            self.put_info(object, out);
            return true;
        }
        self.put_repair(now, out) || self.put_new(now, out)
    }

    fn fti(&self, object: usize) -> Fti {
        Fti {
            object_bytes: self.objects[object].partition.bytes(),
            symbol_bytes: self.base.config.symbol_bytes,
            max_block: self.base.config.block_symbols.into(),
            parity: self.base.config.parity_symbols.into(),
        }
    }

    fn put_info(&mut self, index: usize, out: &mut Vec<u8>) {
        let fti = Some(self.fti(index));
        let head = self.base.head();
        let object = &mut self.objects[index];
        object.info_due = false;
        if object.flags & flags::INFO == 0 {
            // Nothing is sent; the requested info does not exist, and the parameters do no harm.
            object.info.clear();
        }
        let message = ObjectMessage {
            head,
            flags: object.flags,
            fec: Fec::default(),
            object: index as u16,
            symbol: None,
            fti,
            rate: None,
            payload: &object.info,
        };
        Message::Object(message).encode(out);
        if index == self.cursor.0 && object.partition.blocks() == 0 {
            self.cursor = (index + 1, 0, 0);
        }
    }

    /// Writes a datagram with a symbol. Returns whether the symbol could be read.
    fn put_symbol(
        &mut self,
        now: Duration,
        id: u16,
        block: u32,
        symbol: u8,
        repair: u8,
        out: &mut Vec<u8>,
    ) -> bool {
        let tell = block == 0 || symbol.is_multiple_of(FTI_EVERY_SYMBOLS);
        let (fti, head) = (tell.then(|| self.fti(id.into())), self.base.head());
        let object = &mut self.objects[usize::from(id)];
        let (flags, block_len) = (object.flags | repair, object.partition.symbols(block));
        let payload = match object.symbol(&self.base.code, block, symbol, &mut self.parity) {
            Ok(payload) => payload,
            Err(error) => {
                object.withdrawn = true;
                self.squelch = true;
                self.events.push_back(Event::Unreadable(id, error));
                return false;
            }
        };
        let message = ObjectMessage {
            head,
            flags,
            fec: Fec::default(),
            object: id,
            symbol: Some(SymbolId { block, symbol: symbol.into(), block_len }),
            fti,
            rate: None,
            payload,
        };
        Message::Object(message).encode(out);
        if repair != 0 || u16::from(symbol) >= block_len {
            self.base.progress.repair_bytes += self.base.config.datagram_bytes(out);
        }
        self.base.recent.sent(now, id, block);
        true
    }

    /// The next symbol that has never been sent, or parity that goes with it.
    fn put_new(&mut self, now: Duration, out: &mut Vec<u8>) -> bool {
        while self.cursor.0 < self.objects.len() {
            let (index, block, symbol) = self.cursor;
            let object = &mut self.objects[index];
            if object.withdrawn || object.partition.blocks() == 0 {
                self.cursor = (index + 1, 0, 0);
                continue;
            }
            let parts = object.partition;
            let symbols = parts.symbols(block);
            if symbol == 0 {
                let again = block > 0 && block.is_multiple_of(INFO_EVERY_BLOCKS);
                if again && object.flags & flags::INFO != 0 {
                    object.info_due = true;
                }
                self.first_parity = self.parity_with(index, block);
            }
            let last = symbol + 1 >= symbols + self.first_parity;
            self.cursor = match last {
                false => (index, block, symbol + 1),
                true if block + 1 < parts.blocks() => (index, block + 1, 0),
                true => (index + 1, 0, 0),
            };
            let block_state = &mut self.objects[index].blocks[block as usize];
            if symbol < symbols {
                let offset = usize::from(symbol) * usize::from(parts.symbol_bytes());
                let rest = parts.block_bytes(block) - offset;
                self.base.progress.sent_once_bytes += rest.min(parts.symbol_bytes().into()) as u64;
            } else {
                block_state.parity_sent += 1;
            }
            // A block with its parity is no longer than the code.
            if self.put_symbol(now, index as u16, block, symbol as u8, 0, out) {
                return true;
            }
        }
        false
    }

    /// The number of parity symbols that a block gets before any request.
    fn parity_with(&self, index: usize, block: u32) -> u16 {
        let parts = self.objects[index].partition;
        let symbols = parts.symbols(block);
        // A group gets the parity that all need at once; one receiver gets it when it asks.
        let early = self.base.is_group() || !self.near_end(index, block);
        let margin = if early { MARGIN_BEFORE } else { MARGIN_AT_END };
        let wanted = symbols_for(symbols, self.base.peers.loss(), margin).saturating_sub(symbols);
        wanted.min(self.base.config.parity_symbols.into())
    }

    /// Whether all new data will have been sent before feedback on this block can arrive.
    fn near_end(&self, index: usize, block: u32) -> bool {
        let horizon = 2.0 * self.base.grtt().as_secs_f64() * self.rate() as f64;
        let here = self.objects.get(index).map_or(0, |object| {
            object.partition.bytes() - object.partition.offset(block).min(object.partition.bytes())
        });
        let later = self.objects.iter().skip(index + 1).map(|object| object.partition.bytes());
        let asked = if self.base.config.ask_first { self.repair_bytes() } else { 0 };
        (here + later.sum::<u64>() + asked) as f64 * (1.0 - self.base.peers.loss()).recip()
            < horizon
    }

    /// Receives a datagram.
    pub fn receive(&mut self, now: Duration, datagram: &[u8]) {
        if let Some(feedback) = self.base.decode(datagram) {
            self.feedback(now, &feedback);
        }
    }

    fn feedback(&mut self, now: Duration, feedback: &Feedback<'_>) {
        let heard = self.base.receive_feedback(now, feedback);
        let busy = self.has_new() || !self.repairs.is_empty();
        self.base.report(now, &heard, feedback, busy);
        match feedback.kind {
            FeedbackKind::Nack(requests) => {
                self.base.progress.nacks += 1;
                self.nack(now, feedback.source, heard.echo, requests, feedback.report.is_some());
            }
            FeedbackKind::Ack(AckKind::Flush { object, at, .. }, _) => {
                let (last, end) = self.flush_target();
                let here = object == last && (at.block, at.symbol) == (end.block, end.symbol);
                // An acknowledgement of data that has not been sent is invalid.
                if here && self.tail_since.is_some() {
                    self.confirm(now, feedback.source);
                }
            }
            FeedbackKind::Ack(..) => {}
        }
    }

    fn withdrawn(&self) -> Vec<u8> {
        let gone = self.objects.iter().enumerate().filter(|(_, object)| object.withdrawn);
        gone.flat_map(|(id, _)| (id as u16).to_be_bytes()).take(1000).collect()
    }
}
