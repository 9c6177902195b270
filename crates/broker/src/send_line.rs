//! The line of streams with large messages to send: each worker copies a few MiB per turn ([`crate::outbox`]) and lets the
//! others wait, first come, first served. Clients that do not read are never in line, because their connections are not
//! asked for output.
//!
//! A publication of a large message to many costs the publisher's worker little, so publishers could be faster than all
//! receivers, whose queues would overflow although they read. Such publications therefore wait for each other, over all
//! workers, in order: each until the receivers of the one before have got in line, or are seen not to read, and the line
//! has been served as far as it was then.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::event::BrokerEvent;
use crate::mailbox::{Attachment, Mailboxes};
use crate::peer::{StreamKey, Token};

/// Streams that are called from the line at once. Each is served, so that the turn's budget is exceeded by their
/// messages at most.
const CALLED: usize = 8;

/// Bytes that a stream may send when it is called; the last message may exceed it.
const CALL_BYTES: usize = 256 * 1024;

/// The least that a worker copies per turn, in bytes, however many workers share one thread.
const LEAST: usize = 512 * 1024;

/// Turns in which a publisher that may go on has to do so.
const MAX_RELEASED_TURNS: u8 = 2;

type ConnectionStream = (Token, StreamKey);

/// Progress of all workers.
#[derive(Debug)]
pub(crate) struct SendBacklog {
    /// Flows that have got something large to send, and those whose connections know by now.
    announced: AtomicU64,
    handled: AtomicU64,
    /// Streams that have got in line, and those that have left it.
    entered: AtomicU64,
    served: AtomicU64,
    /// Length of `publishers`.
    waiting: AtomicUsize,
    publishers: Mutex<VecDeque<Publisher>>,
    mailboxes: Mailboxes,
}

/// A publisher that waits, or whose turn it is.
#[derive(Debug)]
struct Publisher {
    at: Attachment,
    state: Wait,
}

#[derive(Clone, Copy, Debug)]
enum Wait {
    /// For the publisher before.
    Queued,
    /// For this many announcements to be handled.
    Announced(u64),
    /// For this many streams to be served.
    Served(u64),
    /// The connection has got an event, for this number of turns.
    Released(u8),
    /// Until its worker's turn ends.
    Publishes,
}

impl SendBacklog {
    pub(crate) fn new(mailboxes: Mailboxes) -> Arc<SendBacklog> {
        let zero = || AtomicU64::new(0);
        Arc::new(SendBacklog {
            announced: zero(),
            handled: zero(),
            entered: zero(),
            served: zero(),
            waiting: AtomicUsize::new(0),
            publishers: Mutex::default(),
            mailboxes,
        })
    }

    fn is_busy(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
            || !self.has_handled(self.announced.load(Ordering::SeqCst))
            || !self.has_served(self.entered.load(Ordering::SeqCst))
    }

    fn has_handled(&self, number: u64) -> bool {
        self.handled.load(Ordering::SeqCst) >= number
    }

    fn has_served(&self, number: u64) -> bool {
        self.served.load(Ordering::SeqCst) >= number
    }

    /// Changes the publishers that wait. The first of them goes on if it may by now; it is returned if it is of the worker
    /// `own`, and gets an event otherwise.
    fn change<T>(
        &self,
        own: u16,
        change: impl FnOnce(&mut VecDeque<Publisher>) -> T,
    ) -> (T, Option<Token>) {
        let mut publishers = self.publishers.lock();
        let changed = change(&mut publishers);
        // Before what the first one waits for is looked at: what happens later is seen by those who make it happen.
        self.waiting.store(publishers.len(), Ordering::SeqCst);
        let released = publishers.front_mut().and_then(|first| self.advance(first));
        match released {
            Some(at) if at.shard == own => (changed, Some(at.token)),
            Some(at) => {
                self.mailboxes.post(at, BrokerEvent::Ready);
                (changed, None)
            }
            None => (changed, None),
        }
    }

