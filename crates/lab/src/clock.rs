//! The one clock of a run: nanoseconds since its start, on the machine's monotonic clock.

use rustix::time::{ClockId, clock_gettime};

use crate::units::Nanos;

/// A run's clock. Copies show the same time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The monotonic clock at the start, in ns.
    monotonic: u64,
    /// The time of day at the start, in ns since 1970.
    unix: u64,
}

impl Clock {
    /// Starts at zero now.
    pub fn start() -> Clock {
        Clock { monotonic: read(ClockId::Monotonic), unix: read(ClockId::Realtime) }
    }

    /// Time since the start.
    pub fn now(&self) -> Nanos {
        read(ClockId::Monotonic).saturating_sub(self.monotonic)
    }

    /// A time of the run on the machine's monotonic clock (`CLOCK_MONOTONIC`), in ns.
    pub fn monotonic(&self, at: Nanos) -> u64 {
        self.monotonic + at
    }

    /// A time of the run as ns since 1970, by the time of day at the start.
    pub fn unix(&self, at: Nanos) -> u64 {
        self.unix + at
    }
}

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
}

/// Processor time of the calling thread, in ns.
pub(crate) fn thread_cpu() -> u64 {
    read(ClockId::ThreadCPUTime)
}
