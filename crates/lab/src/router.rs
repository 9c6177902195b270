//! The router: one thread that moves packets between the hosts' TUN devices and the model.
//!
//! It decides nothing. It reads packets, passes them to the model with the time, sleeps until the model's next
//! deadline and writes packets that are due. A sleeping processor takes a tenth of a millisecond to wake up, so the
//! router polls the clock at the end of a wait, as long as that is a small share of the time (`Vigil`). Its lateness
//! is measured for every packet: the difference between the model's time and the time at which the packet was handed
//! to the receiving kernel. The time that a packet waits in a device *before* it is read is not included; the
//! experiment `link-accuracy` measures it end to end.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hdrhistogram::Histogram;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use serde::Serialize;

use crate::Error;
use crate::clock::{Clock, thread_cpu};
use crate::link::{Event, HostId, Topology};
use crate::net::{Host, run_first};
use crate::observe::Observer;
use crate::units::Nanos;

/// Packets read from one host before due packets are written.
const READ_BATCH: usize = 16;
/// The largest packet of a device.
const PACKET_BYTES: usize = 65_536;
/// Lateness is recorded up to a minute, to three digits.
const LATEST: u64 = 60_000_000_000;

/// Time before a deadline from which the router polls: a sleeping processor takes as long to wake up in a virtual
/// machine, measured as 60 to 140 µs.
const AWAKE: Nanos = 150_000;
/// The share of time that may be spent polling: one part in this many. With many packets, the processor hardly sleeps
/// anyway.
const AWAKE_SHARE: Nanos = 10;
/// The most that may be spent at once after a pause.
const AWAKE_AT_ONCE: Nanos = 10 * AWAKE;

const TIMER: u64 = u64::MAX;
const STOP: u64 = u64::MAX - 1;

/// Delay between the decided time and that at which packets were written, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lateness {
    /// Packets written.
    pub packets: u64,
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Worst.
    pub max_ns: u64,
}

/// Result that the router returns at its end.
#[derive(Debug)]
pub struct Outcome {
    /// The model, with its statistics and decision logs.
    pub topology: Topology,
    /// Lateness of its packets.
    pub lateness: Lateness,
    /// Whether it had real-time priority.
    pub realtime: bool,
    /// Packets that the receiving kernel refused.
    pub refused: u64,
    /// Processor time it took, in ns.
    pub cpu_ns: u64,
}

/// The owner's handle of a router: stops it, and shows whether packets are in flight.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    stop: Arc<OwnedFd>,
    idle: Arc<AtomicBool>,
}

impl Handle {
    pub(crate) fn new() -> Result<Handle, Error> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(Error::when("making an eventfd"))?;
        Ok(Handle { stop: Arc::new(event), idle: Arc::new(AtomicBool::new(true)) })
    }

    pub(crate) fn stop(&self) {
        // It can fail only after 2^64 writes.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
    }

    /// Whether no packet was in flight when the router last slept.
    pub(crate) fn is_idle(&self) -> bool {
        self.idle.load(Ordering::Relaxed)
    }
}

pub(crate) struct Router {
    clock: Clock,
    topology: Topology,
    hosts: Vec<Arc<Host>>,
    observers: Vec<Box<dyn Observer>>,
    idle: Arc<AtomicBool>,
    epoll: OwnedFd,
    timer: OwnedFd,
    armed_for: Option<Nanos>,
    vigil: Vigil,
    lateness: Histogram<u64>,
    refused: u64,
    buffer: Vec<u8>,
}

