//! The bottleneck's queue: drop-tail, CoDel (RFC 8289), FQ-CoDel (RFC 8290).
//!
//! It holds anything that has a size and a flow ([`Job`]). What is dropped is handed back, never
//! silently lost. ECN is not marked: packets are dropped whether they are ECN-capable or not.

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
/// How many packets FQ-CoDel drops at most when it is over its limit (RFC 8290, 4.1).
const DROP_BATCH: usize = 64;

/// Something that waits.
pub(crate) trait Job {
    /// Its size in bytes.
    fn bytes(&self) -> u64;
    /// Its flow, as a well-mixed number.
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
struct Fifo<J> {
    jobs: VecDeque<J>,
    bytes: u64,
}

impl<J: Job> Fifo<J> {
    fn new() -> Fifo<J> {
        Fifo { jobs: VecDeque::new(), bytes: 0 }
    }

    fn push(&mut self, job: J) {
        self.bytes += job.bytes();
        self.jobs.push_back(job);
    }

    fn pop(&mut self) -> Option<J> {
        let job = self.jobs.pop_front()?;
        self.bytes -= job.bytes();
        Some(job)
    }
}

/// CoDel's state; names as in RFC 8289, section 5.
#[derive(Clone, Debug)]
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
        Codel {
            target: TARGET.max(packet_time),
            first_above_time: None,
            drop_next: 0,
            count: 0,
            lastcount: 0,
            dropping: false,
        }
    }

    fn control_law(&self, from: Nanos) -> Nanos {
        from + (INTERVAL as f64 / f64::from(self.count.max(1)).sqrt()) as Nanos
    }

    /// Takes one job; says whether it may be dropped.
    fn take<J: Job>(&mut self, now: Nanos, fifo: &mut Fifo<J>) -> Option<(J, bool)> {
        let Some(job) = fifo.pop() else {
            self.first_above_time = None;
            return None;
        };
        let sojourn = now.saturating_sub(job.queued_at());
        if sojourn < self.target || fifo.bytes <= FULL_PACKET {
            self.first_above_time = None;
            return Some((job, false));
        }
        let since = *self.first_above_time.get_or_insert(now + INTERVAL);
        Some((job, now >= since))
    }

    fn pop<J: Job>(
        &mut self,
        now: Nanos,
        fifo: &mut Fifo<J>,
        dropped: &mut Vec<(J, QueueDrop)>,
    ) -> Option<J> {
        let (mut job, mut may_drop) = match self.take(now, fifo) {
            Some(taken) => taken,
            None => {
                self.dropping = false;
                return None;
            }
        };
        if self.dropping {
            self.dropping = may_drop;
            while self.dropping && now >= self.drop_next {
                dropped.push((job, QueueDrop::Aqm));
                self.count += 1;
                let Some(next) = self.take(now, fifo) else {
                    self.dropping = false;
                    return None;
                };
                (job, may_drop) = next;
                self.dropping = may_drop;
                if may_drop {
                    self.drop_next = self.control_law(self.drop_next);
                }
            }
        } else if may_drop {
            dropped.push((job, QueueDrop::Aqm));
            self.start_dropping(now);
            (job, _) = self.take(now, fifo)?;
        }
        Some(job)
    }

    /// Begins to drop, at the rate that worked last time if that was a moment ago.
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
struct SubQueue<J> {
    fifo: Fifo<J>,
    codel: Codel,
    deficit: i64,
    listed: bool,
}

/// FQ-CoDel: deficit round robin over CoDel queues, new flows first.
#[derive(Debug)]
struct FqCodel<J> {
    queues: Vec<SubQueue<J>>,
    new: VecDeque<usize>,
    old: VecDeque<usize>,
    bytes: u64,
}

impl<J: Job> FqCodel<J> {
    fn new(packet_time: Nanos) -> FqCodel<J> {
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

    fn push(&mut self, job: J, limit: u64, dropped: &mut Vec<(J, QueueDrop)>) {
        let index = (job.flow() % SUB_QUEUES) as usize;
        let queue = &mut self.queues[index];
        self.bytes += job.bytes();
        queue.fifo.push(job);
        if !queue.listed {
            queue.listed = true;
            queue.deficit = FULL_PACKET as i64;
            self.new.push_back(index);
        }
        while self.bytes > limit && self.drop_from_fattest(dropped) {}
    }

    /// Drops half of the largest queue, at least one packet; false if one is all there is.
    fn drop_from_fattest(&mut self, dropped: &mut Vec<(J, QueueDrop)>) -> bool {
        let Some(queue) = self.queues.iter_mut().max_by_key(|queue| queue.fifo.bytes) else {
            return false;
        };
        if queue.fifo.jobs.len() == 1 && queue.fifo.bytes == self.bytes {
            return false;
        }
        let count = queue.fifo.jobs.len().div_ceil(2).min(DROP_BATCH);
        for _ in 0..count {
            if let Some(job) = queue.fifo.pop() {
                self.bytes -= job.bytes();
                dropped.push((job, QueueDrop::Full));
            }
        }
        count > 0
    }

    fn pop(&mut self, now: Nanos, dropped: &mut Vec<(J, QueueDrop)>) -> Option<J> {
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
            let job = queue.codel.pop(now, &mut queue.fifo, dropped);
            self.bytes -= before - queue.fifo.bytes;
            let Some(job) = job else {
                list.pop_front();
                // A queue that empties goes once through the old list, or new flows could starve it.
                if from_new {
                    self.old.push_back(index);
                } else {
                    queue.listed = false;
                }
                continue;
            };
            queue.deficit -= job.bytes() as i64;
            return Some(job);
        }
    }
}

/// A bounded queue of one of the three kinds.
#[derive(Debug)]
pub(crate) struct Queue<J> {
    limit: u64,
    kind: Kind<J>,
}

#[derive(Debug)]
enum Kind<J> {
    DropTail(Fifo<J>),
    Codel(Fifo<J>, Codel),
    FqCodel(FqCodel<J>),
}

impl<J: Job> Queue<J> {
    /// `limit` in bytes; `packet_time`: how long a full packet takes to be sent, in ns.
    pub(crate) fn new(kind: QueueKind, limit: u64, packet_time: Nanos) -> Queue<J> {
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
            Kind::DropTail(fifo) | Kind::Codel(fifo, _) => fifo.jobs.is_empty(),
            Kind::FqCodel(queues) => queues.bytes == 0,
        }
    }

    /// Queues a job. What does not fit goes to `dropped`; an empty queue takes any job.
    pub(crate) fn push(&mut self, job: J, dropped: &mut Vec<(J, QueueDrop)>) {
        match &mut self.kind {
            Kind::DropTail(fifo) | Kind::Codel(fifo, _) => {
                if !fifo.jobs.is_empty() && fifo.bytes + job.bytes() > self.limit {
                    dropped.push((job, QueueDrop::Full));
                } else {
                    fifo.push(job);
                }
            }
            Kind::FqCodel(queues) => queues.push(job, self.limit, dropped),
        }
    }

    /// Takes the next job to be sent. What AQM drops on the way goes to `dropped`.
    pub(crate) fn pop(&mut self, now: Nanos, dropped: &mut Vec<(J, QueueDrop)>) -> Option<J> {
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
