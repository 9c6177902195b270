//! A NAT in front of a link's first host, which drops its mappings at configured times.
//!
//! Until the first rebinding, it changes nothing. From then on, packets leave with another port or address, and
//! packets to the old one are dropped, as by a NAT that has restarted. Checksums are updated, not recomputed, so that
//! corruption remains visible. ICMP is not translated: errors about rewritten packets do not return.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::Schedule;
use super::splitmix::mix;
use crate::units::Nanos;
use crate::wire::{PacketView, Protocol, checksum};

/// Parts of the mapping that a rebinding changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NatChange {
    /// The port
    Port,
    /// The address; the port stays where it is free
    Address,
}

/// A NAT.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NatConfig {
    /// When all mappings are replaced.
    pub rebind: Schedule,
    /// By what.
    pub change: NatChange,
}

/// The last part of the first address that the NAT uses instead of a host's own, and the number of such addresses,
/// used in turn.
const FIRST_ADDRESS: u8 = 100;
const ADDRESSES: u32 = 100;
/// Lower ports are not changed.
const FIRST_PORT: u16 = 1024;

type Endpoint = (Protocol, IpAddr, u16);

#[derive(Debug)]
pub(crate) struct Nat {
    config: NatConfig,
    seed: u64,
    /// Number of rebindings so far.
    round: u32,
    next: Option<Nanos>,
    outside_of: FxHashMap<Endpoint, Endpoint>,
    inside_of: FxHashMap<Endpoint, Endpoint>,
}

impl Nat {
    pub(crate) fn new(config: NatConfig, seed: u64) -> Nat {
        let next = config.rebind.next(0);
        let (outside_of, inside_of) = Default::default();
        Nat { config, seed, round: 0, next, outside_of, inside_of }
    }

    /// The number of rebindings until `at`.
    pub(crate) fn advance(&mut self, at: Nanos) -> u32 {
        while let Some(next) = self.next
            && next <= at
        {
            self.round += 1;
            self.next = self.config.rebind.next(next);
            self.outside_of.clear();
            self.inside_of.clear();
        }
        self.round
    }

    /// Rewrites the source of a packet from the host; false: no port is left, drop it.
    pub(crate) fn outward(&mut self, at: Nanos, packet: &mut [u8]) -> bool {
        if self.advance(at) == 0 {
            return true;
        }
        let Some(view) = PacketView::parse(packet) else { return false };
        let Some((port, _)) = view.ports() else { return true };
        let inside = (view.protocol(), view.source(), port);
        let outside = match self.outside_of.get(&inside) {
            Some(outside) => *outside,
            None => match self.map(inside) {
                Some(outside) => outside,
                None => return false,
            },
        };
        rewrite(packet, AddressField::Source, outside);
        true
    }

    /// Rewrites the destination of a packet to the host; false: there is no mapping, drop it.
    pub(crate) fn inward(&mut self, at: Nanos, packet: &mut [u8]) -> bool {
        if self.advance(at) == 0 {
            return true;
        }
        let Some(view) = PacketView::parse(packet) else { return false };
        let Some((_, port)) = view.ports() else { return true };
        if view.destination().is_multicast() {
            return true;
        }
        match self.inside_of.get(&(view.protocol(), view.destination(), port)) {
            Some(inside) => {
                rewrite(packet, AddressField::Destination, *inside);
                true
            }
            None => false,
        }
    }

    fn map(&mut self, inside: Endpoint) -> Option<Endpoint> {
        let (protocol, address, port) = inside;
        let (address, first) = match self.config.change {
            NatChange::Address => (other_address(address, self.round), port),
            NatChange::Port => {
                let drawn = mix(mix(self.seed ^ u64::from(self.round)) ^ u64::from(port));
                (address, FIRST_PORT + (drawn % u64::from(u16::MAX - FIRST_PORT)) as u16)
            }
        };
        let outside = (first..=u16::MAX)
            .chain(FIRST_PORT..first)
            .map(|port| (protocol, address, port))
            .find(|outside| *outside != inside && !self.inside_of.contains_key(outside))?;
        self.outside_of.insert(inside, outside);
        self.inside_of.insert(outside, inside);
        Some(outside)
    }
}

/// Another address of the same network, different in each round.
fn other_address(address: IpAddr, round: u32) -> IpAddr {
    let last = FIRST_ADDRESS + (round.saturating_sub(1) % ADDRESSES) as u8;
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, _] = address.octets();
            Ipv4Addr::new(a, b, c, last).into()
        }
        IpAddr::V6(address) => {
            let mut octets = address.octets();
            octets[15] = last;
            Ipv6Addr::from(octets).into()
        }
    }
}

#[derive(Clone, Copy)]
enum AddressField {
    Source,
    Destination,
}

