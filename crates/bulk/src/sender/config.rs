//! A sender's settings and limits.

use std::time::Duration;

use crate::NodeId;
use crate::partition::Unfit;
use crate::rs::{Code, MAX_SYMBOLS};

/// The most objects of a sender.
pub(crate) const MAX_OBJECTS: usize = 1024;
/// Bytes that IPv4 and UDP add to a datagram.
pub(crate) const DATAGRAM_OVERHEAD_BYTES: usize = 28;
/// The most sending time that a late caller may catch up on at once.
pub(crate) const BURST: Duration = Duration::from_millis(10);
/// The shortest round-trip time, because programs need time too.
pub(crate) const MIN_GRTT: Duration = Duration::from_millis(5);
/// The shortest and longest interval of probes with an adaptive rate; many of them get lost.
const ADAPTIVE_PROBES: (Duration, Duration) =
    (Duration::from_millis(20), Duration::from_millis(50));
/// The longest interval of probes otherwise, and of flushes to one receiver. On a link that stalled for seconds,
/// round trips seem to take that long; that must be forgotten soon, even if most answers get lost.
const LONGEST_PROBES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(1));
/// Longer times are not round trips.
pub(crate) const MAX_RTT: Duration = Duration::from_secs(15);

/// The type of an object for the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file.
    File,
    /// Bytes in memory.
    Memory,
}

fulmar_text::with_defaults! {
    /// A sender's settings. The defaults are for one receiver: datagrams of 1500 bytes with headers and room for 16
    /// more, 1 Mbit/s.
    #[derive(Clone, Debug, PartialEq)]
    pub struct SenderConfig {
        /// The sender's identity.
        pub node: NodeId = 1,
        /// Distinguishes runs of the sender.
        pub instance: u16 = 1,
        /// Length of a symbol; a datagram is 32 bytes longer.
        pub symbol_bytes: u16 = 1424,
        /// Bytes added to each datagram before it is sent, such as [`crate::encryption::OVERHEAD_BYTES`].
        pub encryption_bytes: u16 = 0,
        /// Source symbols of a block, at least 1.
        pub block_symbols: u8 = 64,
        /// Parity symbols available per block; with `block_symbols` at most 255.
        pub parity_symbols: u8 = 191,
        /// Bytes per second, IPv4 and UDP headers included.
        pub rate_bytes_per_s: u64 = 125_000,
        /// Whether the rate adapts to the link; then the given rate is the highest.
        pub adaptive: bool = false,
        /// Whether receivers may have most of the objects from an earlier run: they are asked for what they lack first,
        /// instead of being sent everything.
        pub ask_first: bool = false,
        /// The longest wait of a receiver before a NACK, in round-trip times, 0 to 15. 0 is for a single receiver; a
        /// group needs about 4, so that receivers do not all send at once.
        pub backoff: u8 = 0,
        /// The approximate number of receivers.
        pub group_size: u32 = 10,
        /// The number of receivers that must acknowledge before the sender ends; besides, every receiver that sent
        /// something must.
        pub receivers: usize = 1,
        /// Number of announcements of the end if no receiver is expected.
        pub robust: u32 = 20,
        /// Longest wait for receivers once everything is sent: of objects, since the last repair or confirmation;
        /// of a stream, since a receiver's last feedback.
        pub patience: Duration = Duration::from_secs(30),
        /// The round-trip time until one is measured.
        pub initial_rtt: Duration = Duration::from_millis(100),
    }
}

/// Why settings are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A reserved identity.
    #[error("0 and 4294967295 are not valid identities")]
    Node,
    /// A length of zero, or longer than a datagram.
    #[error("symbols must have 1 to 65000 bytes")]
    Symbol,
    /// More symbols than the code allows.
    #[error("a block must have 1 to {MAX_SYMBOLS} symbols, including parity")]
    Block,
    /// A rate of zero.
    #[error("the rate is zero")]
    Rate,
    /// More than four bits.
    #[error("the backoff must be at most 15")]
    Backoff,
}

/// Why an object cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// It cannot be divided into blocks.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// The sender has too many.
    #[error("at most {MAX_OBJECTS} objects")]
    TooMany,
    /// The info is longer than a symbol.
    #[error("the info does not fit a datagram")]
    Info,
    /// The sender was called to finish.
    #[error("the sender is about to end")]
    Finished,
}

impl SenderConfig {
    /// The size of a message on the network.
    pub(crate) fn datagram_bytes(&self, message: &[u8]) -> u64 {
        (message.len() + usize::from(self.encryption_bytes) + DATAGRAM_OVERHEAD_BYTES) as u64
    }

    pub(crate) fn check(&self) -> Result<Code, ConfigError> {
        if self.node == 0 || self.node == NodeId::MAX {
            return Err(ConfigError::Node);
        }
        if !(1..=65_000).contains(&self.symbol_bytes) {
            return Err(ConfigError::Symbol);
        }
        if self.rate_bytes_per_s == 0 {
            return Err(ConfigError::Rate);
        }
        if self.backoff > 15 {
            return Err(ConfigError::Backoff);
        }
        Code::new(self.block_symbols.into(), self.parity_symbols.into()).ok_or(ConfigError::Block)
    }

    /// Often until a round-trip time is measured, rarely in large groups.
    pub(crate) fn probe_interval(&self, grtt: Duration, measured: bool) -> Duration {
        match (self.backoff, measured) {
            (_, false) => Duration::from_millis(50),
            (0, true) if self.adaptive => (grtt / 4).clamp(ADAPTIVE_PROBES.0, ADAPTIVE_PROBES.1),
            (0, true) => grtt.clamp(Duration::from_millis(100), LONGEST_PROBES.0),
            _ => grtt.clamp(Duration::from_millis(200), LONGEST_PROBES.1),
        }
    }

    /// A flush and its answer are short, and get lost as easily as other messages: few receivers are asked often. RFC
    /// 5740 has two round-trip times.
    pub(crate) fn flush_interval(&self, grtt: Duration, loss: f64) -> Duration {
        if self.backoff > 1 {
            return 2 * grtt;
        }
        grtt.mul_f64((1.0 - loss) / 2.0).clamp(MIN_GRTT, LONGEST_PROBES.0)
    }
}
