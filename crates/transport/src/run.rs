//! The loops that threads run: one worker each, or all of them on the first thread (see `scheduler`).

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest};
use rustix::time::{ClockId, clock_gettime};
use tracing::debug;

use crate::coalesce::WakeupCoalescing;
use crate::scheduler::{Load, LoadPolicy, Scheduler, Transition};
use crate::worker::Worker;

/// Events taken from a poller at once.
const EVENTS: usize = 1024;

/// Time between two reports of a thread's load.
const REPORT: Duration = Duration::from_millis(50);

/// Tokens of borrowed workers' pollers: below the waker's, above all connections' and listeners'.
const BORROWED: usize = usize::MAX - 1;

/// Runs a worker until it is drained.
///
/// `pause` is the longest time a thread pauses before it waits (see `coalesce`).
pub(crate) fn run(
    scheduler: &Arc<Scheduler<Worker>>,
    index: usize,
    worker: Worker,
    pause: Duration,
) -> io::Result<()> {
    let coalescing = WakeupCoalescing::new(pause, Instant::now());
    if index == 0 {
        Host::new(scheduler, worker, coalescing).run()
    } else {
        run_own(scheduler, index, worker, coalescing)
    }
}

/// Pauses if that saves wake-ups and nothing has to be done at once.
fn pause_before_wait(
    coalescing: &mut WakeupCoalescing,
    timeout: Option<Duration>,
    now: Instant,
    datagrams: u64,
) {
    if timeout == Some(Duration::ZERO) {
        return;
    }
    if let Some(pause) = coalescing.before_wait(now, datagrams) {
        std::thread::sleep(timeout.map_or(pause, |timeout| pause.min(timeout)));
    }
}

/// Any thread but the first: runs its worker, or lends it to the first.
fn run_own(
    scheduler: &Scheduler<Worker>,
    index: usize,
    mut worker: Worker,
    mut coalescing: WakeupCoalescing,
) -> io::Result<()> {
    let mut events = Events::with_capacity(EVENTS);
    let mut load = Load::new(Instant::now(), used());
    loop {
        if scheduler.is_gathered() {
            worker = scheduler.lend(index, worker);
            load = Load::new(Instant::now(), used());
        }
        let timeout = worker.timeout();
        let now = Instant::now();
        load.pause(now);
        pause_before_wait(&mut coalescing, timeout, now, worker.datagrams());
        worker.poll(&mut events, timeout)?;
        let now = Instant::now();
        coalescing.after_wait(now);
        if let Some(load_sample) = load.resume(now, REPORT, used) {
            scheduler.report(index, load_sample.used);
        }
        if worker.turn(events.iter()) {
            return Ok(());
        }
    }
}

/// Processor time this thread has used.
fn used() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// The first thread.
struct Host<'a> {
    scheduler: &'a Scheduler<Worker>,
    worker: Worker,
    borrowed: Vec<BorrowedWorker>,
    policy: LoadPolicy,
    coalescing: WakeupCoalescing,
}

/// A worker of another thread, which the first thread runs.
struct BorrowedWorker {
    index: usize,
    worker: Worker,
    events: Events,
    /// Whether its poller may have events.
    may_have_events: bool,
}

