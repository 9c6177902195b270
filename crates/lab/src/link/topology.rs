//! Hosts joined by links: which links a packet crosses, and where it ends.
//!
//! Every host has a network of its own from the ranges for benchmarking (RFC 2544: 198.18.0.0/15; RFC 5180:
//! 2001:2::/48). A packet from one host to another crosses the sender's access link, the link between the two, and
//! the receiver's access link, as far as they exist; without any it arrives at once. Links do not decrease hop
//! limits, and multicast reaches every other host. This is still sans-IO: the router around it only moves bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::splitmix::mix;
use super::{ConfigError, Direction, DropReason, Link, LinkConfig, Output};
use crate::units::Nanos;
use crate::wire::PacketView;

/// A host's number, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId(pub u16);

/// The most hosts a topology may have: one /24 each.
pub const MAX_HOSTS: u16 = 512;
/// The last part of a host's first address.
const FIRST_ADDRESS: u32 = 2;
/// Addresses a host takes in turn when its address changes; those from 100 on are the NAT's.
const HOST_ADDRESSES: u32 = 90;

impl HostId {
    /// The host's address after this many changes.
    pub fn ipv4(self, changes: u32) -> Ipv4Addr {
        let [high, low] = self.0.to_be_bytes();
        let last = FIRST_ADDRESS + changes % HOST_ADDRESSES;
        Ipv4Addr::new(198, 18 + high, low, last as u8)
    }

    /// The host's IPv6 address after this many changes.
    pub fn ipv6(self, changes: u32) -> Ipv6Addr {
        let last = FIRST_ADDRESS + changes % HOST_ADDRESSES;
        Ipv6Addr::new(0x2001, 2, 0, self.0, 0, 0, 0, last as u16)
    }

    /// The host to whose network an address belongs, whether or not the host exists.
    pub fn from_address(address: IpAddr) -> Option<HostId> {
        match address {
            IpAddr::V4(address) => {
                let [first, second, third, _] = address.octets();
                let number = u16::from_be_bytes([second.checked_sub(18)?, third]);
                (first == 198 && number < MAX_HOSTS).then_some(HostId(number))
            }
            IpAddr::V6(address) => match address.segments() {
                [0x2001, 2, 0, number, ..] if number < MAX_HOSTS => Some(HostId(number)),
                _ => None,
            },
        }
    }
}

/// Where a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// Between a host and everything else; `up` is from the host.
    Access(HostId),
    /// Between two hosts; `up` is from the first.
    Between(HostId, HostId),
}

impl Ends {
    fn first(self) -> HostId {
        match self {
            Ends::Access(host) | Ends::Between(host, _) => host,
        }
    }
}

/// An event of a topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A packet for a host is due.
    Deliver {
        /// When, exactly.
        at: Nanos,
        /// The receiver.
        to: HostId,
        /// The packet.
        packet: Vec<u8>,
    },
    /// A packet was lost.
    Dropped {
        /// When.
        at: Nanos,
        /// The sender.
        from: HostId,
        /// On which link (in the order of [`Topology::link`]); `None`: on none.
        link: Option<usize>,
        /// Why.
        reason: DropReason,
        /// The packet.
        packet: Vec<u8>,
    },
    /// A host's address is to change.
    AddressChange {
        /// When it was due.
        at: Nanos,
        /// The host.
        host: HostId,
        /// Number of changes, this one included: see [`HostId::ipv4`].
        changes: u32,
    },
}

/// Hosts and links. Create it, add links, then offer packets and poll.
#[derive(Debug)]
pub struct Topology {
    hosts: u16,
    gateway: Option<HostId>,
    seed: u64,
    links: Vec<(Ends, Link)>,
    /// For each link, the host whose address changes.
    moving: Vec<HostId>,
    /// Packets that cross no link, and refusals: due at once.
    immediate: std::collections::VecDeque<Event>,
}

/// Sender and receiver of a packet that is inside a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Route {
    from: HostId,
    /// `None`: all others.
    to: Option<HostId>,
}

impl Route {
    fn tag(self) -> u64 {
        u64::from(self.from.0) << 32 | self.to.map_or(u64::from(u32::MAX), |to| u64::from(to.0))
    }

    fn from_tag(tag: u64) -> Route {
        let to = tag as u32;
        Route {
            from: HostId((tag >> 32) as u16),
            to: (to != u32::MAX).then_some(HostId(to as u16)),
        }
    }
}

