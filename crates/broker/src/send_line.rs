//! The line of connections with large messages to send: each worker copies so much per turn ([`crate::outbox`]) and lets
//! the others wait, first come, first served. Connections whose clients do not read are never in line, because they are
//! not asked for output.
//!
//! A publication of a large message to many waits until those that were in line before it have been served, on all
//! workers. It costs the publisher's worker little, so a publisher could otherwise be faster than all its receivers, and
//! their queues would overflow although they read.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::mailbox::Mailboxes;
use crate::peer::Token;

/// Connections that are called from the line at once. Each is served, so that the turn's budget is exceeded by their
/// messages at most.
const CALLED: usize = 8;

/// The least that a worker copies per turn, in bytes, however many workers share one thread.
const LEAST: usize = 512 * 1024;

/// How far all workers are.
#[derive(Debug)]
pub(crate) struct SendBacklog {
    /// Connections that have got in line.
    entered: AtomicU64,
    /// Connections that have left it.
    served: AtomicU64,
    /// Publishers that wait.
    publishers: AtomicUsize,
    mailboxes: Mailboxes,
}

impl SendBacklog {
    pub(crate) fn new(mailboxes: Mailboxes) -> Arc<SendBacklog> {
        let (entered, served) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(SendBacklog { entered, served, publishers: AtomicUsize::new(0), mailboxes })
    }

    fn has_served(&self, number: u64) -> bool {
        self.served.load(Ordering::SeqCst) >= number
    }

    fn serve(&self, connections: u64) {
        self.served.fetch_add(connections, Ordering::SeqCst);
        if connections > 0 && self.publishers.load(Ordering::SeqCst) > 0 {
            self.mailboxes.wake_all();
        }
    }
}

/// One worker's line.
#[derive(Debug)]
pub(crate) struct SendLine {
    /// Bytes copied in this turn, and how many may be.
    copied: usize,
    most: usize,
    line: VecDeque<Token>,
    in_line: FxHashSet<Token>,
    /// Those that may send whatever has been copied, called in this turn and in the one before. Later it is for nothing: a
    /// client may have stopped reading.
    called: [FxHashSet<Token>; 2],
    /// Publishers that wait, until this number has been served over all workers; `None` for one that may go on.
    publishers: FxHashMap<Token, Option<u64>>,
    backlog: Arc<SendBacklog>,
}

impl SendLine {
    /// A line of one of `workers`, which together copy `most` bytes per turn.
    pub(crate) fn new(backlog: Arc<SendBacklog>, most: usize, workers: usize) -> SendLine {
        SendLine {
            copied: 0,
            most: (most / workers.max(1)).max(LEAST.min(most)),
            line: VecDeque::new(),
            in_line: FxHashSet::default(),
            called: Default::default(),
            publishers: FxHashMap::default(),
            backlog,
        }
    }

    /// Counts bytes copied for a receiver.
    pub(crate) fn copy(&mut self, bytes: usize) {
        self.copied += bytes;
    }

    /// Whether this turn has copied as much as it should.
    pub(crate) fn is_over(&self) -> bool {
        self.copied >= self.most
    }

    /// Whether a connection with large messages may send now. Otherwise it is in line, and gets an event.
    pub(crate) fn may_send(&mut self, token: Token) -> bool {
        if self.take_call(token) || (self.line.is_empty() && !self.is_over()) {
            return true;
        }
        if self.in_line.insert(token) {
            self.line.push_back(token);
            self.backlog.entered.fetch_add(1, Ordering::SeqCst);
        }
        false
    }

    fn take_call(&mut self, token: Token) -> bool {
        self.called.iter_mut().any(|called| called.remove(&token))
    }

    /// Takes the connections that may send now from the line.
    #[inline]
    pub(crate) fn call(&mut self, each: impl FnMut(Token)) {
        if !self.line.is_empty() || !self.publishers.is_empty() {
            self.call_some(each);
        }
    }

    fn call_some(&mut self, mut each: impl FnMut(Token)) {
        let mut served = 0;
        while !self.is_over() && served < CALLED {
            let Some(token) = self.line.pop_front() else { break };
            // Otherwise it has ended.
            if self.in_line.remove(&token) {
                self.called[0].insert(token);
                served += 1;
                each(token);
            }
        }
        self.backlog.serve(served as u64);
        for (token, until) in &mut self.publishers {
            if until.is_some_and(|until| self.backlog.has_served(until)) {
                *until = None;
                self.backlog.publishers.fetch_sub(1, Ordering::SeqCst);
                each(*token);
            }
        }
    }

    /// Whether any connection is in line.
    pub(crate) fn has_line(&self) -> bool {
        !self.line.is_empty()
    }

