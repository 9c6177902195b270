//! The fan-out budget: how much one turn of a worker may spend on publications with many receivers and on connections
//! that subscribe to many filters, and which of them wait for a later turn.
//!
//! A publication is delivered to all its receivers at once. All copies are in one storage batch, because otherwise a
//! crash could leave it with some of the receivers only. A worker can therefore interrupt its work only between
//! publications. Publications with few receivers and few bytes for them are not counted. When the others have used up
//! the turn's budget, each further one waits for a turn in which its connection is first in line; one connection
//! continues per turn, in order of arrival. A publisher of what is not counted, and a client that publishes nothing,
//! therefore waits for at most one such publication.
//!
//! The same holds for SUBSCRIBE and UNSUBSCRIBE of a connection that has sent much of that in the turn.
//!
//! Large messages are not copied with the publication; [`crate::send_line`] bounds that.

use std::collections::VecDeque;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::peer::Token;

/// Visits per turn: receivers of publications, and subscriptions that were searched for them; `benches/routes.rs`
/// measures what a visit costs.
pub(crate) const VISITS_PER_TURN: usize = 8_192;

/// Bytes that take about as long to copy as a visit takes.
const BYTES_PER_VISIT: usize = 512;

/// Visits up to which a publication never waits and is not counted.
pub(crate) const FEW_VISITS: usize = 64;

/// Bytes up to which the copies of such a publication are not counted either.
const FEW_BYTES: usize = 512 * 1024;

/// Whether a publication with this number of receivers, and of bytes for all of them, gives way. One copy costs no more
/// than it did to receive the message.
pub(crate) fn is_much(visits: usize, bytes: usize) -> bool {
    visits > FEW_VISITS || (visits > 1 && bytes > FEW_BYTES)
}

/// Bytes of SUBSCRIBE and UNSUBSCRIBE that a connection may send per turn before they wait and are counted, each as a
/// visit: a byte is about a third of the shortest filter, or half a level of a deep one.
const FEW_FILTER_BYTES: usize = 2_048;

/// Cost of a publication, in visits.
pub(crate) fn cost(visits: usize, bytes: usize) -> usize {
    visits + bytes / BYTES_PER_VISIT
}

/// Topics searched for retained messages at once, and in a turn whose budget is used up.
const RETAINED_VISITS: (usize, usize) = (4_096, 256);

/// The place of due wills in the line; no connection has this token.
pub(crate) const WILLS: Token = Token(u64::MAX);

/// A worker's budget for its turn.
#[derive(Debug, Default)]
pub(crate) struct FanOutBudget {
    spent: usize,
    /// Bytes of SUBSCRIBE and UNSUBSCRIBE in this turn.
    filter_bytes: FxHashMap<Token, usize>,
    /// Connections with a packet that waits, in the order in which they may continue.
    line: VecDeque<Token>,
    in_line: FxHashSet<Token>,
    /// The connection that may continue, and the amount spent at which its share ends.
    next: Option<(Token, usize)>,
    called: bool,
}

impl FanOutBudget {
    /// Counts the visits of a publication, and the bytes for all its receivers.
    pub(crate) fn spend(&mut self, visits: usize, bytes: usize) {
        if is_much(visits, bytes) {
            self.spent = self.spent.saturating_add(cost(visits, bytes));
        }
    }

    /// Whether this many bytes of SUBSCRIBE or UNSUBSCRIBE are much for the connection in this turn.
    pub(crate) fn are_many_filters(&self, token: Token, bytes: usize) -> bool {
        let before = self.filter_bytes.get(&token).copied().unwrap_or_default();
        before.saturating_add(bytes) > FEW_FILTER_BYTES
    }

    /// Counts a SUBSCRIBE or UNSUBSCRIBE of this size.
    pub(crate) fn spend_on_filters(&mut self, token: Token, bytes: usize) {
        if self.are_many_filters(token, bytes) {
            self.spent = self.spent.saturating_add(bytes);
        }
        *self.filter_bytes.entry(token).or_default() += bytes;
    }

    /// Counts topics searched for retained messages.
    pub(crate) fn count_topics(&mut self, topics: usize) {
        self.spent += topics;
    }

    /// Whether this turn's budget is used up.
    pub(crate) fn is_over(&self) -> bool {
        self.spent >= VISITS_PER_TURN
    }

    /// Whether a publication of this connection with many receivers, or its many filters, have to wait.
    pub(crate) fn must_wait(&self, token: Token) -> bool {
        match self.next {
            Some((next, until)) if next == token => self.spent >= until,
            _ => self.is_over() || !self.line.is_empty(),
        }
    }

    /// Puts a connection with such a packet in line.
    pub(crate) fn wait(&mut self, token: Token) {
        if self.in_line.insert(token) {
            self.line.push_back(token);
        }
    }

    /// Whether the connection is in line.
    pub(crate) fn is_waiting(&self, token: Token) -> bool {
        self.in_line.contains(&token)
    }

    /// Whether any connection is in line.
    pub(crate) fn has_line(&self) -> bool {
        !self.line.is_empty()
    }

    /// Takes the connection that is first in line; at most one per turn.
    pub(crate) fn call(&mut self) -> Option<Token> {
        if std::mem::replace(&mut self.called, true) {
            return None;
        }
        let token = self.line.pop_front()?;
        self.in_line.remove(&token);
        self.next = Some((token, self.spent + VISITS_PER_TURN));
        Some(token)
    }

    /// Topics that may be searched now for a subscription's retained messages.
    pub(crate) fn retained_visits(&self) -> usize {
        if self.is_over() { RETAINED_VISITS.1 } else { RETAINED_VISITS.0 }
    }

    /// The turn is over.
    pub(crate) fn end_turn(&mut self) {
        self.spent = 0;
        self.filter_bytes.clear();
        self.called = false;
        // A connection that was called and has not published yet may do so until the next is called.
        if let Some((_, until)) = &mut self.next {
            *until = VISITS_PER_TURN;
        }
        if self.line.is_empty() && self.line.capacity() > 64 {
            // Frees the memory after many connections have gone.
            (self.line, self.in_line) = Default::default();
        }
        if self.filter_bytes.capacity() > 1024 {
            self.filter_bytes = FxHashMap::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publishers_with_many_receivers_wait_in_line_and_one_goes_on_per_turn() {
        let mut fan_out = FanOutBudget::default();
        let (a, b, c) = (Token(1), Token(2), Token(3));
        for _ in 0..100_000 {
            fan_out.spend(FEW_VISITS, FEW_BYTES);
        }
        assert!(!fan_out.must_wait(a), "what reaches few does not count");
        fan_out.spend(2, 50 << 20);
        for token in [b, a, b] {
            assert!(fan_out.must_wait(token));
            fan_out.wait(token);
        }
        fan_out.end_turn();
        assert!(fan_out.must_wait(c), "nobody overtakes those in line");
        fan_out.wait(c);
        for token in [b, a, c] {
            assert_eq!(fan_out.call(), Some(token));
            assert_eq!(fan_out.call(), None, "one a turn");
            assert!(!fan_out.must_wait(token) && !fan_out.is_waiting(token));
            fan_out.spend(VISITS_PER_TURN - 1, 0);
            assert!(!fan_out.must_wait(token), "it has a budget of its own");
            fan_out.spend(VISITS_PER_TURN, 0);
            assert!(fan_out.must_wait(token));
            fan_out.end_turn();
        }
        assert!(!fan_out.has_line() && !fan_out.must_wait(a));
    }
}
