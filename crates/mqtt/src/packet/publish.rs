//! PUBLISH and its four acknowledgements (sections 3.3 to 3.7).

use crate::ack::{self, AckKind};
use crate::error::DecodeError;
use crate::frame::Frame;
use crate::properties::{Properties, PropertyContext};
use crate::publish::{PublishHead, encode_header};
use crate::reason::ReasonCode;
use crate::types::{PacketId, QoS, Version};
use crate::wire::{Reader, end, put_packet, put_packet_id};

/// An application message on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publish<'a> {
    /// Whether it may have been sent before.
    pub dup: bool,
    /// Quality of service.
    pub qos: QoS,
    /// RETAIN flag.
    pub retain: bool,
    /// Topic name, not yet checked for wildcards; may be empty with an alias.
    pub topic: &'a str,
    /// Packet identifier; present with QoS 1 and 2.
    pub packet_id: Option<PacketId>,
    /// Properties.
    pub properties: Properties<'a>,
    /// Payload.
    pub payload: &'a [u8],
}

impl<'a> Publish<'a> {
    #[inline]
    pub(super) fn decode(frame: &Frame<'a>, version: Version) -> Result<Publish<'a>, DecodeError> {
        let flags = frame.first & 0x0F;
        let qos = QoS::try_from(flags >> 1 & 0x03).map_err(|_| DecodeError::QoS)?;
        let dup = flags & 0x08 != 0;
        if dup && qos == QoS::AtMostOnce {
            return Err(DecodeError::Flags);
        }
        let mut reader = Reader::new(frame.body);
        let topic = reader.string()?;
        let packet_id = match qos {
            QoS::AtMostOnce => None,
            _ => Some(reader.packet_id()?),
        };
        let properties = match version {
            Version::V5 => Properties::read(&mut reader, PropertyContext::Publish)?,
            Version::V311 => Properties::NONE,
        };
        let retain = flags & 0x01 != 0;
        let payload = reader.rest();
        Ok(Publish { dup, qos, retain, topic, packet_id, properties, payload })
    }

    /// Appends the packet.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        let head = PublishHead {
            dup: self.dup,
            qos: self.qos,
            retain: self.retain,
            topic: self.topic,
            packet_id: self.packet_id,
            message_expiry: None,
            topic_alias: None,
            subscription_ids: &[],
            raw_properties: self.properties.raw(),
            payload_len: self.payload.len(),
        };
        encode_header(out, version, &head);
        out.extend_from_slice(self.payload);
    }
}

/// PUBACK, PUBREC, PUBREL or PUBCOMP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack<'a> {
    /// Identifier of the PUBLISH it is about.
    pub packet_id: PacketId,
    /// Reason code: the outcome of the step that is acknowledged.
    pub reason: ReasonCode,
    /// Properties.
    pub properties: Properties<'a>,
}

impl<'a> Ack<'a> {
    #[inline]
    pub(super) fn decode(
        body: &'a [u8],
        kind: AckKind,
        version: Version,
    ) -> Result<Ack<'a>, DecodeError> {
        let mut reader = Reader::new(body);
        let packet_id = reader.packet_id()?;
        let ack = Ack { packet_id, reason: ReasonCode::Success, properties: Properties::NONE };
        if reader.is_empty() { Ok(ack) } else { ack.decode_rest(reader, kind, version) }
    }

    /// The reason and properties, which only few acknowledgements have.
    fn decode_rest(
        mut self,
        mut reader: Reader<'a>,
        kind: AckKind,
        version: Version,
    ) -> Result<Ack<'a>, DecodeError> {
        if version == Version::V311 {
            return Err(DecodeError::Length);
        }
        let code = reader.u8()?;
        // [MQTT-3.4.2-1], [MQTT-3.5.2-1], [MQTT-3.6.2-1], [MQTT-3.7.2-1].
        self.reason = ReasonCode::from_u8(code)
            .filter(|reason| kind.may_say(*reason))
            .ok_or(DecodeError::ReasonCode(code))?;
        if !reader.is_empty() {
            self.properties = Properties::read(&mut reader, PropertyContext::Ack)?;
        }
        end(reader)?;
        Ok(self)
    }

    /// Appends the packet.
    pub fn encode(&self, kind: AckKind, version: Version, out: &mut Vec<u8>) {
        if self.properties.is_empty() || version == Version::V311 {
            ack::encode(out, version, kind, self.packet_id, self.reason);
            return;
        }
        put_packet(out, kind.first_byte(), |out| {
            put_packet_id(out, self.packet_id);
            out.push(self.reason.as_u8());
            self.properties.encode(out);
        });
    }
}