impl<'a> Host<'a> {
    fn new(
        scheduler: &'a Scheduler<Worker>,
        worker: Worker,
        coalescing: WakeupCoalescing,
    ) -> Host<'a> {
        let policy = LoadPolicy::new(Instant::now(), used());
        Host { scheduler, worker, borrowed: Vec::new(), policy, coalescing }
    }

    fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS);
        loop {
            let timeout = self.timeout();
            let now = Instant::now();
            self.policy.pause(now);
            let datagrams = self.datagrams();
            pause_before_wait(&mut self.coalescing, timeout, now, datagrams);
            self.worker.poll(&mut events, timeout)?;
            let now = Instant::now();
            self.coalescing.after_wait(now);
            let gathered = self.scheduler.is_gathered();
            let reported = || self.scheduler.reported();
            let next = self.policy.resume(now, gathered, used, reported);
            if self.turn(&events)? {
                return Ok(());
            }
            if gathered {
                self.borrow_workers()?;
            }
            match next {
                _ if self.worker.is_draining() => self.scatter(),
                Some(Transition::Scatter) => self.scatter(),
                Some(Transition::Gather) if self.scheduler.len() > 1 => {
                    debug!("one thread runs all workers");
                    self.scheduler.gather();
                }
                Some(Transition::Gather) | None => {}
            }
        }
    }

    /// Datagrams received by all workers it runs.
    fn datagrams(&self) -> u64 {
        let borrowed = self.borrowed.iter().map(|other| other.worker.datagrams());
        borrowed.sum::<u64>() + self.worker.datagrams()
    }

    /// Time for which all workers can sleep. Asks each of them, because calling `timeout` also marks a worker as
    /// asleep.
    fn timeout(&mut self) -> Option<Duration> {
        let mut least = self.worker.timeout();
        for other in &mut self.borrowed {
            if least == Some(Duration::ZERO) {
                break;
            }
            let own =
                if other.may_have_events { Some(Duration::ZERO) } else { other.worker.timeout() };
            least = least.into_iter().chain(own).min();
        }
        least
    }

    /// A turn of every worker, the host's own first, and again if other workers sent it events. Returns true when the
    /// host's own worker is drained.
    fn turn(&mut self, events: &Events) -> io::Result<bool> {
        for event in events {
            let place = BORROWED.wrapping_sub(event.token().0);
            if let Some(other) = self.borrowed.iter_mut().find(|other| other.index == place) {
                other.may_have_events = true;
            }
        }
        let mut drained = self.worker.turn(events.iter());
        for other in &mut self.borrowed {
            if other.may_have_events {
                other.worker.poll(&mut other.events, Some(Duration::ZERO))?;
                // A full list may not be all of it, and the edge trigger will not fire again.
                other.may_have_events = other.events.iter().count() == EVENTS;
                other.worker.turn(other.events.iter());
            } else {
                other.worker.turn(std::iter::empty());
            }
        }
        if self.worker.has_events() {
            drained |= self.worker.turn(std::iter::empty());
        }
        Ok(drained)
    }

    /// Takes the workers that other threads offer.
    fn borrow_workers(&mut self) -> io::Result<()> {
        for index in 1..self.scheduler.len() {
            if self.borrowed.iter().any(|other| other.index == index) {
                continue;
            }
            let Some(worker) = self.scheduler.claim(index) else { continue };
            let fd = worker.poller().as_raw_fd();
            // It may have been woken while it was between threads.
            let events = Events::with_capacity(EVENTS);
            self.borrowed.push(BorrowedWorker { index, worker, events, may_have_events: true });
            let token = mio::Token(BORROWED - index);
            let registry = self.worker.poller().registry();
            registry.register(&mut SourceFd(&fd), token, Interest::READABLE)?;
        }
        Ok(())
    }

    /// Returns every worker to its thread.
    fn scatter(&mut self) {
        if !self.scheduler.is_gathered() {
            return;
        }
        debug!("each worker runs on its own thread");
        let registry = self.worker.poller().registry();
        for other in &self.borrowed {
            let fd = other.worker.poller().as_raw_fd();
            if let Err(error) = registry.deregister(&mut SourceFd(&fd)) {
                // Its events would only wake this thread for nothing.
                debug!(%error, "a worker's poller could not be deregistered");
            }
        }
        self.scheduler.scatter(self.borrowed.drain(..).map(|other| (other.index, other.worker)));
    }
}

impl Drop for Host<'_> {
    /// The other threads get their workers back, also on a panic.
    fn drop(&mut self) {
        self.scatter();
    }
}
