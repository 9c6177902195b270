//! When housekeeping has something to do ([`crate::housekeeping`]).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use fulmar_auth::Timestamp;

use crate::session::Session;

/// The deadlines.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    pub(crate) sessions: BinaryHeap<Reverse<Due>>,
    /// How many there were when those that count no more were removed last.
    kept: usize,
    pub(crate) next_sys: Timestamp,
    pub(crate) next_sweep: Timestamp,
}

/// Deadlines are not looked through for fewer.
const FEW: usize = 1024;

impl Deadlines {
    /// Adds one. A session that has ended, or has another deadline by now, would be kept until this one: a client that
    /// begins a session again and again would fill the memory. When their number has doubled, they are removed.
    pub(crate) fn add(&mut self, due: Due) {
        self.sessions.push(Reverse(due));
        if self.sessions.len() > 2 * self.kept + FEW {
            self.sessions.retain(|Reverse(due)| due.may_count());
            self.sessions.shrink_to(2 * self.sessions.len() + FEW);
            self.kept = self.sessions.len();
        }
    }
}

impl Due {
    /// Whether the session is to be examined then. One that is in use at the moment may be.
    fn may_count(&self) -> bool {
        let state = self.session.try_lock();
        state.is_none_or(|state| !state.ended && state.housekeeping_at == Some(self.at))
    }
}

/// A session, and when it is to be examined.
#[derive(Debug)]
pub(crate) struct Due {
    pub(crate) at: Timestamp,
    pub(crate) session: Arc<Session>,
}

impl PartialEq for Due {
    fn eq(&self, other: &Due) -> bool {
        self.at == other.at
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Due) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Due) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use crate::storage::SessionKey;

    #[test]
    fn sessions_that_have_ended_are_not_kept_until_they_would_have_expired() {
        let (mut deadlines, at) = (Deadlines::default(), Timestamp(1_000_000));
        let session = |key| Session::new(SessionKey(key), "c", &Limits::default());
        let lives = session(0);
        lives.lock().housekeeping_at = Some(at);
        deadlines.add(Due { at, session: Arc::clone(&lives) });
        for key in 1..10_000 {
            let session = session(key);
            session.lock().ended = true;
            deadlines.add(Due { at, session });
        }
        assert!(deadlines.sessions.len() <= 2 * FEW, "{}", deadlines.sessions.len());
        let kept = deadlines.sessions.iter().any(|Reverse(due)| Arc::ptr_eq(&due.session, &lives));
        assert!(kept, "one that has not ended");
    }
}
