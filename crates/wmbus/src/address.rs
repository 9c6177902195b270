//! Who a meter is: manufacturer, identification number, version and medium (EN 13757-7, 7.5).
//!
//! An address comes in two byte orders: manufacturer first in the link layer, identification first
//! in the long transport header. Both end up as [`Address`], and go back to bytes from there.

use std::fmt;
use std::str::FromStr;

/// Three letters of the FLAG association, such as `KAM`, packed into 15 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Manufacturer(u16);

impl Manufacturer {
    /// From the two bytes of the M field; its highest bit (a soft address) is not part of the name.
    #[must_use]
    pub const fn from_code(code: u16) -> Self {
        Self(code & 0x7FFF)
    }

    /// The 15 bits.
    #[must_use]
    pub const fn code(self) -> u16 {
        self.0
    }

    /// The letters. What a damaged frame holds need not be letters; it is shown as `?` then.
    #[must_use]
    pub fn letters(self) -> [char; 3] {
        [10, 5, 0].map(|shift| match (self.0 >> shift) as u8 & 0x1F {
            letter @ 1..=26 => char::from(b'@' + letter),
            _ => '?',
        })
    }
}

impl fmt::Display for Manufacturer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.letters().iter().try_for_each(|letter| write!(f, "{letter}"))
    }
}

impl fmt::Debug for Manufacturer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A name that is not three letters, or a number that is not eight digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Not three letters.
    #[error("a manufacturer must have three letters, such as KAM")]
    Manufacturer,
    /// Not eight hexadecimal digits.
    #[error("a meter's number must have eight digits, as printed on it")]
    Number,
}

impl FromStr for Manufacturer {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let letters = text.as_bytes();
        if letters.len() != 3 || !letters.iter().all(u8::is_ascii_alphabetic) {
            return Err(AddressError::Manufacturer);
        }
        let code = letters
            .iter()
            .fold(0, |code, letter| code << 5 | u16::from(letter.to_ascii_uppercase() - b'@'));
        Ok(Self(code))
    }
}

/// A meter's identification number: eight digits, as printed on it.
///
/// They are decimal by the standard; some manufacturers use hexadecimal ones, which are kept as they are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MeterId(u32);

impl MeterId {
    /// From four bytes in the order of the wire, lowest digits first.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 4]) -> Self {
        Self(u32::from_le_bytes(bytes))
    }

    /// The four bytes in the order of the wire.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 4] {
        self.0.to_le_bytes()
    }

    /// A decimal number below 100,000,000, as its digits; more digits are cut off above.
    #[must_use]
    pub fn from_number(mut number: u32) -> Self {
        let mut packed = 0;
        for digit in 0..8 {
            packed |= (number % 10) << (4 * digit);
            number /= 10;
        }
        Self(packed)
    }
}

impl fmt::Display for MeterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08X}", self.0)
    }
}

impl fmt::Debug for MeterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for MeterId {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if text.len() != 8 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(AddressError::Number);
        }
        u32::from_str_radix(text, 16).map(Self).map_err(|_| AddressError::Number)
    }
}

/// Quantity that a meter measures, or purpose of a device (EN 13757-7, table 13).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Medium(pub u8);

