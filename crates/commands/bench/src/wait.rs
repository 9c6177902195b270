//! Waiting for sockets with a deadline finer than epoll's millisecond.
//!
//! At 5,000 messages per second, the interval is 200 µs: rounding up to milliseconds would send them in bursts and
//! count as the broker's latency. A timerfd in the same epoll instance is exact.

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// Token of the timer; no socket has it.
const TIMER: Token = Token(usize::MAX);

pub(super) struct Waiter {
    poll: Poll,
    timer: OwnedFd,
    armed: Option<Instant>,
}

impl Waiter {
    pub(super) fn new() -> io::Result<Waiter> {
        let poll = Poll::new()?;
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let fd = timer.as_raw_fd();
        poll.registry().register(&mut SourceFd(&fd), TIMER, Interest::READABLE)?;
        Ok(Waiter { poll, timer, armed: None })
    }

    pub(super) fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    /// Returns at the first event, at `until`, or when a signal arrives.
    pub(super) fn wait(&mut self, events: &mut Events, until: Instant) -> io::Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = if left.is_zero() {
            Some(Duration::ZERO)
        } else {
            self.arm(until, left)?;
            None
        };
        match self.poll.poll(events, timeout) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {
                events.clear();
                Ok(())
            }
            other => other,
        }
    }

    /// The timer's expiry needs no read: it is edge-triggered, and setting it again clears it.
    fn arm(&mut self, until: Instant, left: Duration) -> io::Result<()> {
        if self.armed.replace(until) == Some(until) {
            return Ok(());
        }
        let value =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let spec = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec)?;
        Ok(())
    }
}
