//! The runtime of a command that does one piece of work and ends: one thread.

use anyhow::Context;

/// Does the work. What it left to other threads is waited for.
pub fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the runtime")?.block_on(work)
}
