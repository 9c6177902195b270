//! The header of a data record (EN 13757-3, 6.3): data and value information blocks.
//!
//! Finds where a header ends and what its data block says; what the value information means is
//! `units`' business.

use crate::error::Error;
use serde::Serialize;

/// Extension bytes a block may have (EN 13757-3, 6.3.2 and 6.4.1).
const MAX_EXTENSIONS: usize = 10;
const EXTENDED: u8 = 0x80;
/// A unit in plain text follows.
const PLAIN_TEXT_VIF: u8 = 0x7C;

/// Function of a record's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Function {
    /// The value now, or at the time of its storage number.
    #[default]
    Instantaneous,
    /// The greatest of a period.
    Maximum,
    /// The smallest of a period.
    Minimum,
    /// The value during an error.
    Error,
}

/// Coding of the data; the low half of the first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    None,
    Binary(usize),
    Real,
    Bcd(usize),
    Variable,
}

impl Coding {
    /// From the low half of a byte; `None` for what no record has.
    pub(crate) const fn from_nibble(nibble: u8) -> Option<Self> {
        Some(match nibble & 0x0F {
            0 | 8 => Self::None,
            width @ 1..=4 => Self::Binary(width as usize),
            5 => Self::Real,
            6 => Self::Binary(6),
            7 => Self::Binary(8),
            width @ 9..=12 => Self::Bcd(width as usize - 8),
            13 => Self::Variable,
            14 => Self::Bcd(6),
            _ => return None,
        })
    }

    /// Bytes of data; `None` where the data begin with their length.
    pub(crate) const fn bytes(self) -> Option<usize> {
        match self {
            Self::None => Some(0),
            Self::Binary(width) | Self::Bcd(width) => Some(width),
            Self::Real => Some(4),
            Self::Variable => None,
        }
    }
}

/// A record's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) coding: Coding,
    pub(crate) function: Function,
    pub(crate) storage: u64,
    pub(crate) tariff: u32,
    pub(crate) subunit: u32,
    /// The first byte of the value information.
    pub(crate) vif: u8,
    /// The text of a unit in plain text, last letter first.
    pub(crate) text: &'a [u8],
    /// Extensions of the first byte, and the text.
    pub(crate) extensions: &'a [u8],
}

impl<'a> RecordHeader<'a> {
    /// Reads the header in front of `bytes`.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let data = block(bytes)?;
        let (first, extensions) = data.split_first().ok_or(Error::Short("records"))?;
        let coding =
            Coding::from_nibble(*first).ok_or(Error::Malformed("data field of a record"))?;
        let mut header = Self {
            bytes,
            coding,
            function: match first >> 4 & 3 {
                0 => Function::Instantaneous,
                1 => Function::Maximum,
                2 => Function::Minimum,
                _ => Function::Error,
            },
            storage: u64::from(first >> 6 & 1),
            tariff: 0,
            subunit: 0,
            vif: 0,
            text: &[],
            extensions: &[],
        };
        for (place, extension) in extensions.iter().enumerate() {
            header.storage |= u64::from(extension & 0x0F) << (1 + 4 * place);
            header.tariff |= u32::from(extension >> 4 & 3) << (2 * place);
            header.subunit |= u32::from(extension >> 6 & 1) << place;
        }
        header.value_block(&bytes[data.len()..])?;
        let used = data.len() + 1 + header.text_bytes() + header.extensions.len();
        header.bytes = bytes.get(..used).ok_or(Error::Short("records"))?;
        Ok(header)
    }

    fn value_block(&mut self, bytes: &'a [u8]) -> Result<(), Error> {
        let (vif, mut rest) = bytes.split_first().ok_or(Error::Short("records"))?;
        self.vif = *vif;
        if vif & !EXTENDED == PLAIN_TEXT_VIF {
            let (length, after) = rest.split_first().ok_or(Error::Short("records"))?;
            let (text, after) =
                after.split_at_checked(usize::from(*length)).ok_or(Error::Short("records"))?;
            (self.text, rest) = (text, after);
        }
        if vif & EXTENDED != 0 {
            self.extensions = block(rest)?;
        }
        Ok(())
    }

    /// Bytes of a unit in plain text with their length.
    const fn text_bytes(&self) -> usize {
        if self.vif & !EXTENDED == PLAIN_TEXT_VIF { 1 + self.text.len() } else { 0 }
    }

    /// The value information, for those who know it better than we do.
    pub(crate) fn value_information(&self) -> &'a [u8] {
        let length = 1 + self.text_bytes() + self.extensions.len();
        &self.bytes[self.bytes.len() - length..]
    }
}

/// A byte and those that extend it: each but the last has its highest bit set.
fn block(bytes: &[u8]) -> Result<&[u8], Error> {
    let last = bytes.iter().take(1 + MAX_EXTENSIONS).position(|byte| byte & EXTENDED == 0).ok_or(
        if bytes.len() > MAX_EXTENSIONS {
            Error::Malformed("record with more than ten extensions")
        } else {
            Error::Short("records")
        },
    )?;
    Ok(&bytes[..=last])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn extensions_add_up() {
        // 8-digit BCD, storage 0b0001_0101_1, tariff 0b11_10, subunit 0b01.
        let header = RecordHeader::parse(&[0xCC, 0xE5, 0x31, 0x13, 0xFF]).unwrap();
        assert_eq!(header.bytes.len(), 4);
        assert_eq!((header.coding, header.vif), (Coding::Bcd(4), 0x13));
        assert_eq!((header.storage, header.tariff, header.subunit), (0b10_1011, 0b1110, 0b01));
    }

    #[test]
    fn a_unit_in_plain_text_has_its_extensions_after_it() {
        let header = RecordHeader::parse(&[0x02, 0xFC, 2, b'H', b'R', 0x74, 9, 9]).unwrap();
        assert_eq!((header.text, header.extensions), (&b"HR"[..], &[0x74][..]));
        assert_eq!(header.value_information(), [0xFC, 2, b'H', b'R', 0x74]);
    }

    #[test]
    fn endless_extensions_end() {
        let endless = [0x84; 40];
        assert_eq!(
            RecordHeader::parse(&endless),
            Err(Error::Malformed("record with more than ten extensions"))
        );
        for cut in 0..4 {
            assert!(RecordHeader::parse(&[0x84, 0x10, 0x93, 0x3B][..cut]).is_err());
        }
    }
}
