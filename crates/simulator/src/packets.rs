//! The packets that simulated clients send and read.

use fulmar_mqtt::ack::{self, AckKind};
use fulmar_mqtt::codec::{decode, peek_frame};
use fulmar_mqtt::packet::{FilterList, Subscribe, SubscribeOptions, Unsubscribe};
use fulmar_mqtt::{Packet, PacketId, Properties, ReasonCode, Version};

pub(crate) fn encoded(packet: &Packet<'_>, version: Version) -> Vec<u8> {
    let mut bytes = Vec::new();
    packet.encode(version, &mut bytes);
    bytes
}

/// An acknowledgement without an error.
pub(crate) fn acknowledgement(kind: AckKind, id: PacketId, version: Version) -> Vec<u8> {
    let mut bytes = Vec::new();
    ack::encode(&mut bytes, version, kind, id, ReasonCode::Success);
    bytes
}

/// SUBSCRIBE for all of these filters with the same options; UNSUBSCRIBE if there are no options.
pub(crate) fn subscription<'a>(
    packet_id: PacketId,
    filters: impl IntoIterator<Item = &'a str>,
    options: Option<SubscribeOptions>,
    version: Version,
) -> Vec<u8> {
    let mut list = Vec::new();
    filters.into_iter().for_each(|filter| FilterList::encode_one(&mut list, filter, options));
    let Ok(filters) = FilterList::from_encoded(&list, options.is_some(), version) else {
        return Vec::new();
    };
    let properties = Properties::NONE;
    let packet = match options {
        Some(_) => Packet::Subscribe(Subscribe { packet_id, properties, filters }),
        None => Packet::Unsubscribe(Unsubscribe { packet_id, properties, filters }),
    };
    encoded(&packet, version)
}

/// Decodes a whole packet.
pub(crate) fn decoded(bytes: &[u8], version: Version) -> Result<Packet<'_>, String> {
    let frame = peek_frame(bytes, usize::MAX).ok().flatten().ok_or("half a packet")?;
    decode(&frame, version).map_err(|error| error.to_string())
}
