//! When a worker rests for a moment before it waits, so that one wake-up brings the work of several.
//!
//! Waking a sleeping thread costs about as much processor time as handling a message does. With
//! thousands of QUIC clients that each say a little, a worker that sleeps as soon as it can is woken
//! for every datagram. Network cards met the same with interrupts, and the answer here is theirs:
//! coalescing, and only where it pays. A worker that is often woken for datagrams tries resting; it
//! goes on while the wake-ups then bring more than one, and leaves it for a while when they do not,
//! as with one client that waits for each answer. Who is seldom woken, or busy, never rests. Events
//! of TCP connections do not count: each needs a read of its own, and resting saved nothing there.
//!
//! It decides only: it reads no clock and sleeps not itself.

use std::time::{Duration, Instant};

/// Time over which wake-ups and what they bring are counted.
const WINDOW: Duration = Duration::from_millis(20);

/// Wake-ups in a second from which resting is tried, and below which it ends.
const TRY_ABOVE: u128 = 3000;
const END_BELOW: u128 = 500;

/// A wake-up this long after the one before stands alone, and is not made to wait.
const ALONE: Duration = Duration::from_micros(500);

/// Time until the next try where resting did not pay.
const RETRY: Duration = Duration::from_secs(1);

/// See the module's words.
#[derive(Debug)]
pub(crate) struct Pace {
    /// How long a rest is; zero for none.
    rest: Duration,
    resting: bool,
    /// Until when no rest is tried.
    not_before: Instant,
    /// When the current window began, its waits, and the datagrams there had been by then.
    began: Instant,
    waits: u128,
    before: u64,
    /// When the thread last woke.
    woke: Instant,
    /// When it last went to wait.
    waited: Instant,
}

impl Pace {
    pub(crate) fn new(rest: Duration, now: Instant) -> Pace {
        Pace {
            rest,
            resting: false,
            not_before: now,
            began: now,
            waits: 0,
            before: 0,
            woke: now,
            waited: now,
        }
    }

    /// The thread is about to wait, having received so many datagrams in all: how long to rest
    /// before it does.
    pub(crate) fn before_wait(&mut self, now: Instant, datagrams: u64) -> Option<Duration> {
        if self.rest.is_zero() {
            return None;
        }
        self.waits += 1;
        if now.saturating_duration_since(self.began) >= WINDOW {
            self.judge(now, datagrams);
        }
        let alone = now.saturating_duration_since(self.waited) >= ALONE;
        let busy = now.saturating_duration_since(self.woke) >= self.rest;
        self.waited = now;
        (self.resting && !alone && !busy).then_some(self.rest)
    }

    /// The thread has woken.
    pub(crate) fn after_wait(&mut self, now: Instant) {
        self.woke = now;
    }

    fn judge(&mut self, now: Instant, datagrams: u64) {
        let elapsed = now.saturating_duration_since(self.began).as_micros().max(1);
        let rate = self.waits * 1_000_000 / elapsed;
        let brought = u128::from(datagrams.saturating_sub(self.before));
        // Three datagrams for two wake-ups.
        let pays = 2 * brought >= 3 * self.waits;
        if !self.resting {
            // Half the wake-ups must be for datagrams at all.
            let promises = rate >= TRY_ABOVE && 2 * brought >= self.waits;
            self.resting = promises && now >= self.not_before;
        } else if !pays {
            self.resting = false;
            self.not_before = now + RETRY;
        } else {
            self.resting = rate >= END_BELOW;
        }
        (self.began, self.waits, self.before) = (now, 0, datagrams);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REST: Duration = Duration::from_micros(100);

    /// Runs a thread of `pace` for `length` whose work comes at every `gap` and takes `cost` each,
    /// or, with `answers`, comes only after the last was done. Returns wake-ups and rests.
    fn run(pace: &mut Pace, start: Instant, length: Duration, load: &Load) -> (u32, u32) {
        let (mut now, mut next) = (start, start);
        let (mut work, mut wakes, mut rests) = (0, 0, 0);
        while now < start + length {
            if let Some(rest) = pace.before_wait(now, work) {
                rests += 1;
                now += rest;
            }
            now = now.max(next);
            pace.after_wait(now);
            wakes += 1;
            while next <= now {
                work += 1;
                now += load.cost;
                next = if load.answers { now + load.gap } else { next + load.gap };
            }
        }
        (wakes, rests)
    }

    struct Load {
        gap: Duration,
        cost: Duration,
        answers: bool,
    }

    fn load(gap_us: u64, cost_us: u64, answers: bool) -> Load {
        Load { gap: Duration::from_micros(gap_us), cost: Duration::from_micros(cost_us), answers }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn many_small_arrivals_are_taken_together() {
        let start = Instant::now();
        let load = load(60, 10, false);
        let (without, none) = run(&mut Pace::new(Duration::ZERO, start), start, SECOND, &load);
        let (with, rests) = run(&mut Pace::new(REST, start), start, SECOND, &load);
        assert_eq!(none, 0);
        assert!(rests > 1000, "{rests}");
        assert!(with * 10 < without * 6, "{with} wake-ups, {without} without a rest");
    }

    #[test]
    fn nobody_waits_for_a_rest_that_brings_nothing() {
        let start = Instant::now();
        // A client that asks again 30 µs after each answer: it alone would be slowed.
        let (wakes, rests) = run(&mut Pace::new(REST, start), start, SECOND, &load(30, 10, true));
        assert!(rests > 0, "it must have been tried");
        assert!(rests * 20 < wakes, "{rests} rests in {wakes} wake-ups");
    }

    #[test]
    fn without_datagrams_there_is_no_rest() {
        let start = Instant::now();
        let mut pace = Pace::new(REST, start);
        for turn in 0..100_000 {
            let now = start + turn * Duration::from_micros(50);
            assert_eq!(pace.before_wait(now, 7), None);
            pace.after_wait(now + Duration::from_micros(40));
        }
    }

    #[test]
    fn a_lone_arrival_is_handled_at_once() {
        let start = Instant::now();
        let (_, rests) = run(&mut Pace::new(REST, start), start, SECOND, &load(2000, 10, false));
        assert_eq!(rests, 0);
        // Also when there was a crowd just before.
        let mut pace = Pace::new(REST, start);
        run(&mut pace, start, SECOND, &load(60, 10, false));
        let later = start + SECOND + Duration::from_millis(5);
        pace.after_wait(later);
        assert_eq!(pace.before_wait(later + Duration::from_micros(10), u64::MAX), None);
    }

    #[test]
    fn a_busy_thread_does_not_rest() {
        let start = Instant::now();
        let (_, rests) = run(&mut Pace::new(REST, start), start, SECOND, &load(150, 120, false));
        assert_eq!(rests, 0);
    }
}