impl Topology {
    /// A topology of `hosts` without links. All links use the seed.
    ///
    /// # Errors
    /// More hosts than [`MAX_HOSTS`], or none.
    pub fn new(hosts: u16, seed: u64) -> Result<Topology, ConfigError> {
        if !(1..=MAX_HOSTS).contains(&hosts) {
            return Err(ConfigError::new("hosts", format!("must be 1 to {MAX_HOSTS}")));
        }
        Ok(Topology {
            hosts,
            gateway: None,
            seed,
            links: Vec::new(),
            moving: Vec::new(),
            immediate: std::collections::VecDeque::new(),
        })
    }

    /// Sends packets for unknown addresses to this host.
    pub fn set_gateway(&mut self, host: HostId) {
        self.gateway = Some(host);
    }

    /// Adds a link; returns its number. Its random impairments depend on the seed and on that number.
    ///
    /// # Errors
    /// The configuration is impossible, an end is no host, or there is a link there already.
    pub fn add_link(&mut self, ends: Ends, config: LinkConfig) -> Result<usize, ConfigError> {
        let known = match ends {
            Ends::Access(host) => host.0 < self.hosts,
            Ends::Between(a, b) => a.0 < self.hosts && b.0 < self.hosts && a != b,
        };
        let reversed = |other: Ends| match (ends, other) {
            (Ends::Between(a, b), Ends::Between(c, d)) => (a, b) == (d, c),
            _ => false,
        };
        if !known || self.links.iter().any(|(other, _)| *other == ends || reversed(*other)) {
            return Err(ConfigError::new("link", "ends must be two hosts without a link so far"));
        }
        let second = match ends {
            Ends::Between(_, second) if config.second_moves => Some(second),
            Ends::Access(_) if config.second_moves => {
                let problem = "a link that does not join two hosts has no second one";
                return Err(ConfigError::new("address-change-of", problem));
            }
            _ => None,
        };
        let number = self.links.len();
        let link = Link::new(config, mix(self.seed ^ mix(number as u64)))?;
        self.links.push((ends, link));
        self.moving.push(second.unwrap_or(ends.first()));
        Ok(number)
    }

    /// All hosts.
    pub fn hosts(&self) -> impl Iterator<Item = HostId> + use<> {
        (0..self.hosts).map(HostId)
    }

    /// A link by its number.
    pub fn link(&self, number: usize) -> Option<&Link> {
        self.links.get(number).map(|(_, link)| link)
    }

    /// All links and where they are, by number.
    pub fn links(&self) -> impl Iterator<Item = (Ends, &Link)> {
        self.links.iter().map(|(ends, link)| (*ends, link))
    }

    /// Receives a packet that a host has sent.
    pub fn receive(&mut self, at: Nanos, from: HostId, packet: Vec<u8>) {
        let Some(view) = PacketView::parse(&packet) else {
            self.refuse(at, from, DropReason::Malformed, packet);
            return;
        };
        if view.is_link_scope() {
            return;
        }
        let destination = view.destination();
        if destination.is_multicast() {
            self.forward(at, Route { from, to: None }, None, packet);
            return;
        }
        let known = HostId::from_address(destination).filter(|host| host.0 < self.hosts);
        match known.or(self.gateway).filter(|to| *to != from) {
            Some(to) => self.forward(at, Route { from, to: Some(to) }, None, packet),
            None => self.refuse(at, from, DropReason::NoRoute, packet),
        }
    }

    fn refuse(&mut self, at: Nanos, from: HostId, reason: DropReason, packet: Vec<u8>) {
        self.immediate.push_back(Event::Dropped { at, from, link: None, reason, packet });
    }

    /// The links on the way of a packet to one host.
    fn path(&self, from: HostId, to: HostId) -> impl Iterator<Item = (usize, Direction)> {
        let wanted = [
            (Ends::Access(from), Direction::Up),
            (Ends::Between(from, to), Direction::Up),
            (Ends::Between(to, from), Direction::Down),
            (Ends::Access(to), Direction::Down),
        ];
        wanted.into_iter().filter_map(|(ends, direction)| {
            let number = self.links.iter().position(|(other, _)| *other == ends)?;
            Some((number, direction))
        })
    }

