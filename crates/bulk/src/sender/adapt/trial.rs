//! Tests whether losses are random when there is no measurable queue: at half the rate, random loss remains, and loss
//! by a full queue disappears.
//!
//! Delay is not enough: a latecomer at a queue that another flow keeps full (TCP BBR fills one of a round trip) takes
//! that queue for a part of the path's length.

use std::time::Duration;

use super::path::Path;

/// Receiver windows after the rate was lowered: a part of the first was sent before, the others count.
const WINDOWS: u32 = 3;
/// TCP BBR keeps its estimate of the rate for ten of its round trips, and only then yields.
const ROUNDS: u32 = 12;
/// A window is at most half a second long. After this time, an equal loss rate is that of another window.
const WAIT: Duration = Duration::from_secs(2);
/// Differences of at most this many standard deviations are not significant.
const CHANCE: f64 = 2.0;

/// The result of a trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Verdict {
    /// This loss rate is random.
    Chance(f64),
    /// The link was full. `at_once`: only of the own packets, because losses ended at once; otherwise another flow
    /// first took the rate that this one freed.
    Full { at_once: bool },
}

/// Half the rate for some time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    /// The rate that the link seemed to carry, in bytes per second.
    pub(super) before: f64,
    since: Duration,
    /// Halfway between the baseline loss and the loss that caused the trial.
    middle: f64,
    /// The highest average: it was still rising when the trial began.
    peak: f64,
    /// The receiver's windows at the first call, those since, and the losses of the last two.
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

    /// Records the present losses of the path.
    pub(super) fn record_losses(&mut self, now: Duration, path: &Path) -> Option<Verdict> {
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
