//! The error that a router sends for a packet larger than the next link's MTU: ICMP "fragmentation needed" (RFC 792,
//! 1191) or ICMPv6 "packet too big" (RFC 4443, section 3.2).
//!
//! The lab never fragments: an IPv4 packet without "don't fragment" gets the answer too.

use super::{PacketView, checksum};

/// The source address of routers without an address of their own (RFC 7600, section 4.8).
const ROUTER_V4: [u8; 4] = [192, 0, 0, 8];
/// The same for IPv6, from the benchmarking prefix (RFC 5180) that the lab's hosts use.
const ROUTER_V6: [u8; 16] = [0x20, 0x01, 0, 2, 0, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 1];

/// An ICMPv6 error must fit the smallest MTU.
const V6_QUOTED: usize = 1280 - 48;
/// Header and 8 bytes must be quoted; up to 576 bytes in all may be (RFC 1812, 4.3.2.3).
const V4_QUOTED: usize = 576 - 28;

/// The error for the sender of `packet`. `None` if errors must not be sent: for multicast, for ICMP, and for packets
/// other than IP.
pub(crate) fn too_big(packet: &[u8], mtu: u16) -> Option<Vec<u8>> {
    let view = PacketView::parse(packet)?;
    if view.destination().is_multicast() || view.protocol() == super::Protocol::Icmp {
        return None;
    }
    match packet[0] >> 4 {
        4 => Some(v4(packet, mtu)),
        _ => Some(v6(packet, mtu)),
    }
}

fn v4(packet: &[u8], mtu: u16) -> Vec<u8> {
    let quoted = &packet[..packet.len().min(V4_QUOTED)];
    let total = (28 + quoted.len()) as u16;
    let mut answer = vec![0x45, 0xc0];
    answer.extend_from_slice(&total.to_be_bytes());
    answer.extend_from_slice(&[0, 0, 0, 0, 64, 1, 0, 0]);
    answer.extend_from_slice(&ROUTER_V4);
    answer.extend_from_slice(&packet[12..16]);
    let header = checksum::internet(&[&answer]);
    answer[10..12].copy_from_slice(&header.to_be_bytes());
    answer.extend_from_slice(&[3, 4, 0, 0, 0, 0]);
    answer.extend_from_slice(&mtu.to_be_bytes());
    answer.extend_from_slice(quoted);
    let sum = checksum::internet(&[&answer[20..]]);
    answer[22..24].copy_from_slice(&sum.to_be_bytes());
    answer
}

fn v6(packet: &[u8], mtu: u16) -> Vec<u8> {
    let quoted = &packet[..packet.len().min(V6_QUOTED)];
    let length = (8 + quoted.len()) as u16;
    let mut answer = vec![0x60, 0, 0, 0];
    answer.extend_from_slice(&length.to_be_bytes());
    answer.extend_from_slice(&[58, 64]);
    answer.extend_from_slice(&ROUTER_V6);
    answer.extend_from_slice(&packet[8..24]);
    answer.extend_from_slice(&[2, 0, 0, 0]);
    answer.extend_from_slice(&u32::from(mtu).to_be_bytes());
    answer.extend_from_slice(quoted);
    let pseudo = [0, 0, answer[4], answer[5], 0, 0, 0, 58];
    let sum = checksum::internet(&[&answer[8..40], &pseudo, &answer[40..]]);
    answer[42..44].copy_from_slice(&sum.to_be_bytes());
    answer
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::testing::{udp, udp6};
    use std::net::IpAddr;

    #[test]
    fn ipv4_senders_learn_the_mtu() {
        let packet = udp([10, 0, 0, 1], 4000, [10, 0, 1, 1], 53, &[7; 1400]);
        let answer = too_big(&packet, 1280).unwrap();
        let view = PacketView::parse(&answer).unwrap();
        assert_eq!(view.destination(), IpAddr::from([10, 0, 0, 1]));
        assert_eq!(checksum::internet(&[&answer[..20]]), 0);
        assert_eq!(checksum::internet(&[&answer[20..]]), 0);
        assert_eq!(view.transport()[..2], [3, 4]);
        assert_eq!(view.transport()[6..8], 1280u16.to_be_bytes());
        assert_eq!(view.transport()[8..], packet[..answer.len() - 28]);
    }

    #[test]
    fn ipv6_senders_learn_the_mtu() {
        let packet = udp6(4000, 53, &[7; 1400]);
        let answer = too_big(&packet, 1300).unwrap();
        let view = PacketView::parse(&answer).unwrap();
        assert_eq!(answer.len(), 1280);
        assert_eq!(view.transport()[..2], [2, 0]);
        assert_eq!(view.transport()[4..8], 1300u32.to_be_bytes());
    }

    #[test]
    fn groups_and_errors_are_not_answered() {
        let packet = udp([10, 0, 0, 1], 4000, [239, 1, 1, 1], 53, &[7; 1400]);
        assert!(too_big(&packet, 1280).is_none());
        let packet = udp([10, 0, 0, 1], 4000, [10, 0, 1, 1], 53, &[7; 1400]);
        let answer = too_big(&packet, 1280).unwrap();
        assert!(too_big(&answer, 100).is_none());
    }
}