    /// Puts a packet on the link after `crossed`, or delivers it.
    fn forward(&mut self, at: Nanos, route: Route, crossed: Option<usize>, packet: Vec<u8>) {
        let Some(to) = route.to else {
            self.spread(at, route.from, crossed, packet);
            return;
        };
        let next = match crossed {
            None => self.path(route.from, to).next(),
            Some(last) => self.path(route.from, to).skip_while(|hop| hop.0 != last).nth(1),
        };
        match next {
            Some((number, direction)) => {
                self.links[number].1.receive(at, direction, packet, route.tag());
            }
            None => self.immediate.push_back(Event::Deliver { at, to, packet }),
        }
    }

    /// Multicast: the sender's access link carries one copy; after it, each host gets its own.
    fn spread(&mut self, at: Nanos, from: HostId, crossed: Option<usize>, packet: Vec<u8>) {
        let access = self.links.iter().position(|(ends, _)| *ends == Ends::Access(from));
        if let Some(number) = access
            && crossed.is_none()
        {
            let tag = Route { from, to: None }.tag();
            self.links[number].1.receive(at, Direction::Up, packet, tag);
            return;
        }
        for to in self.hosts().filter(|to| *to != from) {
            self.forward(at, Route { from, to: Some(to) }, access, packet.clone());
        }
    }

    /// The next event up to `now`; call this until it returns `None`. Times ascend, except that the output of one
    /// link may cause events of another at the same time.
    pub fn poll_event(&mut self, now: Nanos) -> Option<Event> {
        loop {
            if let Some(event) = self.immediate.pop_front() {
                return Some(event);
            }
            let number = (0..self.links.len())
                .filter(|number| self.links[*number].1.deadline().is_some_and(|at| at <= now))
                .min_by_key(|number| self.links[*number].1.deadline())?;
            // A deadline may be the beginning of a transmission, after which the link has no event yet; its next
            // deadline is later.
            match self.links[number].1.poll_event(now) {
                None => {}
                Some(Output::Arrive { at, packet, tag, .. }) => {
                    self.forward(at, Route::from_tag(tag), Some(number), packet);
                }
                Some(Output::Dropped { at, packet, tag, reason, .. }) => {
                    let from = Route::from_tag(tag).from;
                    return Some(Event::Dropped { at, from, link: Some(number), reason, packet });
                }
                Some(Output::Answer { at, packet, tag }) => {
                    return Some(Event::Deliver { at, to: Route::from_tag(tag).from, packet });
                }
                Some(Output::AddressChange { at, ordinal }) => {
                    let host = self.moving[number];
                    return Some(Event::AddressChange { at, host, changes: ordinal });
                }
            }
        }
    }

    /// Whether no packet is in flight.
    pub fn is_idle(&self) -> bool {
        self.immediate.is_empty() && self.links.iter().all(|(_, link)| link.is_idle())
    }

