//! Which threads run which workers: as few threads as the work needs.
//!
//! Waking a sleeping thread costs more processor time than handling one message does, and a message
//! from one worker's client to another's wakes two. So while all workers together leave most of a
//! core idle, the first thread runs them all: the workers are *gathered*. Under more load they are
//! *scattered*: every thread runs its own worker. Connections and sessions notice nothing: a
//! worker is handed over whole, between two of its turns, with its poller; a gathered worker's
//! poller is itself registered with the first one's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mio::Waker;
use parking_lot::{Condvar, Mutex};
use tracing::warn;

/// Time over which the load is measured before workers are gathered, and the processor time that all
/// workers together may then use, in thousandths of a core.
const GATHER_WINDOW: Duration = Duration::from_millis(100);
const GATHER_BELOW: u64 = 400;

/// Time over which the load is measured before workers are scattered, and the part of it that the first
/// thread may be awake, in thousandths. Shorter, because clients wait while that thread is overloaded.
const SCATTER_WINDOW: Duration = Duration::from_millis(20);
const SCATTER_ABOVE: u64 = 800;

/// Time between scattering and the next gathering, so that a load at the edge does not send workers
/// to and fro.
const SETTLE: Duration = Duration::from_secs(1);

/// State that the threads of a server share. `W` is the worker; tests use a number.
#[derive(Debug)]
pub(crate) struct Scheduler<W> {
    gathered: AtomicBool,
    started: Instant,
    slots: Box<[WorkerSlot<W>]>,
}

/// One thread's worker, or where it is.
#[derive(Debug)]
struct WorkerSlot<W> {
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
    /// The worker waits for the first thread to take it.
    Offered(W),
    /// The worker is with the first thread.
    Away,
    /// The worker waits for its own thread to take it back.
    Returned(W),
}

impl<W> Scheduler<W> {
    /// A scheduler with one thread per waker.
    pub(crate) fn new(wakers: impl IntoIterator<Item = Arc<Waker>>) -> Scheduler<W> {
        let slot = |waker| WorkerSlot {
            state: Mutex::new(State::Own),
            changed: Condvar::new(),
            load: AtomicU64::new(0),
            waker,
        };
        Scheduler {
            gathered: AtomicBool::new(false),
            started: Instant::now(),
            slots: wakers.into_iter().map(slot).collect(),
        }
    }

    /// Number of threads.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether the first thread runs, or is about to run, all workers.
    pub(crate) fn is_gathered(&self) -> bool {
        self.gathered.load(Ordering::SeqCst)
    }

    /// Asks all threads but the first to offer their workers.
    pub(crate) fn gather(&self) {
        self.gathered.store(true, Ordering::SeqCst);
        for slot in &self.slots[1..] {
            wake(&slot.waker);
        }
    }

    /// Lends thread `index`'s worker to the first thread, and waits for its return; returns it at
    /// once if workers are no longer to be gathered.
    pub(crate) fn lend(&self, index: usize, worker: W) -> W {
        let slot = &self.slots[index];
        let mut state = slot.state.lock();
        *state = State::Offered(worker);
        wake(&self.slots[0].waker);
        loop {
            match std::mem::replace(&mut *state, State::Own) {
                State::Returned(worker) => return worker,
                State::Offered(worker) if !self.is_gathered() => return worker,
                other => *state = other,
            }
            slot.changed.wait(&mut state);
        }
    }

    /// Takes the worker of thread `index`, if that thread offers it.
    pub(crate) fn claim(&self, index: usize) -> Option<W> {
        let mut state = self.slots[index].state.lock();
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
            *self.slots[index].state.lock() = State::Returned(worker);
        }
        for slot in &self.slots[1..] {
            // Under the lock, so that nobody is between looking and waiting.
            let _state = slot.state.lock();
            slot.changed.notify_one();
        }
    }

    /// Stores how busy a thread is, in thousandths of a core, for the first thread's decision.
    pub(crate) fn report(&self, index: usize, load: u64) {
        let at = self.started.elapsed().as_millis() as u64;
        self.slots[index].load.store(at << 16 | load.min(1000), Ordering::Relaxed);
    }

    /// Sum of the latest loads of all threads but the first. A thread without a recent report is
    /// asleep and counts as zero.
    pub(crate) fn reported(&self) -> u64 {
        let oldest = self.started.elapsed().saturating_sub(GATHER_WINDOW * 3).as_millis() as u64;
        let reports = self.slots[1..].iter().map(|slot| slot.load.load(Ordering::Relaxed));
        reports.filter(|report| report >> 16 >= oldest).map(|report| report & 0xffff).sum()
    }
}

fn wake(waker: &Waker) {
    if let Err(error) = waker.wake() {
        warn!(%error, "a worker could not be woken");
    }
}

/// Load of a thread.
#[derive(Debug)]
pub(crate) struct Load {
    since: Instant,
    woke: Instant,
    /// Time the thread was not asleep since the last measurement.
    awake: Duration,
    /// Processor time the thread had used at the last measurement.
    used: Duration,
}

/// A thread's load over some time, in thousandths of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoadSample {
    /// Time that the thread had something to do, including waiting for a core. Decides whether one thread is too few.
    pub(crate) awake: u64,
    /// Processor time, on a busy machine less than `awake`. Decides whether one thread would be enough.
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

    /// The thread is awake again: returns the load since the last measurement once `window` has
    /// passed. Calls `used` only then, because it is a system call.
    pub(crate) fn resume(
        &mut self,
        now: Instant,
        window: Duration,
        used: impl FnOnce() -> Duration,
    ) -> Option<LoadSample> {
        self.woke = now;
        let passed = now.saturating_duration_since(self.since);
        if passed < window {
            return None;
        }
        let used = used();
        let share = |time: Duration| (time.as_secs_f64() / passed.as_secs_f64() * 1000.0) as u64;
        let sample =
            LoadSample { awake: share(self.awake), used: share(used.saturating_sub(self.used)) };
        *self = Load::new(now, used);
        Some(sample)
    }
}

