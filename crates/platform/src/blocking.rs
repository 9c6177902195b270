//! Work that blocks, off the runtime's thread and within a bound.
//!
//! Such work cannot be stopped: it goes on when the request it is for is gone. So what bounds it, a turn or a
//! permit, goes with the work and not with the request.

use crate::problem::{Result, internal};

/// Runs `work`, and gives `turn` back when it has ended, whether anybody still waits for it or not.
pub(crate) async fn run<G, T, F>(turn: G, work: F) -> Result<T>
where
    G: Send + 'static,
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let done = tokio::task::spawn_blocking(move || {
        let outcome = work();
        drop(turn);
        outcome
    });
    done.await.map_err(|error| internal(&error))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::{Semaphore, oneshot};

    #[tokio::test]
    async fn work_keeps_its_turn_when_its_request_is_gone() {
        let turns = Arc::new(Semaphore::new(1));
        let turn = Arc::clone(&turns).acquire_owned().await.unwrap();
        let (started, starts) = oneshot::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let work = move || {
            started.send(()).unwrap();
            ends.recv()
        };
        let request = tokio::spawn(super::run(turn, work));
        starts.await.unwrap();
        request.abort();
        assert!(request.await.unwrap_err().is_cancelled());
        assert_eq!(turns.available_permits(), 0, "it still runs");
        drop(end);
        turns.acquire().await.unwrap().forget();
    }
}
