//! Until when this process may acknowledge.
//!
//! The log decides who writes, but a publication without a subscriber needs no record. The process that serves
//! therefore has a lease, which it renews, and acknowledges nothing once its own clock has passed the lease's end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The end of a process' lease on a log, shared between what renews it and the store. It has ended at first.
pub struct Lease {
    start: Instant,
    /// Nanoseconds after `start`.
    until: AtomicU64,
    /// Called when the lease continues after it had ended.
    wake: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl Default for Lease {
    fn default() -> Lease {
        Lease::new()
    }
}

fulmar_text::opaque_debug!(Lease { until });

impl Lease {
    /// A lease that has ended.
    pub fn new() -> Lease {
        Lease { start: Instant::now(), until: AtomicU64::new(0), wake: Mutex::new(None) }
    }

    /// Sets its end, if that is later than before: some time after the renewal was *sent* that has succeeded.
    pub fn extend(&self, until: Instant) {
        let nanoseconds = until.saturating_duration_since(self.start).as_nanos();
        let nanoseconds = u64::try_from(nanoseconds).unwrap_or(u64::MAX);
        let before = self.until.fetch_max(nanoseconds, Ordering::AcqRel);
        if self.start + Duration::from_nanos(before) <= Instant::now()
            && let Some(wake) = &*self.wake.lock()
        {
            wake();
        }
    }

    /// Ends it now: this process lets another one serve.
    pub fn end(&self) {
        self.until.store(0, Ordering::Release);
    }

    /// Whether it lasts.
    pub fn lasts(&self) -> bool {
        self.lasts_at(Instant::now())
    }

    fn lasts_at(&self, now: Instant) -> bool {
        let until = Duration::from_nanos(self.until.load(Ordering::Acquire));
        now.saturating_duration_since(self.start) < until
    }

    pub(crate) fn on_return(&self, wake: Box<dyn Fn() + Send>) {
        *self.wake.lock() = Some(wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lasts_until_the_latest_end_that_was_set() {
        let (lease, second) = (Lease::new(), Duration::from_secs(1));
        assert!(!lease.lasts_at(lease.start));
        lease.extend(lease.start + 3 * second);
        lease.extend(lease.start + 2 * second);
        assert!(lease.lasts_at(lease.start + 2 * second));
        assert!(!lease.lasts_at(lease.start + 3 * second));
        lease.end();
        assert!(!lease.lasts_at(lease.start));
    }
}
