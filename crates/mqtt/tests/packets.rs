//! The codec as a whole: round trips of every packet in both versions, and properties that hold for
//! any bytes. What single clauses refuse or accept is in `clauses.rs`.
#![allow(clippy::unwrap_used)]

use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::codec::{decode, peek_frame};
use fulmar_mqtt::packet::{
    Ack, Auth, Connack, Connect, Disconnect, FilterList, LastWill, Publish, RetainHandling, Suback,
    Subscribe, SubscribeOptions, Unsuback, Unsubscribe,
};
use fulmar_mqtt::{
    DecodeError, Packet, PacketId, Properties, Property, PropertyBuf, QoS, ReasonCode, Version,
};
use proptest::prelude::*;

const LIMIT: usize = 1 << 20;

fn decode_all(bytes: &[u8], version: Version) -> Result<Packet<'_>, DecodeError> {
    let frame = peek_frame(bytes, LIMIT)?.expect("whole packet");
    assert_eq!(frame.len, bytes.len());
    decode(&frame, version)
}

#[test]
fn mqtt_3_1_connect_of_the_specification() {
    let bytes = b"\x10\x10\x00\x04MQTT\x05\x02\x00\x3c\x03\x21\x00\x14\x00\x00";
    let Packet::Connect(connect) = decode_all(bytes, Version::V5).unwrap() else { panic!() };
    assert_eq!(
        (connect.version, connect.clean_start, connect.keep_alive_s),
        (Version::V5, true, 60)
    );
    assert_eq!(connect.properties.iter().collect::<Vec<_>>(), [Property::ReceiveMaximum(20)]);
    let mut again = Vec::new();
    connect.encode(&mut again);
    assert_eq!(again, bytes);
}

#[test]
fn mqtt_1_5_5_length_is_bounded_and_minimal() {
    assert!(matches!(
        peek_frame(b"\x30\x80\x80\x80\x80\x01", LIMIT),
        Err(DecodeError::VariableByteInteger)
    ));
    assert!(matches!(peek_frame(b"\x30\x80\x00", LIMIT), Err(DecodeError::VariableByteInteger)));
    let over = peek_frame(b"\x30\xff\xff\x7f", 1000);
    assert!(matches!(over, Err(DecodeError::TooLarge { limit: 1000, .. })));
}

#[test]
fn forwardable_properties_leave_out_what_belongs_to_one_hop() {
    let mut all = PropertyBuf::new();
    all.push(Property::PayloadFormatIndicator(1))
        .push(Property::MessageExpiryInterval(9))
        .push(Property::TopicAlias(3))
        .push(Property::UserProperty("a", "b"))
        .push(Property::SubscriptionIdentifier(7))
        .push(Property::ResponseTopic("r"));
    let mut wanted = PropertyBuf::new();
    wanted
        .push(Property::PayloadFormatIndicator(1))
        .push(Property::UserProperty("a", "b"))
        .push(Property::ResponseTopic("r"));
    let mut kept = Vec::new();
    all.as_properties().forwardable_into(&mut kept);
    assert_eq!(kept, wanted.as_properties().raw());
}

/// Owned parts from which any packet can be borrowed.
#[derive(Clone, Debug)]
struct Parts {
    text: String,
    other: String,
    bytes: Vec<u8>,
    id: u16,
    number: u32,
    qos: u8,
    flags: [bool; 4],
    reason: u8,
}

fn parts() -> impl Strategy<Value = Parts> {
    let text = "[a-z/äß€]{0,40}";
    let bytes = proptest::collection::vec(any::<u8>(), 0..300);
    (text, text, bytes, 1u16.., any::<u32>(), 0u8..3, any::<[bool; 4]>(), any::<u8>()).prop_map(
        |(text, other, bytes, id, number, qos, flags, reason)| Parts {
            text,
            other,
            bytes,
            id,
            number,
            qos,
            flags,
            reason,
        },
    )
}

fn properties(make: impl FnOnce(&mut PropertyBuf), version: Version) -> PropertyBuf {
    let mut buf = PropertyBuf::new();
    if version == Version::V5 {
        make(&mut buf);
    }
    buf
}

