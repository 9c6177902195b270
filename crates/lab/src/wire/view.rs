//! A checked view of one IP packet: bytes outside the packet's lengths are not accessible.
//!
//! [`PacketView::parse`] is the only constructor, so later accessors need no checks. Only the first fragment of a
//! packet has ports; so that all fragments share a flow, they count as packets without ports.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

/// Protocol above IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP (6)
    Tcp,
    /// UDP (17)
    Udp,
    /// ICMP (1) or ICMPv6 (58)
    Icmp,
    /// Anything else, with its number
    Other(u8),
}

impl Protocol {
    /// The IP protocol number; ICMPv6 shows as ICMP's 1.
    pub fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Icmp => 1,
            Protocol::Other(number) => number,
        }
    }

    /// `tcp`, `udp`, `icmp` or `ip-N`.
    pub fn name(self) -> String {
        match self {
            Protocol::Tcp => "tcp".to_owned(),
            Protocol::Udp => "udp".to_owned(),
            Protocol::Icmp => "icmp".to_owned(),
            Protocol::Other(number) => format!("ip-{number}"),
        }
    }
}

/// The fields of a TCP header that the lab uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpHeader {
    /// Sequence number
    pub sequence: u32,
    /// SYN
    pub syn: bool,
    /// ACK
    pub ack: bool,
    /// FIN
    pub fin: bool,
    /// RST
    pub rst: bool,
}

/// A packet whose lengths have been checked.
#[derive(Clone, Debug)]
pub struct PacketView<'a> {
    bytes: &'a [u8],
    protocol: Protocol,
    /// Where the transport header begins.
    transport: usize,
    /// Ports, if there are any: source, destination.
    ports: Option<(u16, u16)>,
    source: IpAddr,
    destination: IpAddr,
    link_scope: bool,
}

const IPV4_MIN: usize = 20;
const IPV6_HEADER: usize = 40;
const UDP_HEADER: usize = 8;
const TCP_MIN: usize = 20;
const IPV6_FRAGMENT: u8 = 44;
const IPV6_HOP_BY_HOP: u8 = 0;