/// Writes an address and port into a packet, and updates its checksums.
fn rewrite(packet: &mut [u8], side: AddressField, (_, address, port): Endpoint) {
    let Some(view) = PacketView::parse(packet) else { return };
    let transport = view.transport_range().start;
    let sum_at = checksum::position(&view);
    let is_udp = view.protocol() == Protocol::Udp;
    let (address_at, new) = match (address, side) {
        (IpAddr::V4(new), AddressField::Source) => (12, new.octets().to_vec()),
        (IpAddr::V4(new), AddressField::Destination) => (16, new.octets().to_vec()),
        (IpAddr::V6(new), AddressField::Source) => (8, new.octets().to_vec()),
        (IpAddr::V6(new), AddressField::Destination) => (24, new.octets().to_vec()),
    };
    let port_at = match side {
        AddressField::Source => transport,
        AddressField::Destination => transport + 2,
    };
    let old = packet[address_at..address_at + new.len()].to_vec();
    let old_port = [packet[port_at], packet[port_at + 1]];
    let new_port = port.to_be_bytes();
    if address.is_ipv4() {
        checksum::update_at(packet, 10, &old, &new);
    }
    if let Some(at) = sum_at {
        checksum::update_at(packet, at, &old, &new);
        checksum::update_at(packet, at, &old_port, &new_port);
        if is_udp && packet[at..at + 2] == [0, 0] {
            packet[at..at + 2].fill(0xff); // zero would mean "no checksum" (RFC 768)
        }
    }
    packet[address_at..address_at + new.len()].copy_from_slice(&new);
    packet[port_at..port_at + 2].copy_from_slice(&new_port);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::testing::{tcp, transport_sum, udp};
    use crate::units::SECOND;

    const HOST: [u8; 4] = [198, 18, 0, 2];
    const SERVER: [u8; 4] = [198, 18, 1, 2];

    fn nat(change: NatChange) -> Nat {
        let rebind = Schedule { at: vec![SECOND], every: 5 * SECOND };
        Nat::new(NatConfig { rebind, change }, 1)
    }

    fn source(packet: &[u8]) -> (IpAddr, u16) {
        let view = PacketView::parse(packet).unwrap();
        (view.source(), view.ports().unwrap().0)
    }

    #[test]
    fn nothing_changes_before_the_first_rebinding() {
        let mut nat = nat(NatChange::Port);
        let original = udp(HOST, 5000, SERVER, 14_567, b"x");
        let mut packet = original.clone();
        assert!(nat.outward(SECOND - 1, &mut packet));
        assert_eq!(packet, original);
    }

    #[test]
    fn a_rebinding_moves_the_port_and_answers_find_back() {
        for change in [NatChange::Port, NatChange::Address] {
            let mut nat = nat(change);
            let mut packet = udp(HOST, 5000, SERVER, 14_567, b"x");
            assert!(nat.outward(SECOND, &mut packet));
            let (address, port) = source(&packet);
            assert_eq!(address == IpAddr::from(HOST), change == NatChange::Port);
            assert_eq!(port == 5000, change == NatChange::Address);
            assert_eq!((transport_sum(&packet), checksum::internet(&[&packet[..20]])), (0, 0));
            let IpAddr::V4(address) = address else { panic!("IPv4") };
            let mut answer = udp(SERVER, 14_567, address.octets(), port, b"y");
            assert!(nat.inward(2 * SECOND, &mut answer));
            assert_eq!(answer, udp(SERVER, 14_567, HOST, 5000, b"y"));
        }
    }

    #[test]
    fn the_old_mapping_is_gone_after_a_rebinding() {
        let mut nat = nat(NatChange::Port);
        let mut packet = udp(HOST, 5000, SERVER, 14_567, b"x");
        assert!(nat.outward(SECOND, &mut packet));
        let first = source(&packet);
        let mut to_own = udp(SERVER, 14_567, HOST, 5000, b"y");
        assert!(!nat.inward(SECOND, &mut to_own), "nothing is mapped to the host's own port");
        let mut late = udp(SERVER, 14_567, HOST, first.1, b"y");
        assert!(nat.inward(5 * SECOND - 1, &mut late.clone()));
        assert!(!nat.inward(5 * SECOND, &mut late));
        let mut packet = udp(HOST, 5000, SERVER, 14_567, b"x");
        assert!(nat.outward(5 * SECOND, &mut packet));
        assert_ne!(source(&packet), first);
    }

    #[test]
    fn corruption_is_not_repaired() {
        let mut nat = nat(NatChange::Port);
        let mut packet = tcp(HOST, 5000, SERVER, 1883, 1, 16, b"data");
        packet[42] ^= 4;
        assert!(nat.outward(SECOND, &mut packet));
        assert_ne!(transport_sum(&packet), 0);
    }

    #[test]
    fn two_clients_never_share_a_port() {
        let mut nat = nat(NatChange::Port);
        let mut seen = std::collections::HashSet::new();
        for port in 1..=3000 {
            let mut packet = udp(HOST, port, SERVER, 14_567, b"x");
            assert!(nat.outward(SECOND, &mut packet));
            assert!(seen.insert(source(&packet)));
        }
    }
}
