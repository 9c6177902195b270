//! The device's end: who it is, where its next hop is, and the frames between. All frames from
//! outside pass [`Host::receive`]; what is not for us, malformed or fragmented is dropped there.

use core::ops::Range;

use crate::HEADERS;
use crate::checksum::Sum;

/// An Ethernet address.
pub type Mac = [u8; 6];
/// An IPv4 address.
pub type Address = [u8; 4];

const BROADCAST: Mac = [0xff; 6];
const TYPE_IPV4: [u8; 2] = [8, 0];
const TYPE_ARP: [u8; 2] = [8, 6];
/// Ethernet, IPv4, their address lengths: what every ARP packet of ours begins with.
const ARP_START: [u8; 6] = [0, 1, 8, 0, 6, 4];
const ARP_REQUEST: u8 = 1;
const ARP_REPLY: u8 = 2;
/// Length of a frame with an ARP packet; the driver pads it.
const ARP_FRAME: usize = 42;
/// Where the IP header, the UDP header begin.
const IP: usize = 14;
const UDP: usize = 34;
const PROTOCOL_UDP: u8 = 17;
const TIME_TO_LIVE: u8 = 64;

/// Time between two questions for the next hop's address.
const ASK_EVERY_MS: u32 = 500;

/// Addresses of this device on its network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// This device's address; 0.0.0.0 while it has none.
    pub address: Address,
    /// Bits of the network's addresses that are its prefix, 0 to 32.
    pub prefix_bits: u8,
    /// Who forwards what goes elsewhere.
    pub gateway: Address,
}

/// Result of a received frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// Nothing for this device, or nothing more to do.
    Nothing,
    /// The frame's first bytes, as many as this, are now an answer to be sent.
    Answer(usize),
    /// A datagram for our port.
    Datagram {
        /// Address and port of the sender.
        from: (Address, u16),
        /// Where in the frame its payload is.
        payload: Range<usize>,
    },
}

/// This device on its network.
#[derive(Debug)]
pub struct Host {
    mac: Mac,
    network: Network,
    /// The one UDP port that is listened on.
    port: u16,
    peer: (Address, u16),
    next_hop: Option<Mac>,
    asked_ms: Option<u32>,
    /// IPv4 identification of the next packet.
    identification: u16,
}

impl Host {
    /// A device that talks from `port` to `peer_port` of `peer`.
    #[must_use]
    pub const fn new(mac: Mac, network: Network, port: u16, peer: Address, peer_port: u16) -> Host {
        let (next_hop, asked_ms) = (None, None);
        let peer = (peer, peer_port);
        Host { mac, network, port, peer, next_hop, asked_ms, identification: 0 }
    }

    /// Ethernet address of the host.
    #[must_use]
    pub const fn mac(&self) -> Mac {
        self.mac
    }

    /// Moves to another network, such as the one a DHCP server named.
    pub fn set_network(&mut self, network: Network) {
        self.network = network;
        self.forget_next_hop();
    }

    /// Talks from another port from now on: a new connection should not get an old one's packets.
    pub fn set_port(&mut self, port: u16) {
        self.port = port;
    }

    /// Talks to another peer from now on.
    pub fn set_peer(&mut self, peer: Address, port: u16) {
        self.peer = (peer, port);
        self.forget_next_hop();
    }

    /// Asks for the next hop again before the next datagram: after a long sleep another router
    /// may have taken its place.
    pub fn forget_next_hop(&mut self) {
        (self.next_hop, self.asked_ms) = (None, None);
    }

