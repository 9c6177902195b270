//! Moments in the database across restarts, although the system's clock may be wrong, set, or stopped meanwhile.
//!
//! The broker's time shows the system's clock when the broker starts and goes on by itself, and stored moments are on it.
//! `meta` has a record of what it showed beside the machine's other clocks. At the next start, the moments are moved so that
//! the same time is left, less that for which the broker was away: by the time since the machine has booted, if it is the
//! same boot, otherwise by the system's clock. One that is behind, or not set, counts for nothing.

use std::time::{Duration, Instant};

use fulmar_broker::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, Result};
use rustix::time::{ClockId, clock_gettime};

/// Clocks differ by less when nothing has been set.
const TOLERANCE_MS: i64 = 2000;
/// The record is written with a commit after this time, so that a clock that is behind at the next start costs no more.
const WRITE_AGAIN: Duration = Duration::from_secs(60);
/// A clock that shows less (2026-01-01) has not been set.
const FIRST_PLAUSIBLE_MS: i64 = 1_767_225_600_000;

/// All clocks at a moment, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Reading {
    /// The broker's time.
    time: i64,
    /// The system's clock, as far as it was ever plausible: it does not go back, and 0 is none.
    wall: i64,
    /// Since the machine has booted, suspended or not.
    since_boot: i64,
    /// Identifies the boot; 0 if it is not known.
    boot: i64,
}

impl Reading {
    fn now(time: Timestamp) -> Reading {
        let since_boot = clock_gettime(ClockId::Boottime);
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits = boot.chars().filter(char::is_ascii_hexdigit).take(15).collect::<String>();
        let wall = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Reading {
            time: time.0.cast_signed(),
            wall: i64::try_from(wall.as_millis()).unwrap_or_default(),
            since_boot: since_boot.tv_sec * 1000 + since_boot.tv_nsec / 1_000_000,
            boot: i64::from_str_radix(&digits, 16).unwrap_or_default(),
        }
    }

    /// The time that the broker before would have now.
    fn old_time(&self, now: &Reading) -> i64 {
        let away = if self.boot != 0 && self.boot == now.boot {
            now.since_boot - self.since_boot
        } else if self.wall == 0 {
            0
        } else {
            now.wall - self.wall
        };
        self.time + away.max(0)
    }

    /// The reading that follows, which does not go back to a clock that was not set.
    fn then(&self, mut now: Reading, elapsed: i64) -> Reading {
        let known = if self.wall == 0 { 0 } else { self.wall + elapsed };
        now.wall = if now.wall < FIRST_PLAUSIBLE_MS { known } else { now.wall.max(known) };
        now
    }

    fn load(connection: &Connection) -> Result<Option<Reading>> {
        let sql = "SELECT t.value, w.value, s.value, b.value FROM meta t, meta w, meta s, meta b
                   WHERE t.name = 'clock_time' AND w.name = 'clock_wall'
                   AND s.name = 'clock_since_boot' AND b.name = 'clock_boot'";
        let reading = connection.query_row(sql, [], |row| {
            let (time, wall) = (row.get(0)?, row.get(1)?);
            Ok(Reading { time, wall, since_boot: row.get(2)?, boot: row.get(3)? })
        });
        reading.optional()
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
pub(crate) struct ClockRecord {
    /// The broker's time at this instant.
    start: (Timestamp, Instant),
    last: Reading,
    written: Instant,
}

impl ClockRecord {
    /// Moves the stored moments to the broker's time from now on, and begins the record.
    pub(crate) fn begin(
        connection: &Connection,
        start: (Timestamp, Instant),
    ) -> Result<ClockRecord> {
        let transaction = connection.unchecked_transaction()?;
        let now = Reading::now(start.0 + start.1.elapsed());
        let before = Reading::load(connection)?;
        let by = before.map_or(0, |before| now.time - before.old_time(&now));
        if by.abs() > TOLERANCE_MS {
            tracing::warn!(
                seconds = by / 1000,
                "the system's clock was set: sessions and messages keep the time that was left to them"
            );
            for (table, column) in
                [("session", "expires_at"), ("message", "expires_at"), ("will", "due")]
            {
                // Below 0 is never.
                let sql = format!(
                    "UPDATE {table} SET {column} = max({column} + ?1, 0) WHERE {column} >= 0"
                );
                connection.execute(&sql, [by])?;
            }
        }
        let last = before.unwrap_or_default().then(now, 0);
        last.store(connection)?;
        transaction.commit()?;
        Ok(ClockRecord { start, last, written: Instant::now() })
    }

    /// True if the record is to be written again.
    pub(crate) fn is_due(&self) -> bool {
        self.written.elapsed() >= WRITE_AGAIN
    }

    /// Writes the record. If that fails, the one of before holds.
    pub(crate) fn write(&mut self, connection: &Connection) {
        let now = Reading::now(self.start.0 + self.start.1.elapsed());
        self.last = self.last.then(now, now.time - self.last.time);
        self.written = Instant::now();
        if let Err(error) = self.last.store(connection) {
            tracing::warn!(%error, "the record of the clock was not written");
        }
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
            assert_eq!(record.old_time(&now), before + 2 * HOUR, "{before} {after}");
        }
    }

    #[test]
    fn after_another_boot_the_clock_counts_unless_it_is_behind() {
        let record = reading(NOW, NOW, HOUR, 7);
        assert_eq!(record.old_time(&reading(0, NOW + 5 * HOUR, 0, 8)), NOW + 5 * HOUR);
        assert_eq!(record.old_time(&reading(0, NOW - 5 * HOUR, 0, 8)), NOW, "behind");
        assert_eq!(record.old_time(&reading(0, 0, 0, 8)), NOW, "not set");
        assert_eq!(reading(5, 5, 0, 0).old_time(&reading(0, NOW, 0, 0)), 5, "it never was");
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
        assert_eq!(later.old_time(&now), 5 + HOUR + 3 * HOUR);
    }

    #[test]
    fn a_clock_that_is_set_while_the_broker_runs_is_known_afterwards() {
        let record = reading(5, 5, HOUR, 7);
        let later =
            record.then(Reading { time: HOUR, wall: NOW, since_boot: 2 * HOUR, boot: 7 }, HOUR);
        let now = reading(NOW + HOUR, NOW + HOUR, 0, 8);
        assert_eq!(later.old_time(&now), 2 * HOUR);
    }
}
