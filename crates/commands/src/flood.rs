//! Limits the log so that clients cannot flood it: of each kind of line (each place in the source that logs), a
//! number are written at once, and a few per second after that. The next line that is written says how many were left
//! out. Debug and trace lines are all written, because they are only enabled on purpose.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tracing::callsite::Identifier;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Lines of a kind that are written at once.
const AT_ONCE: f64 = 200.0;
/// Lines of a kind that are written per second in the long run: 5, of about 200 bytes, are 90 MB per day. With fields as
/// long as [`FieldLimit`](crate::field_limit::FieldLimit) permits, some 2 kB, they are 900 MB.
const PER_S: f64 = 5.0;

/// The layer that decides.
#[derive(Debug, Default)]
pub(crate) struct Flood {
    /// One entry per place in the source that logs.
    kinds: Mutex<HashMap<Identifier, Kind>>,
}

#[derive(Clone, Copy, Debug)]
struct Kind {
    room: f64,
    at: Instant,
    left_out: u64,
}

impl Kind {
    fn new(now: Instant) -> Kind {
        Kind { room: AT_ONCE, at: now, left_out: 0 }
    }

    /// Whether a line may be written now, and then how many were left out before.
    fn admit_line(&mut self, now: Instant) -> Option<u64> {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        (self.room, self.at) = ((self.room + passed * PER_S).min(AT_ONCE), now);
        if self.room < 1.0 {
            self.left_out += 1;
            return None;
        }
        self.room -= 1.0;
        Some(std::mem::take(&mut self.left_out))
    }
}

impl<S: Subscriber> Layer<S> for Flood {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        if *event.metadata().level() > Level::INFO {
            return true;
        }
        let now = Instant::now();
        let taken = {
            let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
            let kind = kinds.entry(event.metadata().callsite());
            kind.or_insert_with(|| Kind::new(now)).admit_line(now)
        };
        if let Some(left_out @ 1..) = taken {
            tracing::warn!(left_out, "lines like the next were omitted");
        }
        taken.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_flood_is_cut_and_counted() {
        let start = Instant::now();
        let mut kind = Kind::new(start);
        let written = (0..1000).filter(|_| kind.admit_line(start).is_some()).count();
        assert_eq!(written, 200);
        assert_eq!(kind.admit_line(start + Duration::from_secs(1)), Some(800));
        assert_eq!(kind.admit_line(start + Duration::from_secs(1)), Some(0));
        assert_eq!(
            kind.admit_line(start + Duration::from_secs(3600)),
            Some(0),
            "room for 200 again"
        );
    }
}
