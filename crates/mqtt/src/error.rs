//! Errors in bytes that should be an MQTT packet.

use crate::reason::ReasonCode;

/// Why bytes are not an MQTT packet; [`DecodeError::reason`] is the reason code of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A field ends beyond its packet, or bytes are left over.
    #[error("packet has the wrong length for its fields")]
    Length,
    /// A variable byte integer of more than four bytes (section 1.5.5).
    #[error("variable byte integer is too long")]
    VariableByteInteger,
    /// The packet is longer than the receiver allows.
    #[error("packet of {size} bytes is over the limit of {limit}")]
    TooLarge {
        /// Size of the packet in bytes, fixed header included.
        size: usize,
        /// The receiver's limit.
        limit: usize,
    },
    /// A packet type that does not exist in this version.
    #[error("packet type {0} does not exist")]
    PacketType(u8),
    /// Reserved bits have wrong values.
    #[error("reserved flags are wrong")]
    Flags,
    /// Not UTF-8, or with U+0000 (section 1.5.4).
    #[error("string is not valid UTF-8 or contains U+0000")]
    String,
    /// The protocol name is not MQTT.
    #[error("protocol name is not MQTT")]
    ProtocolName,
    /// A protocol level other than 4 and 5.
    #[error("protocol level {0} is not supported; use MQTT 3.1.1 (4) or 5.0 (5)")]
    ProtocolVersion(u8),
    /// Packet identifier 0.
    #[error("packet identifier 0 is not allowed")]
    PacketId,
    /// QoS 3.
    #[error("quality of service 3 does not exist")]
    QoS,
    /// A reason code that does not exist, or not in this packet.
    #[error("reason code 0x{0:02X} is not one of this packet's")]
    ReasonCode(u8),
    /// A property that does not exist, or not in this packet.
    #[error("property 0x{0:02X} is not allowed here")]
    PropertyNotAllowed(u8),
    /// A property given twice.
    #[error("property 0x{0:02X} is given more than once")]
    PropertyTwice(u8),
    /// A property with a forbidden value.
    #[error("property 0x{0:02X} has a value that is not allowed")]
    PropertyValue(u8),
    /// SUBSCRIBE or UNSUBSCRIBE without a filter.
    #[error("no topic filter given")]
    NoFilter,
    /// A topic alias of 0.
    #[error("topic alias 0 is not allowed")]
    TopicAlias,
    /// A combination of fields the protocol forbids.
    #[error("{0}")]
    Protocol(&'static str),
}

impl DecodeError {
    /// The reason code of the answer.
    #[must_use]
    pub fn reason(self) -> ReasonCode {
        match self {
            DecodeError::TooLarge { .. } => ReasonCode::PacketTooLarge,
            DecodeError::ProtocolName | DecodeError::ProtocolVersion(_) => {
                ReasonCode::UnsupportedProtocolVersion
            }
            // An identifier that is not valid for its packet is malformed (section 2.2.2.2), one that is repeated or
            // out of range a protocol error (section 2.2.2.2 and each packet's).
            DecodeError::PropertyTwice(_)
            | DecodeError::PropertyValue(_)
            | DecodeError::NoFilter
            | DecodeError::ReasonCode(_)
            | DecodeError::Protocol(_) => ReasonCode::ProtocolError,
            DecodeError::TopicAlias => ReasonCode::TopicAliasInvalid,
            _ => ReasonCode::MalformedPacket,
        }
    }
}