    fn advance(&self, first: &mut Publisher) -> Option<Attachment> {
        if matches!(first.state, Wait::Queued) {
            first.state = Wait::Announced(self.announced.load(Ordering::SeqCst));
        }
        if let Wait::Announced(number) = first.state
            && self.has_handled(number)
        {
            first.state = Wait::Served(self.entered.load(Ordering::SeqCst));
        }
        match first.state {
            Wait::Served(number) if self.has_served(number) => {
                first.state = Wait::Released(0);
                Some(first.at)
            }
            _ => None,
        }
    }
}

/// One worker's line.
#[derive(Debug)]
pub(crate) struct SendLine {
    worker: u16,
    /// Bytes copied in this turn, and how many may be.
    copied: usize,
    most: usize,
    line: VecDeque<ConnectionStream>,
    in_line: FxHashSet<ConnectionStream>,
    /// Those that may send whatever has been copied, with the bytes: called in this turn, and in the one before. Later
    /// it is for nothing: a client may have stopped reading.
    called: [FxHashMap<ConnectionStream, usize>; 2],
    /// Announcements taken in this turn.
    taken: u64,
    /// This worker's connections among the publishers that wait.
    publishers: FxHashSet<Token>,
    /// Connections that are to get an event because they may go on.
    due: Vec<Token>,
    /// One of them publishes in this turn.
    publishes: bool,
    /// One of them may go on and has not done so yet.
    released: bool,
    backlog: Arc<SendBacklog>,
}

impl SendLine {
    /// The line of one of `workers`, which together copy `most` bytes per turn.
    pub(crate) fn new(
        backlog: Arc<SendBacklog>,
        most: usize,
        worker: usize,
        workers: usize,
    ) -> SendLine {
        SendLine {
            // The broker refuses to be made for more workers.
            worker: u16::try_from(worker).unwrap_or(u16::MAX),
            copied: 0,
            most: (most / workers.max(1)).max(LEAST.min(most)),
            line: VecDeque::new(),
            in_line: FxHashSet::default(),
            called: Default::default(),
            taken: 0,
            publishers: FxHashSet::default(),
            due: Vec::new(),
            publishes: false,
            released: false,
            backlog,
        }
    }

    /// Whether this turn has copied as much as it should.
    pub(crate) fn is_over(&self) -> bool {
        self.copied >= self.most
    }

    /// Whether a stream with large messages may send now. Otherwise it is in line, and its connection gets an event.
    pub(crate) fn may_send(&mut self, token: Token, stream: StreamKey) -> bool {
        let place = (token, stream);
        if self.called.iter().any(|called| called.contains_key(&place))
            || (self.line.is_empty() && !self.is_over())
        {
            return true;
        }
        if self.in_line.insert(place) {
            self.line.push_back(place);
            self.backlog.entered.fetch_add(1, Ordering::SeqCst);
        }
        false
    }

    /// Counts bytes that a stream was given.
    pub(crate) fn copy(&mut self, token: Token, stream: StreamKey, bytes: usize) {
        self.copied += bytes;
        for called in &mut self.called {
            if let Some(left) = called.get_mut(&(token, stream)) {
                *left = left.saturating_sub(bytes);
                if *left == 0 {
                    called.remove(&(token, stream));
                }
            }
        }
    }

