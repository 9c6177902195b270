//! Whether losses are the link's or ours, when nothing waits longer than it ever did: at half the rate, what is lost by
//! chance is lost as before, and what a full queue had no room for is not.
//!
//! Delay does not tell: who comes when somebody else keeps a queue full, as TCP BBR does with one of a round trip, knows the path
//! no other way and takes that for its length.

use std::time::Duration;

use super::path::Path;

/// Windows of the receiver after the rate was lowered: of the first a part was sent before, the others count.
const WINDOWS: u32 = 3;
/// TCP BBR takes what was there before for the link's rate for ten round trips of its own. Only then it yields.
const ROUNDS: u32 = 12;
/// A window is half a second long at most. Later the same figure is another window's.
const WAIT: Duration = Duration::from_secs(2);
/// Standard deviations that are no difference.
const CHANCE: f64 = 2.0;

/// What a trial came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Verdict {
    /// This share is lost by chance.
    Chance(f64),
    /// The link was full: only of what we sent, if losses ended at once; otherwise somebody else took what we left
    /// before giving way.
    Full { at_once: bool },
}

/// Half the rate, for a while.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    /// What the link seemed to carry, bytes a second.
    pub(super) before: f64,
    since: Duration,
    /// Between the usual loss and the one that was too much.
    middle: f64,
    /// The average at its highest: it was still rising when the trial began.
    peak: f64,
    /// The receiver's windows at the first look, those since, and what the last two lost.
    first: Option<u32>,
    seen: u32,
    last: [f64; 2],
}

impl Trial {
    pub(super) fn new(now: Duration, before: f64, path: &Path) -> Trial {
        let middle = (path.usual_loss() + path.loss()) / 2.0;
        let last = [0.0; 2];
        Trial { before, since: now, middle, peak: 0.0, first: None, seen: 0, last }
    }

    /// Takes note of what the path has lost by now.
    pub(super) fn look(&mut self, now: Duration, path: &Path) -> Option<Verdict> {
        let seen = path.windows().wrapping_sub(*self.first.get_or_insert(path.windows()));
        if seen > self.seen {
            self.seen = seen;
            self.last = [self.last[1], path.latest_loss()];
        }
        self.peak = self.peak.max(path.loss());
        let elapsed = now.saturating_sub(self.since);
        let long = elapsed > ROUNDS * path.rtt();
        let lost = if seen >= WINDOWS {
            f64::midpoint(self.last[0], self.last[1])
        } else if long && elapsed > WAIT {
            path.loss()
        } else {
            return None;
        };
        let stays = lost + CHANCE * path.deviation(2.0) > self.peak;
        if lost < self.middle {
            Some(Verdict::Full { at_once: seen == WINDOWS })
        } else if stays || long {
            Some(Verdict::Chance(lost))
        } else {
            None
        }
    }
}