    /// Whether some publication may have to wait.
    pub(crate) fn may_delay(&self) -> bool {
        let entered = self.backlog.entered.load(Ordering::SeqCst);
        !self.publishers.is_empty() || !self.backlog.has_served(entered)
    }

    /// Whether this publisher's large message for many has to wait. It gets an event when it may go on.
    pub(crate) fn must_wait(&mut self, publisher: Token) -> bool {
        match self.publishers.get(&publisher) {
            Some(Some(_)) => return true,
            Some(None) => {
                self.publishers.remove(&publisher);
                return false;
            }
            None => {}
        }
        let entered = self.backlog.entered.load(Ordering::SeqCst);
        let waits = !self.backlog.has_served(entered);
        if waits {
            self.publishers.insert(publisher, Some(entered));
            self.backlog.publishers.fetch_add(1, Ordering::SeqCst);
        }
        waits
    }

    /// Whether this connection waits as a publisher.
    pub(crate) fn is_waiting(&self, publisher: Token) -> bool {
        self.publishers.contains_key(&publisher)
    }

    /// Whether a publisher that waits may go on.
    pub(crate) fn may_release(&self) -> bool {
        let mut until = self.publishers.values().flatten();
        until.any(|until| self.backlog.has_served(*until))
    }

    /// The connection has ended.
    pub(crate) fn forget(&mut self, token: Token) {
        self.take_call(token);
        if self.in_line.remove(&token) {
            self.backlog.serve(1);
        }
        if let Some(Some(_)) = self.publishers.remove(&token) {
            self.backlog.publishers.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// The turn is over.
    pub(crate) fn end_turn(&mut self) {
        self.copied = 0;
        if self.called.iter().any(|called| !called.is_empty()) {
            self.called.swap(0, 1);
            self.called[0].clear();
        }
        if self.line.is_empty() && self.line.capacity() > 64 {
            // Frees the memory after many connections were in line.
            (self.line, self.in_line) = Default::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> (SendLine, SendLine) {
        let backlog = SendBacklog::new(Mailboxes::new(2));
        (SendLine::new(Arc::clone(&backlog), 1000, 1), SendLine::new(backlog, 1000, 1))
    }

    fn called(line: &mut SendLine) -> Vec<u64> {
        let mut called = Vec::new();
        line.call(|token| called.push(token.0));
        called
    }

    #[test]
    fn those_in_line_are_served_in_order_and_nobody_overtakes_them() {
        let (mut line, _) = lines();
        assert!(line.may_send(Token(1)));
        line.copy(1000);
        assert!((1..=20).all(|token| !line.may_send(Token(token))));
        assert!(called(&mut line).is_empty(), "in the next turn");
        line.end_turn();
        assert!(!line.may_send(Token(99)), "at the end of the line");
        line.forget(Token(2));
        assert_eq!(called(&mut line), [1, 3, 4, 5, 6, 7, 8, 9]);
        line.copy(1000);
        assert!(line.may_send(Token(1)) && !line.may_send(Token(1)), "once");
        line.end_turn();
        assert!(line.may_send(Token(3)), "it was called in the turn before");
        line.end_turn();
        assert!(!line.may_send(Token(4)), "it was called long ago");
        assert_eq!(called(&mut line), [10, 11, 12, 13, 14, 15, 16, 17]);
        assert_eq!(called(&mut line), [18, 19, 20, 99, 1, 4]);
        assert!(!line.has_line() && line.may_send(Token(5)));
    }

    #[test]
    fn publishers_wait_for_those_that_were_in_line_before() {
        let (mut publishers, mut receivers) = lines();
        let publisher = Token(7);
        assert!(!publishers.may_delay() && !publishers.must_wait(publisher));
        receivers.copy(1000);
        assert!((0..12).all(|token| !receivers.may_send(Token(token))));
        assert!(publishers.may_delay());
        assert!(publishers.must_wait(publisher) && publishers.must_wait(Token(8)));
        receivers.end_turn();
        called(&mut receivers);
        receivers.copy(1000);
        assert!(!receivers.may_send(Token(99)), "later than the publisher");
        assert!(called(&mut publishers).is_empty() && !publishers.may_release());
        receivers.end_turn();
        receivers.forget(Token(11));
        called(&mut receivers);
        assert!(publishers.may_release());
        publishers.forget(Token(8));
        assert_eq!(called(&mut publishers), [7]);
        assert!(called(&mut publishers).is_empty(), "once");
        assert!(publishers.is_waiting(publisher) && !publishers.must_wait(publisher));
        assert!(!publishers.is_waiting(publisher));
        assert_eq!(publishers.backlog.publishers.load(Ordering::SeqCst), 0);
    }
}
