//! Decodes datagrams (section 5): one message each, borrowed from the received bytes.
//!
//! Every length is checked before anything is read, and a message must fill its datagram. Flags that a message does not
//! use are ignored, because section 5.2.4 does not define them. `encode` writes messages; `session` decides which ones
//! are valid when.

use fulmar_mqtt::QoS;
use thiserror::Error;

/// The only protocol identifier (section 5.3.8).
pub(crate) const PROTOCOL_ID: u8 = 1;

/// Message types (table 3).
pub(crate) mod kind {
    pub(crate) const ADVERTISE: u8 = 0x00;
    pub(crate) const SEARCHGW: u8 = 0x01;
    pub(crate) const GWINFO: u8 = 0x02;
    pub(crate) const CONNECT: u8 = 0x04;
    pub(crate) const CONNACK: u8 = 0x05;
    pub(crate) const WILLTOPICREQ: u8 = 0x06;
    pub(crate) const WILLTOPIC: u8 = 0x07;
    pub(crate) const WILLMSGREQ: u8 = 0x08;
    pub(crate) const WILLMSG: u8 = 0x09;
    pub(crate) const REGISTER: u8 = 0x0A;
    pub(crate) const REGACK: u8 = 0x0B;
    pub(crate) const PUBLISH: u8 = 0x0C;
    pub(crate) const PUBACK: u8 = 0x0D;
    pub(crate) const PUBCOMP: u8 = 0x0E;
    pub(crate) const PUBREC: u8 = 0x0F;
    pub(crate) const PUBREL: u8 = 0x10;
    pub(crate) const SUBSCRIBE: u8 = 0x12;
    pub(crate) const SUBACK: u8 = 0x13;
    pub(crate) const UNSUBSCRIBE: u8 = 0x14;
    pub(crate) const UNSUBACK: u8 = 0x15;
    pub(crate) const PINGREQ: u8 = 0x16;
    pub(crate) const PINGRESP: u8 = 0x17;
    pub(crate) const DISCONNECT: u8 = 0x18;
    pub(crate) const WILLTOPICUPD: u8 = 0x1A;
    pub(crate) const WILLTOPICRESP: u8 = 0x1B;
    pub(crate) const WILLMSGUPD: u8 = 0x1C;
    pub(crate) const WILLMSGRESP: u8 = 0x1D;
    pub(crate) const FORWARDED: u8 = 0xFE;
}

/// Bits of the flags octet (section 5.2.4).
pub(crate) mod flag {
    pub(crate) const DUP: u8 = 0x80;
    pub(crate) const QOS: u8 = 0x60;
    pub(crate) const RETAIN: u8 = 0x10;
    pub(crate) const WILL: u8 = 0x08;
    pub(crate) const CLEAN: u8 = 0x04;
    pub(crate) const TOPIC: u8 = 0x03;
}

/// Why a datagram is not a message.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum DecodeError {
    /// The length field differs from the datagram's length.
    #[error("its length field is wrong")]
    Length,
    /// It is too short for its fields, or longer.
    #[error("it is too short or too long for its type")]
    Size,
    /// An unknown message type.
    #[error("no message has type 0x{0:02x}")]
    Type(u8),
    /// A name or identifier is not UTF-8.
    #[error("a text is not UTF-8")]
    Text,
    /// CONNECT of a protocol other than 1.2.
    #[error("protocol {0} is not MQTT-SN 1.2")]
    Protocol(u8),
    /// A topic type or quality of service that the message cannot have.
    #[error("its flags 0x{0:02x} are invalid")]
    Flags(u8),
    /// A return code that is reserved.
    #[error("return code {0} is reserved")]
    ReturnCode(u8),
}

/// An answer to a request (section 5.3.10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReturnCode {
    /// Done.
    Accepted = 0,
    /// Not now: the sender should try again later.
    Congestion = 1,
    /// The topic identifier is unknown; it has to be registered.
    InvalidTopicId = 2,
    /// Never.
    NotSupported = 3,
}

/// The topic of a PUBLISH (section 5.3.11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicRef {
    /// Registered between this device and its gateway.
    Normal(u16),
    /// Predefined on both sides.
    Predefined(u16),
    /// The name itself, of two octets.
    Short([u8; 2]),
}

impl TopicRef {
    /// Returns the two octets as a number.
    #[must_use]
    pub fn number(self) -> u16 {
        match self {
            TopicRef::Normal(id) | TopicRef::Predefined(id) => id,
            TopicRef::Short(name) => u16::from_be_bytes(name),
        }
    }
}

/// The topic of a SUBSCRIBE or UNSUBSCRIBE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicName<'a> {
    /// A topic or filter in full.
    Name(&'a str),
    /// A topic predefined on both sides.
    Predefined(u16),
    /// A topic of two octets.
    Short([u8; 2]),
}

