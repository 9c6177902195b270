//! Round-trip times from QUIC's latency spin bit, seen from one point of the path (RFC 9000, 17.4;
//! RFC 9312, 3.8.2).
//!
//! The client inverts the bit that it receives, and the server echoes it, so that in each direction the bit changes
//! ("an edge") once per round trip. Time between edges of one direction is a one-way sample. With both directions in
//! view, an edge to the server and its echo enclose the far side's part of the path, the echo and the client's next
//! edge the near side's; their sum is a two-way sample.
//!
//! The known limits, and what is done about them:
//! - *Reordering* across an edge makes false edges: an edge sooner than an eighth of the running estimate is
//!   rejected, unless several in a row show that the path got faster.
//! - *Loss and idle senders* move an edge: the true one may have been anywhere between the packet that shows it and
//!   the packet before. That gap bounds the error. A sample whose gaps are below a quarter of it is *sure*; the
//!   others are kept separately, because a sender that waits for its answer never has smaller gaps.
//! - *Endpoints that disable the bit* (RFC 9000 has them do so for one connection in 16) hold the bit still, or
//!   randomise it: the first shows no edges, the second round trips far below that of the connection's own handshake,
//!   if that was seen.
//!
//! Packet numbers are encrypted, so a passive observer cannot do better.

use serde::Serialize;

use crate::units::Nanos;

/// An edge sooner than the estimate divided by this counts as reordering.
const TOO_SOON: Nanos = 8;
/// This many rejected edges in a row are accepted.
const DISBELIEF: u32 = 3;
/// A sample is sure if its gaps are at most the sample divided by this.
const SURE: Nanos = 4;
/// Round trips whose median is below the handshake's divided by this are not real.
const TOO_LITTLE: Nanos = 4;
/// The most samples per list; further ones are only counted.
const MAX_SAMPLES: usize = 1 << 20;
/// Packets without an edge after which the bit counts as disabled.
const STILL: u64 = 30;

/// The direction of a packet between client and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketDirection {
    /// From the client
    ToServer = 0,
    /// From the server
    ToClient = 1,
}

/// A round-trip time and what bounds its error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// When it was complete, in ns of the run's clock.
    pub at: Nanos,
    /// The round-trip time, in ns.
    pub rtt: Nanos,
    /// The largest error, in ns: the gaps before its edges.
    pub error: Nanos,
}

impl Sample {
    /// Whether the error is at most a quarter of it.
    pub fn is_sure(&self) -> bool {
        self.error.saturating_mul(SURE) <= self.rtt
    }
}

/// An accepted edge.
#[derive(Clone, Copy, Debug)]
struct Edge {
    at: Nanos,
    /// The time since the packet before it.
    gap: Nanos,
    value: bool,
}

#[derive(Clone, Debug, Default)]
struct DirectionState {
    value: Option<bool>,
    edge: Option<Edge>,
    last_packet: Nanos,
    packets: u64,
    edges: u64,
    disbelieved: u64,
    in_a_row: u32,
    estimate: Nanos,
    samples: Vec<Sample>,
}

impl DirectionState {
    /// Handles a packet; returns the edge if it shows one.
    fn packet(&mut self, at: Nanos, value: bool) -> Option<Edge> {
        let gap = at.saturating_sub(self.last_packet);
        self.last_packet = at;
        self.packets += 1;
        let Some(before) = self.value else {
            self.value = Some(value);
            return None;
        };
        if before == value {
            return None;
        }
        if let Some(edge) = self.edge {
            let rtt = at.saturating_sub(edge.at);
            if rtt < self.estimate / TOO_SOON && self.in_a_row < DISBELIEF {
                // The packet was sent before the edge; the bit's value stays.
                self.disbelieved += 1;
                self.in_a_row += 1;
                return None;
            }
            self.in_a_row = 0;
            self.estimate = match self.estimate {
                0 => rtt,
                estimate => estimate - estimate / 8 + rtt / 8,
            };
            push_sample(&mut self.samples, Sample { at, rtt, error: gap.max(edge.gap) });
        }
        self.value = Some(value);
        self.edges += 1;
        let edge = Edge { at, gap, value };
        self.edge = Some(edge);
        Some(edge)
    }
}

fn push_sample(samples: &mut Vec<Sample>, sample: Sample) {
    if samples.len() < MAX_SAMPLES {
        samples.push(sample);
    }
}

