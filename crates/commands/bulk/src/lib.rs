//! `fulmar send` and `fulmar receive`: files over bad links, by the machines of `fulmar-bulk`.
//!
//! Here are sockets, files and output. `socket` interprets addresses, `files` stores received files in a folder,
//! `manifest` describes a file, `encryption` keeps strangers out, `channel` is a socket with encryption, `statistics`
//! has the statistics that senders report. `via` transfers files over TCP and QUIC, to compare; `stream`
//! carries standard input without an end (`fulmar send -`); `rollout` brings a file to many devices in stages.

mod channel;
mod encryption;
mod file_to_send;
mod files;
mod manifest;
mod memory;
mod own;
mod receive;
mod rollout;
mod send;
mod show;
mod socket;
mod state;
mod statistics;
mod stream;
mod via;

pub use receive::Args as ReceiveArgs;
pub use rollout::Args as RolloutArgs;
pub use send::Args as SendArgs;

use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};

use fulmar_command::{exit, runtime};

use crate::runtime::block_on;

/// How often a person is shown something new.
const SHOW: Duration = Duration::from_millis(200);

/// Sends files.
pub fn send(args: &SendArgs) -> anyhow::Result<()> {
    block_on(send::run(args))
}

/// Receives files.
pub fn receive(args: &ReceiveArgs) -> anyhow::Result<()> {
    block_on(receive::run(args))
}

/// Rolls a file out.
pub fn rollout(args: &RolloutArgs) -> anyhow::Result<()> {
    block_on(rollout::run(args))
}

/// A random identity of a receiver, and a random number beside it.
fn identity() -> anyhow::Result<(u32, u16)> {
    let [a, b, c, d, e, f] = encryption::random()?;
    // 0 and the greatest number are reserved.
    Ok((u32::from_be_bytes([a, b, c, d]).clamp(1, u32::MAX - 1), u16::from_be_bytes([e, f])))
}

/// Sleeps until a time on the machine's clock, or for good.
async fn sleep_until(start: Instant, deadline: Option<Duration>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until((start + deadline).into()).await,
        None => std::future::pending().await,
    }
}

/// Waits for the wish that the program end.
async fn interrupted() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("signals")?;
    tokio::select! {
        outcome = tokio::signal::ctrl_c() => outcome.context("signals"),
        _ = terminate.recv() => Ok(()),
    }
}
