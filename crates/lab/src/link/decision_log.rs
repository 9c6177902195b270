//! The decision log: which packets of each flow were impaired at random, to compare runs.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::impairment_sampler::Decision;
use super::{Direction, FlowKey};

/// An impaired packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LogEntry {
    /// The packet's flow.
    pub flow: FlowKey,
    /// Direction of the packet.
    pub direction: Direction,
    /// Index of the packet in its flow and direction, from 0.
    pub index: u64,
    /// Impairments that were decided.
    pub decision: Decision,
}

impl fmt::Display for LogEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LogEntry { flow, direction, index, decision } = self;
        write!(f, "{flow} {} {index}", direction.name())?;
        if let Some(reason) = decision.drop_reason {
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

/// The first difference between two logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The flow.
    pub flow: FlowKey,
    /// The direction.
    pub direction: Direction,
    /// Index of the first packet whose decisions differ.
    pub index: u64,
}

/// One direction of one flow in the log.
#[derive(Clone, Debug, Default)]
struct FlowLog {
    /// Packets drawn for.
    decided: u64,
    /// The impaired ones, by index.
    entries: Vec<(u64, Decision)>,
    /// The first packet whose entry was left out because the log was full.
    cut_at: Option<u64>,
}

/// The decisions of a run, to compare it with others. The log has the impaired packets, and the number of all
/// packets per flow and direction.
#[derive(Clone, Debug)]
pub struct DecisionLog {
    flows: BTreeMap<(FlowKey, Direction), FlowLog>,
    room: usize,
}

impl DecisionLog {
    /// A log with room for `room` entries (about 64 bytes each); further ones are left out.
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
        if !decision.is_impaired() {
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

    /// The number of packets that both logs cover.
    pub fn common(&self, other: &DecisionLog) -> u64 {
        self.pairs(other).map(|(_, ours, theirs)| FlowLog::common(ours, theirs)).sum()
    }

    /// The first packet whose decisions differ, among those that both logs cover: runs with the same seed may
    /// differ in the number of packets of a flow.
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
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::link::DropReason;

    fn log_of(entries: &[(u64, bool)]) -> DecisionLog {
        let flow = FlowKey { protocol: 17, service: 1883, ordinal: 1 };
        let mut log = DecisionLog::new(100);
        for (index, lost) in entries {
            let drop_reason = lost.then_some(DropReason::Random);
            log.record(
                flow,
                Direction::Up,
                *index,
                Decision { drop_reason, ..Decision::default() },
            );
        }
        log
    }

    #[test]
    fn logs_are_compared_as_far_as_both_go() {
        let long = log_of(&[(0, false), (1, true), (2, false), (3, true)]);
        let short = log_of(&[(0, false), (1, true), (2, false)]);
        assert_eq!((long.first_difference(&short), long.common(&short)), (None, 3));
        let other = log_of(&[(0, false), (1, true), (2, true)]);
        assert_eq!(long.first_difference(&other).map(|difference| difference.index), Some(2));
        assert_eq!(other.first_difference(&long).map(|difference| difference.index), Some(2));
    }

    #[test]
    fn a_full_log_says_less_but_nothing_wrong() {
        let flow = FlowKey { protocol: 17, service: 1883, ordinal: 1 };
        let lost = Decision { drop_reason: Some(DropReason::Random), ..Decision::default() };
        let mut small = DecisionLog::new(2);
        let mut large = DecisionLog::new(100);
        for index in 0..10 {
            small.record(flow, Direction::Up, index, lost);
            large.record(flow, Direction::Up, index, lost);
        }
        assert_eq!((small.first_difference(&large), small.common(&large)), (None, 2));
        assert_eq!(large.entries().count(), 10);
        assert_eq!(
            small.entries().next().unwrap().to_string(),
            "udp/1883/1 up 0 lost=random jitter=0ns"
        );
    }
}
