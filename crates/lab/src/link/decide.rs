//! What happens to each packet: loss, corruption, duplication, reordering, jitter. Each decision is a hash of
//! (seed, flow, direction, index, purpose), so that neither timing nor other flows nor other impairments change it.
//!
//! The mixing function is SplitMix64's finalizer (Steele, Lea, Flood 2014), applied in a chain.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::flow::Flow;
use super::splitmix::mix;
use super::{Direction, DropReason, FlowKey, Impairments, JitterShape};

/// What a draw is for. A number never changes its meaning, or old seeds would decide anew.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    Loss = 1,
    BurstState = 2,
    BurstLoss = 3,
    Corrupt = 4,
    CorruptBit = 5,
    Jitter = 6,
    JitterSecond = 7,
    Reorder = 8,
    Duplicate = 9,
}

/// What is decided about one packet, whatever the queue does with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// Lost, and for which reason ([`DropReason::Random`], `EveryNth` or `Burst`).
    pub lost: Option<DropReason>,
    /// One bit is flipped: this number modulo the number of bits behind the IP header.
    pub corrupt: Option<u64>,
    /// It arrives twice.
    pub duplicate: bool,
    /// It is held back.
    pub reorder: bool,
    /// What is added to the delay, in ns.
    pub jitter: i64,
}

impl Decision {
    fn is_remarkable(&self) -> bool {
        self.lost.is_some() || self.corrupt.is_some() || self.duplicate || self.reorder
    }
}

/// Draws the decisions of one direction of one link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decider {
    seed: u64,
}

impl Decider {
    pub(crate) fn new(seed: u64, direction: Direction) -> Decider {
        Decider { seed: mix(mix(seed) ^ direction as u64) }
    }

    fn draw(self, flow: u64, index: u64, purpose: Purpose) -> u64 {
        mix(mix(mix(self.seed ^ flow) ^ index) ^ purpose as u64)
    }

    /// A number in [0, 1) with 53 bits.
    fn unit(self, flow: u64, index: u64, purpose: Purpose) -> f64 {
        (self.draw(flow, index, purpose) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Decides about a flow's packet. The burst model keeps its state in the flow: every packet of
    /// a flow must be decided once, in order.
    pub(crate) fn decide(
        self,
        flow: &mut Flow,
        direction: Direction,
        index: u64,
        impairments: &Impairments,
    ) -> Decision {
        let key = flow.key.hash();
        let happens = |share: f64, purpose| share > 0.0 && self.unit(key, index, purpose) < share;
        let mut lost = happens(impairments.loss, Purpose::Loss).then_some(DropReason::Random);
        if impairments.drop_every > 0 && (index + 1).is_multiple_of(impairments.drop_every) {
            lost = lost.or(Some(DropReason::EveryNth));
        }
        if let Some(bursts) = impairments.bursts {
            let bad = &mut flow.bad[direction as usize];
            let turn = if *bad { bursts.to_good } else { bursts.to_bad };
            *bad ^= happens(turn, Purpose::BurstState);
            let loss = if *bad { bursts.loss_bad } else { bursts.loss_good };
            if happens(loss, Purpose::BurstLoss) {
                lost = lost.or(Some(DropReason::Burst));
            }
        }
        Decision {
            lost,
            corrupt: happens(impairments.corrupt, Purpose::Corrupt)
                .then(|| self.draw(key, index, Purpose::CorruptBit)),
            duplicate: happens(impairments.duplicate, Purpose::Duplicate),
            reorder: happens(impairments.reorder, Purpose::Reorder),
            jitter: self.jitter(key, index, impairments),
        }
    }

    fn jitter(self, flow: u64, index: u64, impairments: &Impairments) -> i64 {
        if impairments.jitter == 0 {
            return 0;
        }
        let first = self.unit(flow, index, Purpose::Jitter);
        let factor = match impairments.jitter_shape {
            JitterShape::Uniform => 2.0 * first - 1.0,
            JitterShape::Normal => {
                // Box–Muller; 1 − u avoids the logarithm of zero.
                let second = self.unit(flow, index, Purpose::JitterSecond);
                let radius = (-2.0 * (1.0 - first).ln()).sqrt();
                (radius * (std::f64::consts::TAU * second).cos()).clamp(-3.0, 3.0)
            }
        };
        (impairments.jitter as f64 * factor) as i64
    }
}

/// A packet about which something out of the ordinary was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LogEntry {
    /// The packet's flow.
    pub flow: FlowKey,
    /// Its direction.
    pub direction: Direction,
    /// Its index in its flow and direction, from 0.
    pub index: u64,
    /// What was decided.
    pub decision: Decision,
}

impl fmt::Display for LogEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LogEntry { flow, direction, index, decision } = self;
        write!(f, "{flow} {} {index}", direction.name())?;
        if let Some(reason) = decision.lost {
            write!(f, " lost={}", reason.name())?;
        }
        if let Some(bit) = decision.corrupt {
            write!(f, " corrupt={bit:016x}")?;
        }
        if decision.duplicate {
            write!(f, " duplicate")?;
        }
        if decision.reorder {
            write!(f, " reorder")?;
        }
        write!(f, " jitter={}ns", decision.jitter)
    }
}

