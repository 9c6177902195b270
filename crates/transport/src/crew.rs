//! Who runs the workers: as few threads as the work needs.
//!
//! Waking a sleeping thread costs more processor time than handling one message does, and a message
//! from one worker's client to another's wakes two. So while all workers together leave most of a
//! core idle, the first thread runs them all: their work is *gathered*. With more to do the work is
//! *scattered*, and every thread runs its own worker. Connections and sessions notice nothing: a
//! worker is handed over whole, between two of its turns, with its poller; a gathered worker's
//! poller is itself registered with the first one's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mio::Waker;
use parking_lot::{Condvar, Mutex};
use tracing::warn;

/// Time over which the load is looked at before work is gathered, and how much processor time all
/// workers may then use, in thousandths of a core.
const GATHER_WINDOW: Duration = Duration::from_millis(100);
const GATHER_BELOW: u64 = 400;

/// Time over which the load is looked at before work is scattered, and how much of it the thread may
/// be awake, in thousandths. Shorter: what waits for a busy thread waits in vain.
const SCATTER_WINDOW: Duration = Duration::from_millis(20);
const SCATTER_ABOVE: u64 = 800;

/// Time between scattering and the next gathering, so that a load at the edge does not send workers
/// to and fro.
const SETTLE: Duration = Duration::from_secs(1);

/// What the threads of a server share. `W` is the worker; tests use something smaller.
#[derive(Debug)]
pub(crate) struct Crew<W> {
    gathered: AtomicBool,
    started: Instant,
    seats: Box<[Seat<W>]>,
}

/// One thread's place.
#[derive(Debug)]
struct Seat<W> {
    state: Mutex<State<W>>,
    changed: Condvar,
    /// Load in thousandths of a core and when it was measured, packed.
    load: AtomicU64,
    waker: Arc<Waker>,
}

#[derive(Debug)]
enum State<W> {
    /// The worker is with its own thread.
    Own,
    /// It waits to be taken by the first thread.
    Offered(W),
    /// It is with the first thread.
    Away,
    /// It waits to be taken by its own thread.
    Returned(W),
}

impl<W> Crew<W> {
    /// A crew of one thread for each waker.
    pub(crate) fn new(wakers: impl IntoIterator<Item = Arc<Waker>>) -> Crew<W> {
        let seat = |waker| Seat {
            state: Mutex::new(State::Own),
            changed: Condvar::new(),
            load: AtomicU64::new(0),
            waker,
        };
        Crew {
            gathered: AtomicBool::new(false),
            started: Instant::now(),
            seats: wakers.into_iter().map(seat).collect(),
        }
    }

    /// Number of threads.
    pub(crate) fn len(&self) -> usize {
        self.seats.len()
    }

    /// Whether the first thread runs, or is about to run, all workers.
    pub(crate) fn is_gathered(&self) -> bool {
        self.gathered.load(Ordering::SeqCst)
    }

    /// Asks all threads but the first to offer their workers.
    pub(crate) fn gather(&self) {
        self.gathered.store(true, Ordering::SeqCst);
        for seat in &self.seats[1..] {
            wake(&seat.waker);
        }
    }

    /// Lends thread `index`'s worker to the first thread; returns when it is back, which it is at
    /// once if the work is not to be gathered any more.
    pub(crate) fn lend(&self, index: usize, worker: W) -> W {
        let seat = &self.seats[index];
        let mut state = seat.state.lock();
        *state = State::Offered(worker);
        wake(&self.seats[0].waker);
        loop {
            match std::mem::replace(&mut *state, State::Own) {
                State::Returned(worker) => return worker,
                State::Offered(worker) if !self.is_gathered() => return worker,
                other => *state = other,
            }
            seat.changed.wait(&mut state);
        }
    }

    /// Takes a worker that was offered.
    pub(crate) fn take(&self, index: usize) -> Option<W> {
        let mut state = self.seats[index].state.lock();
        match std::mem::replace(&mut *state, State::Own) {
            State::Offered(worker) => {
                *state = State::Away;
                Some(worker)
            }
            other => {
                *state = other;
                None
            }
        }
    }