impl Router {
    pub(crate) fn new(
        clock: Clock,
        topology: Topology,
        hosts: Vec<Arc<Host>>,
        observers: Vec<Box<dyn Observer>>,
        handle: &Handle,
    ) -> Result<Router, Error> {
        let doing = "preparing the router's thread";
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(Error::when(doing))?;
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )
        .map_err(Error::when(doing))?;
        let add = |fd: &dyn std::os::fd::AsFd, key| {
            epoll::add(&epoll, fd, EventData::new_u64(key), EventFlags::IN)
                .map_err(Error::when(doing))
        };
        add(&timer, TIMER)?;
        add(&*handle.stop, STOP)?;
        for (number, host) in hosts.iter().enumerate() {
            add(&host.tun(), number as u64)?;
        }
        let lateness = Histogram::new_with_max(LATEST, 3)
            .map_err(|error| Error::when(doing)(std::io::Error::other(error)))?;
        Ok(Router {
            clock,
            topology,
            hosts,
            observers,
            idle: Arc::clone(&handle.idle),
            epoll,
            timer,
            armed_for: None,
            vigil: Vigil::default(),
            lateness,
            refused: 0,
            buffer: vec![0; PACKET_BYTES],
        })
    }

    /// Routes until it is stopped.
    pub(crate) fn run(mut self) -> Result<Outcome, Error> {
        let realtime = run_first();
        let mut events = Vec::with_capacity(64);
        'routing: loop {
            self.deliver();
            self.idle.store(self.topology.is_idle(), Ordering::Relaxed);
            let timeout = self.arm().map_err(Error::when("setting the router's timer"))?;
            events.clear();
            let room = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, room, timeout.as_ref()) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other.map_err(Error::when("waiting for packets"))?,
            };
            for event in &events {
                match event.data.u64() {
                    STOP => break 'routing,
                    TIMER => {
                        // The number of expirations does not matter; reading re-arms the timer.
                        let _ = rustix::io::read(&self.timer, &mut [0u8; 8]);
                        self.armed_for = None;
                    }
                    host => self.read(host as usize),
                }
            }
        }
        Ok(self.end(realtime))
    }

    fn end(self, realtime: bool) -> Outcome {
        let quantile = |q| self.lateness.value_at_quantile(q);
        let lateness = Lateness {
            packets: self.lateness.len(),
            p50_ns: quantile(0.5),
            p99_ns: quantile(0.99),
            p999_ns: quantile(0.999),
            max_ns: self.lateness.max(),
        };
        let Router { topology, refused, .. } = self;
        Outcome { topology, lateness, realtime, refused, cpu_ns: thread_cpu() }
    }

    /// Reads packets that a host has sent.
    fn read(&mut self, number: usize) {
        let Some(host) = self.hosts.get(number).cloned() else { return };
        for _ in 0..READ_BATCH {
            // A device that fails counts as empty; losses show in its counters.
            let Ok(length) = rustix::io::read(host.tun(), &mut self.buffer[..]) else { return };
            let packet = &self.buffer[..length];
            let at = self.clock.now();
            for observer in &mut self.observers {
                observer.sent(at, host.id(), packet);
            }
            self.topology.receive(at, host.id(), packet.to_vec());
        }
        self.deliver();
    }

    /// Writes packets that are due.
    fn deliver(&mut self) {
        while let Some(event) = self.topology.poll_event(self.clock.now()) {
            match event {
                Event::Deliver { at, to, packet } => self.write(at, to, &packet),
                Event::Dropped { at, from, reason, packet, .. } => {
                    for observer in &mut self.observers {
                        observer.dropped(at, from, reason, &packet);
                    }
                }
                Event::AddressChange { host, changes, .. } => {
                    let changed = self
                        .hosts
                        .get(usize::from(host.0))
                        .map(|host| host.change_address(changes));
                    if let Some(Err(error)) = changed {
                        tracing::warn!(host = host.0, %error, "address not changed");
                    }
                }
            }
        }
    }

    fn write(&mut self, due: Nanos, to: HostId, packet: &[u8]) {
        let Some(host) = self.hosts.get(usize::from(to.0)) else { return };
        if rustix::io::write(host.tun(), packet).is_err() {
            self.refused += 1;
            return;
        }
        let at = self.clock.now();
        self.lateness.saturating_record(at.saturating_sub(due));
        for observer in &mut self.observers {
            observer.delivered(at, to, packet);
        }
    }

    /// Sets the timer for the model's next deadline; returns a timeout of zero while the router polls.
    fn arm(&mut self) -> rustix::io::Result<Option<Timespec>> {
        const NOT_AT_ALL: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        let deadline = self.topology.deadline();
        let wake = match deadline.map(|deadline| self.vigil.wake(self.clock.now(), deadline)) {
            Some(None) => return Ok(Some(NOT_AT_ALL)),
            Some(Some(wake)) => Some(wake),
            None => None,
        };
        if wake == self.armed_for {
            return Ok(None);
        }
        // A time of zero would disarm the timer.
        let at = wake.map_or(0, |wake| self.clock.monotonic(wake).max(1));
        let it_value =
            Timespec { tv_sec: (at / 1_000_000_000) as i64, tv_nsec: (at % 1_000_000_000) as i64 };
        let spec = Itimerspec { it_interval: NOT_AT_ALL, it_value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &spec)?;
        self.armed_for = wake;
        Ok(None)
    }
}

/// Polls for a deadline that is near, within a budget of time.
#[derive(Debug, Default)]
struct Vigil {
    /// The budget times [`AWAKE_SHARE`]: it grows as time passes.
    credit: Nanos,
    /// When the budget was last updated.
    at: Nanos,
    /// The deadline for which the router polls.
    awake_for: Option<Nanos>,
}

impl Vigil {
    /// When to wake up for a deadline; `None`: poll now.
    fn wake(&mut self, now: Nanos, deadline: Nanos) -> Option<Nanos> {
        let passed = now.saturating_sub(self.at);
        self.at = now;
        self.credit = match self.awake_for {
            Some(_) => self.credit.saturating_sub(passed * (AWAKE_SHARE - 1)),
            None => (self.credit + passed).min(AWAKE_AT_ONCE * AWAKE_SHARE),
        };
        let goes_on = self.awake_for == Some(deadline);
        self.awake_for = None;
        if !goes_on && self.credit < AWAKE * AWAKE_SHARE {
            return Some(deadline);
        }
        let wake = deadline.saturating_sub(AWAKE);
        if now < wake {
            return Some(wake);
        }
        self.awake_for = Some(deadline);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{MILLISECOND, SECOND};

    /// Successive deadlines at an interval of `gap`; returns the share of time spent polling, and how many deadlines
    /// were polled for.
    fn vigil(gap: Nanos, count: u64) -> (f64, u64) {
        let (mut vigil, mut now, mut awake, mut awaited) = (Vigil::default(), SECOND, 0, 0);
        for number in 1..=count {
            let deadline = SECOND + number * gap;
            let began = loop {
                match vigil.wake(now, deadline) {
                    Some(wake) if wake < deadline => now = now.max(wake),
                    Some(_) => break None,
                    None => break Some(now),
                }
            };
            if let Some(began) = began {
                while now < deadline {
                    assert_eq!(vigil.wake(now, deadline), None, "awake until the deadline");
                    now += 1000;
                }
                (awake, awaited) = (awake + (now - began), awaited + 1);
            }
            now = now.max(deadline);
        }
        (awake as f64 / (now - SECOND) as f64, awaited)
    }

    #[test]
    fn rare_deadlines_are_all_awaited_awake_and_dense_ones_within_the_budget() {
        let (share, awaited) = vigil(10 * MILLISECOND, 1000);
        assert!(share < 0.02 && awaited >= 999, "{share} {awaited}");
        for gap in [MILLISECOND, 200_000, 50_000, 10_000] {
            let (share, _) = vigil(gap, 2 * SECOND / gap);
            assert!(share < 0.105, "{share} with {gap} ns between deadlines");
        }
    }
}