impl<'a> PacketView<'a> {
    /// Parses a packet; `None` if it is not IP or is shorter than its length field.
    pub fn parse(bytes: &'a [u8]) -> Option<PacketView<'a>> {
        match bytes.first()? >> 4 {
            4 => Self::parse_v4(bytes),
            6 => Self::parse_v6(bytes),
            _ => None,
        }
    }

    fn parse_v4(bytes: &'a [u8]) -> Option<PacketView<'a>> {
        if bytes.len() < IPV4_MIN {
            return None;
        }
        let header = usize::from(bytes[0] & 0x0f) * 4;
        let total = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
        if header < IPV4_MIN || total < header || bytes.len() < total {
            return None;
        }
        let fragment = u16::from_be_bytes([bytes[6], bytes[7]]) & 0x3fff != 0;
        let source = Ipv4Addr::new(bytes[12], bytes[13], bytes[14], bytes[15]);
        let destination = Ipv4Addr::new(bytes[16], bytes[17], bytes[18], bytes[19]);
        let igmp = bytes[9] == 2;
        Self::finish(
            &bytes[..total],
            bytes[9],
            header,
            fragment,
            source.into(),
            destination.into(),
            igmp,
        )
    }

    fn parse_v6(bytes: &'a [u8]) -> Option<PacketView<'a>> {
        if bytes.len() < IPV6_HEADER {
            return None;
        }
        let total = IPV6_HEADER + usize::from(u16::from_be_bytes([bytes[4], bytes[5]]));
        if bytes.len() < total {
            return None;
        }
        let octets = |at: usize| <[u8; 16]>::try_from(&bytes[at..at + 16]).ok();
        let source = Ipv6Addr::from(octets(8)?);
        let destination = Ipv6Addr::from(octets(24)?);
        let link_local_scope = destination.octets()[0] == 0xff && destination.octets()[1] & 15 <= 2;
        // Neighbour and router discovery and listener reports (the latter behind a hop-by-hop
        // option) belong to one link and are not forwarded.
        let link_scope = link_local_scope && matches!(bytes[6], IPV6_HOP_BY_HOP | 58);
        Self::finish(
            &bytes[..total],
            bytes[6],
            IPV6_HEADER,
            bytes[6] == IPV6_FRAGMENT,
            source.into(),
            destination.into(),
            link_scope,
        )
    }

    fn finish(
        bytes: &'a [u8],
        number: u8,
        transport: usize,
        fragment: bool,
        source: IpAddr,
        destination: IpAddr,
        link_scope: bool,
    ) -> Option<PacketView<'a>> {
        let protocol = match number {
            6 => Protocol::Tcp,
            17 => Protocol::Udp,
            1 | 58 => Protocol::Icmp,
            other => Protocol::Other(other),
        };
        let needed = match protocol {
            Protocol::Tcp if !fragment => TCP_MIN,
            Protocol::Udp if !fragment => UDP_HEADER,
            _ => 0,
        };
        if bytes.len() < transport + needed {
            return None;
        }
        let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let ports = (needed > 0).then(|| (port(transport), port(transport + 2)));
        let protocol = if fragment && needed == 0 { Protocol::Other(number) } else { protocol };
        Some(PacketView { bytes, protocol, transport, ports, source, destination, link_scope })
    }

    /// The protocol in the IP packet. Fragments are [`Protocol::Other`].
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// The sender's address.
    pub fn source(&self) -> IpAddr {
        self.source
    }

    /// The receiver's address, or a group's.
    pub fn destination(&self) -> IpAddr {
        self.destination
    }

    /// Source and destination port of TCP and UDP.
    pub fn ports(&self) -> Option<(u16, u16)> {
        self.ports
    }

    /// Whether the packet concerns only the link it is on (IGMP, neighbour discovery).
    pub fn is_link_scope(&self) -> bool {
        self.link_scope
    }

    /// The packet's length in bytes, IP header included.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Always false: a packet has a header.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns the bytes behind the IP header.
    pub fn transport(&self) -> &'a [u8] {
        &self.bytes[self.transport..]
    }

    /// Where in the packet [`PacketView::transport`] lies.
    pub(crate) fn transport_range(&self) -> Range<usize> {
        self.transport..self.bytes.len()
    }

    /// The TCP header's fields, if it is TCP.
    pub fn tcp(&self) -> Option<TcpHeader> {
        let header = self.transport();
        (self.protocol == Protocol::Tcp && self.ports.is_some()).then(|| TcpHeader {
            sequence: u32::from_be_bytes([header[4], header[5], header[6], header[7]]),
            syn: header[13] & 2 != 0,
            ack: header[13] & 16 != 0,
            fin: header[13] & 1 != 0,
            rst: header[13] & 4 != 0,
        })
    }

    /// Payload of TCP or UDP; empty for anything else.
    pub fn payload(&self) -> &'a [u8] {
        let transport = self.transport();
        let header = match (self.protocol, self.ports) {
            (Protocol::Tcp, Some(_)) => usize::from(transport[12] >> 4) * 4,
            (Protocol::Udp, Some(_)) => UDP_HEADER,
            _ => transport.len(),
        };
        transport.get(header..).unwrap_or_default()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::testing::{tcp, udp, udp6};
    use proptest::prelude::*;

    #[test]
    fn addresses_ports_and_payload_are_found() {
        let packet = udp([10, 0, 0, 1], 4000, [10, 0, 1, 1], 53, b"question");
        let view = PacketView::parse(&packet).unwrap();
        assert_eq!(view.protocol(), Protocol::Udp);
        assert_eq!(view.ports(), Some((4000, 53)));
        assert_eq!(view.destination(), IpAddr::from([10, 0, 1, 1]));
        assert_eq!(view.payload(), b"question");
        let packet = udp6(4000, 53, b"question");
        assert_eq!(PacketView::parse(&packet).unwrap().payload(), b"question");
    }

    #[test]
    fn tcp_flags_are_read() {
        let packet = tcp([10, 0, 0, 1], 4000, [10, 0, 1, 1], 1883, 77, 2, b"");
        let header = PacketView::parse(&packet).unwrap().tcp().unwrap();
        assert!(header.syn && !header.ack);
        assert_eq!(header.sequence, 77);
    }

    #[test]
    fn fragments_have_no_ports() {
        let mut packet = udp([10, 0, 0, 1], 4000, [10, 0, 1, 1], 53, b"question");
        packet[6] = 0x20; // more fragments
        let view = PacketView::parse(&packet).unwrap();
        assert_eq!((view.ports(), view.payload()), (None, &b""[..]));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            if let Some(view) = PacketView::parse(&bytes) {
                prop_assert!(view.len() <= bytes.len());
                prop_assert!(view.payload().len() <= view.len());
                let _ = (view.tcp(), view.ports(), view.is_link_scope());
            }
        }
    }
}
