//! The broker's clock value. The core never reads a clock: the caller passes the time in.
//!
//! One scale serves deadlines and durable expiry alike: milliseconds since the Unix epoch, kept
//! monotonic by the caller (wall clock at start plus a monotonic offset), so that a value stored
//! before a restart still means the same moment after it.

use std::ops::Add;
use std::time::Duration;

/// Milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// A moment that is never reached.
    pub const NEVER: Timestamp = Timestamp(u64::MAX);

    /// Time from `earlier` to `self`; zero when `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// `self` plus whole seconds, saturating.
    #[must_use]
    pub fn plus_secs(self, seconds: u32) -> Timestamp {
        Timestamp(self.0.saturating_add(u64::from(seconds) * 1000))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Timestamp;
    fn add(self, rhs: Duration) -> Timestamp {
        let ms = u64::try_from(rhs.as_millis()).unwrap_or(u64::MAX);
        Timestamp(self.0.saturating_add(ms))
    }
}