    /// A flow has got something large to send: its connection gets [`BrokerEvent::ReadyLarge`].
    pub(crate) fn announce(&self) {
        self.backlog.announced.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts announcements among the events that this worker's connections get in this turn.
    #[inline]
    pub(crate) fn count_announcements(&mut self, events: &[(Token, BrokerEvent)]) {
        if !self.backlog.has_handled(self.backlog.announced.load(Ordering::SeqCst)) {
            let announced = events.iter().filter(|(_, event)| event.is_large());
            self.taken += announced.count() as u64;
        }
    }

    /// Takes from the line those that may send now, and a publisher that may go on: each connection gets an event.
    #[inline]
    pub(crate) fn call(&mut self, each: impl FnMut(Token)) {
        if self.has_work() {
            self.call_some(each);
        }
    }

    fn call_some(&mut self, mut each: impl FnMut(Token)) {
        let mut served = 0;
        while !self.is_over() && served < CALLED {
            let Some(place) = self.line.pop_front() else { break };
            self.in_line.remove(&place);
            self.called[0].insert(place, CALL_BYTES);
            served += 1;
            each(place.0);
        }
        if served > 0 {
            self.backlog.served.fetch_add(served as u64, Ordering::SeqCst);
            self.let_publishers_advance();
        }
        self.due.drain(..).for_each(each);
    }

    /// Whether there is something to do in the next turn.
    pub(crate) fn has_work(&self) -> bool {
        !self.line.is_empty() || !self.due.is_empty() || self.released
    }

    /// Whether some publication may have to wait.
    pub(crate) fn may_delay(&self) -> bool {
        self.backlog.is_busy()
    }

    /// Whether this publisher's large message for many has to wait. It gets an event when it may go on.
    pub(crate) fn must_wait(&mut self, publisher: Token) -> bool {
        if self.publishers.contains(&publisher) {
            return !self.go_on(publisher);
        }
        self.publishers.insert(publisher);
        let at = Attachment { shard: self.worker, token: publisher };
        self.change(|queue| queue.push_back(Publisher { at, state: Wait::Queued }));
        !self.go_on(publisher)
    }

    /// Whether this publisher may go on now; if it does, the next has to wait for what it publishes.
    pub(crate) fn go_on(&mut self, publisher: Token) -> bool {
        if !self.publishers.contains(&publisher) {
            return false;
        }
        let at = Attachment { shard: self.worker, token: publisher };
        let goes = self.change(|queue| match queue.front_mut() {
            Some(first) if first.at == at && matches!(first.state, Wait::Released(_)) => {
                first.state = Wait::Publishes;
                true
            }
            _ => false,
        });
        if goes {
            self.publishes = true;
            self.publishers.remove(&publisher);
            // Another stream of its connection may wait, too: it has to queue for itself.
            if !self.due.contains(&publisher) {
                self.due.push(publisher);
            }
        }
        goes
    }

    /// The connection has ended. What is left of it in line is called without effect.
    pub(crate) fn forget(&mut self, token: Token) {
        if self.publishers.remove(&token) {
            let at = Attachment { shard: self.worker, token };
            // What it has published in this turn is still to be announced.
            let stays =
                |other: &Publisher| other.at != at || matches!(other.state, Wait::Publishes);
            self.change(|queue| queue.retain(stays));
        }
    }

    /// The turn is over: what was announced has been looked at.
    pub(crate) fn end_turn(&mut self) {
        self.copied = 0;
        if self.called.iter().any(|called| !called.is_empty()) {
            self.called.swap(0, 1);
            self.called[0].clear();
        }
        if self.line.is_empty() && self.line.capacity() > 64 {
            // Frees the memory after many streams were in line.
            (self.line, self.in_line) = Default::default();
        }
        if self.taken > 0 {
            self.backlog.handled.fetch_add(std::mem::take(&mut self.taken), Ordering::SeqCst);
            self.let_publishers_advance();
        }
        self.released = false;
        if self.publishes || !self.publishers.is_empty() {
            self.end_publication();
        }
    }

    /// The first publisher has published, or did not go on when it could: perhaps it has left its message out.
    fn end_publication(&mut self) {
        let (worker, publishes) = (self.worker, std::mem::take(&mut self.publishes));
        let mut released = false;
        let gone = self.change(|queue| {
            let first = queue.front_mut().filter(|first| first.at.shard == worker)?;
            match &mut first.state {
                Wait::Publishes if publishes => {}
                Wait::Released(turns) if *turns >= MAX_RELEASED_TURNS => {}
                Wait::Released(turns) => {
                    *turns += 1;
                    released = true;
                    return None;
                }
                _ => return None,
            }
            let gone = queue.pop_front()?;
            matches!(gone.state, Wait::Released(_)).then_some(gone.at.token)
        });
        self.released = released;
        if let Some(gone) = gone {
            self.publishers.remove(&gone);
            // If it has its message still, it queues again.
            self.due.push(gone);
        }
    }

    fn let_publishers_advance(&mut self) {
        if self.backlog.waiting.load(Ordering::SeqCst) > 0 {
            self.change(|_| ());
        }
    }

    fn change<T>(&mut self, change: impl FnOnce(&mut VecDeque<Publisher>) -> T) -> T {
        let (changed, released) = self.backlog.change(self.worker, change);
        self.due.extend(released);
        changed
    }
}

#[cfg(test)]
#[path = "send_line_tests.rs"]
mod tests;
