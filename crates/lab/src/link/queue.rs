//! The bottleneck's queue: drop-tail, CoDel (RFC 8289), FQ-CoDel (RFC 8290).
//!
//! It holds items that have a size and a flow ([`QueueItem`]). Dropped items are handed back, never
//! silently lost. Packets are dropped even if they are ECN-capable; nothing is marked.

use std::collections::VecDeque;

use super::QueueKind;
use crate::units::{MILLISECOND, Nanos};

/// CoDel's acceptable standing delay (RFC 8289, 4.3).
const TARGET: Nanos = 5 * MILLISECOND;
/// CoDel's worst expected round trip (RFC 8289, 4.3).
const INTERVAL: Nanos = 100 * MILLISECOND;
/// A full packet: below it CoDel never drops, and FQ-CoDel's quantum.
const FULL_PACKET: u64 = 1500;
/// FQ-CoDel's number of sub-queues (RFC 8290, 4.2.2… the default of 1,024).
const SUB_QUEUES: u64 = 1024;
/// Maximum number of packets that FQ-CoDel drops at once when it is over its limit (RFC 8290, 4.1).
const DROP_BATCH: usize = 64;

pub(crate) trait QueueItem {
    /// Size of the packet in bytes.
    fn bytes(&self) -> u64;
    /// Flow of the packet, as a well-mixed number.
    fn flow(&self) -> u64;
    /// When it was queued.
    fn queued_at(&self) -> Nanos;
}

/// Why a queue dropped something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueDrop {
    Full,
    Aqm,
}

/// First in, first out, counting bytes.
#[derive(Debug)]
struct Fifo<T> {
    items: VecDeque<T>,
    bytes: u64,
}

impl<T: QueueItem> Fifo<T> {
    fn new() -> Fifo<T> {
        Fifo { items: VecDeque::new(), bytes: 0 }
    }

    fn push(&mut self, item: T) {
        self.bytes += item.bytes();
        self.items.push_back(item);
    }

    fn pop(&mut self) -> Option<T> {
        let item = self.items.pop_front()?;
        self.bytes -= item.bytes();
        Some(item)
    }
}

/// CoDel's state; names as in RFC 8289, section 5.
#[derive(Clone, Debug, Default)]
struct Codel {
    target: Nanos,
    first_above_time: Option<Nanos>,
    drop_next: Nanos,
    count: u32,
    lastcount: u32,
    dropping: bool,
}

impl Codel {
    /// `packet_time`: how long a full packet takes to be sent. A target below it would drop from a
    /// queue of a single packet (RFC 8289, 4.3).
    fn new(packet_time: Nanos) -> Codel {
        Codel { target: TARGET.max(packet_time), ..Codel::default() }
    }

    fn control_law(&self, from: Nanos) -> Nanos {
        from + (INTERVAL as f64 / f64::from(self.count.max(1)).sqrt()) as Nanos
    }

    /// Takes one item; returns whether it may be dropped.
    fn dequeue<T: QueueItem>(&mut self, now: Nanos, fifo: &mut Fifo<T>) -> Option<(T, bool)> {
        let Some(item) = fifo.pop() else {
            self.first_above_time = None;
            return None;
        };
        let sojourn = now.saturating_sub(item.queued_at());
        if sojourn < self.target || fifo.bytes <= FULL_PACKET {
            self.first_above_time = None;
            return Some((item, false));
        }
        let since = *self.first_above_time.get_or_insert(now + INTERVAL);
        Some((item, now >= since))
    }

    fn pop<T: QueueItem>(
        &mut self,
        now: Nanos,
        fifo: &mut Fifo<T>,
        dropped: &mut Vec<(T, QueueDrop)>,
    ) -> Option<T> {
        let (mut item, mut may_drop) = match self.dequeue(now, fifo) {
            Some(taken) => taken,
            None => {
                self.dropping = false;
                return None;
            }
        };
        if self.dropping {
            self.dropping = may_drop;
            while self.dropping && now >= self.drop_next {
                dropped.push((item, QueueDrop::Aqm));
                self.count += 1;
                let Some(next) = self.dequeue(now, fifo) else {
                    self.dropping = false;
                    return None;
                };
                (item, may_drop) = next;
                self.dropping = may_drop;
                if may_drop {
                    self.drop_next = self.control_law(self.drop_next);
                }
            }
        } else if may_drop {
            dropped.push((item, QueueDrop::Aqm));
            self.start_dropping(now);
            (item, _) = self.dequeue(now, fifo)?;
        }
        Some(item)
    }

    /// Starts to drop, at the rate that worked last time if that was recently.
    fn start_dropping(&mut self, now: Nanos) {
        self.dropping = true;
        let delta = self.count.saturating_sub(self.lastcount);
        let recently = now.saturating_sub(self.drop_next) < 16 * INTERVAL;
        self.count = if delta > 1 && recently { delta } else { 1 };
        self.drop_next = self.control_law(now);
        self.lastcount = self.count;
    }
}

/// One of FQ-CoDel's queues.
#[derive(Debug)]
struct SubQueue<T> {
    fifo: Fifo<T>,
    codel: Codel,
    deficit: i64,
    listed: bool,
}

