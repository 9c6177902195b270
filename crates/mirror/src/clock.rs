//! Moments in a database across restarts, although the system's clock may be wrong, set, or stopped meanwhile.
//!
//! A program's time shows the system's clock when the program starts and goes on by itself, and stored moments are on it.
//! `meta` has a record of what it showed beside the machine's other clocks. At the next start, the moments are moved so that
//! the same time is left, less that for which the program was away: by the time since the machine has booted, if it is the
//! same boot, otherwise by the system's clock. One that is behind, or not set, counts for nothing.

use std::fmt;
use std::sync::{Arc, LazyLock};

use rusqlite::{Connection, Result};
use rustix::time::{ClockId, clock_gettime};

/// Clocks differ by less when nothing has been set.
const TOLERANCE_MS: i64 = 2000;
/// The record is written with a commit after this time, so that a clock that is behind at the next start costs no more.
const WRITE_AGAIN_MS: i64 = 60_000;
/// A clock that shows less (2026-01-01) has not been set.
const FIRST_PLAUSIBLE_MS: i64 = 1_767_225_600_000;

/// All clocks at a moment, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The program's time.
    pub time: i64,
    /// The system's clock. In a record, as far as it was ever plausible: it does not go back, and 0 is none.
    pub wall: i64,
    /// Since the machine has booted, suspended or not.
    pub since_boot: i64,
    /// Identifies the boot; 0 if it is not known.
    pub boot: i64,
}

/// Reads all clocks.
#[derive(Clone)]
pub struct Clocks(Arc<dyn Fn() -> Reading + Send + Sync>);

impl Clocks {
    /// Clocks that `read` reads.
    pub fn new(read: impl Fn() -> Reading + Send + Sync + 'static) -> Clocks {
        Clocks(Arc::new(read))
    }
}

impl fmt::Debug for Clocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.0)().fmt(f)
    }
}

impl Reading {
    /// Reads the machine's clocks, beside the program's time.
    pub fn now(time_ms: u64) -> Reading {
        static BOOT: LazyLock<i64> = LazyLock::new(|| {
            let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
            let boot = boot.unwrap_or_default();
            let digits = boot.chars().filter(char::is_ascii_hexdigit).take(15).collect::<String>();
            i64::from_str_radix(&digits, 16).unwrap_or_default()
        });
        let since_boot = clock_gettime(ClockId::Boottime);
        let wall = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Reading {
            time: time_ms.cast_signed(),
            wall: i64::try_from(wall.as_millis()).unwrap_or_default(),
            since_boot: since_boot.tv_sec * 1000 + since_boot.tv_nsec / 1_000_000,
            boot: *BOOT,
        }
    }

    /// Returns the time for which the program was away, as far as that is known.
    fn away(&self, now: &Reading) -> i64 {
        let away = if self.boot != 0 && self.boot == now.boot {
            now.since_boot - self.since_boot
        } else if self.wall == 0 {
            0
        } else {
            now.wall - self.wall
        };
        away.max(0)
    }

    /// The reading that follows, which does not go back to a clock that was not set.
    fn then(&self, mut now: Reading, elapsed: i64) -> Reading {
        let known = if self.wall == 0 { 0 } else { self.wall + elapsed };
        now.wall = if now.wall < FIRST_PLAUSIBLE_MS { known } else { now.wall.max(known) };
        now
    }

    fn load(connection: &Connection) -> Result<Option<Reading>> {
        // In some databases the values are texts.
        let value =
            |name| format!("(SELECT CAST(value AS INTEGER) FROM meta WHERE name = 'clock_{name}')");
        let sql = ["time", "wall", "since_boot", "boot"].map(value).join(", ");
        connection.query_row(&format!("SELECT {sql}"), [], |row| {
            let time: Option<i64> = row.get(0)?;
            let Some(time) = time else { return Ok(None) };
            Ok(Some(Reading {
                time,
                wall: row.get(1)?,
                since_boot: row.get(2)?,
                boot: row.get(3)?,
            }))
        })
    }

    fn store(&self, connection: &Connection) -> Result<()> {
        let Reading { time, wall, since_boot, boot } = self;
        let sql = "INSERT OR REPLACE INTO meta VALUES
                   ('clock_time', ?1), ('clock_wall', ?2), ('clock_since_boot', ?3), ('clock_boot', ?4)";
        connection.execute(sql, [time, wall, since_boot, boot]).map(drop)
    }
}

/// Keeps the record.
#[derive(Debug)]
pub struct ClockRecord {
    clocks: Clocks,
    last: Reading,
}