/// Calls `check` with one packet of each type made of `parts`.
fn every_packet(parts: &Parts, version: Version, mut check: impl FnMut(Packet<'_>)) {
    let qos = QoS::try_from(parts.qos).unwrap();
    let id = PacketId::new(parts.id).unwrap();
    let reason = ReasonCode::from_u8(parts.reason).unwrap_or(ReasonCode::Success);
    let [a, b, c, d] = parts.flags;
    let (text, other, bytes) = (&parts.text[..], &parts.other[..], &parts.bytes[..]);
    let user = properties(
        |p| {
            p.push(Property::UserProperty(text, other));
        },
        version,
    );
    let empty = if a { user.as_properties() } else { Properties::NONE };
    let connect_properties = properties(
        |p| {
            p.push(Property::SessionExpiryInterval(parts.number))
                .push(Property::AuthenticationMethod(text))
                .push(Property::AuthenticationData(bytes));
        },
        version,
    );
    let will_properties = properties(
        |p| {
            p.push(Property::WillDelayInterval(parts.number));
        },
        version,
    );
    let will = LastWill {
        topic: other,
        payload: bytes,
        qos,
        retain: d,
        properties: will_properties.as_properties(),
    };
    check(Packet::Connect(Connect {
        version,
        bridge: d && version == Version::V311,
        clean_start: a,
        keep_alive_s: parts.id,
        client_id: text,
        properties: connect_properties.as_properties(),
        will: b.then_some(will),
        username: c.then_some(other),
        password: (c && d).then_some(bytes),
    }));
    let refusal = match version {
        Version::V5 if reason.is_error() => reason,
        _ => ReasonCode::NotAuthorized,
    };
    check(Packet::Connack(Connack {
        session_present: a && b,
        reason: if b { ReasonCode::Success } else { refusal },
        properties: empty,
    }));
    check(Packet::Publish(Publish {
        dup: a && qos > QoS::AtMostOnce,
        qos,
        retain: b,
        topic: text,
        packet_id: (qos > QoS::AtMostOnce).then_some(id),
        properties: empty,
        payload: bytes,
    }));
    for kind in [AckKind::Puback, AckKind::Pubrec, AckKind::Pubrel, AckKind::Pubcomp] {
        let refused = match kind {
            AckKind::Puback | AckKind::Pubrec => ReasonCode::QuotaExceeded,
            AckKind::Pubrel | AckKind::Pubcomp => ReasonCode::PacketIdentifierNotFound,
        };
        let reason = if version == Version::V5 && c { refused } else { ReasonCode::Success };
        check(Packet::Ack(kind, Ack { packet_id: id, reason, properties: empty }));
    }
    let options = SubscribeOptions {
        qos,
        no_local: b && version == Version::V5,
        retain_as_published: c && version == Version::V5,
        retain_handling: if d && version == Version::V5 {
            RetainHandling::IfNew
        } else {
            RetainHandling::Always
        },
    };
    let mut list = Vec::new();
    FilterList::encode_one(&mut list, text, Some(options));
    FilterList::encode_one(&mut list, other, Some(options));
    let filters = FilterList::from_encoded(&list, true, version).unwrap();
    assert_eq!(filters.iter().collect::<Vec<_>>(), [(text, options), (other, options)]);
    check(Packet::Subscribe(Subscribe { packet_id: id, properties: empty, filters }));
    let mut list = Vec::new();
    FilterList::encode_one(&mut list, text, None);
    let filters = FilterList::from_encoded(&list, false, version).unwrap();
    check(Packet::Unsubscribe(Unsubscribe { packet_id: id, properties: empty, filters }));
    check(Packet::Suback(Suback { packet_id: id, properties: empty, codes: &[0, 2, 0x80] }));
    let codes: &[u8] = if version == Version::V5 { &[0, 0x11] } else { &[] };
    check(Packet::Unsuback(Unsuback { packet_id: id, properties: empty, codes }));
    check(Packet::Pingreq);
    check(Packet::Pingresp);
    let reason = match version {
        Version::V5 if c => ReasonCode::ServerShuttingDown,
        Version::V5 if d => ReasonCode::DisconnectWithWill,
        _ => ReasonCode::Success,
    };
    check(Packet::Disconnect(Disconnect { reason, properties: empty }));
    if version == Version::V5 {
        let reason = if c { ReasonCode::ReAuthenticate } else { ReasonCode::Success };
        check(Packet::Auth(Auth { reason, properties: empty }));
    }
}

fn version() -> impl Strategy<Value = Version> {
    prop_oneof![Just(Version::V311), Just(Version::V5)]
}

proptest! {
    #[test]
    fn what_is_encoded_decodes(parts in parts(), version in version()) {
        every_packet(&parts, version, |packet| {
            let mut bytes = Vec::new();
            packet.encode(version, &mut bytes);
            assert_eq!(decode_all(&bytes, version), Ok(packet), "{packet:?}");
        });
    }

    #[test]
    fn every_strict_prefix_is_incomplete(parts in parts(), version in version()) {
        every_packet(&parts, version, |packet| {
            let mut bytes = Vec::new();
            packet.encode(version, &mut bytes);
            for cut in 0..bytes.len() {
                assert_eq!(peek_frame(&bytes[..cut], LIMIT), Ok(None), "{packet:?} cut at {cut}");
            }
        });
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), version in version()) {
        if let Ok(Some(frame)) = peek_frame(&bytes, LIMIT) {
            let _ = decode(&frame, version);
        }
    }

    /// Damage within a well-formed packet reaches deeper than random bytes do.
    #[test]
    fn damaged_packets_do_not_panic(parts in parts(), version in version(), at in any::<prop::sample::Index>(), value in any::<u8>()) {
        every_packet(&parts, version, |packet| {
            let mut bytes = Vec::new();
            packet.encode(version, &mut bytes);
            let at = at.index(bytes.len());
            bytes[at] = value;
            if let Ok(Some(frame)) = peek_frame(&bytes, LIMIT)
                && let Ok(Packet::Publish(publish)) = decode(&frame, version)
            {
                publish.properties.iter().for_each(drop);
            }
        });
    }
}
