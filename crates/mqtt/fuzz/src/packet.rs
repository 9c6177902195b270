//! Packets from a hostile peer. An accepted packet must stay the same after encoding and decoding it again, its lazy
//! views must be valid, and reading it allocates nothing, whatever lengths it claims.

use fulmar_mqtt::codec::{Frame, decode, peek_frame};
use fulmar_mqtt::packet::Publish;
use fulmar_mqtt::publish::{PublishHead, encode_header};
use fulmar_mqtt::{DecodeError, Packet, Version};

use crate::heap;

/// Small, so that the fuzzer finds the limit.
const MAX_PACKET_BYTES: usize = 4096;

/// A version, then a stream of packets that may be cut at any place.
pub fn packet(data: &[u8]) {
    let Some((first, mut rest)) = data.split_first() else { return };
    let version = if first & 1 == 0 { Version::V5 } else { Version::V311 };
    while let (Ok(Some(frame)), used) = heap::measure(|| peek_frame(rest, MAX_PACKET_BYTES)) {
        assert_eq!(used.peak_bytes, 0);
        assert!(frame.len <= MAX_PACKET_BYTES);
        match look(&frame, version) {
            Ok(packet) => check(&packet, version),
            Err(error) => assert!(error.reason().is_error()),
        }
        rest = &rest[frame.len..];
    }
}

fn look<'a>(frame: &Frame<'a>, version: Version) -> Result<Packet<'a>, DecodeError> {
    let (result, used) = heap::measure(|| decode(frame, version));
    assert_eq!(used.peak_bytes, 0, "decoding borrows");
    result
}

fn check(packet: &Packet<'_>, version: Version) {
    // CONNECT contains its version.
    let version = if let Packet::Connect(connect) = packet { connect.version } else { version };
    let mut bytes = Vec::new();
    packet.encode(version, &mut bytes);
    let Ok(Some(frame)) = peek_frame(&bytes, 2 * MAX_PACKET_BYTES) else {
        panic!("what was encoded is not a whole packet")
    };
    assert_eq!(frame.len, bytes.len());
    assert_eq!(look(&frame, version).as_ref(), Ok(packet));
    match packet {
        Packet::Publish(publish) => forward(publish),
        Packet::Subscribe(subscribe) => assert!(subscribe.filters.iter().next().is_some()),
        Packet::Unsubscribe(unsubscribe) => assert!(unsubscribe.filters.iter().next().is_some()),
        _ => {}
    }
}

/// The packet as a broker forwards it: with the properties of its own hop around those of the publisher.
fn forward(publish: &Publish<'_>) {
    let mut forwarded = Vec::new();
    publish.properties.forwardable_into(&mut forwarded);
    assert!(forwarded.len() <= publish.properties.raw().len());
    let head = PublishHead {
        dup: false,
        qos: publish.qos,
        retain: false,
        topic: publish.topic,
        packet_id: publish.packet_id,
        message_expiry: Some(7),
        topic_alias: Some(1),
        subscription_ids: &[1, 268_435_455],
        raw_properties: &forwarded,
        payload_len: publish.payload.len(),
    };
    let mut bytes = Vec::new();
    encode_header(&mut bytes, Version::V5, &head);
    bytes.extend_from_slice(publish.payload);
    assert_eq!(bytes.len(), head.encoded_len(Version::V5));
    let Ok(Some(frame)) = peek_frame(&bytes, usize::MAX) else {
        panic!("what was forwarded is not a whole packet")
    };
    let Ok(Packet::Publish(again)) = look(&frame, Version::V5) else {
        panic!("what was forwarded does not decode")
    };
    assert_eq!((again.topic, again.payload), (publish.topic, publish.payload));
    let mut kept = Vec::new();
    again.properties.forwardable_into(&mut kept);
    assert_eq!(kept, forwarded);
}
