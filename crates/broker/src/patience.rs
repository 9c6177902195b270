//! What one turn of a worker may spend on publications that reach many, and who waits for the next.
//!
//! A publication is handed to all its receivers at once: they are stored in one batch, or a crash would
//! leave half of them with it. So a worker gives way between publications. Those that reach few are not
//! counted; when the others have used up the turn's budget, every further one waits for a turn in which
//! its connection is the next in line, one a turn, behind whoever came before. So a publisher with a few
//! receivers, and everybody who publishes nothing, waits for one such publication at most, however many
//! there are.

use std::collections::VecDeque;

use rustc_hash::FxHashSet;

use crate::peer::Token;

/// Receivers, and subscriptions looked at, of publications in one turn; `benches/routes.rs` measures
/// what they cost.
const VISITS_PER_TURN: usize = 8_192;

/// Visits of a publication that never waits and does not count.
pub(crate) const FEW_VISITS: usize = 64;

/// Topics looked at for retained messages at once, and in a turn that has no time left.
const RETAINED_VISITS: (usize, usize) = (4_096, 256);

/// Who stands in line for wills that are due: no connection has this token.
pub(crate) const WILLS: Token = Token(u64::MAX);

/// A worker's account of its turn.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    spent: usize,
    /// Connections with a publication that waits, in the order in which they may go on.
    line: VecDeque<Token>,
    in_line: FxHashSet<Token>,
    /// Whose turn it is, and what may have been spent when it is over.
    next: Option<(Token, usize)>,
    called: bool,
}

impl Patience {
    /// Counts what a publication cost.
    pub(crate) fn spend(&mut self, visits: usize) {
        if visits > FEW_VISITS {
            self.spent += visits;
        }
    }

    /// Counts topics looked at for retained messages.
    pub(crate) fn look(&mut self, topics: usize) {
        self.spent += topics;
    }

    /// Whether this turn has done as much as it should.
    pub(crate) fn is_over(&self) -> bool {
        self.spent >= VISITS_PER_TURN
    }

    /// Whether a publication of this connection that reaches many has to wait.
    pub(crate) fn must_wait(&self, token: Token) -> bool {
        match self.next {
            Some((next, until)) if next == token => self.spent >= until,
            _ => self.is_over() || !self.line.is_empty(),
        }
    }

    /// A connection has such a publication and waits.
    pub(crate) fn wait(&mut self, token: Token) {
        if self.in_line.insert(token) {
            self.line.push_back(token);
        }
    }

    /// Whether it waits.
    pub(crate) fn is_waiting(&self, token: Token) -> bool {
        self.in_line.contains(&token)
    }

    /// Whether anybody does.
    pub(crate) fn has_line(&self) -> bool {
        !self.line.is_empty()
    }

    /// Whose turn it is, told once a turn.
    pub(crate) fn call(&mut self) -> Option<Token> {
        if std::mem::replace(&mut self.called, true) {
            return None;
        }
        let token = self.line.pop_front()?;
        self.in_line.remove(&token);
        self.next = Some((token, self.spent + VISITS_PER_TURN));
        Some(token)
    }

    /// Topics that may be looked at for a subscription's retained messages now.
    pub(crate) fn retained_visits(&self) -> usize {
        if self.is_over() { RETAINED_VISITS.1 } else { RETAINED_VISITS.0 }
    }

    /// The turn is over.
    pub(crate) fn end_turn(&mut self) {
        self.spent = 0;
        self.called = false;
        // Who has not come yet, may until the next is called.
        if let Some((_, until)) = &mut self.next {
            *until = VISITS_PER_TURN;
        }
        if self.line.is_empty() && self.line.capacity() > 64 {
            // A crowd that has gone leaves no memory behind.
            (self.line, self.in_line) = Default::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_reaches_many_waits_in_line_and_one_goes_a_turn() {
        let mut patience = Patience::default();
        let (a, b, c) = (Token(1), Token(2), Token(3));
        for _ in 0..100_000 {
            patience.spend(FEW_VISITS);
        }
        assert!(!patience.must_wait(a), "what reaches few does not count");
        patience.spend(100_000);
        for token in [b, a, b] {
            assert!(patience.must_wait(token));
            patience.wait(token);
        }
        patience.end_turn();
        assert!(patience.must_wait(c), "nobody overtakes those in line");
        patience.wait(c);
        for token in [b, a, c] {
            assert_eq!(patience.call(), Some(token));
            assert_eq!(patience.call(), None, "one a turn");
            assert!(!patience.must_wait(token) && !patience.is_waiting(token));
            patience.spend(VISITS_PER_TURN - 1);
            assert!(!patience.must_wait(token), "it has a budget of its own");
            patience.spend(VISITS_PER_TURN);
            assert!(patience.must_wait(token));
            patience.end_turn();
        }
        assert!(!patience.has_line() && !patience.must_wait(a));
    }
}
