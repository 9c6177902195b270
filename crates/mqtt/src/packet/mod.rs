//! Every control packet (section 3), borrowed from the bytes it came in.
//!
//! One file a group of packets: connecting, publishing, subscribing. Each packet knows how to decode
//! its body and to append itself to a buffer. What 3.1.1 cannot say is left out when encoding for it.

mod connect;
mod publish;
mod session_end;
mod subscribe;

pub use connect::{Connack, Connect, LastWill};
pub use publish::{Ack, Publish};
pub use session_end::{Auth, Disconnect};
pub use subscribe::{
    FilterList, RetainHandling, Suback, Subscribe, SubscribeOptions, Unsuback, Unsubscribe,
};

use crate::ack::AckKind;
use crate::error::DecodeError;
use crate::frame::Frame;
use crate::types::Version;

/// A control packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The names are the specification's, table 2-1.
pub enum Packet<'a> {
    Connect(Connect<'a>),
    Connack(Connack<'a>),
    Publish(Publish<'a>),
    Ack(AckKind, Ack<'a>),
    Subscribe(Subscribe<'a>),
    Suback(Suback<'a>),
    Unsubscribe(Unsubscribe<'a>),
    Unsuback(Unsuback<'a>),
    Pingreq,
    Pingresp,
    Disconnect(Disconnect<'a>),
    Auth(Auth<'a>),
}

impl<'a> Packet<'a> {
    #[inline]
    pub(crate) fn decode(frame: &Frame<'a>, version: Version) -> Result<Packet<'a>, DecodeError> {
        let kind = frame.packet_type();
        if kind == 3 {
            return Publish::decode(frame, version).map(Packet::Publish);
        }
        if let Some(ack) = AckKind::from_first_byte(frame.first) {
            return Ack::decode(frame.body, ack, version).map(|packet| Packet::Ack(ack, packet));
        }
        Packet::decode_rare(frame, version)
    }

    /// Packets that occur once per connection, not once per message.
    fn decode_rare(frame: &Frame<'a>, version: Version) -> Result<Packet<'a>, DecodeError> {
        let kind = frame.packet_type();
        let flags = frame.first & 0x0F;
        let wanted = if matches!(kind, 8 | 10) { 2 } else { 0 };
        // Acknowledgements end here when their flags are wrong.
        if flags != wanted || matches!(kind, 4..=7) {
            return Err(DecodeError::Flags);
        }
        let body = frame.body;
        Ok(match kind {
            1 => Packet::Connect(Connect::decode(body)?),
            2 => Packet::Connack(Connack::decode(body, version)?),
            8 => Packet::Subscribe(Subscribe::decode(body, version)?),
            9 => Packet::Suback(Suback::decode(body, version)?),
            10 => Packet::Unsubscribe(Unsubscribe::decode(body, version)?),
            11 => Packet::Unsuback(Unsuback::decode(body, version)?),
            12 => nothing(body, Packet::Pingreq)?,
            13 => nothing(body, Packet::Pingresp)?,
            14 => Packet::Disconnect(Disconnect::decode(body, version)?),
            15 if version == Version::V5 => Packet::Auth(Auth::decode(body)?),
            other => return Err(DecodeError::PacketType(other)),
        })
    }

    /// Appends the packet.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        match self {
            Packet::Connect(packet) => packet.encode(out),
            Packet::Connack(packet) => packet.encode(version, out),
            Packet::Publish(packet) => packet.encode(version, out),
            Packet::Ack(kind, packet) => packet.encode(*kind, version, out),
            Packet::Subscribe(packet) => packet.encode(version, out),
            Packet::Suback(packet) => packet.encode(version, out),
            Packet::Unsubscribe(packet) => packet.encode(version, out),
            Packet::Unsuback(packet) => packet.encode(version, out),
            Packet::Pingreq => out.extend_from_slice(&[0xC0, 0]),
            Packet::Pingresp => out.extend_from_slice(&[0xD0, 0]),
            Packet::Disconnect(packet) => packet.encode(version, out),
            Packet::Auth(packet) => packet.encode(out),
        }
    }

    /// The specification's name of its type, for log lines.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Packet::Connect(_) => "CONNECT",
            Packet::Connack(_) => "CONNACK",
            Packet::Publish(_) => "PUBLISH",
            Packet::Ack(AckKind::Puback, _) => "PUBACK",
            Packet::Ack(AckKind::Pubrec, _) => "PUBREC",
            Packet::Ack(AckKind::Pubrel, _) => "PUBREL",
            Packet::Ack(AckKind::Pubcomp, _) => "PUBCOMP",
            Packet::Subscribe(_) => "SUBSCRIBE",
            Packet::Suback(_) => "SUBACK",
            Packet::Unsubscribe(_) => "UNSUBSCRIBE",
            Packet::Unsuback(_) => "UNSUBACK",
            Packet::Pingreq => "PINGREQ",
            Packet::Pingresp => "PINGRESP",
            Packet::Disconnect(_) => "DISCONNECT",
            Packet::Auth(_) => "AUTH",
        }
    }
}

fn nothing<'a>(body: &[u8], packet: Packet<'a>) -> Result<Packet<'a>, DecodeError> {
    if body.is_empty() { Ok(packet) } else { Err(DecodeError::Length) }
}
