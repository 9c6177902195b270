//! Nanoseconds for each packet of a broker's hot path: `cargo bench -p fulmar-mqtt`.
//!
//! It prints results and asserts nothing about time: machines differ, and other programs disturb them. It shows the
//! best of several rounds, which is disturbed least. Compare two commits on one machine, one after another.
#![allow(clippy::unwrap_used, missing_docs)]

use std::hint::black_box;
use std::time::Instant;

use fulmar_mqtt::ack::{self, AckKind};
use fulmar_mqtt::codec::{decode, peek_frame};
use fulmar_mqtt::publish::{PublishHead, encode_header};
use fulmar_mqtt::session::Outbound;
use fulmar_mqtt::topic::check_name;
use fulmar_mqtt::{Packet, PacketId, Property, PropertyBuf, QoS, ReasonCode, Version};

const ROUNDS: usize = 20;
const PER_ROUND: usize = 100_000;
const TOPIC: &str = "building/7/room/1204/temperature";
const PAYLOAD: [u8; 64] = [0x2E; 64];

fn measure(name: &str, mut step: impl FnMut()) {
    let best = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        (0..PER_ROUND).for_each(|_| step());
        start.elapsed().as_nanos() as f64 / PER_ROUND as f64
    });
    println!("{name:<44} {:>7.1} ns", best.fold(f64::INFINITY, f64::min));
}

fn head(qos: QoS, raw_properties: &[u8]) -> PublishHead<'_> {
    PublishHead {
        dup: false,
        qos,
        retain: false,
        topic: TOPIC,
        packet_id: (qos > QoS::AtMostOnce).then_some(PacketId::FIRST),
        message_expiry: None,
        topic_alias: None,
        subscription_ids: &[],
        raw_properties,
        payload_len: PAYLOAD.len(),
    }
}

fn main() {
    let mut three = PropertyBuf::new();
    three
        .push(Property::PayloadFormatIndicator(1))
        .push(Property::ContentType("application/json"))
        .push(Property::UserProperty("unit", "celsius"));
    let three = three.as_properties().raw().to_vec();
    for (name, version, qos, properties) in [
        ("3.1.1 QoS 0", Version::V311, QoS::AtMostOnce, &[][..]),
        ("5.0 QoS 0", Version::V5, QoS::AtMostOnce, &[]),
        ("5.0 QoS 1", Version::V5, QoS::AtLeastOnce, &[]),
        ("5.0 QoS 1, three properties", Version::V5, QoS::AtLeastOnce, &three),
    ] {
        let head = head(qos, properties);
        let mut bytes = Vec::with_capacity(1024);
        measure(&format!("PUBLISH {name}: encode"), || {
            bytes.clear();
            encode_header(&mut bytes, version, black_box(&head));
            bytes.extend_from_slice(black_box(&PAYLOAD));
            black_box(&mut bytes);
        });
        measure(&format!("PUBLISH {name}: decode"), || {
            let frame = peek_frame(black_box(&bytes), 1 << 20).unwrap().unwrap();
            let Ok(Packet::Publish(publish)) = decode(&frame, version) else { unreachable!() };
            black_box(publish);
        });
    }
    measure("topic name: check", || check_name(black_box(TOPIC)).unwrap());
    let mut bytes = Vec::with_capacity(1024);
    measure("PUBACK: encode", || {
        bytes.clear();
        let id = black_box(PacketId::FIRST);
        ack::encode(&mut bytes, Version::V5, AckKind::Puback, id, ReasonCode::Success);
        black_box(&mut bytes);
    });
    measure("PUBACK: decode", || {
        let frame = peek_frame(black_box(&bytes), 1 << 20).unwrap().unwrap();
        let Ok(Packet::Ack(_, puback)) = decode(&frame, Version::V5) else { unreachable!() };
        black_box(puback);
    });
    for in_flight in [1u16, 100, 10_000] {
        let mut outbound = Outbound::new(u16::MAX);
        let mut oldest = PacketId::FIRST;
        (1..in_flight).for_each(|_| assert!(outbound.push(QoS::AtLeastOnce, 0u64).is_some()));
        measure(&format!("session: push and PUBACK, {in_flight} in flight"), || {
            black_box(outbound.push(QoS::AtLeastOnce, 0));
            outbound.puback(oldest).unwrap();
            oldest = oldest.next();
        });
        // In reverse order, as a client may acknowledge.
        measure(&format!("session: push and PUBACK of it, {in_flight} in flight"), || {
            let newest = outbound.push(QoS::AtLeastOnce, 0).unwrap();
            outbound.puback(black_box(newest)).unwrap();
        });
    }
}
