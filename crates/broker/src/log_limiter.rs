//! Limits how often an error is logged that may occur a thousand times per second: the first is logged at once, later
//! ones at intervals with their count, so that they do not fill the log.

use std::time::Duration;

use fulmar_auth::Timestamp;

/// Time between two log lines about the same error.
const INTERVAL: Duration = Duration::from_secs(30);

/// Counts one kind of error, and says when to log it.
#[derive(Debug, Default)]
pub struct LogLimiter {
    unlogged: u64,
    next_at: Timestamp,
}

impl LogLimiter {
    /// Counts the error. If it is to be logged now, returns how often it has occurred since the last log line.
    pub fn occurred(&mut self, now: Timestamp) -> Option<u64> {
        self.unlogged += 1;
        if now < self.next_at {
            return None;
        }
        self.next_at = now + INTERVAL;
        Some(std::mem::take(&mut self.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_logged_at_once_and_then_with_its_count() {
        let mut limiter = LogLimiter::default();
        let start = Timestamp(1_000);
        assert_eq!(limiter.occurred(start), Some(1));
        for ms in 1..30_000 {
            assert_eq!(limiter.occurred(Timestamp(start.0 + ms)), None);
        }
        assert_eq!(limiter.occurred(start + INTERVAL), Some(30_000));
        assert_eq!(limiter.occurred(start + INTERVAL), None);
        assert_eq!(limiter.occurred(start + 3 * INTERVAL), Some(2));
    }
}
