//! Why packets do not arrive.

use serde::Serialize;

/// Why a packet did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DropReason {
    /// Random loss
    Random,
    /// Every nth packet of its flow
    EveryNth,
    /// Loss in bursts
    Burst,
    /// The queue was full, or more was under way than is ever held
    QueueFull,
    /// The queue's active management
    Aqm,
    /// Larger than the MTU
    TooBig,
    /// The link was down
    Down,
    /// The NAT has no mapping for it, or none left
    Nat,
    /// Not an IP packet
    Malformed,
    /// No host has its address
    NoRoute,
}

fulmar_text::names!(
    DropReason:
    Random = "random",
    EveryNth = "every-nth",
    Burst = "burst",
    QueueFull = "queue-full",
    Aqm = "aqm",
    TooBig = "too-big",
    Down = "down",
    Nat = "nat",
    Malformed = "malformed",
    NoRoute = "no-route",
);