    /// Whether datagrams can be sent: the next hop's Ethernet address is known.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        self.next_hop.is_some()
    }

    /// The question for the next hop, if it is to be asked at `now_ms`: writes a frame and returns
    /// its length. `frame` holds [`HEADERS`] bytes at least.
    pub fn next_query(&mut self, now_ms: u32, frame: &mut [u8]) -> Option<usize> {
        let recently = |asked_ms: &u32| now_ms.wrapping_sub(*asked_ms) < ASK_EVERY_MS;
        if self.is_ready() || self.asked_ms.as_ref().is_some_and(recently) {
            return None;
        }
        self.asked_ms = Some(now_ms);
        let hop = self.hop();
        self.write_arp(frame, ARP_REQUEST, &BROADCAST, &[0; 6], hop)
    }

    /// Puts headers before a payload of `len` bytes that begins at [`HEADERS`] in `frame`; returns
    /// the frame's length. `None` while the next hop is unknown or if the frame is too short.
    pub fn wrap(&mut self, frame: &mut [u8], len: usize) -> Option<usize> {
        let to = self.next_hop?;
        let (peer, peer_port) = self.peer;
        self.wrap_for(frame, len, &to, peer, [self.port, peer_port])
    }

    /// The same for everybody on the network, from and to a port: DHCP, before there are addresses.
    #[cfg(feature = "dhcp")]
    pub(crate) fn wrap_broadcast(
        &mut self,
        frame: &mut [u8],
        len: usize,
        ports: [u16; 2],
    ) -> Option<usize> {
        self.wrap_for(frame, len, &BROADCAST, [255; 4], ports)
    }

    fn wrap_for(
        &mut self,
        frame: &mut [u8],
        len: usize,
        mac: &Mac,
        peer: Address,
        ports: [u16; 2],
    ) -> Option<usize> {
        let total = HEADERS.checked_add(len)?;
        let frame = frame.get_mut(..total)?;
        let ip_len = u16::try_from(total - IP).ok()?;
        let udp_len = ip_len - 20;
        self.identification = self.identification.wrapping_add(1);
        frame[..6].copy_from_slice(mac);
        frame[6..12].copy_from_slice(&self.mac);
        frame[12..IP].copy_from_slice(&TYPE_IPV4);
        frame[IP..IP + 2].copy_from_slice(&[0x45, 0]);
        frame[16..18].copy_from_slice(&ip_len.to_be_bytes());
        frame[18..20].copy_from_slice(&self.identification.to_be_bytes());
        // Don't fragment: QUIC wants to know (RFC 9000 section 14).
        frame[20..26].copy_from_slice(&[0x40, 0, TIME_TO_LIVE, PROTOCOL_UDP, 0, 0]);
        frame[26..30].copy_from_slice(&self.network.address);
        frame[30..34].copy_from_slice(&peer);
        let sum = Sum::default().add(&frame[IP..UDP]).finish();
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame[34..36].copy_from_slice(&ports[0].to_be_bytes());
        frame[36..38].copy_from_slice(&ports[1].to_be_bytes());
        frame[38..40].copy_from_slice(&udp_len.to_be_bytes());
        frame[40..42].fill(0);
        let sum = match udp_sum(frame).finish() {
            0 => 0xffff,
            sum => sum,
        };
        frame[40..42].copy_from_slice(&sum.to_be_bytes());
        Some(total)
    }

    /// Takes a frame from the network.
    pub fn receive(&mut self, frame: &mut [u8]) -> Received {
        match frame.get(12..IP) {
            Some(kind) if kind == TYPE_ARP => self.receive_arp(frame),
            Some(kind) if kind == TYPE_IPV4 => self.receive_ip(frame),
            _ => Received::Nothing,
        }
    }

    fn receive_arp(&mut self, frame: &mut [u8]) -> Received {
        let Some(arp) = frame.get(IP..ARP_FRAME) else { return Received::Nothing };
        let (mut mac, mut sender) = ([0; 6], [0; 4]);
        mac.copy_from_slice(&arp[8..14]);
        sender.copy_from_slice(&arp[14..18]);
        let for_us = arp[24..28] == self.network.address && self.network.address != [0; 4];
        let usable = mac[0] & 1 == 0;
        if arp[..6] != ARP_START || arp[6] != 0 || !for_us || !usable {
            return Received::Nothing;
        }
        match arp[7] {
            // Only what was asked for is believed.
            ARP_REPLY if self.asked_ms.is_some() && sender == self.hop() => {
                self.next_hop = Some(mac);
                Received::Nothing
            }
            ARP_REQUEST => self
                .write_arp(frame, ARP_REPLY, &mac, &mac, sender)
                .map_or(Received::Nothing, Received::Answer),
            _ => Received::Nothing,
        }
    }

    fn receive_ip(&self, frame: &[u8]) -> Received {
        self.receive_on(frame, self.port)
    }

    /// Takes an IPv4 frame with a datagram for `port`.
    pub(crate) fn receive_on(&self, frame: &[u8], port: u16) -> Received {
        match self.datagram(frame, port) {
            Some((from, payload)) => Received::Datagram { from, payload },
            None => Received::Nothing,
        }
    }

    /// The datagram for `to_port` in an IPv4 frame, if there is one and it is intact.
    fn datagram(&self, frame: &[u8], to_port: u16) -> Option<((Address, u16), Range<usize>)> {
        let header = frame.get(IP..HEADERS)?;
        let ip_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let packet = frame.get(IP..IP.checked_add(ip_len)?)?;
        let whole = header[6] & 0x3f == 0 && header[7] == 0;
        let plain = header[0] == 0x45 && header[9] == PROTOCOL_UDP;
        if !whole || !plain || Sum::default().add(&header[..20]).finish() != 0 {
            return None;
        }
        let to_us = header[16..20] == self.network.address || header[16..20] == [255; 4];
        let port = u16::from_be_bytes([header[22], header[23]]);
        let udp_len = usize::from(u16::from_be_bytes([header[24], header[25]]));
        if !to_us || port != to_port || udp_len < 8 || 20 + udp_len > packet.len() {
            return None;
        }
        let end = UDP + udp_len;
        let unsummed = header[26..28] == [0, 0];
        if !unsummed && udp_sum(&frame[..end]).finish() != 0 {
            return None;
        }
        let from = [header[12], header[13], header[14], header[15]];
        Some(((from, u16::from_be_bytes([header[20], header[21]])), HEADERS..end))
    }

    /// Who forwards to the peer: itself on our network, the gateway elsewhere.
    fn hop(&self) -> Address {
        let mask = u32::MAX.checked_shl(32 - u32::from(self.network.prefix_bits.min(32)));
        let mask = mask.unwrap_or(0);
        let [ours, peer] = [self.network.address, self.peer.0].map(u32::from_be_bytes);
        if (ours ^ peer) & mask == 0 { self.peer.0 } else { self.network.gateway }
    }

    fn write_arp(
        &self,
        frame: &mut [u8],
        operation: u8,
        to: &Mac,
        target: &Mac,
        address: Address,
    ) -> Option<usize> {
        let frame = frame.get_mut(..ARP_FRAME)?;
        frame[..6].copy_from_slice(to);
        frame[6..12].copy_from_slice(&self.mac);
        frame[12..IP].copy_from_slice(&TYPE_ARP);
        frame[IP..20].copy_from_slice(&ARP_START);
        frame[20..22].copy_from_slice(&[0, operation]);
        frame[22..28].copy_from_slice(&self.mac);
        frame[28..32].copy_from_slice(&self.network.address);
        frame[32..38].copy_from_slice(target);
        frame[38..42].copy_from_slice(&address);
        Some(ARP_FRAME)
    }
}

