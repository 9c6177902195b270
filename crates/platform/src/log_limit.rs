//! Limits how often something that clients can cause is logged.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Between two lines.
const PAUSE: Duration = Duration::from_secs(10);

/// When it was logged last, and how often it has occurred since.
#[derive(Debug)]
pub(crate) struct LogLimit(Mutex<(Option<Instant>, u64)>);

impl LogLimit {
    pub(crate) const fn new() -> LogLimit {
        LogLimit(Mutex::new((None, 0)))
    }

    /// It has occurred: if it is to be logged, how often since the last line.
    pub(crate) fn occurred(&self, now: Instant) -> Option<u64> {
        let (logged, times) = &mut *self.0.lock();
        *times += 1;
        let is_due = logged.is_none_or(|at| now.duration_since(at) >= PAUSE);
        is_due.then(|| {
            *logged = Some(now);
            std::mem::take(times)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_often_it_has_occurred() {
        let (limit, start) = (LogLimit::new(), Instant::now());
        assert_eq!(limit.occurred(start), Some(1));
        assert_eq!((0..5).filter_map(|_| limit.occurred(start)).count(), 0);
        assert_eq!(limit.occurred(start + PAUSE), Some(6));
    }
}