/// FQ-CoDel: deficit round robin over CoDel queues, new flows first.
#[derive(Debug)]
struct FqCodel<T> {
    queues: Vec<SubQueue<T>>,
    new: VecDeque<usize>,
    old: VecDeque<usize>,
    bytes: u64,
}

impl<T: QueueItem> FqCodel<T> {
    fn new(packet_time: Nanos) -> FqCodel<T> {
        let queues = (0..SUB_QUEUES)
            .map(|_| SubQueue {
                fifo: Fifo::new(),
                codel: Codel::new(packet_time),
                deficit: 0,
                listed: false,
            })
            .collect();
        FqCodel { queues, new: VecDeque::new(), old: VecDeque::new(), bytes: 0 }
    }

    fn push(&mut self, item: T, limit: u64, dropped: &mut Vec<(T, QueueDrop)>) {
        let index = (item.flow() % SUB_QUEUES) as usize;
        let queue = &mut self.queues[index];
        self.bytes += item.bytes();
        queue.fifo.push(item);
        if !queue.listed {
            queue.listed = true;
            queue.deficit = FULL_PACKET as i64;
            self.new.push_back(index);
        }
        while self.bytes > limit && self.drop_from_fattest(dropped) {}
    }

    /// Drops half of the largest queue, at least one packet; false if only one packet is left.
    fn drop_from_fattest(&mut self, dropped: &mut Vec<(T, QueueDrop)>) -> bool {
        let Some(queue) = self.queues.iter_mut().max_by_key(|queue| queue.fifo.bytes) else {
            return false;
        };
        if queue.fifo.items.len() == 1 && queue.fifo.bytes == self.bytes {
            return false;
        }
        let count = queue.fifo.items.len().div_ceil(2).min(DROP_BATCH);
        for _ in 0..count {
            if let Some(item) = queue.fifo.pop() {
                self.bytes -= item.bytes();
                dropped.push((item, QueueDrop::Full));
            }
        }
        count > 0
    }

    fn pop(&mut self, now: Nanos, dropped: &mut Vec<(T, QueueDrop)>) -> Option<T> {
        loop {
            let from_new = !self.new.is_empty();
            let list = if from_new { &mut self.new } else { &mut self.old };
            let index = *list.front()?;
            let queue = &mut self.queues[index];
            if queue.deficit <= 0 {
                queue.deficit += FULL_PACKET as i64;
                list.pop_front();
                self.old.push_back(index);
                continue;
            }
            let before = queue.fifo.bytes;
            let item = queue.codel.pop(now, &mut queue.fifo, dropped);
            self.bytes -= before - queue.fifo.bytes;
            let Some(item) = item else {
                list.pop_front();
                // An emptied queue goes through the old list once, because new flows could otherwise starve it.
                if from_new {
                    self.old.push_back(index);
                } else {
                    queue.listed = false;
                }
                continue;
            };
            queue.deficit -= item.bytes() as i64;
            return Some(item);
        }
    }
}

/// A bounded queue of one of the three kinds.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    limit: u64,
    kind: Kind<T>,
}

#[derive(Debug)]
enum Kind<T> {
    DropTail(Fifo<T>),
    Codel(Fifo<T>, Codel),
    FqCodel(FqCodel<T>),
}

impl<T: QueueItem> Queue<T> {
    /// `limit` in bytes; `packet_time`: how long a full packet takes to be sent, in ns.
    pub(crate) fn new(kind: QueueKind, limit: u64, packet_time: Nanos) -> Queue<T> {
        let kind = match kind {
            QueueKind::DropTail => Kind::DropTail(Fifo::new()),
            QueueKind::Codel => Kind::Codel(Fifo::new(), Codel::new(packet_time)),
            QueueKind::FqCodel => Kind::FqCodel(FqCodel::new(packet_time)),
        };
        Queue { limit, kind }
    }

    /// Bytes waiting.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.kind {
            Kind::DropTail(fifo) | Kind::Codel(fifo, _) => fifo.bytes,
            Kind::FqCodel(queues) => queues.bytes,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        match &self.kind {
            Kind::DropTail(fifo) | Kind::Codel(fifo, _) => fifo.items.is_empty(),
            Kind::FqCodel(queues) => queues.bytes == 0,
        }
    }

    /// Queues an item. Items that do not fit go to `dropped`; an empty queue takes any item.
    pub(crate) fn push(&mut self, item: T, dropped: &mut Vec<(T, QueueDrop)>) {
        match &mut self.kind {
            Kind::DropTail(fifo) | Kind::Codel(fifo, _) => {
                if !fifo.items.is_empty() && fifo.bytes + item.bytes() > self.limit {
                    dropped.push((item, QueueDrop::Full));
                } else {
                    fifo.push(item);
                }
            }
            Kind::FqCodel(queues) => queues.push(item, self.limit, dropped),
        }
    }

    /// Takes the next item to be sent. Items that the AQM drops go to `dropped`.
    pub(crate) fn pop(&mut self, now: Nanos, dropped: &mut Vec<(T, QueueDrop)>) -> Option<T> {
        match &mut self.kind {
            Kind::DropTail(fifo) => fifo.pop(),
            Kind::Codel(fifo, codel) => codel.pop(now, fifo, dropped),
            Kind::FqCodel(queues) => queues.pop(now, dropped),
        }
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
