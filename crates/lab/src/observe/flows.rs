//! Flows as seen at one host: packets and bytes by direction and kind, the link's losses, and the round-trip times
//! that QUIC's spin bit shows, beside those that the path really had.
//!
//! The point of observation is the host's interface: packets that it sends are counted before the link can lose them,
//! and received ones after it. Corrupted packets count as what they still look like.

use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};

use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};
use serde::Serialize;

use super::Observer;
use super::kind::{Kind, QuicHeader, begins_quic, kind, quic_header};
use super::spin::{PacketDirection, SpinBit, SpinReport};
use crate::link::{DropReason, HostId};
use crate::units::Nanos;
use crate::wire::{PacketView, Protocol};

/// The most flows that are tracked; packets of further ones are only counted.
const MAX_FLOWS: usize = 1 << 16;
/// The most packets in flight whose time of sending is remembered; those that never arrive whole count until then.
const MAX_UNDERWAY: usize = 1 << 16;
/// The most delays per flow and direction.
const MAX_DELAYS: usize = 1 << 20;

/// Packets and bytes, IP headers included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Volume {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Volume {
    fn add(&mut self, packet: &[u8]) {
        self.packets += 1;
        self.bytes += packet.len() as u64;
    }
}

/// One direction of a flow, by kind in the order of [`Kind::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct ByKind(pub [Volume; Kind::ALL.len()]);

impl ByKind {
    /// Volume of one kind.
    pub fn volume(&self, kind: Kind) -> Volume {
        self.0[kind as usize]
    }

    /// Volume of all kinds.
    pub fn total(&self) -> Volume {
        self.0.iter().fold(Volume::default(), |sum, one| Volume {
            packets: sum.packets + one.packets,
            bytes: sum.bytes + one.bytes,
        })
    }
}

/// A flow as seen at a host.
#[derive(Clone, Debug)]
pub struct FlowView {
    /// Protocol that it runs over.
    pub protocol: Protocol,
    /// The host's end; port 0 without ports.
    pub near: SocketAddr,
    /// The other end.
    pub far: SocketAddr,
    /// Whether the host sent its first packet.
    pub opened_here: bool,
    /// Whether it is QUIC.
    pub quic: bool,
    /// When its first packet was seen, in ns of the run's clock.
    pub first: Nanos,
    /// When its latest was.
    pub last: Nanos,
    /// Volume that the host sent.
    pub sent: ByKind,
    /// Volume that the host received.
    pub received: ByKind,
    /// Volume that the host sent and the link lost.
    pub lost: Volume,
    spin: SpinBit,
    /// Arrivals at the host and at the other end, each with its time in flight; QUIC's only.
    delays: [Vec<(Nanos, Nanos)>; 2],
}

impl FlowView {
    /// Report from the spin bit; `None` without QUIC.
    pub fn spin(&self) -> Option<SpinReport> {
        self.quic.then(|| self.spin.report())
    }

    /// The spin bit's samples.
    pub fn spin_bit(&self) -> &SpinBit {
        &self.spin
    }

    /// The path's own round trip: the median times in flight of the packets that arrived at either end `from` a time
    /// `to` another, added up. `None` if no packet arrived at one of them.
    pub fn path_round_trip(&self, from: Nanos, to: Nanos) -> Option<Nanos> {
        self.delays
            .iter()
            .map(|arrivals| {
                let since = arrivals.partition_point(|(at, _)| *at < from);
                let until = arrivals.partition_point(|(at, _)| *at <= to);
                let mut taken: Vec<Nanos> =
                    arrivals.get(since..until)?.iter().map(|(_, took)| *took).collect();
                taken.sort_unstable();
                taken.get(taken.len() / 2).copied()
            })
            .sum()
    }
}

/// Protocol, near end, far end.
type Key = (Protocol, SocketAddr, SocketAddr);

fn key(view: &PacketView<'_>, outward: bool) -> Key {
    let (from, to) = view.ports().unwrap_or((0, 0));
    let source = SocketAddr::new(view.source(), from);
    let destination = SocketAddr::new(view.destination(), to);
    let (near, far) = if outward { (source, destination) } else { (destination, source) };
    (view.protocol(), near, far)
}

/// Watches the flows of one host.
#[derive(Debug)]
pub struct Flows {
    host: HostId,
    flows: Vec<FlowView>,
    index: FxHashMap<Key, usize>,
    /// Far ends of QUIC connections: a flow with one of them that begins in the middle of a connection is one whose
    /// near end has changed its address.
    quic_ends: FxHashSet<SocketAddr>,
    /// When packets that have not arrived were sent, by a hash of their payload; `None` if copies of one are underway.
    underway: FxHashMap<u64, Option<Nanos>>,
    uncounted: u64,
}

