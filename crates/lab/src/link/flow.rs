//! Assigns packets to flows, and numbers them within the flow.
//!
//! A flow's name must be the same in every run, so that the random impairments are: protocol, the port to which its
//! first packet was sent (the service) and an ordinal among the flows of that service. The client's ephemeral port
//! only distinguishes flows. A TCP SYN with a new sequence number on known ports is a new connection, thus a new
//! flow; a retransmitted SYN is not. UDP has no such sign: a socket that reuses a port continues the flow.

use std::fmt;
use std::net::IpAddr;

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::Direction;
use super::splitmix::mix;
use crate::wire::{PacketView, Protocol};

/// Maximum number of flows of a link; packets of further ones share a flow with the ordinal 0.
const MAX_FLOWS: usize = 1 << 18;

/// A flow's name, the same in every run of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct FlowKey {
    /// IP protocol number.
    pub protocol: u8,
    /// The port its first packet was sent to; 0 without ports.
    pub service: u16,
    /// Position among the flows of that protocol and port on this link, from 1; 0 for flows beyond the limit.
    pub ordinal: u32,
}

impl FlowKey {
    /// Returns the key as a well-mixed number.
    pub(crate) fn hash(self) -> u64 {
        let service = u64::from(self.protocol) << 48 | u64::from(self.service) << 32;
        mix(service | u64::from(self.ordinal))
    }
}

impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FlowKey { protocol, service, ordinal } = self;
        match protocol {
            6 => write!(f, "tcp/{service}/{ordinal}"),
            17 => write!(f, "udp/{service}/{ordinal}"),
            1 => write!(f, "icmp/{service}/{ordinal}"),
            other => write!(f, "ip-{other}/{service}/{ordinal}"),
        }
    }
}

/// A flow's state on a link.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) key: FlowKey,
    /// Packets so far, per direction.
    pub(crate) packets: [u64; 2],
    /// Whether the burst model is in its bad state, per direction.
    pub(crate) in_bad_state: [bool; 2],
    /// Sequence number of the first SYN.
    syn: Option<u32>,
}

/// Both ends of a flow, as its first packet named them: source, destination.
type Ends = (Protocol, IpAddr, u16, IpAddr, u16);

/// All flows of a link.
#[derive(Debug, Default)]
pub(crate) struct FlowTable {
    flows: Vec<Flow>,
    by_ends: FxHashMap<Ends, usize>,
    ordinals: FxHashMap<(u8, u16), u32>,
}

impl FlowTable {
    /// Finds or creates the packet's flow, counts the packet, and returns its index in its flow and direction, from
    /// 0.
    pub(crate) fn count(
        &mut self,
        view: &PacketView<'_>,
        direction: Direction,
    ) -> (&mut Flow, u64) {
        let index = self.find(view);
        let flow = &mut self.flows[index];
        let number = flow.packets[direction as usize];
        flow.packets[direction as usize] += 1;
        (flow, number)
    }

    fn find(&mut self, view: &PacketView<'_>) -> usize {
        let (from, to) = view.ports().unwrap_or((0, 0));
        let ends = (view.protocol(), view.source(), from, view.destination(), to);
        let reverse = (view.protocol(), view.destination(), to, view.source(), from);
        let syn = view.tcp().filter(|tcp| tcp.syn && !tcp.ack).map(|tcp| tcp.sequence);
        if let Some(&index) = self.by_ends.get(&ends)
            && (syn.is_none() || self.flows[index].syn == syn)
        {
            return index;
        }
        if syn.is_none()
            && let Some(&index) = self.by_ends.get(&reverse)
        {
            return index;
        }
        self.begin(ends, syn)
    }

    fn begin(&mut self, ends: Ends, syn: Option<u32>) -> usize {
        let (protocol, .., service) = ends;
        if self.flows.len() >= MAX_FLOWS {
            if self.flows.len() == MAX_FLOWS {
                self.add(FlowKey { protocol: 255, service: 0, ordinal: 0 }, None);
            }
            return MAX_FLOWS;
        }
        let ordinal = self.ordinals.entry((protocol.number(), service)).or_default();
        *ordinal += 1;
        let key = FlowKey { protocol: protocol.number(), service, ordinal: *ordinal };
        // Only the newer flow of this pair remains, because a reused port would otherwise find the old one.
        self.by_ends.remove(&(ends.0, ends.3, ends.4, ends.1, ends.2));
        self.by_ends.insert(ends, self.flows.len());
        self.add(key, syn)
    }

    fn add(&mut self, key: FlowKey, syn: Option<u32>) -> usize {
        self.flows.push(Flow { key, packets: [0; 2], in_bad_state: [false; 2], syn });
        self.flows.len() - 1
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::testing::{tcp, udp};

    const A: [u8; 4] = [198, 18, 0, 2];
    const B: [u8; 4] = [198, 18, 1, 2];

    fn name(table: &mut FlowTable, packet: &[u8], direction: Direction) -> (String, u64) {
        let (flow, index) = table.count(&PacketView::parse(packet).unwrap(), direction);
        (flow.key.to_string(), index)
    }

    #[test]
    fn both_directions_are_one_flow_named_by_its_service() {
        let mut table = FlowTable::default();
        let there = udp(A, 50_123, B, 14_567, b"x");
        let back = udp(B, 14_567, A, 50_123, b"y");
        assert_eq!(name(&mut table, &there, Direction::Up), ("udp/14567/1".into(), 0));
        assert_eq!(name(&mut table, &back, Direction::Down), ("udp/14567/1".into(), 0));
        assert_eq!(name(&mut table, &there, Direction::Up), ("udp/14567/1".into(), 1));
        let second = udp(A, 40_000, B, 14_567, b"x");
        assert_eq!(name(&mut table, &second, Direction::Up), ("udp/14567/2".into(), 0));
    }

    #[test]
    fn a_new_connection_on_old_ports_is_a_new_flow_and_a_repeated_syn_is_not() {
        let mut table = FlowTable::default();
        let syn = |sequence| tcp(A, 4000, B, 1883, sequence, 2, b"");
        let answer = tcp(B, 1883, A, 4000, 9, 0x12, b"");
        assert_eq!(name(&mut table, &syn(1), Direction::Up).0, "tcp/1883/1");
        assert_eq!(name(&mut table, &syn(1), Direction::Up), ("tcp/1883/1".into(), 1));
        assert_eq!(name(&mut table, &answer, Direction::Down).0, "tcp/1883/1");
        assert_eq!(name(&mut table, &syn(2), Direction::Up).0, "tcp/1883/2");
        assert_eq!(name(&mut table, &answer, Direction::Down).0, "tcp/1883/2");
    }
}