    /// Returns the workers that were taken, and refuses those still offered.
    pub(crate) fn scatter(&self, workers: impl IntoIterator<Item = (usize, W)>) {
        self.gathered.store(false, Ordering::SeqCst);
        for (index, worker) in workers {
            *self.seats[index].state.lock() = State::Returned(worker);
        }
        for seat in &self.seats[1..] {
            // Under the lock, so that nobody is between looking and waiting.
            let _state = seat.state.lock();
            seat.changed.notify_one();
        }
    }

    /// Tells the others how busy a thread is.
    pub(crate) fn report(&self, index: usize, load: u64) {
        let at = self.started.elapsed().as_millis() as u64;
        self.seats[index].load.store(at << 16 | load.min(1000), Ordering::Relaxed);
    }

    /// What the threads but the first last reported, added up. A thread that has not spoken for
    /// a while sleeps.
    pub(crate) fn reported(&self) -> u64 {
        let oldest = self.started.elapsed().saturating_sub(GATHER_WINDOW * 3).as_millis() as u64;
        let reports = self.seats[1..].iter().map(|seat| seat.load.load(Ordering::Relaxed));
        reports.filter(|report| report >> 16 >= oldest).map(|report| report & 0xffff).sum()
    }
}

fn wake(waker: &Waker) {
    if let Err(error) = waker.wake() {
        warn!(%error, "a worker could not be woken");
    }
}

/// How busy a thread is.
#[derive(Debug)]
pub(crate) struct Load {
    since: Instant,
    woke: Instant,
    /// Time it did not sleep since the last figure.
    awake: Duration,
    /// Processor time it had used then.
    used: Duration,
}

/// Load over some time, in thousandths of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Figure {
    /// Time it had something to do, waiting for a core included: is one thread enough?
    pub(crate) awake: u64,
    /// Processor time: would one thread be enough? On a busy machine this is the smaller.
    pub(crate) used: u64,
}

impl Load {
    /// A load to be measured from now on, by a thread that has used `used` processor time so far.
    pub(crate) fn new(now: Instant, used: Duration) -> Load {
        Load { since: now, woke: now, awake: Duration::ZERO, used }
    }

    /// The thread is about to sleep.
    pub(crate) fn pause(&mut self, now: Instant) {
        self.awake += now.saturating_duration_since(self.woke);
    }

    /// It is up again: the load since the last figure, once `window` has passed. Asks for `used`
    /// only then, because it is a system call.
    pub(crate) fn resume(
        &mut self,
        now: Instant,
        window: Duration,
        used: impl FnOnce() -> Duration,
    ) -> Option<Figure> {
        self.woke = now;
        let passed = now.saturating_duration_since(self.since);
        if passed < window {
            return None;
        }
        let used = used();
        let share = |time: Duration| (time.as_secs_f64() / passed.as_secs_f64() * 1000.0) as u64;
        let figure =
            Figure { awake: share(self.awake), used: share(used.saturating_sub(self.used)) };
        *self = Load::new(now, used);
        Some(figure)
    }
}

/// What the first thread decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    Gather,
    Scatter,
}

/// The first thread's judgement.
#[derive(Debug)]
pub(crate) struct Judge {
    load: Load,
    scattered: Option<Instant>,
}

impl Judge {
    pub(crate) fn new(now: Instant, used: Duration) -> Judge {
        Judge { load: Load::new(now, used), scattered: None }
    }

    /// The thread is about to sleep.
    pub(crate) fn pause(&mut self, now: Instant) {
        self.load.pause(now);
    }

