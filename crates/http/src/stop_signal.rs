//! The signal to stop, for all that serves.

use tokio::sync::watch;

/// Waits until `signal` says so, or its sender is gone.
pub(crate) async fn stopped(signal: &mut watch::Receiver<bool>) {
    // The result would hold a lock across what is awaited next.
    drop(signal.wait_for(|stop| *stop).await);
}
