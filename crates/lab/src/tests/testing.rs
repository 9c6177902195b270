//! Help for the tests: whole packets with right checksums, and bounds for what is random.

use crate::wire::checksum;

fn ipv4(source: [u8; 4], destination: [u8; 4], protocol: u8, transport: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    packet.extend_from_slice(&((20 + transport.len()) as u16).to_be_bytes());
    packet.extend_from_slice(&[0, 0, 0x40, 0, 64, protocol, 0, 0]);
    packet.extend_from_slice(&source);
    packet.extend_from_slice(&destination);
    let sum = checksum::internet(&[&packet]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend_from_slice(transport);
    packet
}

/// The transport checksum over the packet as it stands: 0 for a right one.
pub(crate) fn transport_sum(packet: &[u8]) -> u16 {
    let length = ((packet.len() - 20) as u16).to_be_bytes();
    checksum::internet(&[&packet[12..20], &[0, packet[9]], &length, &packet[20..]])
}

pub(crate) fn udp(
    source: [u8; 4],
    from: u16,
    destination: [u8; 4],
    to: u16,
    payload: &[u8],
) -> Vec<u8> {
    let mut transport = Vec::new();
    transport.extend_from_slice(&from.to_be_bytes());
    transport.extend_from_slice(&to.to_be_bytes());
    transport.extend_from_slice(&((8 + payload.len()) as u16).to_be_bytes());
    transport.extend_from_slice(&[0, 0]);
    transport.extend_from_slice(payload);
    let mut packet = ipv4(source, destination, 17, &transport);
    let sum = transport_sum(&packet);
    packet[26..28].copy_from_slice(&sum.to_be_bytes());
    packet
}

pub(crate) fn tcp(
    source: [u8; 4],
    from: u16,
    destination: [u8; 4],
    to: u16,
    sequence: u32,
    flags: u8,
    payload: &[u8],
) -> Vec<u8> {
    let mut transport = Vec::new();
    transport.extend_from_slice(&from.to_be_bytes());
    transport.extend_from_slice(&to.to_be_bytes());
    transport.extend_from_slice(&sequence.to_be_bytes());
    transport.extend_from_slice(&[0, 0, 0, 0, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    transport.extend_from_slice(payload);
    let mut packet = ipv4(source, destination, 6, &transport);
    let sum = transport_sum(&packet);
    packet[36..38].copy_from_slice(&sum.to_be_bytes());
    packet
}

pub(crate) fn udp6(from: u16, to: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    let length = ((8 + payload.len()) as u16).to_be_bytes();
    packet.extend_from_slice(&length);
    packet.extend_from_slice(&[17, 64]);
    packet.extend_from_slice(&[0x20, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    packet.extend_from_slice(&[0x20, 1, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]);
    packet.extend_from_slice(&from.to_be_bytes());
    packet.extend_from_slice(&to.to_be_bytes());
    packet.extend_from_slice(&length);
    packet.extend_from_slice(&[0, 0]);
    packet.extend_from_slice(payload);
    let pseudo = [0, 0, packet[4], packet[5], 0, 0, 0, 17];
    let sum = checksum::internet(&[&packet[8..40], &pseudo, &packet[40..]]);
    packet[46..48].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// Whether a count is within the binomial distribution's 99.99 % interval (normal approximation,
/// z = 3.89); seeds are fixed, so a test that passes once passes always.
pub(crate) fn is_binomial(count: u64, trials: u64, share: f64) -> bool {
    let (mean, n) = (share * trials as f64, trials as f64);
    (count as f64 - mean).abs() <= 3.89 * (n * share * (1.0 - share)).sqrt() + 0.5
}
