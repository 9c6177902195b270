//! A sender's settings, and its bounds.

use std::time::Duration;

use crate::NodeId;
use crate::partition::Unfit;
use crate::rs::{Code, MAX_SYMBOLS};

/// Objects a sender holds at most.
pub(crate) const MAX_OBJECTS: usize = 1024;
/// What IPv4 and UDP add to a datagram.
pub(crate) const DATAGRAM_OVERHEAD_BYTES: usize = 28;
/// How much a caller that comes late may catch up on at once.
pub(crate) const BURST: Duration = Duration::from_millis(10);
/// Round-trip times are not taken for shorter, because programs need time too.
pub(crate) const MIN_GRTT: Duration = Duration::from_millis(5);
/// The least and the longest time between probes where the rate depends on their answers; many of them get lost.
const ADAPTIVE_PROBES: (Duration, Duration) =
    (Duration::from_millis(20), Duration::from_millis(50));
/// The longest time between probes otherwise, and between flushes to one receiver. A link that was stuck for seconds looks
/// as if round trips took that long; that is to be forgotten soon, also where most answers get lost.
const LONGEST_PROBES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(1));
/// What takes longer is no answer any more.
pub(crate) const MAX_RTT: Duration = Duration::from_secs(15);

/// What sort of object it is to the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file.
    File,
    /// Bytes in memory.
    Memory,
}

/// A sender's settings.
#[derive(Clone, Debug, PartialEq)]
pub struct SenderConfig {
    /// Its identity.
    pub node: NodeId,
    /// Tells this run of it from others.
    pub instance: u16,
    /// Length of a symbol; a datagram is 32 bytes longer.
    pub symbol_bytes: u16,
    /// What is added to each datagram before it is sent, such as [`crate::encryption::OVERHEAD_BYTES`].
    pub encryption_bytes: u16,
    /// Source symbols of a block, at least 1.
    pub block_symbols: u8,
    /// Parity symbols there are for each block; not more than 255 with `block_symbols`.
    pub parity_symbols: u8,
    /// Bytes a second, IPv4 and UDP headers included.
    pub rate_bytes_per_s: u64,
    /// The rate is found out, and the one given is the highest.
    pub adaptive: bool,
    /// Receivers may have most of the objects from an earlier run: they are asked what they lack, instead of
    /// being sent everything first.
    pub ask_first: bool,
    /// Longest wait of a receiver before a NACK, in round-trip times, 0 to 15. 0 is for a single
    /// receiver; a group needs 4 or so, lest all speak at once.
    pub backoff: u8,
    /// About how many receivers there are.
    pub group_size: u32,
    /// How many receivers have to acknowledge before it ends; besides, everybody heard of has to.
    pub receivers: usize,
    /// How often the end is announced if no receiver is expected.
    pub robust: u32,
    /// How long it waits for a receiver that is not heard of, once all is sent.
    pub patience: Duration,
    /// The round-trip time as long as none is measured.
    pub initial_rtt: Duration,
}

impl Default for SenderConfig {
    /// For one receiver, datagrams of 1500 bytes with headers and room for 16 more, 1 Mbit/s.
    fn default() -> Self {
        SenderConfig {
            node: 1,
            instance: 1,
            symbol_bytes: 1424,
            encryption_bytes: 0,
            block_symbols: 64,
            parity_symbols: 191,
            rate_bytes_per_s: 125_000,
            adaptive: false,
            ask_first: false,
            backoff: 0,
            group_size: 10,
            receivers: 1,
            robust: 20,
            patience: Duration::from_secs(30),
            initial_rtt: Duration::from_millis(100),
        }
    }
}

/// Why settings make no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A reserved identity.
    #[error("0 and 4294967295 are not valid identities")]
    Node,
    /// A length of zero, or one that no datagram has.
    #[error("symbols must have 1 to 65000 bytes")]
    Symbol,
    /// More symbols than the code has.
    #[error("a block must have 1 to {MAX_SYMBOLS} symbols, including parity")]
    Block,
    /// Nothing can be sent at no rate.
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
    /// The sender holds too many.
    #[error("at most {MAX_OBJECTS} objects")]
    TooMany,
    /// The info is longer than a symbol.
    #[error("the info does not fit a datagram")]
    Info,
    /// It was told that no more come.
    #[error("the sender is about to end")]
    Finished,
}

impl SenderConfig {
    /// What a message takes on the way.
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

    /// Often while nothing is known, rarely in large groups.
    pub(crate) fn probe_interval(&self, grtt: Duration, measured: bool) -> Duration {
        match (self.backoff, measured) {
            (_, false) => Duration::from_millis(50),
            (0, true) if self.adaptive => (grtt / 4).clamp(ADAPTIVE_PROBES.0, ADAPTIVE_PROBES.1),
            (0, true) => grtt.clamp(Duration::from_millis(100), LONGEST_PROBES.0),
            _ => grtt.clamp(Duration::from_millis(200), LONGEST_PROBES.1),
        }
    }

    /// A flush and its answer are lost as easily as all else, and are short: few receivers are asked
    /// often. RFC 5740 has two round-trip times.
    pub(crate) fn flush_interval(&self, grtt: Duration, loss: f64) -> Duration {
        if self.backoff > 1 {
            return 2 * grtt;
        }
        grtt.mul_f64((1.0 - loss) / 2.0).clamp(MIN_GRTT, LONGEST_PROBES.0)
    }
}
