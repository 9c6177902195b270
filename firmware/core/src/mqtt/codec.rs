//! The MQTT 5.0 packets a small client writes and reads. Reading is strict about what it looks at, and
//! steps over the properties it does not need.

use crate::bytes::{Reader, Writer};
use crate::{QoS, Session};

/// Types of packets, in the high half of the first byte.
const CONNECT: u8 = 0x10;
const CONNACK: u8 = 0x20;
const PUBLISH: u8 = 0x30;
const PUBACK: u8 = 0x40;
const SUBSCRIBE: u8 = 0x82;
const SUBACK: u8 = 0x90;
const PINGREQ: u8 = 0xc0;
const PINGRESP: u8 = 0xd0;
const DISCONNECT: u8 = 0xe0;

/// Identifiers of properties.
mod property {
    pub(super) const SESSION_EXPIRY: u8 = 0x11;
    pub(super) const SERVER_KEEP_ALIVE: u8 = 0x13;
    pub(super) const RECEIVE_MAXIMUM: u8 = 0x21;
    pub(super) const MAXIMUM_QOS: u8 = 0x24;
    pub(super) const MAXIMUM_PACKET_SIZE: u8 = 0x27;
}

/// Number of bytes that `length` takes as a variable byte integer.
fn length_len(length: usize) -> usize {
    match length {
        0..0x80 => 1,
        0x80..0x4000 => 2,
        0x4000..0x20_0000 => 3,
        _ => 4,
    }
}

/// The length of a packet whose length after the fixed header is `remaining`.
pub(super) fn packet_len(remaining: usize) -> usize {
    1 + length_len(remaining) + remaining
}

fn head(writer: &mut Writer<'_>, first: u8, remaining: usize) {
    writer.u8(first);
    let mut rest = remaining;
    for _ in 1..length_len(remaining) {
        writer.u8(rest as u8 | 0x80);
        rest >>= 7;
    }
    writer.u8(rest as u8 & 0x7f);
}

fn block(writer: &mut Writer<'_>, bytes: &[u8]) {
    writer.u16(bytes.len());
    writer.write_bytes(bytes);
}

/// Writes CONNECT; no packet to us may be larger than `max_packet`.
pub(super) fn connect(writer: &mut Writer<'_>, session: &Session<'_>, max_packet: u32) {
    let user = session.user.map(str::as_bytes);
    let blocks = [Some(session.client_id.as_bytes()), user, session.password];
    let payload: usize = blocks.iter().flatten().map(|bytes| 2 + bytes.len()).sum();
    const PROPERTIES: u8 = 10;
    head(writer, CONNECT, 10 + 1 + usize::from(PROPERTIES) + payload);
    block(writer, b"MQTT");
    writer.u8(5);
    writer.u8(u8::from(user.is_some()) << 7
        | u8::from(session.password.is_some()) << 6
        | u8::from(session.clean_start) << 1);
    writer.u16(session.keep_alive_s.into());
    writer.u8(PROPERTIES);
    writer.u8(property::SESSION_EXPIRY);
    writer.u32(session.expiry_s);
    writer.u8(property::MAXIMUM_PACKET_SIZE);
    writer.u32(max_packet);
    for bytes in blocks.into_iter().flatten() {
        block(writer, bytes);
    }
}

/// The length of a PUBLISH after its fixed header.
pub(super) fn publish_len(topic: &str, payload: &[u8], qos: QoS) -> usize {
    2 + topic.len() + if qos == QoS::AtLeastOnce { 2 } else { 0 } + 1 + payload.len()
}

/// Writes PUBLISH; `id` is for QoS 1 only.
pub(super) fn publish(writer: &mut Writer<'_>, topic: &str, payload: &[u8], qos: QoS, id: u16) {
    let confirmed = qos == QoS::AtLeastOnce;
    head(writer, PUBLISH | u8::from(confirmed) << 1, publish_len(topic, payload, qos));
    block(writer, topic.as_bytes());
    if confirmed {
        writer.u16(id.into());
    }
    writer.u8(0);
    writer.write_bytes(payload);
}

/// The length of a SUBSCRIBE after its fixed header.
pub(super) fn subscribe_len(filter: &str) -> usize {
    2 + 1 + 2 + filter.len() + 1
}

/// Writes SUBSCRIBE to one filter.
pub(super) fn subscribe(writer: &mut Writer<'_>, filter: &str, qos: QoS, id: u16) {
    head(writer, SUBSCRIBE, subscribe_len(filter));
    writer.u16(id.into());
    writer.u8(0);
    block(writer, filter.as_bytes());
    writer.u8((qos == QoS::AtLeastOnce).into());
}

/// Writes PUBACK with reason 0, which is left out.
pub(super) fn puback(writer: &mut Writer<'_>, id: u16) {
    head(writer, PUBACK, 2);
    writer.u16(id.into());
}

/// Writes PINGREQ.
pub(super) fn pingreq(writer: &mut Writer<'_>) {
    head(writer, PINGREQ, 0);
}

