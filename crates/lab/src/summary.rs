//! The summary of a run over one link, for people and as JSON.

use std::fmt;

use serde::Serialize;

use crate::link::{Direction, DirectionStats, DropReason};
use crate::observe::{FlowReport, Flows, Volume};
use crate::router::{Lateness, Outcome};
use crate::units::Nanos;

/// Lateness above these bounds (median, 99th percentile; in ns) causes a warning: the emulator's promised accuracy.
const PROMISED: [u64; 2] = [200_000, 1_000_000];

/// The most flows in a summary.
pub const MAX_FLOWS: usize = 1000;
/// Flows that are shown to people.
const SHOWN_FLOWS: usize = 8;

/// The results of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The seed that repeats its decisions.
    pub seed: u64,
    /// Duration in s.
    pub seconds: f64,
    /// Statistics of what the near host sent.
    pub up: DirectionStats,
    /// Statistics of what was sent to it.
    pub down: DirectionStats,
    /// Lateness of packets when they were written.
    pub lateness: Lateness,
    /// Whether that is within what the emulator promises.
    pub on_time: bool,
    /// Whether the router had real-time priority.
    pub realtime: bool,
    /// Whether it ran in a user namespace.
    pub unprivileged: bool,
    /// Packets lost without a decision of the link model: the devices' queues were full, or the kernel refused them.
    pub accidents: u64,
    /// Processor time of the router, in s.
    pub router_cpu_seconds: f64,
    /// The near host's flows, the first [`MAX_FLOWS`].
    pub flows: Vec<FlowReport>,
}

impl Summary {
    pub(crate) fn new(
        seed: u64,
        took: Nanos,
        unprivileged: bool,
        overflowed: u64,
        outcome: &Outcome,
        flows: &Flows,
    ) -> Summary {
        let reports = flows.flows().iter().map(FlowReport::from);
        let stats = |direction| {
            let link = outcome.topology.link(0);
            link.map(|link| link.stats(direction).clone()).unwrap_or_default()
        };
        let Lateness { p50_ns, p99_ns, .. } = outcome.lateness;
        Summary {
            seed,
            seconds: took as f64 / 1e9,
            up: stats(Direction::Up),
            down: stats(Direction::Down),
            lateness: outcome.lateness,
            on_time: p50_ns <= PROMISED[0] && p99_ns <= PROMISED[1],
            realtime: outcome.realtime,
            unprivileged,
            accidents: overflowed + outcome.refused,
            router_cpu_seconds: outcome.cpu_ns as f64 / 1e9,
            flows: reports.filter(|flow| !flow.is_noise()).take(MAX_FLOWS).collect(),
        }
    }
}

fn flow(f: &mut fmt::Formatter<'_>, flow: &FlowReport) -> fmt::Result {
    let sum = |volumes: &[(_, Volume)]| volumes.iter().map(|(_, one)| one.packets).sum::<u64>();
    write!(
        f,
        "  flow: {} to {}: {} packets sent, {} lost, {} received",
        flow.protocol,
        flow.far,
        sum(&flow.sent),
        flow.lost.packets,
        sum(&flow.received)
    )?;
    if let Some(spin) = flow.spin.filter(|spin| spin.takes_part && spin.two_way.count > 0) {
        let shown = spin.two_way;
        write!(
            f,
            "; round trip by the spin bit {:.1} ms (median of {}, {} of them sure)",
            shown.p50 as f64 / 1e6,
            shown.count,
            shown.sure
        )?;
    }
    writeln!(f)
}

fn direction(f: &mut fmt::Formatter<'_>, name: &str, stats: &DirectionStats) -> fmt::Result {
    write!(
        f,
        "{name:>6}: {} packets, {} bytes sent; {} packets, {} bytes arrived",
        stats.offered_packets, stats.offered_bytes, stats.delivered_packets, stats.delivered_bytes
    )?;
    let reasons: Vec<_> = DropReason::ALL
        .into_iter()
        .filter(|reason| stats.dropped(*reason) > 0)
        .map(|reason| format!("{} {}", reason.name(), stats.dropped(reason)))
        .collect();
    if !reasons.is_empty() {
        write!(f, "; lost: {}", reasons.join(", "))?;
    }
    let counts = [
        ("corrupted", stats.corrupted),
        ("doubled", stats.duplicated),
        ("held back", stats.reordered),
    ];
    for (what, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
        write!(f, "; {what}: {count}")?;
    }
    writeln!(f)
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  link: {:.1} s, seed {}", self.seconds, self.seed)?;
        direction(f, "up", &self.up)?;
        direction(f, "down", &self.down)?;
        for one in self.flows.iter().take(SHOWN_FLOWS) {
            flow(f, one)?;
        }
        if self.flows.len() > SHOWN_FLOWS {
            writeln!(f, "        and {} more flows (see --json)", self.flows.len() - SHOWN_FLOWS)?;
        }
        let milliseconds = |ns: u64| ns as f64 / 1e6;
        let Lateness { p50_ns, p99_ns, max_ns, .. } = self.lateness;
        write!(
            f,
            "  late: {:.3} ms at the median, {:.3} ms at p99, {:.3} ms at most",
            milliseconds(p50_ns),
            milliseconds(p99_ns),
            milliseconds(max_ns)
        )?;
        if !self.on_time {
            write!(f, "; this machine was too busy for exact figures")?;
        }
        if self.accidents > 0 {
            write!(f, "\n        {} packets were lost by accident", self.accidents)?;
        }
        Ok(())
    }
}
