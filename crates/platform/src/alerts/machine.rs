//! One rule on one series, as a state machine in event time: it only knows when values were measured, so that
//! readings that arrive hours late after an outage have the same result.
//!
//! It does no I/O and its memory is limited: a window of sums for the mean, and since when the limit has been
//! exceeded. [`Machine::receive`] documents what a measurement causes.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::time::Time;

/// The number of parts of a window for the mean.
const PARTS: i64 = 30;

/// The wrong side of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitSide {
    Above,
    Below,
}

/// When a value is wrong, and when it is right again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Condition {
    pub(crate) side: LimitSide,
    /// Values beyond this are wrong.
    pub(crate) limit: f64,
    /// Values at this or beyond it are right again; it is on the right side of `limit`.
    pub(crate) clear: f64,
    /// Time for which it must be wrong.
    pub(crate) for_ms: i64,
    /// The averaging time; 0 for single values.
    pub(crate) averaging_ms: i64,
    /// After this time without a measurement, it is unknown whether the value stayed wrong.
    pub(crate) gap_ms: i64,
}

impl Condition {
    fn exceeded(&self, value: f64) -> bool {
        match self.side {
            LimitSide::Above => value > self.limit,
            LimitSide::Below => value < self.limit,
        }
    }

    fn cleared(&self, value: f64) -> bool {
        match self.side {
            LimitSide::Above => value <= self.clear,
            LimitSide::Below => value >= self.clear,
        }
    }

    /// The worse of two values.
    pub(crate) fn worse(&self, one: f64, other: f64) -> f64 {
        match self.side {
            LimitSide::Above => one.max(other),
            LimitSide::Below => one.min(other),
        }
    }
}

/// The state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
enum Phase {
    #[default]
    Calm,
    /// Beyond the limit since this time, but not for long enough.
    Pending {
        since: i64,
        peak: f64,
    },
    Raised {
        peak: f64,
    },
}

/// Sum and number of the values in a part of the window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Part {
    number: i64,
    sum: f64,
    count: u32,
}

/// The result of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Step {
    /// No change; while an alert is raised, with the rule's present value and the worst so far.
    Same { raised: Option<(f64, f64)> },
    /// The value is wrong from this measurement on.
    Raised { value: f64, peak: f64 },
    /// The value is right again from this measurement on; `peak` is the worst value.
    Cleared { value: f64, peak: f64 },
}

/// The state of a rule for a series.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    #[serde(rename = "at", skip_serializing_if = "Option::is_none")]
    last_at: Option<i64>,
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    window: VecDeque<Part>,
    phase: Phase,
}

impl Machine {
    /// Handles a measurement that is not older than the last.
    pub(crate) fn receive(&mut self, condition: &Condition, at: Time, value: f64) -> Step {
        let since = self.last_at.map(|last| at.0.saturating_sub(last));
        let gap = since.is_some_and(|since| since > condition.gap_ms);
        self.last_at = Some(at.0);
        let value = self.mean(condition.averaging_ms, at, value);
        let interval_ms = since.filter(|_| !gap).unwrap_or(0);
        let covered = self.is_covered(condition, interval_ms);
        if gap && matches!(self.phase, Phase::Pending { .. }) {
            self.phase = Phase::Calm;
        }
        match self.phase {
            Phase::Raised { peak } => {
                let peak = if covered { condition.worse(peak, value) } else { peak };
                if covered && condition.cleared(value) {
                    self.phase = Phase::Calm;
                    return Step::Cleared { value, peak };
                }
                self.phase = Phase::Raised { peak };
                Step::Same { raised: Some((value, peak)) }
            }
            _ if !covered || !condition.exceeded(value) => {
                self.phase = Phase::Calm;
                Step::Same { raised: None }
            }
            phase => {
                let (since, peak) = match phase {
                    Phase::Pending { since, peak } => (since, condition.worse(peak, value)),
                    _ => (at.0, value),
                };
                if at.0.saturating_sub(since) < condition.for_ms {
                    self.phase = Phase::Pending { since, peak };
                    return Step::Same { raised: None };
                }
                self.phase = Phase::Raised { peak };
                Step::Raised { value, peak }
            }
        }
    }

