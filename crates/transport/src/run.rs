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
use crate::scheduler::{Judge, Load, Move, Scheduler};
use crate::worker::Worker;

/// Events taken from a poller at once.
const EVENTS: usize = 1024;

/// Time between two reports of a thread's load.
const REPORT: Duration = Duration::from_millis(50);

/// Names of gathered workers' pollers lie below the waker's, where no connection's or listener's
/// can be.
const GUESTS: usize = usize::MAX - 1;

/// Runs a worker until it is drained.
///
/// `pause` is the longest time a thread pauses before it waits (see `coalesce`).
///
/// # Errors
/// The poller fails, which it does only when the process is out of resources.
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

/// Pauses if that pays and nothing has to be done at once.
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

/// A thread that is not the first: runs its worker, or lends it.
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
        if let Some(figure) = load.resume(now, REPORT, used) {
            scheduler.report(index, figure.used);
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
    guests: Vec<Guest>,
    judge: Judge,
    coalescing: WakeupCoalescing,
}

struct Guest {
    index: usize,
    worker: Worker,
    events: Events,
    /// Its poller has, or may have, something.
    stirred: bool,
}

impl<'a> Host<'a> {
    fn new(
        scheduler: &'a Scheduler<Worker>,
        worker: Worker,
        coalescing: WakeupCoalescing,
    ) -> Host<'a> {
        let judge = Judge::new(Instant::now(), used());
        Host { scheduler, worker, guests: Vec::new(), judge, coalescing }
    }

    fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS);
        loop {
            let timeout = self.timeout();
            let now = Instant::now();
            self.judge.pause(now);
            let datagrams = self.datagrams();
            pause_before_wait(&mut self.coalescing, timeout, now, datagrams);
            self.worker.poll(&mut events, timeout)?;
            let now = Instant::now();
            self.coalescing.after_wait(now);
            let gathered = self.scheduler.is_gathered();
            let reported = || self.scheduler.reported();
            let next = self.judge.resume(now, gathered, used, reported);
            if self.turn(&events)? {
                return Ok(());
            }
            if gathered {
                self.take_guests()?;
            }
            match next {
                _ if self.worker.is_draining() => self.scatter(),
                Some(Move::Scatter) => self.scatter(),
                Some(Move::Gather) if self.scheduler.len() > 1 => {
                    debug!("one thread runs all workers");
                    self.scheduler.gather();
                }
                Some(Move::Gather) | None => {}
            }
        }
    }

    /// Datagrams received by all workers it runs.
    fn datagrams(&self) -> u64 {
        let guests = self.guests.iter().map(|guest| guest.worker.datagrams());
        guests.sum::<u64>() + self.worker.datagrams()
    }

    /// How long all workers can sleep; each is asked, because asking puts it to sleep.
    fn timeout(&mut self) -> Option<Duration> {
        let mut least = self.worker.timeout();
        for guest in &mut self.guests {
            if least == Some(Duration::ZERO) {
                break;
            }
            let own = if guest.stirred { Some(Duration::ZERO) } else { guest.worker.timeout() };
            least = least.into_iter().chain(own).min();
        }
        least
    }

    /// A turn of every worker, the host's first; it is turned again for what the guests' clients
    /// have for its own. True when the host's is drained.
    fn turn(&mut self, events: &Events) -> io::Result<bool> {
        for event in events {
            let place = GUESTS.wrapping_sub(event.token().0);
            if let Some(guest) = self.guests.iter_mut().find(|guest| guest.index == place) {
                guest.stirred = true;
            }
        }
        let mut drained = self.worker.turn(events.iter());
        for guest in &mut self.guests {
            if guest.stirred {
                guest.worker.poll(&mut guest.events, Some(Duration::ZERO))?;
                // A full list may not be the whole of it, and the edge is used up.
                guest.stirred = guest.events.iter().count() == EVENTS;
                guest.worker.turn(guest.events.iter());
            } else {
                guest.worker.turn(std::iter::empty());
            }
        }
        if self.worker.has_events() {
            drained |= self.worker.turn(std::iter::empty());
        }
        Ok(drained)
    }

    /// Takes the workers that are offered.
    fn take_guests(&mut self) -> io::Result<()> {
        for index in 1..self.scheduler.len() {
            if self.guests.iter().any(|guest| guest.index == index) {
                continue;
            }
            let Some(worker) = self.scheduler.take(index) else { continue };
            let fd = worker.poller().as_raw_fd();
            // It may have been woken while it was nobody's.
            let events = Events::with_capacity(EVENTS);
            self.guests.push(Guest { index, worker, events, stirred: true });
            let token = mio::Token(GUESTS - index);
            let registry = self.worker.poller().registry();
            registry.register(&mut SourceFd(&fd), token, Interest::READABLE)?;
        }
        Ok(())
    }

    /// Gives every worker back to its thread.
    fn scatter(&mut self) {
        if !self.scheduler.is_gathered() {
            return;
        }
        debug!("each worker runs on its own thread");
        let registry = self.worker.poller().registry();
        for guest in &self.guests {
            let fd = guest.worker.poller().as_raw_fd();
            if let Err(error) = registry.deregister(&mut SourceFd(&fd)) {
                // Its events would only wake this thread for nothing.
                debug!(%error, "a worker's poller could not be deregistered");
            }
        }
        self.scheduler.scatter(self.guests.drain(..).map(|guest| (guest.index, guest.worker)));
    }
}

impl Drop for Host<'_> {
    /// However this thread ends, the others get their workers back.
    fn drop(&mut self) {
        self.scatter();
    }
}