/// A packet's payload as a number. QUIC's packets differ, and a link changes headers only.
fn fingerprint(packet: &[u8]) -> Option<u64> {
    let view = PacketView::parse(packet).filter(|view| view.protocol() == Protocol::Udp)?;
    Some(FxBuildHasher.hash_one(view.payload()))
}

impl Flows {
    /// Observes this host's interface.
    pub fn at(host: HostId) -> Flows {
        Flows {
            host,
            flows: Vec::new(),
            index: FxHashMap::default(),
            quic_ends: FxHashSet::default(),
            underway: FxHashMap::default(),
            uncounted: 0,
        }
    }

    /// The flows, in the order in which they began.
    pub fn flows(&self) -> &[FlowView] {
        &self.flows
    }

    /// Packets of flows beyond the limit.
    pub fn uncounted(&self) -> u64 {
        self.uncounted
    }

    fn flow(&mut self, at: Nanos, view: &PacketView<'_>, outward: bool) -> Option<&mut FlowView> {
        let key = key(view, outward);
        let (protocol, near, far) = key;
        // A SYN on ports that were used before begins another flow.
        let begins_anew = view.tcp().is_some_and(|tcp| tcp.syn && !tcp.ack);
        if let Some(&known) = self.index.get(&key)
            && !(begins_anew && self.flows[known].is_over())
        {
            return self.flows.get_mut(known);
        }
        if self.flows.len() >= MAX_FLOWS {
            self.uncounted += 1;
            return None;
        }
        let is_udp = protocol == Protocol::Udp;
        let quic = is_udp && (begins_quic(view.payload()) || self.quic_ends.contains(&far));
        if quic {
            self.quic_ends.insert(far);
        }
        self.index.insert(key, self.flows.len());
        self.flows.push(FlowView {
            protocol,
            near,
            far,
            opened_here: outward,
            quic,
            first: at,
            last: at,
            sent: ByKind::default(),
            received: ByKind::default(),
            lost: Volume::default(),
            spin: SpinBit::default(),
            delays: Default::default(),
        });
        self.flows.last_mut()
    }

    fn count(&mut self, at: Nanos, packet: &[u8], outward: bool) {
        let Some(view) = PacketView::parse(packet) else { return };
        let Some(flow) = self.flow(at, &view, outward) else { return };
        flow.last = at;
        if outward != flow.opened_here {
            flow.spin.handshake(at - flow.first);
        }
        let kind = kind(&view, flow.quic);
        let volumes = if outward { &mut flow.sent } else { &mut flow.received };
        volumes.0[kind as usize].add(packet);
        if flow.quic
            && let Some(QuicHeader::Short { spin }) = quic_header(view.payload())
        {
            let to_server = outward == flow.opened_here;
            let way = if to_server { PacketDirection::ToServer } else { PacketDirection::ToClient };
            flow.spin.packet(at, way, spin);
        }
    }
}

impl Flows {
    /// Notes how long a packet between the host and another was in flight.
    fn arrived(&mut self, at: Nanos, to: HostId, packet: &[u8]) {
        let sent = fingerprint(packet).and_then(|print| self.underway.remove(&print)?);
        let (Some(sent), Some(view)) = (sent, PacketView::parse(packet)) else { return };
        let outward = to != self.host;
        let Some(&known) = self.index.get(&key(&view, outward)) else { return };
        let flow = &mut self.flows[known];
        let delays = &mut flow.delays[usize::from(outward)];
        if flow.quic && delays.len() < MAX_DELAYS {
            delays.push((at, at.saturating_sub(sent)));
        }
    }
}

impl FlowView {
    fn is_over(&self) -> bool {
        self.sent.volume(Kind::Close).packets + self.received.volume(Kind::Close).packets > 0
    }
}

impl Observer for Flows {
    fn sent(&mut self, at: Nanos, from: HostId, packet: &[u8]) {
        if from == self.host {
            self.count(at, packet, true);
        }
        if let Some(print) = fingerprint(packet) {
            if self.underway.len() >= MAX_UNDERWAY {
                self.underway.clear();
            }
            self.underway.entry(print).and_modify(|sent| *sent = None).or_insert(Some(at));
        }
    }

    fn delivered(&mut self, at: Nanos, to: HostId, packet: &[u8]) {
        if to == self.host {
            self.count(at, packet, false);
        }
        self.arrived(at, to, packet);
    }

    fn dropped(&mut self, _at: Nanos, from: HostId, _reason: DropReason, packet: &[u8]) {
        // A NAT on the link may have rewritten the packet since it was sent: then it belongs to no flow.
        if from == self.host
            && let Some(view) = PacketView::parse(packet)
            && let Some(&known) = self.index.get(&key(&view, true))
        {
            self.flows[known].lost.add(packet);
        }
    }
}

