//! PUBLISH for the broker's hot path: everything before the payload, in one pass, from properties that are already
//! encoded (section 3.3).

use crate::types::{PacketId, QoS, Version};
use crate::wire::{fitting, put_packet_id, put_string, put_variable, variable_len};

/// Everything in a PUBLISH except its payload.
#[derive(Clone, Copy, Debug)]
pub struct PublishHead<'a> {
    /// Whether it may have been sent before.
    pub dup: bool,
    /// Quality of service.
    pub qos: QoS,
    /// RETAIN flag.
    pub retain: bool,
    /// Topic name, at most 65,535 bytes; may be empty with an alias.
    pub topic: &'a str,
    /// Packet identifier; with QoS 1 and 2 only.
    pub packet_id: Option<PacketId>,
    /// Message expiry interval in seconds.
    pub message_expiry: Option<u32>,
    /// Topic alias.
    pub topic_alias: Option<u16>,
    /// Subscription identifiers.
    pub subscription_ids: &'a [u32],
    /// Further properties, encoded, without length.
    pub raw_properties: &'a [u8],
    /// Length of the payload that will follow, in bytes.
    pub payload_len: usize,
}

impl PublishHead<'_> {
    fn properties_len(&self) -> usize {
        let ids = self.subscription_ids.iter().map(|id| 1 + variable_len(*id as usize));
        self.message_expiry.map_or(0, |_| 5)
            + self.topic_alias.map_or(0, |_| 3)
            + ids.sum::<usize>()
            + self.raw_properties.len()
    }

    /// Length of the whole packet in bytes, payload included; over
    /// [`MAX_PACKET_BYTES`](crate::codec::MAX_PACKET_BYTES) it cannot be sent.
    #[must_use]
    pub fn encoded_len(&self, version: Version) -> usize {
        let remaining = self.remaining_len(version);
        1 + variable_len(remaining) + remaining
    }

    fn remaining_len(&self, version: Version) -> usize {
        let properties = match version {
            Version::V311 => 0,
            Version::V5 => {
                let length = self.properties_len();
                variable_len(length) + length
            }
        };
        2 + fitting(self.topic).len()
            + self.packet_id.map_or(0, |_| 2)
            + properties
            + self.payload_len
    }
}

/// Appends everything in a PUBLISH except its payload, for which it makes room. The caller must have checked that the
/// packet is not longer than the protocol allows, which is far above any sensible limit.
pub fn encode_header(out: &mut Vec<u8>, version: Version, head: &PublishHead<'_>) {
    let remaining = head.remaining_len(version);
    out.reserve(5 + remaining);
    put_header(out, version, head, remaining);
    if version == Version::V5 {
        out.extend_from_slice(head.raw_properties);
    }
}

/// Appends what is in front of the further properties (3.1.1: of the payload) in a PUBLISH whose rest goes elsewhere.
pub fn encode_header_start(out: &mut Vec<u8>, version: Version, head: &PublishHead<'_>) {
    put_header(out, version, head, head.remaining_len(version));
}

#[inline]
fn put_header(out: &mut Vec<u8>, version: Version, head: &PublishHead<'_>, remaining: usize) {
    let dup = u8::from(head.dup) << 3;
    out.push(0x30 | dup | (head.qos as u8) << 1 | u8::from(head.retain));
    put_variable(out, remaining);
    put_string(out, head.topic);
    if let Some(id) = head.packet_id {
        put_packet_id(out, id);
    }
    if version == Version::V311 {
        return;
    }
    put_variable(out, head.properties_len());
    if let Some(seconds) = head.message_expiry {
        out.push(0x02);
        out.extend_from_slice(&seconds.to_be_bytes());
    }
    if let Some(alias) = head.topic_alias {
        out.push(0x23);
        out.extend_from_slice(&alias.to_be_bytes());
    }
    for id in head.subscription_ids {
        out.push(0x0B);
        put_variable(out, *id as usize);
    }
}