impl Medium {
    /// Name in English; codes without one are `reserved`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.0 {
            0x00 => "other",
            0x01 => "oil",
            0x02 => "electricity",
            0x03 => "gas",
            0x04 => "heat",
            0x05 => "steam",
            0x06 => "warm water",
            0x07 => "water",
            0x08 => "heat cost allocator",
            0x09 => "compressed air",
            0x0A => "cooling (outlet)",
            0x0B => "cooling (inlet)",
            0x0C => "heat (inlet)",
            0x0D => "heat and cooling",
            0x0E => "bus or system component",
            0x0F => "unknown",
            0x10 => "irrigation water",
            0x11 => "water data logger",
            0x12 => "gas data logger",
            0x13 => "gas converter",
            0x14 => "calorific value",
            0x15 => "hot water",
            0x16 => "cold water",
            0x17 => "dual register water",
            0x18 => "pressure",
            0x19 => "A/D converter",
            0x1A => "smoke detector",
            0x1B => "room sensor",
            0x1C => "gas detector",
            0x1D => "carbon monoxide detector",
            0x1E => "heat detector",
            0x1F => "sensor",
            0x20 => "breaker",
            0x21 => "valve",
            0x25 => "customer unit",
            0x28 => "waste water",
            0x29 => "garbage",
            0x2A => "carbon dioxide",
            0x2B => "environment",
            0x2C => "system",
            0x31 => "communication controller",
            0x32 => "unidirectional repeater",
            0x33 => "bidirectional repeater",
            0x36 => "radio converter (system)",
            0x37 => "radio converter (meter)",
            0x38 => "wired adapter",
            _ => "reserved",
        }
    }
}

/// The eight bytes that name a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// Who made it.
    pub manufacturer: Manufacturer,
    /// Identification number.
    pub id: MeterId,
    /// Version, which with manufacturer and medium identifies the model.
    pub version: u8,
    /// Medium that it measures.
    pub medium: Medium,
}

impl Address {
    /// From the link layer's order: manufacturer, identification, version, medium.
    #[must_use]
    pub const fn from_link(bytes: [u8; 8]) -> Self {
        let [m0, m1, i0, i1, i2, i3, version, medium] = bytes;
        Self {
            manufacturer: Manufacturer::from_code(u16::from_le_bytes([m0, m1])),
            id: MeterId::from_bytes([i0, i1, i2, i3]),
            version,
            medium: Medium(medium),
        }
    }

    /// From the long header's order: identification, manufacturer, version, medium.
    #[must_use]
    pub const fn from_header(bytes: [u8; 8]) -> Self {
        let [i0, i1, i2, i3, m0, m1, version, medium] = bytes;
        Self::from_link([m0, m1, i0, i1, i2, i3, version, medium])
    }

    /// The bytes in the link layer's order, in which ciphers use them too.
    #[must_use]
    pub const fn to_link(self) -> [u8; 8] {
        let [m0, m1] = self.manufacturer.code().to_le_bytes();
        let [i0, i1, i2, i3] = self.id.to_bytes();
        [m0, m1, i0, i1, i2, i3, self.version, self.medium.0]
    }

    /// The bytes in the long header's order.
    #[must_use]
    pub const fn to_header(self) -> [u8; 8] {
        let [m0, m1, i0, i1, i2, i3, version, medium] = self.to_link();
        [i0, i1, i2, i3, m0, m1, version, medium]
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.manufacturer, self.id)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn both_orders_name_the_same_meter() {
        let link = [0x2D, 0x2C, 0x01, 0x28, 0x15, 0x78, 0x1C, 0x04];
        let address = Address::from_link(link);
        assert_eq!(address.to_string(), "KAM 78152801");
        assert_eq!((address.version, address.medium.name()), (0x1C, "heat"));
        assert_eq!(address.to_link(), link);
        assert_eq!(Address::from_header(address.to_header()), address);
    }

    #[test]
    fn names_are_read_back() {
        assert_eq!("kam".parse::<Manufacturer>().unwrap().code(), 0x2C2D);
        assert_eq!("KA1".parse::<Manufacturer>(), Err(AddressError::Manufacturer));
        assert_eq!("78152801".parse::<MeterId>().unwrap().to_bytes(), [0x01, 0x28, 0x15, 0x78]);
        assert_eq!(MeterId::from_number(78_152_801), "78152801".parse().unwrap());
        for wrong in ["7815280", "+8152801", "x8152801", ""] {
            assert_eq!(wrong.parse::<MeterId>(), Err(AddressError::Number), "{wrong}");
        }
    }
}
