//! Remembers what each meter sent, so that nothing counts twice.
//!
//! Only what proved genuine comes here. A counter that the meter's key vouches for must grow: the
//! authentication layer's message counter, the extended link layer's session number. Besides, the
//! last [`REMEMBERED`] messages of each meter are known by a digest of access number and plain text, so
//! that a repeater's or second receiver's copy is noticed in every security mode. Older captures of
//! messages without a counter cannot be told from new ones; their meters should move to mode 7.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};

use crate::address::Address;

/// Messages remembered a meter. Far fewer than the 256 access numbers, after which a meter that stands
/// still may send the same bytes again.
const REMEMBERED: usize = 32;
/// Meters remembered; beyond, those heard least recently are forgotten.
const MAX_METERS: usize = 65_536;

/// A counter that grows with every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counter {
    /// None.
    None,
    /// Counter of a message; the same one twice is a replay.
    Message(u32),
    /// Counter of a session, which may have several messages.
    Session(u32),
}

impl Counter {
    /// The number, if there is one.
    pub(crate) const fn number(self) -> Option<u32> {
        match self {
            Self::None => None,
            Self::Message(number) | Self::Session(number) => Some(number),
        }
    }
}

#[derive(Debug, Default)]
struct Meter {
    message: Option<u32>,
    session: Option<u32>,
    recent: VecDeque<u64>,
    heard: u64,
}

/// Counters and recent messages of all meters.
#[derive(Debug, Default)]
pub(crate) struct ReplayGuard {
    meters: HashMap<Address, Meter>,
    digest: RandomState,
    clock: u64,
}

impl ReplayGuard {
    /// Whether this is new; it is not from then on.
    pub(crate) fn is_new(
        &mut self,
        meter: Address,
        counter: Counter,
        access: u8,
        plain: &[u8],
    ) -> bool {
        self.clock += 1;
        let digest = self.digest.hash_one((access, plain));
        if self.meters.len() >= MAX_METERS && !self.meters.contains_key(&meter) {
            self.forget();
        }
        let known = self.meters.entry(meter).or_default();
        known.heard = self.clock;
        let grows = match counter {
            Counter::None => true,
            Counter::Message(now) => known.message.is_none_or(|last| now > last),
            Counter::Session(now) => known.session.is_none_or(|last| now >= last),
        };
        if !grows || known.recent.contains(&digest) {
            return false;
        }
        match counter {
            Counter::None => {}
            Counter::Message(now) => known.message = Some(now),
            Counter::Session(now) => known.session = Some(now),
        }
        if known.recent.len() == REMEMBERED {
            known.recent.pop_front();
        }
        known.recent.push_back(digest);
        true
    }

    /// Drops the half of all meters that was heard least recently. Rare, so its cost is spread.
    fn forget(&mut self) {
        let mut heard: Vec<u64> = self.meters.values().map(|meter| meter.heard).collect();
        let half = heard.len() / 2;
        let (_, middle, _) = heard.select_nth_unstable(half);
        let middle = *middle;
        self.meters.retain(|_, meter| meter.heard >= middle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meter(number: u32) -> Address {
        let [a, b, c, d] = number.to_le_bytes();
        Address::from_link([1, 6, a, b, c, d, 1, 7])
    }

    #[test]
    fn the_same_message_counts_once() {
        let mut guard = ReplayGuard::default();
        assert!(guard.is_new(meter(1), Counter::None, 5, b"a"));
        assert!(!guard.is_new(meter(1), Counter::None, 5, b"a"));
        assert!(guard.is_new(meter(1), Counter::None, 6, b"a"), "the next access number");
        assert!(guard.is_new(meter(2), Counter::None, 5, b"a"), "another meter");
        for access in 0..REMEMBERED as u8 {
            assert!(guard.is_new(meter(1), Counter::None, 100 + access, b"a"));
        }
        assert!(guard.is_new(meter(1), Counter::None, 5, b"a"), "access numbers come round again");
    }

    #[test]
    fn counters_grow() {
        let mut guard = ReplayGuard::default();
        assert!(guard.is_new(meter(1), Counter::Message(7), 1, b"a"));
        assert!(!guard.is_new(meter(1), Counter::Message(7), 2, b"b"));
        assert!(!guard.is_new(meter(1), Counter::Message(6), 3, b"c"));
        assert!(guard.is_new(meter(1), Counter::Message(8), 4, b"d"));
        assert!(guard.is_new(meter(1), Counter::Session(9), 5, b"e"));
        assert!(guard.is_new(meter(1), Counter::Session(9), 6, b"f"), "one session, two messages");
        assert!(!guard.is_new(meter(1), Counter::Session(8), 7, b"g"));
    }

    #[test]
    fn meters_are_bounded() {
        let mut guard = ReplayGuard::default();
        for number in 0..MAX_METERS as u32 + 10 {
            assert!(guard.is_new(meter(number), Counter::None, 0, b""));
        }
        assert!(guard.meters.len() <= MAX_METERS / 2 + 11, "{}", guard.meters.len());
        assert!(!guard.is_new(meter(MAX_METERS as u32), Counter::None, 0, b""), "recent ones stay");
    }
}
