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

impl DropReason {
    /// All of them, in the order of their numbers.
    pub const ALL: [DropReason; 10] = [
        DropReason::Random,
        DropReason::EveryNth,
        DropReason::Burst,
        DropReason::QueueFull,
        DropReason::Aqm,
        DropReason::TooBig,
        DropReason::Down,
        DropReason::Nat,
        DropReason::Malformed,
        DropReason::NoRoute,
    ];

    /// As in JSON and in captures.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            DropReason::Random => "random",
            DropReason::EveryNth => "every-nth",
            DropReason::Burst => "burst",
            DropReason::QueueFull => "queue-full",
            DropReason::Aqm => "aqm",
            DropReason::TooBig => "too-big",
            DropReason::Down => "down",
            DropReason::Nat => "nat",
            DropReason::Malformed => "malformed",
            DropReason::NoRoute => "no-route",
        }
    }
}
