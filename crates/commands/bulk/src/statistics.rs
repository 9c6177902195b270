//! Statistics that senders of files and of streams report.

use std::time::Duration;

use anyhow::bail;
use fulmar_bulk::SenderProgress;
use serde_json::{Value, json};

/// Statistics after this duration, at a rate in bytes per second.
pub(super) fn of_sender(after: Duration, progress: &SenderProgress, rate: u64) -> Value {
    json!({
        "seconds": after.as_secs_f64(),
        "total_bytes": progress.total_bytes,
        "sent_bytes": progress.sent_bytes,
        "datagrams": progress.datagrams,
        "repair_share": repair_share(progress),
        "loss": loss(progress),
        "rate_bit_s": rate * 8,
        "rtt_ms": progress.grtt.as_secs_f64() * 1e3,
        "nacks": progress.nacks,
        "receivers": progress.peers.len(),
        "confirmed": confirmed(progress),
    })
}

/// The greatest loss of a receiver, 0 to 1.
pub(super) fn loss(progress: &SenderProgress) -> f64 {
    progress.peers.iter().map(|peer| peer.loss).fold(0.0, f64::max)
}

/// The share of repairs in the sent bytes, 0 to 1.
pub(super) fn repair_share(progress: &SenderProgress) -> f64 {
    progress.repair_bytes as f64 / progress.sent_bytes.max(1) as f64
}

/// The number of receivers that have everything.
pub(super) fn confirmed(progress: &SenderProgress) -> usize {
    progress.peers.iter().filter(|peer| peer.confirmed).count()
}

/// Ending before all receivers have everything is a failure.
pub(super) fn check(complete: bool) -> anyhow::Result<()> {
    if !complete {
        bail!("not every receiver has acknowledged everything; see --patience and --receivers");
    }
    Ok(())
}
