//! The few MQTT 3.1.1 packets the load generator needs, encoded once and patched per message.
//!
//! It does not check what the broker sends beyond its framing: a generator that looked closer would
//! measure itself.

use std::ops::Range;

use fulmar_mqtt::packet::{Connect, FilterList, Publish, Subscribe, SubscribeOptions};
use fulmar_mqtt::{Packet, PacketId, Properties, QoS, Version};

const VERSION: Version = Version::V311;

/// Seconds; long enough that no run needs a PINGREQ, and not zero, which some brokers refuse.
const KEEP_ALIVE_S: u16 = 3_600;

pub(super) const DISCONNECT: [u8; 2] = [0xE0, 0x00];

/// Packet types as the first byte's upper half.
pub(super) mod kind {
    pub(crate) const CONNACK: u8 = 2;
    pub(crate) const PUBLISH: u8 = 3;
    pub(crate) const PUBACK: u8 = 4;
    pub(crate) const PUBREC: u8 = 5;
    pub(crate) const PUBREL: u8 = 6;
    pub(crate) const PUBCOMP: u8 = 7;
    pub(crate) const SUBACK: u8 = 9;
}

pub(super) fn connect(client_id: &str, clean: bool, login: Option<(&str, &str)>) -> Vec<u8> {
    let mut out = Vec::new();
    let packet = Connect {
        clean_start: clean,
        keep_alive_s: KEEP_ALIVE_S,
        username: login.map(|(name, _)| name),
        password: login.map(|(_, secret)| secret.as_bytes()),
        ..Connect::new(VERSION, client_id)
    };
    Packet::Connect(packet).encode(VERSION, &mut out);
    out
}

/// A SUBSCRIBE with identifier 1; the filter is the plan's own and valid.
pub(super) fn subscribe(filter: &str, qos: QoS) -> anyhow::Result<Vec<u8>> {
    let options = SubscribeOptions { qos, ..SubscribeOptions::default() };
    let mut filters = Vec::new();
    FilterList::encode_one(&mut filters, filter, Some(options));
    let mut out = Vec::new();
    let packet = Subscribe {
        packet_id: PacketId::FIRST,
        properties: Properties::NONE,
        filters: FilterList::from_encoded(&filters, true, VERSION)?,
    };
    Packet::Subscribe(packet).encode(VERSION, &mut out);
    Ok(out)
}

/// PUBACK, PUBREC, PUBREL or PUBCOMP.
pub(super) fn ack(packet_kind: u8, id: [u8; 2]) -> [u8; 4] {
    let flags = if packet_kind == kind::PUBREL { 2 } else { 0 };
    [packet_kind << 4 | flags, 2, id[0], id[1]]
}

/// One topic's PUBLISH with holes for the packet identifier and the time stamp, which is the first
/// eight bytes of the payload.
pub(super) struct Template {
    bytes: Box<[u8]>,
    id: Option<Range<usize>>,
    stamp: Range<usize>,
}

/// Bytes of the time stamp: nanoseconds since the generator's start, big endian.
pub(super) const STAMP_BYTES: usize = 8;

impl Template {
    /// `payload_bytes` is at least [`STAMP_BYTES`]; the command line sees to it.
    pub(super) fn new(topic: &str, qos: QoS, payload_bytes: usize) -> Template {
        let payload = vec![b'.'; payload_bytes.max(STAMP_BYTES)];
        let packet_id = (qos != QoS::AtMostOnce).then_some(PacketId::FIRST);
        let publish = Publish {
            dup: false,
            qos,
            retain: false,
            topic,
            packet_id,
            properties: Properties::NONE,
            payload: &payload,
        };
        let mut bytes = Vec::new();
        publish.encode(VERSION, &mut bytes);
        let payload_at = bytes.len() - payload.len();
        Template {
            bytes: bytes.into(),
            id: packet_id.map(|_| payload_at - 2..payload_at),
            stamp: payload_at..payload_at + STAMP_BYTES,
        }
    }

    #[inline]
    pub(super) fn append(&self, out: &mut Vec<u8>, id: u16, stamp: u64) {
        let start = out.len();
        out.extend_from_slice(&self.bytes);
        let message = &mut out[start..];
        if let Some(range) = &self.id {
            message[range.clone()].copy_from_slice(&id.to_be_bytes());
        }
        message[self.stamp.clone()].copy_from_slice(&stamp.to_be_bytes());
    }
}

/// Extracts an incoming PUBLISH's identifier (QoS 1 and 2) and its time stamp.
#[inline]
pub(super) fn publish_parts(first: u8, body: &[u8]) -> Option<(Option<[u8; 2]>, u64)> {
    let (length, rest) = body.split_first_chunk::<2>()?;
    let mut rest = rest.get(usize::from(u16::from_be_bytes(*length))..)?;
    let mut id = None;
    if first & 0x06 != 0 {
        let (bytes, after) = rest.split_first_chunk::<2>()?;
        (id, rest) = (Some(*bytes), after);
    }
    let stamp = rest.first_chunk::<STAMP_BYTES>()?;
    Some((id, u64::from_be_bytes(*stamp)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use fulmar_mqtt::codec::peek_frame;

    #[test]
    fn a_patched_template_reads_back() {
        for (qos, id) in [(QoS::AtMostOnce, None), (QoS::ExactlyOnce, Some([0xAB, 0xCD]))] {
            let mut out = Vec::new();
            Template::new("bench/a", qos, 64).append(&mut out, 0xABCD, 123_456_789);
            let frame = peek_frame(&out, 1_000).unwrap().unwrap();
            assert_eq!(frame.len, out.len());
            assert_eq!(publish_parts(frame.first, frame.body), Some((id, 123_456_789)));
            assert_eq!(&out[out.len() - 56..], &[b'.'; 56]);
        }
    }

    #[test]
    fn a_publish_cut_short_has_no_parts() {
        assert_eq!(publish_parts(0x30, &[0, 5, b'a']), None);
        assert_eq!(publish_parts(0x32, &[0, 1, b'a', 0]), None);
        assert_eq!(publish_parts(0x30, &[0, 1, b'a', 0, 0, 0]), None);
    }
}
