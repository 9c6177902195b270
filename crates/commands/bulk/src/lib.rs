//! `fulmar send` and `fulmar receive`: files over bad links, with the state machines of `fulmar-bulk`.
//!
//! This crate has sockets, files and output. `socket` interprets addresses, `files` stores received files in a
//! folder, `manifest` describes a file, `encryption` protects datagrams, `channel` is a socket with encryption,
//! `statistics` has the statistics that senders report. `via` transfers files over TCP and QUIC, for comparison;
//! `stream` carries standard input (`fulmar send -`); `rollout` distributes a file to many devices in stages.

mod channel;
mod encryption;
mod file_to_send;
mod files;
mod identity;
mod manifest;
mod memory;
mod receive;
mod rollout;
mod send;
mod show;
mod socket;
mod state;
mod statistics;
mod stream;
mod symlink_safe;
mod via;
mod wait;

pub use receive::Args as ReceiveArgs;
pub use rollout::Args as RolloutArgs;
pub use send::Args as SendArgs;

use fulmar_command::{exit, runtime};

use crate::runtime::block_on;

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
