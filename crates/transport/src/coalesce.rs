//! Wake-up coalescing: a worker pauses briefly before it waits, so that one wake-up brings several datagrams.
//!
//! Waking a sleeping thread costs about as much processor time as handling a message does. With
//! thousands of QUIC clients that each send little, a worker that sleeps as soon as it can is woken
//! for every datagram. Network cards have the same problem with interrupts, and the same answer:
//! coalescing, and only where it pays. A worker that is often woken for datagrams tries pausing. It
//! continues while wake-ups then bring more than one datagram, and stops for a while when they do
//! not, as with one client that waits for each answer. A worker that is rarely woken, or busy, never
//! pauses. Events of TCP connections do not count: each needs a read of its own, and a pause saved
//! nothing there.
//!
//! This module only decides; it neither reads a clock nor sleeps.

use std::time::{Duration, Instant};

/// Time over which wake-ups, and the datagrams they bring, are counted.
const WINDOW: Duration = Duration::from_millis(20);

/// Wake-ups per second from which pausing is tried, and below which it ends.
const TRY_ABOVE: u128 = 3000;
const END_BELOW: u128 = 500;

/// A wake-up this long after the previous one is handled without a pause.
const ALONE: Duration = Duration::from_micros(500);

/// Time until the next try where pausing did not pay.
const RETRY: Duration = Duration::from_secs(1);

/// One thread's decisions; see the module.
#[derive(Debug)]
pub(crate) struct WakeupCoalescing {
    /// Length of a pause; zero for none.
    pause: Duration,
    pausing: bool,
    /// Time before which no pause is tried.
    not_before: Instant,
    /// When the current window began, its waits, and the datagrams received before it.
    began: Instant,
    waits: u128,
    before: u64,
    /// When the thread last woke.
    woke: Instant,
    /// When it last went to wait.
    waited: Instant,
}

impl WakeupCoalescing {
    pub(crate) fn new(pause: Duration, now: Instant) -> WakeupCoalescing {
        WakeupCoalescing {
            pause,
            pausing: false,
            not_before: now,
            began: now,
            waits: 0,
            before: 0,
            woke: now,
            waited: now,
        }
    }

    /// The thread, which has received `datagrams` in all, is about to wait: returns how long to pause
    /// before it does.
    pub(crate) fn before_wait(&mut self, now: Instant, datagrams: u64) -> Option<Duration> {
        if self.pause.is_zero() {
            return None;
        }
        self.waits += 1;
        if now.saturating_duration_since(self.began) >= WINDOW {
            self.judge(now, datagrams);
        }
        let alone = now.saturating_duration_since(self.waited) >= ALONE;
        let busy = now.saturating_duration_since(self.woke) >= self.pause;
        self.waited = now;
        (self.pausing && !alone && !busy).then_some(self.pause)
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
        if !self.pausing {
            // Half the wake-ups must be for datagrams at all.
            let promises = rate >= TRY_ABOVE && 2 * brought >= self.waits;
            self.pausing = promises && now >= self.not_before;
        } else if !pays {
            self.pausing = false;
            self.not_before = now + RETRY;
        } else {
            self.pausing = rate >= END_BELOW;
        }
        (self.began, self.waits, self.before) = (now, 0, datagrams);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_micros(100);

    /// Runs a thread of `coalescing` for `length` whose work comes at every `gap` and takes `cost` each,
    /// or, with `answers`, comes only after the last was done. Returns wake-ups and pauses.
    fn run(
        coalescing: &mut WakeupCoalescing,
        start: Instant,
        length: Duration,
        load: &Load,
    ) -> (u32, u32) {
        let (mut now, mut next) = (start, start);
        let (mut work, mut wakes, mut pauses) = (0, 0, 0);
        while now < start + length {
            if let Some(pause) = coalescing.before_wait(now, work) {
                pauses += 1;
                now += pause;
            }
            now = now.max(next);
            coalescing.after_wait(now);
            wakes += 1;
            while next <= now {
                work += 1;
                now += load.cost;
                next = if load.answers { now + load.gap } else { next + load.gap };
            }
        }
        (wakes, pauses)
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
        let (without, none) =
            run(&mut WakeupCoalescing::new(Duration::ZERO, start), start, SECOND, &load);
        let (with, pauses) = run(&mut WakeupCoalescing::new(PAUSE, start), start, SECOND, &load);
        assert_eq!(none, 0);
        assert!(pauses > 1000, "{pauses}");
        assert!(with * 10 < without * 6, "{with} wake-ups, {without} without a pause");
    }

    #[test]
    fn nobody_waits_for_a_pause_that_brings_nothing() {
        let start = Instant::now();
        // A client that asks again 30 µs after each answer: it alone would be slowed.
        let (wakes, pauses) =
            run(&mut WakeupCoalescing::new(PAUSE, start), start, SECOND, &load(30, 10, true));
        assert!(pauses > 0, "it must have been tried");
        assert!(pauses * 20 < wakes, "{pauses} pauses in {wakes} wake-ups");
    }

    #[test]
    fn without_datagrams_there_is_no_pause() {
        let start = Instant::now();
        let mut coalescing = WakeupCoalescing::new(PAUSE, start);
        for turn in 0..100_000 {
            let now = start + turn * Duration::from_micros(50);
            assert_eq!(coalescing.before_wait(now, 7), None);
            coalescing.after_wait(now + Duration::from_micros(40));
        }
    }

    #[test]
    fn a_lone_arrival_is_handled_at_once() {
        let start = Instant::now();
        let (_, pauses) =
            run(&mut WakeupCoalescing::new(PAUSE, start), start, SECOND, &load(2000, 10, false));
        assert_eq!(pauses, 0);
        // Also when there was a crowd just before.
        let mut coalescing = WakeupCoalescing::new(PAUSE, start);
        run(&mut coalescing, start, SECOND, &load(60, 10, false));
        let later = start + SECOND + Duration::from_millis(5);
        coalescing.after_wait(later);
        assert_eq!(coalescing.before_wait(later + Duration::from_micros(10), u64::MAX), None);
    }

    #[test]
    fn a_busy_thread_does_not_pause() {
        let start = Instant::now();
        let (_, pauses) =
            run(&mut WakeupCoalescing::new(PAUSE, start), start, SECOND, &load(150, 120, false));
        assert_eq!(pauses, 0);
    }
}