    /// The thread is up again: what to do, given how the work is shared now and what the other
    /// threads report.
    pub(crate) fn resume(
        &mut self,
        now: Instant,
        gathered: bool,
        used: impl FnOnce() -> Duration,
        reported: impl FnOnce() -> u64,
    ) -> Option<Move> {
        let window = if gathered { SCATTER_WINDOW } else { GATHER_WINDOW };
        let figure = self.load.resume(now, window, used)?;
        if gathered {
            return (figure.awake > SCATTER_ABOVE).then(|| {
                self.scattered = Some(now);
                Move::Scatter
            });
        }
        let settled = self.scattered.is_none_or(|at| now.saturating_duration_since(at) > SETTLE);
        (settled && figure.used + reported() < GATHER_BELOW).then_some(Move::Gather)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn crew(threads: usize) -> Crew<u32> {
        let poll = mio::Poll::new().unwrap();
        let waker = Arc::new(Waker::new(poll.registry(), mio::Token(0)).unwrap());
        Crew::new(std::iter::repeat_n(waker, threads))
    }

    /// A thread in simulated time.
    struct Thread {
        now: Instant,
        used: Duration,
        judge: Judge,
    }

    impl Thread {
        fn new() -> Thread {
            let (now, used) = (Instant::now(), Duration::ZERO);
            Thread { now, used, judge: Judge::new(now, used) }
        }

        /// Turns of a millisecond, of which it is awake and uses the processor for these parts,
        /// until it decides something or five seconds have passed.
        fn play(&mut self, gathered: bool, others: u64, awake: f64, used: f64) -> Option<Move> {
            for _ in 0..5000 {
                self.used += Duration::from_secs_f64(0.001 * used);
                self.now += Duration::from_secs_f64(0.001 * awake);
                self.judge.pause(self.now);
                self.now += Duration::from_secs_f64(0.001 * (1.0 - awake));
                let used = self.used;
                if let Some(next) = self.judge.resume(self.now, gathered, || used, || others) {
                    return Some(next);
                }
            }
            None
        }
    }

    #[test]
    fn little_work_is_gathered_and_much_is_scattered() {
        let mut thread = Thread::new();
        assert_eq!(thread.play(false, 300, 0.2, 0.2), None);
        assert_eq!(thread.play(false, 100, 0.2, 0.2), Some(Move::Gather));
        assert_eq!(thread.play(true, 0, 0.6, 0.6), None);
        let before = thread.now;
        assert_eq!(thread.play(true, 0, 1.0, 1.0), Some(Move::Scatter));
        assert!(thread.now - before < 3 * SCATTER_WINDOW);
        let before = thread.now;
        assert_eq!(thread.play(false, 0, 0.1, 0.1), Some(Move::Gather));
        assert!(thread.now - before > SETTLE, "moved again at once");
    }

    #[test]
    fn waiting_for_a_core_is_a_reason_to_scatter_but_none_not_to_gather() {
        let mut thread = Thread::new();
        assert_eq!(thread.play(false, 0, 0.9, 0.2), Some(Move::Gather));
        assert_eq!(thread.play(true, 0, 0.9, 0.2), Some(Move::Scatter));
    }

    #[test]
    fn a_long_sleep_is_no_work() {
        let mut thread = Thread::new();
        thread.judge.pause(thread.now);
        thread.now += Duration::from_secs(60);
        let used = thread.used;
        assert_eq!(thread.judge.resume(thread.now, true, || used, || 0), None);
        assert_eq!(thread.play(true, 0, 1.0, 1.0), Some(Move::Scatter));
    }

    #[test]
    fn silent_threads_count_for_nothing() {
        let crew = crew(3);
        crew.report(1, 600);
        crew.report(2, 5000);
        assert_eq!(crew.reported(), 1600);
    }

    #[test]
    fn workers_go_and_come_back() {
        let crew = crew(2);
        assert_eq!(crew.lend(1, 7), 7, "nobody gathers");
        crew.gather();
        std::thread::scope(|scope| {
            let lender = scope.spawn(|| crew.lend(1, 8));
            let worker = loop {
                if let Some(worker) = crew.take(1) {
                    break worker;
                }
                std::thread::yield_now();
            };
            assert_eq!((worker, crew.take(1)), (8, None));
            crew.scatter([(1, 9)]);
            assert_eq!(lender.join().unwrap(), 9);
            crew.gather();
            let refused = scope.spawn(|| crew.lend(1, 10));
            crew.scatter([]);
            assert_eq!(refused.join().unwrap(), 10, "offered, and not taken before the end");
        });
    }
}
