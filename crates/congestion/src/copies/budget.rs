//! What copies may cost: never more than twice what the connection sends itself, nor than 64 kbit/s.

use std::time::{Duration, Instant};

/// Bytes of copies per byte of the connection's own.
const PER_OWN_BYTE: f64 = 2.0;
/// Bytes of copies per second: 64 kbit/s.
const PER_SECOND: f64 = 8000.0;
/// Maximum of saved bytes: a second's worth, and a first flight.
const MOST_SAVED: f64 = 8000.0;
/// Part of them that only urgent datagrams get: those that repeat what was lost, timers' probes and handshakes.
const RESERVED: f64 = 1000.0;
/// Bytes of the headers of UDP and IPv4, which each datagram costs as well.
const HEADERS: usize = 28;

/// Bytes that may be spent on copies: both bounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    by_own: f64,
    by_time: f64,
    at: Instant,
}

impl Budget {
    pub(super) fn new(now: Instant) -> Budget {
        Budget { by_own: 0.0, by_time: MOST_SAVED, at: now }
    }

    /// The connection has sent a datagram of its own.
    pub(super) fn own(&mut self, now: Instant, bytes: usize) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.by_time = (self.by_time + passed * PER_SECOND).min(MOST_SAVED);
        let earned = PER_OWN_BYTE * (bytes + HEADERS) as f64;
        self.by_own = (self.by_own + earned).min(MOST_SAVED);
    }

    /// The number of copies of a datagram for which there are bytes, at most `wanted`. If the budget of this period
    /// runs low, one copy of each datagram is better than many of a few.
    pub(super) fn spend(&mut self, bytes: usize, wanted: u8, is_urgent: bool) -> u8 {
        let cost = (bytes + HEADERS) as f64;
        let wanted = if self.by_time < MOST_SAVED / 2.0 { wanted.min(1) } else { wanted };
        let reserved = if is_urgent { 0.0 } else { RESERVED };
        let affordable = (self.by_own.min(self.by_time - reserved).max(0.0) / cost) as u8;
        let copies = affordable.min(wanted);
        self.by_own -= f64::from(copies) * cost;
        self.by_time -= f64::from(copies) * cost;
        copies
    }
}

/// Bytes in a row above which a connection is not a thin one: a full datagram.
const LARGE_BYTES: usize = 1200;

/// Bytes that a connection sends without a pause.
#[derive(Clone, Copy, Debug)]
pub(super) struct Burst {
    since: Instant,
    bytes: usize,
    /// When it was last too much.
    large: Option<Instant>,
}

impl Burst {
    pub(super) fn new(now: Instant) -> Burst {
        Burst { since: now, bytes: 0, large: None }
    }

    pub(super) fn sent(&mut self, now: Instant, bytes: usize, pause: Duration) {
        if now.saturating_duration_since(self.since) >= pause {
            (self.since, self.bytes) = (now, 0);
        }
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > LARGE_BYTES {
            self.large = Some(now);
            // The pause begins with the last of it.
            self.since = now;
        }
    }

    /// Whether the datagram that was just sent belongs to more.
    pub(super) fn is_large(&self) -> bool {
        self.bytes > LARGE_BYTES
    }

    /// Whether what is known now of lost packets may be about a time in which much was sent.
    pub(super) fn was_large(&self, now: Instant, pause: Duration) -> bool {
        self.large.is_some_and(|large| now.saturating_duration_since(large) < AFTER_MUCH * pause)
    }
}

/// Losses are found within about a round trip, of which a pause is an eighth.
const AFTER_MUCH: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_time_is_short_each_datagram_has_one_copy() {
        let mut now = Instant::now();
        let mut budget = Budget::new(now);
        let mut last = Vec::new();
        for _ in 0..500 {
            now += Duration::from_millis(20);
            budget.own(now, 100);
            last.push(budget.spend(100, 2, false));
        }
        assert!(last[..20].iter().all(|copies| *copies == 2), "{last:?}");
        assert!(last[400..].iter().all(|copies| *copies >= 1), "{last:?}");
    }
}