/// Observes one connection.
#[derive(Clone, Debug, Default)]
pub struct SpinBit {
    sides: [DirectionState; 2],
    /// The far part of a round trip whose near part is still open: its length and error, and the
    /// echo that closed it.
    far: Option<(Nanos, Nanos, Edge)>,
    two_way: Vec<Sample>,
    /// From the connection's first packet to the first in the other direction.
    handshake: Option<Nanos>,
}

impl SpinBit {
    /// Sets the first round trip of the handshake as seen from here, in ns: it shows whether the bit can mean round
    /// trips.
    pub fn handshake(&mut self, took: Nanos) {
        self.handshake.get_or_insert(took);
    }

    /// Handles the spin bit of a packet with a short header.
    pub fn packet(&mut self, at: Nanos, way: PacketDirection, spin: bool) {
        let Some(edge) = self.sides[way as usize].packet(at, spin) else { return };
        match way {
            PacketDirection::ToClient => {
                // The server echoes: its edge answers the client's edge of the same value.
                self.far = self.sides[PacketDirection::ToServer as usize]
                    .edge
                    .filter(|sent| sent.value == edge.value)
                    .map(|sent| (at - sent.at, sent.gap.max(edge.gap), edge));
            }
            PacketDirection::ToServer => {
                // The client inverts: its edge answers the server's edge of the other value.
                let Some((far, error, echo)) = self.far.take() else { return };
                if echo.value != edge.value {
                    let rtt = far + (at - echo.at);
                    push_sample(&mut self.two_way, Sample { at, rtt, error: error.max(edge.gap) });
                }
            }
        }
    }

    /// The samples so far.
    pub fn report(&self) -> SpinReport {
        let [to_server, to_client] = &self.sides;
        let sum = |count: fn(&DirectionState) -> u64| count(to_server) + count(to_client);
        let (edges, disbelieved) = (sum(|side| side.edges), sum(|side| side.disbelieved));
        let still = edges == 0 && sum(|side| side.packets) >= STILL;
        let one_way = [to_server, to_client].map(|side| Quantiles::from_samples(&side.samples));
        let least = self.handshake.unwrap_or_default() / TOO_LITTLE;
        let too_short = |one: &Quantiles| one.count > 0 && one.p50 < least;
        SpinReport {
            edges,
            disbelieved,
            takes_part: !still && !one_way.iter().any(too_short),
            one_way_to_server: one_way[0],
            one_way_to_client: one_way[1],
            two_way: Quantiles::from_samples(&self.two_way),
        }
    }

    /// The samples of one direction, in order of time.
    pub fn one_way(&self, way: PacketDirection) -> &[Sample] {
        &self.sides[way as usize].samples
    }

    /// The samples from both directions, in order of time.
    pub fn two_way(&self) -> &[Sample] {
        &self.two_way
    }
}

/// The spin bit's report on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SpinReport {
    /// Accepted edges, both directions.
    pub edges: u64,
    /// Edges rejected as reordering.
    pub disbelieved: u64,
    /// False if the bit never changed, or so often that it cannot mean round trips.
    pub takes_part: bool,
    /// From edges towards the server.
    pub one_way_to_server: Quantiles,
    /// From edges towards the client.
    pub one_way_to_client: Quantiles,
    /// From edges and their echoes.
    pub two_way: Quantiles,
}

/// The distribution of samples, in ns; zeros without samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Quantiles {
    /// Samples.
    pub count: u64,
    /// Median of all.
    pub p50: Nanos,
    /// 95th percentile of all.
    pub p95: Nanos,
    /// Samples whose error is at most a quarter of them.
    pub sure: u64,
    /// Median of those.
    pub sure_p50: Nanos,
    /// 95th percentile of those.
    pub sure_p95: Nanos,
}

impl Quantiles {
    fn from_samples(samples: &[Sample]) -> Quantiles {
        let sorted = |keep: fn(&Sample) -> bool| {
            let mut rtts: Vec<_> =
                samples.iter().filter(|sample| keep(sample)).map(|sample| sample.rtt).collect();
            rtts.sort_unstable();
            rtts
        };
        let at = |rtts: &[Nanos], share: usize| {
            rtts.get(rtts.len().saturating_sub(1) * share / 100).copied().unwrap_or_default()
        };
        let (all, sure) = (sorted(|_| true), sorted(Sample::is_sure));
        Quantiles {
            count: all.len() as u64,
            p50: at(&all, 50),
            p95: at(&all, 95),
            sure: sure.len() as u64,
            sure_p50: at(&sure, 50),
            sure_p95: at(&sure, 95),
        }
    }
}

#[cfg(test)]
#[path = "spin_tests.rs"]
mod tests;