impl ClockRecord {
    /// Moves the moments in these columns of tables to the program's time from now on, and begins the record. Returns by
    /// how many milliseconds they were moved as well, if they were.
    ///
    /// # Errors
    /// SQLite's.
    pub fn begin(
        connection: &Connection,
        clocks: &Clocks,
        moments: &[(&str, &str)],
    ) -> Result<(ClockRecord, Option<i64>)> {
        let transaction = connection.unchecked_transaction()?;
        let (now, before) = ((clocks.0)(), Reading::load(connection)?);
        let away = before.map_or(0, |before| before.away(&now));
        let by = before.map_or(0, |before| now.time - (before.time + away));
        let moved = (by.abs() > TOLERANCE_MS).then_some(by);
        for (table, column) in moments.iter().filter(|_| moved.is_some()) {
            // Below 0 is never.
            let sql =
                format!("UPDATE {table} SET {column} = max({column} + ?1, 0) WHERE {column} >= 0");
            connection.execute(&sql, [by])?;
        }
        let last = before.unwrap_or_default().then(now, away);
        last.store(connection)?;
        transaction.commit()?;
        Ok((ClockRecord { clocks: clocks.clone(), last }, moved))
    }

    /// True if the record is to be written again.
    pub fn is_due(&self) -> bool {
        (self.clocks.0)().time - self.last.time >= WRITE_AGAIN_MS
    }

    /// Writes the record. If that fails, the one of before holds.
    ///
    /// # Errors
    /// SQLite's.
    pub fn write(&mut self, connection: &Connection) -> Result<()> {
        let now = (self.clocks.0)();
        self.last = self.last.then(now, now.time - self.last.time);
        self.last.store(connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;
    const NOW: i64 = FIRST_PLAUSIBLE_MS + 1000 * HOUR;

    fn reading(time: i64, wall: i64, since_boot: i64, boot: i64) -> Reading {
        Reading::default().then(Reading { time, wall, since_boot, boot }, 0)
    }

    #[test]
    fn within_a_boot_the_time_since_it_counts() {
        for (before, after) in [(NOW, NOW), (0, NOW), (NOW, 0), (NOW + 9000 * HOUR, NOW)] {
            let record = reading(before, before, HOUR, 7);
            let now = reading(after, after, 3 * HOUR, 7);
            assert_eq!(record.away(&now), 2 * HOUR, "{before} {after}");
        }
    }

    #[test]
    fn after_another_boot_the_clock_counts_unless_it_is_behind() {
        let record = reading(NOW, NOW, HOUR, 7);
        assert_eq!(record.away(&reading(0, NOW + 5 * HOUR, 0, 8)), 5 * HOUR);
        assert_eq!(record.away(&reading(0, NOW - 5 * HOUR, 0, 8)), 0, "behind");
        assert_eq!(record.away(&reading(0, 0, 0, 8)), 0, "not set");
        assert_eq!(reading(5, 5, 0, 0).away(&reading(0, NOW, 0, 0)), 0, "it never was");
    }

    #[test]
    fn what_was_known_of_the_clock_survives_a_start_without() {
        let record = reading(NOW, NOW, HOUR, 7);
        // A boot with a clock that is not set, an hour of which the record has.
        let begun = record.then(Reading { time: 5, wall: 5, since_boot: 0, boot: 8 }, 0);
        let later = Reading { time: 5 + HOUR, wall: 5 + HOUR, since_boot: HOUR, boot: 8 };
        let later = begun.then(later, HOUR);
        // Then another with the right one, three hours later.
        let now = reading(NOW + 4 * HOUR, NOW + 4 * HOUR, 0, 9);
        assert_eq!(later.away(&now), 3 * HOUR);
    }

    #[test]
    fn what_is_known_of_the_clock_goes_on_while_the_program_is_away() {
        let record = reading(NOW, NOW, HOUR, 7);
        // Started again after an hour, when the clock was an hour behind.
        let now = reading(NOW, NOW, 2 * HOUR, 7);
        assert_eq!(record.then(now, record.away(&now)).wall, NOW + HOUR);
    }

    #[test]
    fn a_clock_that_is_set_while_the_broker_runs_is_known_afterwards() {
        let record = reading(5, 5, HOUR, 7);
        let later =
            record.then(Reading { time: HOUR, wall: NOW, since_boot: 2 * HOUR, boot: 7 }, HOUR);
        let now = reading(NOW + HOUR, NOW + HOUR, 0, 8);
        assert_eq!(later.away(&now), HOUR);
    }
}