/// Where two logs disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The flow.
    pub flow: FlowKey,
    /// The direction.
    pub direction: Direction,
    /// Index of the first packet about which the two decided differently.
    pub index: u64,
}

/// One direction of one flow in the log.
#[derive(Clone, Debug, Default)]
struct FlowLog {
    /// Packets decided about.
    decided: u64,
    /// Those that were remarkable, by index.
    entries: Vec<(u64, Decision)>,
    /// From this packet on entries were left out, for want of room.
    cut_at: Option<u64>,
}

/// What was decided, to compare runs by. Only packets about which something out of the ordinary was
/// decided are kept, and how many were decided in all.
#[derive(Clone, Debug)]
pub struct DecisionLog {
    flows: BTreeMap<(FlowKey, Direction), FlowLog>,
    room: usize,
}

impl DecisionLog {
    /// A log with room for so many entries (about 64 bytes each); further ones are left out.
    #[must_use]
    pub fn new(room: usize) -> DecisionLog {
        DecisionLog { flows: BTreeMap::new(), room }
    }

    pub(crate) fn record(
        &mut self,
        flow: FlowKey,
        direction: Direction,
        index: u64,
        decision: Decision,
    ) {
        let log = self.flows.entry((flow, direction)).or_default();
        log.decided = index + 1;
        if !decision.is_remarkable() {
            return;
        }
        if self.room == 0 {
            log.cut_at.get_or_insert(index);
            return;
        }
        self.room -= 1;
        log.entries.push((index, decision));
    }

    /// All entries: by flow, direction, index.
    pub fn entries(&self) -> impl Iterator<Item = LogEntry> + '_ {
        self.flows.iter().flat_map(|(&(flow, direction), log)| {
            log.entries.iter().map(move |&(index, decision)| LogEntry {
                flow,
                direction,
                index,
                decision,
            })
        })
    }

    /// How many packets both logs have decided about.
    #[must_use]
    pub fn common(&self, other: &DecisionLog) -> u64 {
        self.pairs(other).map(|(_, ours, theirs)| FlowLog::common(ours, theirs)).sum()
    }

    /// The first packet about which the two decided differently, among those both decided about:
    /// runs of the same seed may well differ in how many packets a flow has.
    #[must_use]
    pub fn first_difference(&self, other: &DecisionLog) -> Option<Difference> {
        self.pairs(other).find_map(|(&(flow, direction), ours, theirs)| {
            let common = FlowLog::common(ours, theirs);
            let index = first_difference(&ours.entries, &theirs.entries)?;
            (index < common).then_some(Difference { flow, direction, index })
        })
    }

    fn pairs<'a>(
        &'a self,
        other: &'a DecisionLog,
    ) -> impl Iterator<Item = (&'a (FlowKey, Direction), &'a FlowLog, &'a FlowLog)> {
        self.flows
            .iter()
            .filter_map(|(key, ours)| other.flows.get(key).map(|theirs| (key, ours, theirs)))
    }
}

impl FlowLog {
    fn common(ours: &FlowLog, theirs: &FlowLog) -> u64 {
        let known = |log: &FlowLog| log.cut_at.unwrap_or(log.decided);
        known(ours).min(known(theirs))
    }
}

/// The lowest index that is in only one of the two, or in both with different decisions.
fn first_difference(ours: &[(u64, Decision)], theirs: &[(u64, Decision)]) -> Option<u64> {
    let same = ours.iter().zip(theirs).take_while(|(ours, theirs)| ours == theirs).count();
    let index = |entries: &[(u64, Decision)]| entries.get(same).map(|entry| entry.0);
    index(ours).into_iter().chain(index(theirs)).min()
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