/// Writes DISCONNECT with reason 0, which is left out.
pub(super) fn disconnect(writer: &mut Writer<'_>) {
    head(writer, DISCONNECT, 0);
}

/// Contents of a CONNACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnAck {
    pub(super) session_present: bool,
    pub(super) reason: u8,
    pub(super) keep_alive_s: Option<u16>,
    pub(super) receive_maximum: u16,
    pub(super) takes_qos_1: bool,
    pub(super) maximum_packet: u32,
}

/// A packet from the server. Texts are not checked for being UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packet<'a> {
    ConnAck(ConnAck),
    /// `id` is 0 for QoS 0.
    Publish {
        topic: &'a [u8],
        payload: &'a [u8],
        id: u16,
        retain: bool,
        duplicate: bool,
    },
    PubAck {
        id: u16,
        reason: u8,
    },
    SubAck {
        id: u16,
        reason: u8,
    },
    PingResp,
    Disconnect {
        reason: u8,
    },
}

/// Reasons in PUBACK (table 3-4).
const PUBACK_REASONS: [u8; 9] = [0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99];
/// Reasons in SUBACK (table 3-8).
const SUBACK_REASONS: [u8; 12] = [0, 1, 2, 0x80, 0x83, 0x87, 0x8f, 0x91, 0x97, 0x9e, 0xa1, 0xa2];

/// The server sent something that is no packet, or none for a client like this.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Reads the packet at the beginning of `bytes`, and gives its length too; [`None`] if there is more of it
/// to come.
pub(super) fn read(bytes: &[u8], max: usize) -> Result<Option<(Packet<'_>, usize)>, Malformed> {
    let mut reader = Reader::new(bytes);
    let Some(first) = reader.u8() else { return Ok(None) };
    let Some(remaining) = length(&mut reader).ok_or(Malformed)? else { return Ok(None) };
    let len = bytes.len() - reader.rest().len() + remaining;
    if len > max {
        return Err(Malformed);
    }
    let Some(body) = reader.bytes(remaining) else { return Ok(None) };
    body_of(first, Reader::new(body)).map(|packet| Some((packet, len))).ok_or(Malformed)
}

/// A variable byte integer (section 1.5.5): [`None`] if it is none, `Some(None)` if it goes on.
fn length(reader: &mut Reader<'_>) -> Option<Option<usize>> {
    let mut value = 0;
    for shift in [0, 7, 14, 21] {
        let Some(byte) = reader.u8() else { return Some(None) };
        value |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(Some(value));
        }
    }
    None
}

fn body_of<'a>(first: u8, mut body: Reader<'a>) -> Option<Packet<'a>> {
    Some(match first {
        CONNACK => Packet::ConnAck(connack(&mut body)?),
        PUBACK => {
            let id = body.u16()?;
            let reason = body.u8().unwrap_or(0);
            PUBACK_REASONS.contains(&reason).then_some(Packet::PubAck { id, reason })?
        }
        SUBACK => {
            let id = body.u16()?;
            properties(&mut body, |_, _| Some(()))?;
            let reason = body.u8().filter(|reason| SUBACK_REASONS.contains(reason))?;
            body.is_empty().then_some(Packet::SubAck { id, reason })?
        }
        PINGRESP => body.is_empty().then_some(Packet::PingResp)?,
        DISCONNECT => Packet::Disconnect { reason: body.u8().unwrap_or(0) },
        _ if first & 0xf0 == PUBLISH => {
            let topic = body.block16()?.rest();
            let id = match first >> 1 & 3 {
                0 => 0,
                1 => body.u16().filter(|id| *id != 0)?,
                _ => return None,
            };
            properties(&mut body, |_, _| Some(()))?;
            // An empty topic stands for an alias, and we allow none.
            (!topic.is_empty()).then_some(Packet::Publish {
                topic,
                payload: body.rest(),
                id,
                retain: first & 1 != 0,
                duplicate: first & 8 != 0,
            })?
        }
        _ => return None,
    })
}

fn connack(body: &mut Reader<'_>) -> Option<ConnAck> {
    let mut packet = ConnAck {
        session_present: body.u8()? & 1 != 0,
        reason: body.u8()?,
        keep_alive_s: None,
        receive_maximum: u16::MAX,
        takes_qos_1: true,
        maximum_packet: u32::MAX,
    };
    properties(body, |id, mut value| {
        match id {
            property::SERVER_KEEP_ALIVE => packet.keep_alive_s = Some(value.u16()?),
            property::RECEIVE_MAXIMUM => {
                packet.receive_maximum = value.u16().filter(|maximum| *maximum != 0)?;
            }
            property::MAXIMUM_QOS => packet.takes_qos_1 = value.u8()? != 0,
            property::MAXIMUM_PACKET_SIZE => {
                packet.maximum_packet = value.u32().filter(|maximum| *maximum != 0)?;
            }
            _ => {}
        }
        Some(())
    })?;
    body.is_empty().then_some(packet)
}

