//! The clocks of the broker's machine. Its wall clock is set at any time, also to what nobody has set it to (1970), and the
//! machine is suspended; what clients are promised depends on none of that, but on the time that has really passed.

use std::time::Duration;

use fulmar_broker::Timestamp;
use fulmar_mirror::Reading;

/// When a world begins: 2026-02-02.
const BEGIN_MS: i64 = 1_770_000_000_000;

/// Time of the clocks when a world begins.
pub(crate) const BEGIN: Reading =
    Reading { time: BEGIN_MS, wall: BEGIN_MS, since_boot: 1_000_000, boot: 1 };

/// By how many milliseconds stored moments are moved when a process starts, and how much less or more that may be, since the
/// machine was suspended, or off for a time that was not known.
pub(crate) type Moved = (i64, i64, i64);

/// Changes of the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wall {
    /// To the time that it really is.
    Right,
    /// Before or after that by a number of seconds.
    Off(i64),
    /// It shows the time since the boot, as if that had been in 1970.
    Unset,
}

/// Events of the machine, or of the broker's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockStep {
    /// The wall clock is set.
    Set(Wall),
    /// The machine is suspended.
    Suspend { seconds: u64 },
    /// The process stands still; what clients have sent meanwhile is there then, or comes soon (`late`).
    Pause { seconds: u64, late: bool },
    /// The machine is off and boots, with a clock that is set or not.
    Reboot { seconds: u64, is_set: bool, workers: usize },
}

/// The machine. Times are in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    pub(crate) shows: Reading,
    /// Time by which the wall clock is ahead.
    ahead: i64,
    /// It was ahead once: what is known of it may be, still.
    was_ahead: bool,
    /// Time for which the process has run.
    age: i64,
    /// For how long the machine was off, and how much longer than really what is stored may last therefore.
    off: (i64, i64),
    /// By how much later than after the real time things may happen, by now.
    pub(crate) late: i64,
}

impl Machine {
    /// A machine whose process begins to run at `time`.
    pub(crate) fn new(time: Timestamp) -> Machine {
        let time = time.0.cast_signed();
        let shows = Reading { time, wall: time, ..BEGIN };
        Machine { shows, ahead: 0, was_ahead: false, age: 0, off: (0, 0), late: 0 }
    }

    /// The time that it really is.
    pub(crate) fn real(&self) -> Timestamp {
        Timestamp((self.shows.wall - self.ahead).cast_unsigned())
    }

    /// The process runs (`runs`), or the machine is suspended.
    pub(crate) fn pass(&mut self, time: Duration, runs: bool) {
        let ms = time.as_millis() as i64;
        let Reading { time, wall, since_boot, .. } = &mut self.shows;
        [wall, since_boot, &mut self.age].into_iter().for_each(|clock| *clock += ms);
        *(if runs { time } else { &mut self.late }) += ms;
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
        self.off = (ms, if is_set && !self.was_ahead { 0 } else { ms + self.age });
    }

    /// The process starts.
    pub(crate) fn restart(&mut self) -> Moved {
        let (off, unknown) = std::mem::take(&mut self.off);
        let moved = (self.shows.wall - (self.shows.time + off), self.late, unknown);
        self.late += unknown;
        (self.shows.time, self.age) = (self.shows.wall, 0);
        moved
    }
}
