//! Waiting for a time, and for the signal to end.

use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};

/// Sleeps until a time on the machine's clock, or for good.
pub(crate) async fn sleep_until(start: Instant, deadline: Option<Duration>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until((start + deadline).into()).await,
        None => std::future::pending().await,
    }
}

/// Waits for the wish that the program end.
pub(crate) async fn interrupted() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("signals")?;
    tokio::select! {
        outcome = tokio::signal::ctrl_c() => outcome.context("signals"),
        _ = terminate.recv() => Ok(()),
    }
}
