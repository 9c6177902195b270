//! The small values that everything else is made of. Each can only hold what is valid.

use std::fmt;
use std::num::NonZeroU16;

/// Protocol version, by its level byte in CONNECT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub enum Version {
    /// MQTT 3.1.1, level 4.
    #[cfg_attr(feature = "serde", serde(rename = "3.1.1"))]
    V311,
    /// MQTT 5.0, level 5.
    #[default]
    #[cfg_attr(feature = "serde", serde(rename = "5"))]
    V5,
}

/// Quality of service of a delivery (section 4.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QoS {
    /// Fire and forget.
    #[default]
    AtMostOnce = 0,
    /// Acknowledged, may arrive twice.
    AtLeastOnce = 1,
    /// Arrives once.
    ExactlyOnce = 2,
}

/// A quality of service that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("quality of service {0} does not exist; use 0, 1 or 2")]
pub struct InvalidQoS(pub u8);

impl TryFrom<u8> for QoS {
    type Error = InvalidQoS;

    fn try_from(value: u8) -> Result<QoS, InvalidQoS> {
        match value {
            0 => Ok(QoS::AtMostOnce),
            1 => Ok(QoS::AtLeastOnce),
            2 => Ok(QoS::ExactlyOnce),
            other => Err(InvalidQoS(other)),
        }
    }
}

/// Packet identifier, 1 to 65,535 (section 2.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PacketId(NonZeroU16);

impl PacketId {
    /// The first identifier, 1.
    pub const FIRST: PacketId = PacketId(NonZeroU16::MIN);

    /// The identifier `value`; `None` for 0.
    #[must_use]
    pub fn new(value: u16) -> Option<PacketId> {
        NonZeroU16::new(value).map(PacketId)
    }

    /// Returns the identifier as a number.
    #[must_use]
    pub fn get(self) -> u16 {
        self.0.get()
    }

    /// The identifier after this one; 1 follows 65,535.
    #[must_use]
    pub fn next(self) -> PacketId {
        PacketId(self.0.checked_add(1).unwrap_or(NonZeroU16::MIN))
    }
}

impl fmt::Display for PacketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