/// PUBLISH (section 5.4.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publish<'a> {
    /// It may have been sent before.
    pub dup: bool,
    /// Quality of service; `None` is −1: without a connection.
    pub qos: Option<QoS>,
    /// RETAIN flag.
    pub retain: bool,
    /// Topic of the message.
    pub topic: TopicRef,
    /// The message identifier at QoS 1 and 2; otherwise 0.
    pub msg_id: u16,
    /// Payload of the message.
    pub payload: &'a [u8],
}

/// WILLTOPIC and WILLTOPICUPD (sections 5.4.7 and 5.4.22).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WillTopic<'a> {
    /// Quality of service of the will.
    pub qos: QoS,
    /// Whether it is to be retained.
    pub retain: bool,
    /// Topic of the will.
    pub topic: &'a str,
}

/// A message, under the specification's name (section 5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The fields are the specification's.
pub enum Message<'a> {
    Advertise { gateway_id: u8, duration_s: u16 },
    SearchGw { radius: u8 },
    GwInfo { gateway_id: u8, address: &'a [u8] },
    Connect { will: bool, clean: bool, keep_alive_s: u16, client_id: &'a str },
    Connack(ReturnCode),
    WillTopicReq,
    WillTopic(Option<WillTopic<'a>>),
    WillMsgReq,
    WillMsg(&'a [u8]),
    Register { topic_id: u16, msg_id: u16, topic: &'a str },
    Regack { topic_id: u16, msg_id: u16, code: ReturnCode },
    Publish(Publish<'a>),
    Puback { topic_id: u16, msg_id: u16, code: ReturnCode },
    Pubrec(u16),
    Pubrel(u16),
    Pubcomp(u16),
    Subscribe { dup: bool, qos: QoS, msg_id: u16, topic: TopicName<'a> },
    Suback { qos: QoS, topic_id: u16, msg_id: u16, code: ReturnCode },
    Unsubscribe { msg_id: u16, topic: TopicName<'a> },
    Unsuback(u16),
    Pingreq(Option<&'a str>),
    Pingresp,
    Disconnect { duration_s: Option<u16> },
    WillTopicUpd(Option<WillTopic<'a>>),
    WillTopicResp(ReturnCode),
    WillMsgUpd(&'a [u8]),
    WillMsgResp(ReturnCode),
    Forwarded { radius: u8, node: &'a [u8], message: &'a [u8] },
}

impl<'a> Message<'a> {
    /// Decodes a datagram.
    ///
    /// # Errors
    /// Why the datagram is not a message.
    pub fn decode(datagram: &'a [u8]) -> Result<Message<'a>, DecodeError> {
        let (length, header) = match *datagram {
            [1, high, low, ..] => (usize::from(u16::from_be_bytes([high, low])), 3),
            [length, ..] if length > 1 => (usize::from(length), 1),
            _ => return Err(DecodeError::Length),
        };
        let whole = datagram.get(header..length).ok_or(DecodeError::Length)?;
        let (&kind, body) = whole.split_first().ok_or(DecodeError::Length)?;
        if kind == kind::FORWARDED {
            // The forwarded message follows, with a length of its own (section 5.4.26).
            let (radius, node) = body.split_first().ok_or(DecodeError::Size)?;
            let message = &datagram[length..];
            return Ok(Message::Forwarded { radius: radius & 0x03, node, message });
        }
        if length != datagram.len() {
            return Err(DecodeError::Length);
        }
        Message::of_kind(kind, Reader(body))
    }

    fn of_kind(kind: u8, mut body: Reader<'a>) -> Result<Message<'a>, DecodeError> {
        let message = match kind {
            kind::ADVERTISE => {
                Message::Advertise { gateway_id: body.u8()?, duration_s: body.u16()? }
            }
            kind::SEARCHGW => Message::SearchGw { radius: body.u8()? },
            kind::GWINFO => Message::GwInfo { gateway_id: body.u8()?, address: body.rest() },
            kind::CONNECT => return connect(body),
            kind::CONNACK => Message::Connack(body.code()?),
            kind::WILLTOPICREQ => Message::WillTopicReq,
            kind::WILLTOPIC => Message::WillTopic(body.will_topic()?),
            kind::WILLMSGREQ => Message::WillMsgReq,
            kind::WILLMSG => Message::WillMsg(body.rest()),
            kind::REGISTER => {
                let (topic_id, msg_id) = (body.u16()?, body.u16()?);
                Message::Register { topic_id, msg_id, topic: body.text()? }
            }
            kind::REGACK => {
                let (topic_id, msg_id) = (body.u16()?, body.u16()?);
                Message::Regack { topic_id, msg_id, code: body.code()? }
            }
            kind::PUBLISH => return publish(body),
            kind::PUBACK => {
                let (topic_id, msg_id) = (body.u16()?, body.u16()?);
                Message::Puback { topic_id, msg_id, code: body.code()? }
            }
            kind::PUBREC => Message::Pubrec(body.u16()?),
            kind::PUBREL => Message::Pubrel(body.u16()?),
            kind::PUBCOMP => Message::Pubcomp(body.u16()?),
            kind::SUBSCRIBE => {
                let (flags, msg_id) = (body.u8()?, body.u16()?);
                let qos = qos(flags)?.ok_or(DecodeError::Flags(flags))?;
                let topic = body.topic_name(flags)?;
                Message::Subscribe { dup: flags & flag::DUP != 0, qos, msg_id, topic }
            }
            kind::SUBACK => {
                let flags = body.u8()?;
                let qos = qos(flags)?.ok_or(DecodeError::Flags(flags))?;
                let (topic_id, msg_id) = (body.u16()?, body.u16()?);
                Message::Suback { qos, topic_id, msg_id, code: body.code()? }
            }
            kind::UNSUBSCRIBE => {
                let (flags, msg_id) = (body.u8()?, body.u16()?);
                Message::Unsubscribe { msg_id, topic: body.topic_name(flags)? }
            }
            kind::UNSUBACK => Message::Unsuback(body.u16()?),
            kind::PINGREQ if body.is_empty() => Message::Pingreq(None),
            kind::PINGREQ => Message::Pingreq(Some(body.text()?)),
            kind::PINGRESP => Message::Pingresp,
            kind::DISCONNECT if body.is_empty() => Message::Disconnect { duration_s: None },
            kind::DISCONNECT => Message::Disconnect { duration_s: Some(body.u16()?) },
            kind::WILLTOPICUPD => Message::WillTopicUpd(body.will_topic()?),
            kind::WILLTOPICRESP => Message::WillTopicResp(body.code()?),
            kind::WILLMSGUPD => Message::WillMsgUpd(body.rest()),
            kind::WILLMSGRESP => Message::WillMsgResp(body.code()?),
            other => return Err(DecodeError::Type(other)),
        };
        if body.is_empty() { Ok(message) } else { Err(DecodeError::Size) }
    }
}

fn connect(mut body: Reader<'_>) -> Result<Message<'_>, DecodeError> {
    let (flags, protocol, keep_alive_s) = (body.u8()?, body.u8()?, body.u16()?);
    if protocol != PROTOCOL_ID {
        return Err(DecodeError::Protocol(protocol));
    }
    let (will, clean) = (flags & flag::WILL != 0, flags & flag::CLEAN != 0);
    Ok(Message::Connect { will, clean, keep_alive_s, client_id: body.text()? })
}

fn publish(mut body: Reader<'_>) -> Result<Message<'_>, DecodeError> {
    let (flags, topic, msg_id) = (body.u8()?, body.u16()?, body.u16()?);
    let topic = match flags & flag::TOPIC {
        0 => TopicRef::Normal(topic),
        1 => TopicRef::Predefined(topic),
        2 => TopicRef::Short(topic.to_be_bytes()),
        _ => return Err(DecodeError::Flags(flags)),
    };
    Ok(Message::Publish(Publish {
        dup: flags & flag::DUP != 0,
        qos: qos(flags)?,
        retain: flags & flag::RETAIN != 0,
        topic,
        msg_id,
        payload: body.rest(),
    }))
}

/// The quality of service of flags; `None` is −1.
fn qos(flags: u8) -> Result<Option<QoS>, DecodeError> {
    match (flags & flag::QOS) >> 5 {
        3 => Ok(None),
        level => QoS::try_from(level).map(Some).map_err(|_| DecodeError::Flags(flags)),
    }
}

/// The rest of a message's body.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn u8(&mut self) -> Result<u8, DecodeError> {
        let (&first, rest) = self.0.split_first().ok_or(DecodeError::Size)?;
        self.0 = rest;
        Ok(first)
    }

    fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_be_bytes([self.u8()?, self.u8()?]))
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    fn text(&mut self) -> Result<&'a str, DecodeError> {
        std::str::from_utf8(self.rest()).map_err(|_| DecodeError::Text)
    }

    fn code(&mut self) -> Result<ReturnCode, DecodeError> {
        Ok(match self.u8()? {
            0 => ReturnCode::Accepted,
            1 => ReturnCode::Congestion,
            2 => ReturnCode::InvalidTopicId,
            3 => ReturnCode::NotSupported,
            other => return Err(DecodeError::ReturnCode(other)),
        })
    }

    /// An empty body means no will.
    fn will_topic(&mut self) -> Result<Option<WillTopic<'a>>, DecodeError> {
        if self.is_empty() {
            return Ok(None);
        }
        let flags = self.u8()?;
        let qos = qos(flags)?.ok_or(DecodeError::Flags(flags))?;
        let topic = self.text()?;
        Ok(Some(WillTopic { qos, retain: flags & flag::RETAIN != 0, topic }))
    }

    fn topic_name(&mut self, flags: u8) -> Result<TopicName<'a>, DecodeError> {
        match flags & flag::TOPIC {
            0 => Ok(TopicName::Name(self.text()?)),
            1 => Ok(TopicName::Predefined(self.u16()?)),
            2 => Ok(TopicName::Short(self.u16()?.to_be_bytes())),
            _ => Err(DecodeError::Flags(flags)),
        }
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_as_the_specification_draws_them() {
        let cases: [(&[u8], Message<'_>); 12] = [
            (&[5, 0x00, 7, 3, 0x84], Message::Advertise { gateway_id: 7, duration_s: 900 }),
            (&[3, 0x01, 0], Message::SearchGw { radius: 0 }),
            (
                &[8, 0x04, 0x0C, 1, 0, 60, b'm', b'7'],
                Message::Connect { will: true, clean: true, keep_alive_s: 60, client_id: "m7" },
            ),
            (&[3, 0x05, 1], Message::Connack(ReturnCode::Congestion)),
            (&[2, 0x07], Message::WillTopic(None)),
            (
                &[9, 0x0A, 0, 0, 0, 9, b'a', b'/', b'b'],
                Message::Register { topic_id: 0, msg_id: 9, topic: "a/b" },
            ),
            (
                &[9, 0x0C, 0x62, b'h', b'i', 0, 0, b'2', b'1'],
                Message::Publish(Publish {
                    dup: false,
                    qos: None,
                    retain: false,
                    topic: TopicRef::Short(*b"hi"),
                    msg_id: 0,
                    payload: b"21",
                }),
            ),
            (
                &[6, 0x12, 0x20, 0, 1, b'#'],
                Message::Subscribe {
                    dup: false,
                    qos: QoS::AtLeastOnce,
                    msg_id: 1,
                    topic: TopicName::Name("#"),
                },
            ),
            (&[4, 0x16, b'm', b'7'], Message::Pingreq(Some("m7"))),
            (&[2, 0x18], Message::Disconnect { duration_s: None }),
            (&[4, 0x18, 0, 60], Message::Disconnect { duration_s: Some(60) }),
            (
                &[5, 0xFE, 1, 0xAA, 0xBB, 2, 0x16],
                Message::Forwarded { radius: 1, node: &[0xAA, 0xBB], message: &[2, 0x16] },
            ),
        ];
        for (bytes, message) in cases {
            assert_eq!(Message::decode(bytes), Ok(message));
            assert_eq!(message.encode().as_deref(), Some(bytes));
        }
    }

    #[test]
    fn the_long_length_is_three_octets() {
        let message = Message::WillMsg(&[7; 300]);
        let bytes = message.encode().unwrap_or_default();
        assert_eq!(bytes[..4], [1, 1, 48, 0x09]);
        assert_eq!(Message::decode(&bytes), Ok(message));
        // A length of three octets may be used for short messages too.
        assert_eq!(Message::decode(&[1, 0, 4, 0x17]), Ok(Message::Pingresp));
        assert!(Message::WillMsg(&[0; 65_535]).encode().is_none());
    }

    #[test]
    fn what_is_no_message_says_why() {
        let cases: [(&[u8], DecodeError); 13] = [
            (&[], DecodeError::Length),
            (&[0, 0x17], DecodeError::Length),
            (&[1], DecodeError::Length),
            (&[1, 0, 2, 0x17], DecodeError::Length),
            (&[3, 0x17], DecodeError::Length),
            (&[2, 0x17, 0], DecodeError::Length),
            (&[3, 0x17, 0], DecodeError::Size),
            (&[5, 0x04, 4, 1, 0], DecodeError::Size),
            (&[7, 0x04, 4, 2, 0, 0, b'm'], DecodeError::Protocol(2)),
            (&[2, 0x03], DecodeError::Type(3)),
            (&[6, 0x12, 0x60, 0, 1, b'#'], DecodeError::Flags(0x60)),
            (&[3, 0x05, 9], DecodeError::ReturnCode(9)),
            (&[7, 0x0A, 0, 0, 0, 1, 0xFF], DecodeError::Text),
        ];
        for (bytes, error) in cases {
            assert_eq!(Message::decode(bytes), Err(error), "{bytes:?}");
        }
    }
}