    /// When to [`poll_event`](Topology::poll_event) next, if no packet is received before.
    pub fn deadline(&self) -> Option<Nanos> {
        if !self.immediate.is_empty() {
            return Some(0);
        }
        self.links.iter().filter_map(|(_, link)| link.deadline()).min()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::testing::udp;
    use crate::units::{MILLISECOND as MS, SECOND};

    fn delayed(ms: u64) -> LinkConfig {
        let mut link = LinkConfig::default();
        link.up.delay = ms * MS;
        link.down.delay = ms * MS;
        link
    }

    fn packet(from: u16, to: Ipv4Addr) -> Vec<u8> {
        udp(HostId(from).ipv4(0).octets(), 4000, to.octets(), 5000, b"hello")
    }

    fn arrivals(topology: &mut Topology) -> Vec<(u16, Nanos)> {
        let mut arrived = Vec::new();
        while let Some(event) = topology.poll_event(100 * SECOND) {
            if let Event::Deliver { at, to, .. } = event {
                arrived.push((to.0, at / MS));
            }
        }
        arrived
    }

    #[test]
    fn a_packet_crosses_the_links_on_its_way() {
        let mut topology = Topology::new(3, 1).unwrap();
        topology.add_link(Ends::Access(HostId(0)), delayed(10)).unwrap();
        topology.add_link(Ends::Between(HostId(1), HostId(0)), delayed(100)).unwrap();
        topology.add_link(Ends::Access(HostId(2)), delayed(1000)).unwrap();
        for (from, to, expected) in [(0, 1, 110), (1, 0, 110), (0, 2, 1010), (2, 1, 1000)] {
            let mut topology = Topology::new(3, 1).unwrap();
            topology.add_link(Ends::Access(HostId(0)), delayed(10)).unwrap();
            topology.add_link(Ends::Between(HostId(1), HostId(0)), delayed(100)).unwrap();
            topology.add_link(Ends::Access(HostId(2)), delayed(1000)).unwrap();
            topology.receive(0, HostId(from), packet(from, HostId(to).ipv4(0)));
            assert_eq!(arrivals(&mut topology), [(to, expected)]);
        }
    }

    #[test]
    fn multicast_reaches_everybody_else_over_one_copy_on_the_senders_link() {
        let mut topology = Topology::new(4, 1).unwrap();
        topology.add_link(Ends::Access(HostId(0)), delayed(10)).unwrap();
        topology.add_link(Ends::Access(HostId(2)), delayed(100)).unwrap();
        topology.receive(0, HostId(0), packet(0, Ipv4Addr::new(239, 1, 2, 3)));
        let mut arrived = arrivals(&mut topology);
        arrived.sort_unstable();
        assert_eq!(arrived, [(1, 10), (2, 110), (3, 10)]);
        assert_eq!(topology.link(0).unwrap().stats(Direction::Up).offered_packets, 1);
    }

    #[test]
    fn what_is_for_nobody_goes_to_the_gateway_or_nowhere() {
        let mut topology = Topology::new(2, 1).unwrap();
        let outside = packet(0, Ipv4Addr::new(192, 0, 2, 1));
        topology.receive(0, HostId(0), outside.clone());
        let refused = topology.poll_event(0).unwrap();
        assert!(matches!(refused, Event::Dropped { reason: DropReason::NoRoute, .. }));
        topology.set_gateway(HostId(1));
        topology.receive(0, HostId(0), outside);
        assert_eq!(arrivals(&mut topology), [(1, 0)]);
    }

    #[test]
    fn an_oversized_packet_is_answered_to_its_sender() {
        let mut topology = Topology::new(2, 1).unwrap();
        let mut small = LinkConfig::default();
        small.down.mtu = Some(1280);
        topology.add_link(Ends::Access(HostId(1)), small).unwrap();
        let to = HostId(1).ipv4(0);
        topology.receive(0, HostId(0), udp([198, 18, 0, 2], 4000, to.octets(), 5000, &[0; 1400]));
        assert!(!topology.is_idle());
        assert_eq!(arrivals(&mut topology), [(0, 0)]);
        assert!(topology.is_idle());
    }

    #[test]
    fn addresses_are_their_hosts() {
        for number in [0, 1, 255, 256, 511] {
            let host = HostId(number);
            assert_eq!(HostId::from_address(host.ipv4(0).into()), Some(host));
            assert_eq!(HostId::from_address(host.ipv6(91).into()), Some(host));
        }
        assert_eq!(HostId(256).ipv4(1), Ipv4Addr::new(198, 19, 0, 3));
        assert_eq!(HostId::from_address(Ipv4Addr::new(198, 20, 0, 1).into()), None);
        assert_eq!(HostId::from_address(Ipv4Addr::new(198, 1, 0, 1).into()), None);
    }

    #[test]
    fn two_links_between_the_same_hosts_are_refused() {
        let mut topology = Topology::new(2, 1).unwrap();
        topology.add_link(Ends::Between(HostId(0), HostId(1)), delayed(1)).unwrap();
        assert!(topology.add_link(Ends::Between(HostId(1), HostId(0)), delayed(1)).is_err());
        assert!(topology.add_link(Ends::Access(HostId(2)), delayed(1)).is_err());
    }

    #[test]
    fn an_address_change_is_told_with_the_host() {
        for (second_moves, host) in [(false, HostId(1)), (true, HostId(0))] {
            let mut topology = Topology::new(2, 1).unwrap();
            let mut moving = LinkConfig { second_moves, ..LinkConfig::default() };
            moving.address_changes.every = SECOND;
            topology.add_link(Ends::Between(HostId(1), HostId(0)), moving.clone()).unwrap();
            let told = topology.poll_event(SECOND);
            assert_eq!(told, Some(Event::AddressChange { at: SECOND, host, changes: 1 }));
            assert_eq!(
                (topology.poll_event(SECOND), topology.deadline()),
                (None, Some(2 * SECOND))
            );
            let alone = Topology::new(1, 1).unwrap().add_link(Ends::Access(HostId(0)), moving);
            assert_eq!(alone.is_err(), second_moves);
        }
    }
}