/// Calls `visit` with every property (section 2.2.2.2) and its value; [`None`] if one is malformed.
fn properties<'a>(
    reader: &mut Reader<'a>,
    mut visit: impl FnMut(u8, Reader<'a>) -> Option<()>,
) -> Option<()> {
    let len = length(reader)??;
    let mut list = Reader::new(reader.bytes(len)?);
    while !list.is_empty() {
        let id = list.u8()?;
        let value = list.clone();
        match id {
            0x01 | 0x17 | 0x19 | 0x24 | 0x25 | 0x28 | 0x29 | 0x2a => {
                list.bytes(1)?;
            }
            0x13 | 0x21 | 0x22 | 0x23 => {
                list.bytes(2)?;
            }
            0x02 | 0x11 | 0x18 | 0x27 => {
                list.bytes(4)?;
            }
            0x0b => {
                length(&mut list)??;
            }
            0x03 | 0x08 | 0x09 | 0x12 | 0x15 | 0x16 | 0x1a | 0x1c | 0x1f => {
                list.block16()?;
            }
            0x26 => {
                list.block16()?;
                list.block16()?;
            }
            _ => return None,
        }
        visit(id, value)?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const CONNACK_BYTES: &[u8] = &[0x20, 14, 1, 0, 11, 0x13, 0, 30, 0x21, 0, 5, 0x27, 0, 0, 4, 0];

    #[test]
    fn packets_are_written_as_section_3_has_them() {
        let mut buffer = [0; 64];
        let mut writer = Writer::new(&mut buffer);
        let session = Session { client_id: "d", keep_alive_s: 60, ..Session::default() };
        connect(&mut writer, &session, 2048);
        let expected: &[u8] = &[
            0x10, 24, 0, 4, b'M', b'Q', b'T', b'T', 5, 2, 0, 60, 10, 0x11, 0, 0, 0, 0, 0x27, 0, 0,
            8, 0, 0, 1, b'd',
        ];
        assert_eq!(writer.written(), expected);

        let mut writer = Writer::new(&mut buffer);
        publish(&mut writer, "t/1", b"37", QoS::AtLeastOnce, 258);
        publish(&mut writer, "t", b"", QoS::AtMostOnce, 0);
        subscribe(&mut writer, "c/#", QoS::AtLeastOnce, 3);
        puback(&mut writer, 4);
        pingreq(&mut writer);
        disconnect(&mut writer);
        let expected: &[u8] = &[
            0x32, 10, 0, 3, b't', b'/', b'1', 1, 2, 0, b'3', b'7', // PUBLISH QoS 1
            0x30, 4, 0, 1, b't', 0, // PUBLISH QoS 0
            0x82, 9, 0, 3, 0, 0, 3, b'c', b'/', b'#', 1, // SUBSCRIBE
            0x40, 2, 0, 4, 0xc0, 0, 0xe0, 0,
        ];
        assert_eq!(writer.written(), expected);
    }

    #[test]
    fn what_the_server_says_is_read() {
        let (packet, len) = read(CONNACK_BYTES, 100).unwrap().unwrap();
        let expected = ConnAck {
            session_present: true,
            reason: 0,
            keep_alive_s: Some(30),
            receive_maximum: 5,
            takes_qos_1: true,
            maximum_packet: 1024,
        };
        assert_eq!((packet, len), (Packet::ConnAck(expected), CONNACK_BYTES.len()));
        let publish = [0x3b, 8, 0, 1, b't', 0, 9, 0, b'o', b'n', 0xff];
        let (packet, len) = read(&publish, 100).unwrap().unwrap();
        let expected =
            Packet::Publish { topic: b"t", payload: b"on", id: 9, retain: true, duplicate: true };
        assert_eq!((packet, len), (expected, 10));
        for len in 0..10 {
            assert_eq!(read(&publish[..len], 100), Ok(None));
        }
    }

    #[test]
    fn what_is_no_packet_for_us_is_refused() {
        let cases: &[&[u8]] = &[
            &[0x00, 0],                            // no such type
            &[0x34, 6, 0, 1, b't', 0, 9, 0],       // QoS 2, never asked for
            &[0x36, 6, 0, 1, b't', 0, 9, 0],       // QoS 3
            &[0x32, 6, 0, 1, b't', 0, 0, 0],       // packet identifier 0
            &[0x30, 3, 0, 0, 0],                   // no topic
            &[0x30, 4, 0, 9, b't', 0],             // topic beyond the end
            &[0x30, 0xff, 0xff, 0xff, 0xff, 0x01], // length of five bytes
            &[0x20, 5, 0, 0, 2, 0x7e, 0],          // unknown property
            &[0x20, 6, 0, 0, 3, 0x21, 0, 0],       // Receive Maximum 0
            &[0xd0, 1, 0],
            &[0x10, 0],
            &[0x40, 3, 0, 1, 0x92],    // no reason of PUBACK's
            &[0x90, 4, 0, 1, 0, 0x90], // none of SUBACK's
        ];
        for bytes in cases {
            assert_eq!(read(bytes, 100), Err(Malformed), "{bytes:x?}");
        }
        assert_eq!(read(&[0x30, 99], 100), Err(Malformed), "larger than we allowed");
    }
}
