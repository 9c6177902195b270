//! The clocks of the broker's machine. Its wall clock is set at any time, also to what nobody has set it to (1970), and the
//! machine is suspended; what clients are promised depends on none of that, but on the time that has really passed.

use std::time::Duration;

use fulmar_broker::Timestamp;

/// When a world begins, in milliseconds since the Unix epoch: 2026-02-02.
const BEGIN_MS: i64 = 1_770_000_000_000;

/// What clocks show, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// The broker's time, which shows the wall clock when its process starts and goes on by itself.
    pub time: i64,
    /// The wall clock.
    pub wall: i64,
    /// Since the machine has booted, suspended or not.
    pub since_boot: i64,
    /// The number of that boot.
    pub boot: i64,
}

impl Default for Clocks {
    fn default() -> Clocks {
        Clocks { time: BEGIN_MS, wall: BEGIN_MS, since_boot: 1_000_000, boot: 1 }
    }
}

/// By how many milliseconds stored moments are moved when a process starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// So that what was left when the process before ended is left, but for the time between them.
    pub by: i64,
    /// By so much less, since the machine was suspended, or off for a time that was not known.
    pub less: i64,
    /// By so much more, since that is not known.
    pub more: i64,
}

/// How the wall clock is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wall {
    /// To the time that it really is.
    Right,
    /// Before or after that by so many seconds.
    Off(i64),
    /// It shows the time since the boot, as if that had been in 1970.
    Unset,
}

/// The machine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Machine {
    shows: Clocks,
    /// How far the wall clock is ahead, in milliseconds.
    ahead: i64,
    /// It was ahead once: what is known of it may be, still.
    was_ahead: bool,
    /// How long the process has run.
    age: i64,
    /// For how long the machine was off, and how much longer than really what is stored may last therefore.
    off: (i64, i64),
    /// By how much later than after the real time things may happen, by now.
    late: i64,
}

impl Machine {
    /// A machine whose process begins to run at `time`.
    pub(crate) fn new(time: Timestamp) -> Machine {
        let time = time.0.cast_signed();
        let shows = Clocks { time, wall: time, ..Clocks::default() };
        Machine { shows, ..Machine::default() }
    }

    pub(crate) fn begin() -> Timestamp {
        Timestamp(BEGIN_MS.cast_unsigned())
    }

    pub(crate) fn shows(&self) -> Clocks {
        self.shows
    }

    /// The time that it really is.
    pub(crate) fn real(&self) -> Timestamp {
        Timestamp((self.shows.wall - self.ahead).cast_unsigned())
    }

    pub(crate) fn wall(&self) -> Timestamp {
        Timestamp(self.shows.wall.cast_unsigned())
    }

    /// The broker's time.
    pub(crate) fn time(&self) -> Timestamp {
        Timestamp(self.shows.time.cast_unsigned())
    }

    /// By how much later than after the real time things may happen.
    pub(crate) fn late(&self) -> Duration {
        Duration::from_millis(self.late.cast_unsigned())
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        let ms = time.as_millis() as i64;
        self.shows.time += ms;
        self.suspend(time);
        self.late -= ms;
    }

    /// The machine is suspended.
    pub(crate) fn suspend(&mut self, time: Duration) {
        let ms = time.as_millis() as i64;
        self.shows.wall += ms;
        self.shows.since_boot += ms;
        self.age += ms;
        self.late += ms;
    }

    pub(crate) fn set_wall(&mut self, wall: Wall) {
        let real = self.shows.wall - self.ahead;
        self.ahead = match wall {
            Wall::Right => 0,
            Wall::Off(seconds) => seconds * 1000,
            Wall::Unset => self.shows.since_boot - real,
        };
        self.shows.wall = real + self.ahead;
        self.was_ahead |= self.ahead > 0;
    }

    /// The machine is off for a time and boots, with a clock that is set or not.
    pub(crate) fn reboot(&mut self, off: Duration, is_set: bool) {
        let ms = off.as_millis() as i64;
        self.shows.wall += ms;
        (self.shows.since_boot, self.shows.boot) = (1000, self.shows.boot + 1);
        self.set_wall(if is_set { Wall::Right } else { Wall::Unset });
        // Nor does the time count since clocks were recorded last.
        let unknown = if is_set && !self.was_ahead { 0 } else { ms + self.age };
        self.off = (ms, unknown);
    }

    /// The process starts. Returns by how much stored moments are moved.
    pub(crate) fn restart(&mut self) -> Moved {
        let (off, unknown) = std::mem::take(&mut self.off);
        let by = self.shows.wall - (self.shows.time + off);
        let moved = Moved { by, less: self.late, more: unknown };
        self.late += unknown;
        (self.shows.time, self.age) = (self.shows.wall, 0);
        moved
    }
}
