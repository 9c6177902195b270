//! The four acknowledgements of PUBLISH (sections 3.4 to 3.7) in their short forms: a few instructions each, because
//! a broker writes one or two per message.

use crate::reason::ReasonCode;
use crate::types::{PacketId, Version};

/// Kind of acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckKind {
    /// PUBACK: QoS 1, the only answer.
    Puback,
    /// PUBREC: QoS 2, first answer.
    Pubrec,
    /// PUBREL: QoS 2, the sender's release.
    Pubrel,
    /// PUBCOMP: QoS 2, last answer.
    Pubcomp,
}

impl AckKind {
    /// The acknowledgement whose first byte is `first`, if there is one.
    #[inline]
    pub(crate) fn from_first_byte(first: u8) -> Option<AckKind> {
        match first {
            0x40 => Some(AckKind::Puback),
            0x50 => Some(AckKind::Pubrec),
            0x62 => Some(AckKind::Pubrel),
            0x70 => Some(AckKind::Pubcomp),
            _ => None,
        }
    }

    /// Whether the packet may have this reason (tables of sections 3.4.2.1, 3.5.2.1, 3.6.2.1 and 3.7.2.1).
    pub(crate) fn may_say(self, reason: ReasonCode) -> bool {
        use ReasonCode as R;
        match self {
            AckKind::Puback | AckKind::Pubrec => matches!(
                reason,
                R::Success
                    | R::NoMatchingSubscribers
                    | R::UnspecifiedError
                    | R::ImplementationSpecificError
                    | R::NotAuthorized
                    | R::TopicNameInvalid
                    | R::PacketIdentifierInUse
                    | R::QuotaExceeded
                    | R::PayloadFormatInvalid
            ),
            AckKind::Pubrel | AckKind::Pubcomp => {
                matches!(reason, R::Success | R::PacketIdentifierNotFound)
            }
        }
    }

    /// The packet's first byte.
    pub(crate) fn first_byte(self) -> u8 {
        match self {
            AckKind::Puback => 0x40,
            AckKind::Pubrec => 0x50,
            AckKind::Pubrel => 0x62,
            AckKind::Pubcomp => 0x70,
        }
    }
}

/// Appends an acknowledgement without properties. 3.1.1 has no reason.
pub fn encode(
    out: &mut Vec<u8>,
    version: Version,
    kind: AckKind,
    id: PacketId,
    reason: ReasonCode,
) {
    let [high, low] = id.get().to_be_bytes();
    if reason == ReasonCode::Success || version == Version::V311 {
        out.extend_from_slice(&[kind.first_byte(), 2, high, low]);
    } else {
        out.extend_from_slice(&[kind.first_byte(), 3, high, low, reason.as_u8()]);
    }
}