    /// Whether the window has enough measurements for its mean: from the first to the last, they cover the averaging
    /// time except for one interval (and the part of the window that rounding may cost), not counting the time
    /// between measurements further apart than the longest gap.
    fn is_covered(&self, condition: &Condition, interval_ms: i64) -> bool {
        if condition.averaging_ms <= 0 {
            return true;
        }
        let length = part_ms(condition.averaging_ms);
        let pairs = self.window.iter().zip(self.window.iter().skip(1));
        let apart = pairs.map(|(before, after)| (after.number - before.number) * length);
        let (mut covered_ms, mut longest_ms) = (0, interval_ms);
        for apart_ms in apart.filter(|apart_ms| *apart_ms <= condition.gap_ms + length) {
            covered_ms += apart_ms;
            // Intervals within a part are unknown.
            longest_ms = longest_ms.max(if apart_ms > length { apart_ms } else { 0 });
        }
        covered_ms >= condition.averaging_ms - longest_ms - length
    }

    /// Fills the window with measurements from before the rule was applied, oldest first.
    pub(crate) fn recall(&mut self, condition: &Condition, measured: &[(Time, f64)]) {
        for &(at, value) in measured {
            self.mean(condition.averaging_ms, at, value);
            self.last_at = Some(at.0);
        }
    }

    /// Whether it has not handled any measurement yet.
    pub(crate) fn is_new(&self) -> bool {
        self.last_at.is_none()
    }

    /// Whether it is wrong now.
    pub(crate) fn is_raised(&self) -> bool {
        matches!(self.phase, Phase::Raised { .. })
    }

    /// The mean over the window that ends with this value, as far as there are measurements.
    fn mean(&mut self, averaging_ms: i64, at: Time, value: f64) -> f64 {
        if averaging_ms <= 0 {
            return value;
        }
        let length = part_ms(averaging_ms);
        let number = at.0.div_euclid(length);
        while self.window.front().is_some_and(|part| part.number <= number - PARTS) {
            self.window.pop_front();
        }
        match self.window.back_mut() {
            Some(part) if part.number == number => {
                part.sum += value;
                part.count = part.count.saturating_add(1);
            }
            _ => self.window.push_back(Part { number, sum: value, count: 1 }),
        }
        let sum: f64 = self.window.iter().map(|part| part.sum).sum();
        let count: f64 = self.window.iter().map(|part| f64::from(part.count)).sum();
        sum / count
    }
}

/// The length of a part of the window.
fn part_ms(averaging_ms: i64) -> i64 {
    (averaging_ms / PARTS).max(1)
}

/// A period during which the value was wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Episode {
    pub(crate) raised_at: Time,
    pub(crate) cleared_at: Option<Time>,
    pub(crate) value: f64,
    pub(crate) peak: f64,
}

/// All episodes in measurements that are in order, and the state at the end.
pub(crate) fn replay(condition: &Condition, measured: &[(Time, f64)]) -> (Vec<Episode>, Machine) {
    let mut machine = Machine::default();
    let mut episodes: Vec<Episode> = Vec::new();
    for &(at, value) in measured {
        match (machine.receive(condition, at, value), episodes.last_mut()) {
            (Step::Raised { value, peak }, _) => {
                episodes.push(Episode { raised_at: at, cleared_at: None, value, peak });
            }
            (Step::Cleared { value, peak }, Some(episode)) => {
                (episode.cleared_at, episode.value, episode.peak) = (Some(at), value, peak);
            }
            (Step::Same { raised: Some((value, peak)) }, Some(episode)) => {
                (episode.value, episode.peak) = (value, peak);
            }
            _ => {}
        }
    }
    (episodes, machine)
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