fulmar_text::mirrors! {
    /// A flow's statistics for the summary.
    #[derive(Clone, Debug, PartialEq, Serialize)]
    pub struct FlowReport (flow: &FlowView) {
        /// `tcp`, `udp`, `quic`, …
        pub protocol: String = if flow.quic { "quic".to_owned() } else { flow.protocol.name() },
        /// The host's end.
        pub near: SocketAddr = flow.near,
        /// The other end.
        pub far: SocketAddr = flow.far,
        /// Time between the first packet and the latest, in s.
        pub seconds: f64 = (flow.last - flow.first) as f64 / 1e9,
        /// Volumes that the host sent, by kind.
        pub sent: Vec<(Kind, Volume)> = by_kind(&flow.sent),
        /// Volumes that the host received, by kind.
        pub received: Vec<(Kind, Volume)> = by_kind(&flow.received),
        /// Volume that the host sent and the link lost.
        pub lost: Volume = flow.lost,
        /// Report from the spin bit, for QUIC.
        pub spin: Option<SpinReport> = flow.spin(),
    }
}

fn by_kind(volumes: &ByKind) -> Vec<(Kind, Volume)> {
    let all = Kind::ALL.into_iter().map(|kind| (kind, volumes.volume(kind)));
    all.filter(|(_, volume)| volume.packets > 0).collect()
}

impl FlowReport {
    /// Whether it concerns only the host itself and its groups, such as multicast listener reports.
    pub fn is_noise(&self) -> bool {
        matches!(self.far.ip(), IpAddr::V6(address) if address.is_multicast())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::testing::{tcp, udp};
    use crate::units::{MILLISECOND as MS, SECOND};

    const A: [u8; 4] = [198, 18, 0, 2];
    const B: [u8; 4] = [198, 18, 1, 2];
    const HERE: HostId = HostId(0);

    #[test]
    fn packets_are_counted_by_flow_direction_and_kind() {
        let mut flows = Flows::at(HERE);
        let steps = [
            (true, tcp(A, 4000, B, 1883, 1, 0x02, b"")),
            (false, tcp(B, 1883, A, 4000, 1, 0x12, b"")),
            (true, tcp(A, 4000, B, 1883, 2, 0x10, b"")),
            (true, tcp(A, 4000, B, 1883, 2, 0x18, b"CONNECT")),
            (false, tcp(B, 1883, A, 4000, 2, 0x18, b"CONNACK")),
        ];
        for (at, (outward, packet)) in steps.iter().enumerate() {
            match outward {
                true => flows.sent(at as u64, HERE, packet),
                false => flows.delivered(at as u64, HERE, packet),
            }
        }
        flows.dropped(9, HERE, DropReason::Random, &steps[3].1);
        flows.sent(9, HostId(1), &steps[1].1);
        let [flow] = flows.flows() else { panic!("{flows:?}") };
        let packets = |volumes: &ByKind| volumes.0.map(|volume| volume.packets);
        assert_eq!(packets(&flow.sent), [1, 1, 1, 0, 0]);
        assert_eq!(packets(&flow.received), [1, 1, 0, 0, 0]);
        assert_eq!((flow.lost.packets, flow.sent.total().bytes), (1, 127));
        assert_eq!((flow.first, flow.last, flow.opened_here), (0, 4, true));
    }

    #[test]
    fn a_connection_after_a_closed_one_is_another_flow() {
        let mut flows = Flows::at(HERE);
        for flags in [0x02, 0x10, 0x11, 0x02] {
            flows.sent(0, HERE, &tcp(A, 4000, B, 1883, 1, flags, b""));
        }
        assert_eq!(flows.flows().len(), 2);
    }

    #[test]
    fn quic_is_recognised_by_its_first_packet_and_shows_its_spin_bit() {
        let mut flows = Flows::at(HERE);
        let mut initial = vec![0xc0, 0, 0, 0, 1];
        initial.resize(1200, 0);
        flows.sent(0, HERE, &udp(A, 4000, B, 14_567, &initial));
        for round in 0..10u64 {
            let first = if round % 2 == 0 { 0x40 } else { 0x60 };
            flows.sent(round * 100 * MS, HERE, &udp(A, 4000, B, 14_567, &[first; 50]));
            flows.delivered(
                round * 100 * MS + 90 * MS,
                HERE,
                &udp(B, 14_567, A, 4000, &[first; 50]),
            );
        }
        let moved = [198, 18, 0, 3];
        flows.sent(SECOND, HERE, &udp(moved, 4000, B, 14_567, &[0x40; 50]));
        assert!(flows.flows()[1].quic, "the same connection from another address");
        let report = FlowReport::from(&flows.flows()[0]);
        assert_eq!(report.protocol, "quic");
        assert_eq!(report.spin.unwrap().two_way.p50, 100 * MS);
    }
}
