//! How much space photos may take, over all twins and accounts; the rest of the database stays free for readings.
//!
//! Below half of it, an account stores what it wants; above, it may have as much as is still free, as with the broker's
//! memory. So one account gets half, two a third each. A twin gets three quarters, so that others are left some.

use std::collections::HashMap;
use std::time::Instant;

use parking_lot::Mutex;

use crate::log_limit::LogLimit;
use crate::problem::{Problem, Result};

/// Space that a photo takes besides its bytes: its row, and on average half a page at its end.
pub(crate) const OVERHEAD_BYTES: u64 = 2500;

/// The space, and who has how much of it.
#[derive(Debug)]
pub(crate) struct PhotoSpace {
    limit: u64,
    held: Mutex<SpaceUse>,
    log: LogLimit,
}

#[derive(Debug, Default)]
struct SpaceUse {
    bytes: u64,
    accounts: HashMap<String, u64>,
    twins: HashMap<String, u64>,
    refused: u64,
}

/// Space in use, space that may be used, and the number of photos that were refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PhotoTotals {
    pub(crate) used: u64,
    pub(crate) limit: u64,
    pub(crate) refused: u64,
}

impl PhotoSpace {
    /// Space of this many bytes.
    pub(crate) fn new(limit: u64) -> PhotoSpace {
        PhotoSpace { limit, held: Mutex::default(), log: LogLimit::new() }
    }

    /// Counts photos that are stored already: of this account in this twin.
    pub(crate) fn load(&self, twin: &str, account: &str, bytes: u64) {
        self.held.lock().add(twin, account, bytes);
    }

    /// Counts a photo that is to be stored.
    ///
    /// # Errors
    /// There is no room for it: 507.
    pub(crate) fn reserve(&self, twin: &str, account: &str, bytes: u64) -> Result<()> {
        let bytes = bytes + OVERHEAD_BYTES;
        let mut held = self.held.lock();
        let Some(detail) = held.lacks(self.limit, twin, account, bytes) else {
            held.add(twin, account, bytes);
            return Ok(());
        };
        held.refused += 1;
        let used = held.bytes;
        drop(held);
        if let Some(times) = self.log.occurred(Instant::now()) {
            tracing::warn!(
                twin,
                user = account,
                times,
                used,
                limit = self.limit,
                "photo refused: {detail} (account \"photos\" of [limits] disk)"
            );
        }
        Err(Problem::no_space(format!("{detail}; ask the server's operator for more")))
    }

    /// The photo was not stored after all.
    pub(crate) fn give_back(&self, twin: &str, account: &str, bytes: u64) {
        self.held.lock().remove(twin, account, bytes + OVERHEAD_BYTES);
    }

    pub(crate) fn totals(&self) -> PhotoTotals {
        let held = self.held.lock();
        PhotoTotals { used: held.bytes, limit: self.limit, refused: held.refused }
    }
}

impl SpaceUse {
    fn add(&mut self, twin: &str, account: &str, bytes: u64) {
        self.bytes += bytes;
        *self.accounts.entry(account.to_owned()).or_default() += bytes;
        *self.twins.entry(twin.to_owned()).or_default() += bytes;
    }

    fn remove(&mut self, twin: &str, account: &str, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        let both = [self.accounts.get_mut(account), self.twins.get_mut(twin)];
        for held in both.into_iter().flatten() {
            *held = held.saturating_sub(bytes);
        }
    }

    /// Why there is no room for a photo.
    fn lacks(&self, limit: u64, twin: &str, account: &str, bytes: u64) -> Option<&'static str> {
        let of = |held: &HashMap<String, u64>, name| held.get(name).copied().unwrap_or(0) + bytes;
        let free = limit.saturating_sub(self.bytes);
        match () {
            () if bytes > free => Some("the server's space for photos is full"),
            () if of(&self.twins, twin) > limit - limit / 4 => {
                Some("the space for this twin's photos is full")
            }
            () if self.bytes > limit / 2 && of(&self.accounts, account) > free => {
                Some("the space for this account's photos is full")
            }
            () => None,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const PHOTO: u64 = 10_000 - OVERHEAD_BYTES;

    fn fill(space: &PhotoSpace, twin: &str, account: &str) -> usize {
        (0..1000).take_while(|_| space.reserve(twin, account, PHOTO).is_ok()).count()
    }

    #[test]
    fn one_account_gets_half_and_others_still_have_room() {
        let space = PhotoSpace::new(1_000_000);
        assert_eq!(fill(&space, "north", "ann"), 51);
        assert_eq!(fill(&space, "north", "bob"), 24);
        assert_eq!(fill(&space, "north", "eve"), 0, "three quarters are the twin's");
        assert_eq!(fill(&space, "south", "eve"), 13);
        assert_eq!(space.reserve("north", "ann", PHOTO).unwrap_err().status(), 507);
        let PhotoTotals { used, refused, .. } = space.totals();
        assert_eq!((used, refused), (880_000, 5));
        space.give_back("north", "ann", PHOTO);
        assert_eq!(space.totals().used, 870_000);
    }

    #[test]
    fn what_was_stored_before_counts() {
        let space = PhotoSpace::new(1_000_000);
        space.load("north", "ann", 500_000);
        assert!(space.reserve("north", "ann", PHOTO).is_ok());
        assert_eq!(fill(&space, "north", "ann"), 0);
        space.load("south", "bob", 2_000_000);
        let full = space.reserve("south", "eve", 1).unwrap_err();
        assert!(full.detail().starts_with("the server's space"), "{full:?}");
    }
}