/// The sum of the pseudo header and of the UDP datagram, which ends the frame.
fn udp_sum(frame: &[u8]) -> Sum {
    let datagram = &frame[UDP..];
    let len = [datagram[4], datagram[5]];
    Sum::default().add(&frame[26..34]).add(&[0, PROTOCOL_UDP]).add(&len).add(datagram)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NETWORK: Network =
        Network { address: [10, 0, 2, 15], prefix_bits: 24, gateway: [10, 0, 2, 2] };
    const PEER: (Address, u16) = ([192, 0, 2, 7], 14567);
    const ROUTER: Mac = [2, 0, 0, 0, 0, 1];

    fn host() -> Host {
        Host::new([2, 0, 0, 0, 0, 9], NETWORK, 40_000, PEER.0, PEER.1)
    }

    /// A host that knows its gateway.
    fn ready() -> Host {
        let (mut host, mut frame) = (host(), [0; 60]);
        host.next_query(0, &mut frame).expect("a question");
        assert_eq!(host.receive(&mut arp(ARP_REPLY, ROUTER, NETWORK.gateway)), Received::Nothing);
        assert!(host.is_ready());
        host
    }

    fn arp(operation: u8, mac: Mac, sender: Address) -> [u8; 60] {
        let mut frame = [0; 60];
        frame[12..14].copy_from_slice(&TYPE_ARP);
        frame[14..20].copy_from_slice(&ARP_START);
        frame[21] = operation;
        frame[22..28].copy_from_slice(&mac);
        frame[28..32].copy_from_slice(&sender);
        frame[38..42].copy_from_slice(&NETWORK.address);
        frame
    }

    /// A frame as the peer would send it, with this payload.
    fn incoming(payload: &[u8]) -> Vec<u8> {
        let mut peer = Host::new(ROUTER, Network { address: PEER.0, ..NETWORK }, PEER.1, [0; 4], 0);
        let mut frame = vec![0; HEADERS + payload.len()];
        frame[HEADERS..].copy_from_slice(payload);
        let to = (NETWORK.address, 40_000);
        peer.wrap_for(&mut frame, payload.len(), &[2, 0, 0, 0, 0, 9], to.0, [PEER.1, to.1])
            .expect("fits");
        frame
    }

    #[test]
    fn asks_for_the_gateway_now_and_then_until_it_answers() {
        let (mut host, mut frame) = (host(), [0; 60]);
        assert_eq!(host.next_query(1000, &mut frame), Some(ARP_FRAME));
        assert_eq!(frame[38..42], NETWORK.gateway);
        assert_eq!(host.next_query(1499, &mut frame), None);
        assert_eq!(host.next_query(1500, &mut frame), Some(ARP_FRAME));
        assert_eq!(host.wrap(&mut [0; 100], 10), None);
        assert!(ready().wrap(&mut [0; 100], 10).is_some());
    }

    #[test]
    fn a_peer_on_the_same_network_is_asked_for_itself() {
        let mut host = host();
        host.set_peer([10, 0, 2, 99], 1);
        let mut frame = [0; 60];
        host.next_query(0, &mut frame).expect("a question");
        assert_eq!(frame[38..42], [10, 0, 2, 99]);
    }

    #[test]
    fn answers_questions_for_its_own_address() {
        let mut frame = arp(ARP_REQUEST, ROUTER, NETWORK.gateway);
        assert_eq!(host().receive(&mut frame), Received::Answer(ARP_FRAME));
        assert_eq!(frame[..6], ROUTER);
        assert_eq!(frame[21], ARP_REPLY);
        assert_eq!(frame[22..28], [2, 0, 0, 0, 0, 9]);
        assert_eq!(frame[38..42], NETWORK.gateway);
    }

    #[test]
    fn believes_only_the_answer_it_asked_for() {
        let mut host = host();
        host.receive(&mut arp(ARP_REPLY, ROUTER, NETWORK.gateway));
        assert!(!host.is_ready(), "nobody asked");
        host.next_query(0, &mut [0; 60]);
        host.receive(&mut arp(ARP_REPLY, ROUTER, [10, 0, 2, 3]));
        assert!(!host.is_ready(), "another's answer");
        host.receive(&mut arp(ARP_REPLY, [1, 0, 0, 0, 0, 1], NETWORK.gateway));
        assert!(!host.is_ready(), "a group is no next hop");
    }

    #[test]
    fn a_wrapped_payload_is_what_the_peer_gets() {
        let mut host = ready();
        let mut frame = [0; 100];
        frame[HEADERS..HEADERS + 5].copy_from_slice(b"hello");
        let len = host.wrap(&mut frame, 5).expect("fits");
        assert_eq!(len, HEADERS + 5);
        assert_eq!(frame[..6], ROUTER);
        let network = Network { address: PEER.0, ..NETWORK };
        let mut peer = Host::new(ROUTER, network, PEER.1, [0; 4], 0);
        let received = peer.receive(&mut frame[..len]);
        let from = (NETWORK.address, 40_000);
        assert_eq!(received, Received::Datagram { from, payload: HEADERS..len });
    }

    #[test]
    fn padding_behind_a_datagram_is_not_payload() {
        let mut frame = incoming(b"x");
        frame.resize(60, 0);
        let received = host().receive(&mut frame);
        assert_eq!(received, Received::Datagram { from: PEER, payload: HEADERS..HEADERS + 1 });
    }

    #[test]
    fn damaged_foreign_and_partial_packets_are_dropped() {
        // (what is wrong, the byte, what it becomes)
        let cases = [
            ("payload", HEADERS, 0),
            ("IP checksum", 24, 0),
            ("another port", 37, 1),
            ("another address", 33, 1),
            ("fragment", 20, 0x20),
            ("fragment offset", 21, 1),
            ("options", 14, 0x46),
            ("TCP", 23, 6),
        ];
        for (what, at, value) in cases {
            let mut frame = incoming(b"hello");
            frame[at] = value;
            if at < UDP && what != "IP checksum" {
                frame[24..26].fill(0);
                let sum = Sum::default().add(&frame[IP..UDP]).finish();
                frame[24..26].copy_from_slice(&sum.to_be_bytes());
            }
            assert_eq!(host().receive(&mut frame), Received::Nothing, "{what}");
        }
        assert!(matches!(host().receive(&mut incoming(b"hello")), Received::Datagram { .. }));
    }

    #[test]
    fn no_length_and_no_cut_lead_outside_the_frame() {
        let whole = incoming(b"hello");
        for len in 0..whole.len() {
            assert_eq!(host().receive(&mut whole[..len].to_vec()), Received::Nothing);
        }
        for length in 0..=u16::MAX {
            let mut frame = whole.clone();
            frame[38..40].copy_from_slice(&length.to_be_bytes());
            // Without a checksum only the length can stop it.
            frame[40..42].fill(0);
            if let Received::Datagram { payload, .. } = host().receive(&mut frame) {
                assert!(payload.end <= whole.len());
            }
        }
    }
}
