//! The wall clock as the broker core wants it: milliseconds since the Unix epoch that never run
//! backwards.
//!
//! The wall clock is read once, at start; from then on a monotonic clock is added to it, so that a
//! step of the system's clock neither expires every session nor stops every timer. What others have
//! dated, such as tokens, is compared with [`Clock::wall`].

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fulmar_broker::Timestamp;

/// A clock that all workers of a server share by copy.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    epoch: Timestamp,
    started: Instant,
}

impl Clock {
    /// A clock that shows the system's time now and goes on by itself.
    pub fn start() -> Clock {
        Clock { epoch: Clock::wall(), started: Instant::now() }
    }

    /// The system's time now.
    pub fn wall() -> Timestamp {
        Timestamp(0) + SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    /// The time now.
    pub fn now(&self) -> Timestamp {
        self.epoch + self.started.elapsed()
    }

    /// Time that this clock showed, or will show, at `instant`.
    pub fn at(&self, instant: Instant) -> Timestamp {
        self.epoch + instant.saturating_duration_since(self.started)
    }

    /// When this clock shows `deadline`; `None` when it never does.
    pub(crate) fn instant(&self, deadline: Timestamp) -> Option<Instant> {
        if deadline == Timestamp::NEVER {
            return None;
        }
        self.started.checked_add(deadline.since(self.epoch))
    }

    /// Time from now to `deadline`; zero when it has passed, `None` when it never comes.
    pub fn until(&self, deadline: Timestamp) -> Option<Duration> {
        (deadline != Timestamp::NEVER).then(|| deadline.since(self.now()))
    }
}
