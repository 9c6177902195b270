//! Signs of life: asks every worker whether it still ends its turns, for health checks and the service manager.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mio::Waker;

/// Time between two looks at the answers.
const LOOK: Duration = Duration::from_millis(5);

/// A worker's part.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    asked: AtomicU64,
    answered: AtomicU64,
}

impl Pulse {
    /// Answers the questions so far, or all when the worker has ended.
    pub(crate) fn answer(&self, has_ended: bool) {
        let asked = if has_ended { u64::MAX } else { self.asked.load(Ordering::Acquire) };
        self.answered.store(asked, Ordering::Release);
    }
}

/// Asks the workers of a [`crate::Server`]. Without any, as by default, all answer.
#[derive(Clone, Debug, Default)]
pub struct Liveness(Arc<[(Arc<Pulse>, Arc<Waker>)]>);

impl Liveness {
    pub(crate) fn new(workers: impl Iterator<Item = (Arc<Pulse>, Arc<Waker>)>) -> Liveness {
        Liveness(workers.collect())
    }

    /// Waits for every worker to end a turn, for about `patience`; returns the first that does not. It counts looks
    /// instead of time, which also passes while the whole process is paused.
    #[must_use]
    pub fn silent_worker(&self, patience: Duration) -> Option<usize> {
        let ask = |(pulse, waker): &(Arc<Pulse>, Arc<Waker>)| {
            let asked = pulse.asked.fetch_add(1, Ordering::AcqRel) + 1;
            // A waker that fails is a worker that does not answer.
            let _ = waker.wake();
            asked
        };
        let asked: Vec<u64> = self.0.iter().map(ask).collect();
        let silent = || {
            let mut workers = self.0.iter().zip(&asked);
            workers.position(|((pulse, _), asked)| pulse.answered.load(Ordering::Acquire) < *asked)
        };
        for _ in 0..patience.as_millis() / LOOK.as_millis() {
            silent()?;
            std::thread::sleep(LOOK);
        }
        silent()
    }
}