/// A change between one thread for all workers and one thread per worker, which the first thread decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transition {
    Gather,
    Scatter,
}

/// Decides, on the first thread, when to gather and when to scatter.
#[derive(Debug)]
pub(crate) struct LoadPolicy {
    load: Load,
    scattered: Option<Instant>,
}

impl LoadPolicy {
    pub(crate) fn new(now: Instant, used: Duration) -> LoadPolicy {
        LoadPolicy { load: Load::new(now, used), scattered: None }
    }

    /// The thread is about to sleep.
    pub(crate) fn pause(&mut self, now: Instant) {
        self.load.pause(now);
    }

    /// The thread is awake again: returns what to do, given whether workers are gathered now and the
    /// load that the other threads reported.
    pub(crate) fn resume(
        &mut self,
        now: Instant,
        gathered: bool,
        used: impl FnOnce() -> Duration,
        reported: impl FnOnce() -> u64,
    ) -> Option<Transition> {
        let window = if gathered { SCATTER_WINDOW } else { GATHER_WINDOW };
        let sample = self.load.resume(now, window, used)?;
        if gathered {
            return (sample.awake > SCATTER_ABOVE).then(|| {
                self.scattered = Some(now);
                Transition::Scatter
            });
        }
        let settled = self.scattered.is_none_or(|at| now.saturating_duration_since(at) > SETTLE);
        (settled && sample.used + reported() < GATHER_BELOW).then_some(Transition::Gather)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn scheduler(threads: usize) -> Scheduler<u32> {
        let poll = mio::Poll::new().unwrap();
        let waker = Arc::new(Waker::new(poll.registry(), mio::Token(0)).unwrap());
        Scheduler::new(std::iter::repeat_n(waker, threads))
    }

    /// A thread in simulated time.
    struct Thread {
        now: Instant,
        used: Duration,
        policy: LoadPolicy,
    }

    impl Thread {
        fn new() -> Thread {
            let (now, used) = (Instant::now(), Duration::ZERO);
            Thread { now, used, policy: LoadPolicy::new(now, used) }
        }

        /// Turns of a millisecond, of which it is awake and uses the processor for these parts,
        /// until it decides something or five seconds have passed.
        fn play(
            &mut self,
            gathered: bool,
            others: u64,
            awake: f64,
            used: f64,
        ) -> Option<Transition> {
            for _ in 0..5000 {
                self.used += Duration::from_secs_f64(0.001 * used);
                self.now += Duration::from_secs_f64(0.001 * awake);
                self.policy.pause(self.now);
                self.now += Duration::from_secs_f64(0.001 * (1.0 - awake));
                let used = self.used;
                if let Some(next) = self.policy.resume(self.now, gathered, || used, || others) {
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
        assert_eq!(thread.play(false, 100, 0.2, 0.2), Some(Transition::Gather));
        assert_eq!(thread.play(true, 0, 0.6, 0.6), None);
        let before = thread.now;
        assert_eq!(thread.play(true, 0, 1.0, 1.0), Some(Transition::Scatter));
        assert!(thread.now - before < 3 * SCATTER_WINDOW);
        let before = thread.now;
        assert_eq!(thread.play(false, 0, 0.1, 0.1), Some(Transition::Gather));
        assert!(thread.now - before > SETTLE, "moved again at once");
    }

    #[test]
    fn waiting_for_a_core_is_a_reason_to_scatter_but_none_not_to_gather() {
        let mut thread = Thread::new();
        assert_eq!(thread.play(false, 0, 0.9, 0.2), Some(Transition::Gather));
        assert_eq!(thread.play(true, 0, 0.9, 0.2), Some(Transition::Scatter));
    }

    #[test]
    fn a_long_sleep_is_no_work() {
        let mut thread = Thread::new();
        thread.policy.pause(thread.now);
        thread.now += Duration::from_secs(60);
        let used = thread.used;
        assert_eq!(thread.policy.resume(thread.now, true, || used, || 0), None);
        assert_eq!(thread.play(true, 0, 1.0, 1.0), Some(Transition::Scatter));
    }

    #[test]
    fn silent_threads_count_for_nothing() {
        let scheduler = scheduler(3);
        scheduler.report(1, 600);
        scheduler.report(2, 5000);
        assert_eq!(scheduler.reported(), 1600);
    }

    #[test]
    fn workers_go_and_come_back() {
        let scheduler = scheduler(2);
        assert_eq!(scheduler.lend(1, 7), 7, "nobody gathers");
        scheduler.gather();
        std::thread::scope(|scope| {
            let lender = scope.spawn(|| scheduler.lend(1, 8));
            let worker = loop {
                if let Some(worker) = scheduler.claim(1) {
                    break worker;
                }
                std::thread::yield_now();
            };
            assert_eq!((worker, scheduler.claim(1)), (8, None));
            scheduler.scatter([(1, 9)]);
            assert_eq!(lender.join().unwrap(), 9);
            scheduler.gather();
            let refused = scope.spawn(|| scheduler.lend(1, 10));
            scheduler.scatter([]);
            assert_eq!(refused.join().unwrap(), 10, "offered, and not taken before the end");
        });
    }
}
