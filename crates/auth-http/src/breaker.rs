//! Decides whether the service is asked at all: after several failures in a row it is left alone for a while, so that
//! clients get their refusal at once.
//!
//! A client that causes failures must not keep others out. Therefore a failure that may depend on the question
//! counts once per network, and a failure to connect, which no question causes, counts every time.

use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;

/// Failures in a row after which the service is left alone for a while.
const FAILURES: usize = 5;
const PAUSE: Duration = Duration::from_secs(10);
/// Each kind of failure is logged at most so often.
const LOG_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Breaker(Mutex<Failures>);

#[derive(Debug, Default)]
struct Failures {
    /// Failures to connect in a row.
    unreachable: usize,
    /// Networks with other failures in a row.
    networks: Vec<IpAddr>,
    paused_until_ms: u64,
}

impl Breaker {
    pub(super) fn is_paused(&self, now_ms: u64) -> bool {
        now_ms < self.0.lock().paused_until_ms
    }

    pub(super) fn succeeded(&self) {
        self.0.lock().restart();
    }

    /// The service cannot be reached. Whether that begins a pause.
    pub(super) fn unreachable(&self, now_ms: u64) -> bool {
        let mut failures = self.0.lock();
        failures.unreachable += 1;
        failures.pauses(now_ms)
    }

    /// The service failed at a login from this network. Whether that begins a pause.
    pub(super) fn failed(&self, network: IpAddr, now_ms: u64) -> bool {
        let mut failures = self.0.lock();
        if failures.networks.contains(&network) {
            return false;
        }
        failures.networks.push(network);
        failures.pauses(now_ms)
    }
}

impl Failures {
    fn pauses(&mut self, now_ms: u64) -> bool {
        let pauses = self.unreachable + self.networks.len() >= FAILURES;
        if pauses {
            // As many again for the next pause: a single login must not begin it.
            self.restart();
            self.paused_until_ms = now_ms + millis(PAUSE);
        }
        pauses
    }

    fn restart(&mut self) {
        self.unreachable = 0;
        self.networks.clear();
    }
}

/// Limits how often something is logged.
#[derive(Debug, Default)]
pub(super) struct Throttle(Mutex<Option<u64>>);

impl Throttle {
    /// Whether to log it now.
    pub(super) fn lets_through(&self, now_ms: u64) -> bool {
        let mut last = self.0.lock();
        let due = last.is_none_or(|last| now_ms >= last + millis(LOG_EVERY));
        if due {
            *last = Some(now_ms);
        }
        due
    }
}

fn millis(duration: Duration) -> u64 {
    duration.as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE_MS: u64 = PAUSE.as_millis() as u64;

    fn network(number: usize) -> IpAddr {
        [192, 0, 2, number as u8].into()
    }

    #[test]
    fn failures_in_a_row_begin_a_pause_and_as_many_after_it_the_next() {
        let breaker = Breaker::default();
        for _ in 0..FAILURES - 1 {
            assert!(!breaker.unreachable(1000) && !breaker.is_paused(1000));
        }
        breaker.succeeded();
        for now in [1000, 1000 + PAUSE_MS] {
            for failure in 1..=FAILURES {
                assert!(!breaker.is_paused(now));
                assert_eq!(breaker.unreachable(now), failure == FAILURES);
            }
            assert!(breaker.is_paused(now - 1 + PAUSE_MS) && !breaker.is_paused(now + PAUSE_MS));
        }
    }

    #[test]
    fn one_network_cannot_begin_a_pause_with_its_questions_and_several_can() {
        let breaker = Breaker::default();
        for _ in 0..100 {
            assert!(!breaker.failed(network(0), 1000));
        }
        for number in 1..FAILURES {
            assert_eq!(breaker.failed(network(number), 1000), number == FAILURES - 1);
        }
        assert!(breaker.is_paused(1000));
        let later = 1000 + PAUSE_MS;
        assert!(!breaker.failed(network(0), later) && !breaker.is_paused(later), "nor the next");
        // Both kinds count together.
        for _ in 0..FAILURES - 2 {
            assert!(!breaker.unreachable(later));
        }
        assert!(breaker.unreachable(later));
    }
}
