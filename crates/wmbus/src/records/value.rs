//! A record's data as a value (EN 13757-3, 6.3.3 and annexes A and F).
//!
//! A number that is marked invalid, a date that is none and a record without data are `Missing`, which
//! is not an error: meters send them where they have nothing to say.

use std::fmt;

use serde::{Serialize, Serializer};

use super::date::Moment;
use super::header::Coding;
use super::units::{Kind, Meaning};
use crate::error::Error;

/// Variable-length data below this are text, or bytes where the quantity says so.
const TEXT_END: u8 = 0xC0;

/// Spacing of a profile of months.
pub(crate) const MONTH: &str = "1 month";

/// Value of one quantity as the meter states it.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// In the reading's unit.
    Number(f64),
    /// Text, or digits that stand for themselves.
    Text(String),
    /// A date, a time or both, in the meter's own time.
    Moment(Moment),
    /// Equally spaced values.
    Profile(Profile),
    /// Bytes that only the manufacturer can interpret.
    Bytes(Vec<u8>),
    /// Nothing, or marked invalid by the meter.
    Missing,
}

/// Several values in one record, equally spaced in time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Profile {
    /// Meaning of the numbers: `absolute`, or `increments`, `decrements` or `differences` from the one before.
    pub mode: &'static str,
    /// Time between two, such as `1 month`.
    pub every: String,
    /// The values in the reading's unit; `None` where there is none.
    pub values: Vec<Option<f64>>,
    /// When each value was, where the message tells a base date and the values are monthly.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "as_text")]
    pub times: Vec<Moment>,
}

fn as_text<S: Serializer>(times: &[Moment], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(times.iter().map(Moment::to_string))
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => to.serialize_f64(*number),
            Self::Text(text) => to.serialize_str(text),
            Self::Moment(_) | Self::Bytes(_) => to.collect_str(self),
            Self::Profile(profile) => profile.serialize(to),
            Self::Missing => to.serialize_none(),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
            Self::Moment(moment) => write!(f, "{moment}"),
            Self::Bytes(bytes) => bytes.iter().try_for_each(|byte| write!(f, "{byte:02X}")),
            Self::Profile(Profile { mode, every, values, times }) => {
                write!(f, "{mode} every {every}")?;
                if let Some(first) = times.first() {
                    write!(f, ", first of {first}")?;
                }
                f.write_str(":")?;
                values.iter().try_for_each(|value| match value {
                    Some(number) => write!(f, " {number}"),
                    None => f.write_str(" -"),
                })
            }
            Self::Missing => f.write_str("-"),
        }
    }
}

/// Takes a record's data off the front of `bytes`, without what tells their length: their coding, the
/// data, and what is left.
pub(crate) fn split(coding: Coding, bytes: &[u8]) -> Result<(Data<'_>, &[u8]), Error> {
    const SHORT: Error = Error::Short("records");
    let (variable, length, bytes) = match coding.bytes() {
        Some(length) => (None, length, bytes),
        None => {
            let (lvar, bytes) = bytes.split_first().ok_or(SHORT)?;
            (Some(*lvar), variable_bytes(*lvar)?, bytes)
        }
    };
    let (bytes, rest) = bytes.split_at_checked(length).ok_or(SHORT)?;
    Ok((Data { coding, variable, bytes }, rest))
}

/// Number of bytes behind a variable length field (EN 13757-3, table 5).
fn variable_bytes(lvar: u8) -> Result<usize, Error> {
    Ok(match lvar {
        0x00..TEXT_END => usize::from(lvar),
        0xC0..=0xC9 => usize::from(lvar - 0xC0),
        0xD0..=0xD9 => usize::from(lvar - 0xD0),
        0xE0..=0xEF => usize::from(lvar - 0xE0),
        0xF0..=0xF4 => 4 * usize::from(lvar - 0xEC),
        0xF5 => 48,
        0xF6 => 64,
        _ => return Err(Error::Malformed("length of a record's data")),
    })
}

/// A record's data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Data<'a> {
    coding: Coding,
    variable: Option<u8>,
    bytes: &'a [u8],
}

impl Data<'_> {
    /// Reads the data as what they mean.
    pub(crate) fn value(&self, meaning: &Meaning) -> Value {
        if self.bytes.is_empty() {
            return Value::Missing;
        }
        match meaning.kind {
            Kind::Moment => Moment::parse(self.bytes).map_or(Value::Missing, Value::Moment),
            Kind::Opaque => Value::Bytes(self.bytes.to_vec()),
            Kind::Profile => profile(self.bytes, meaning)
                .map_or_else(|| Value::Bytes(self.bytes.to_vec()), Value::Profile),
            Kind::Label => self.label(),
            Kind::Number | Kind::Unsigned | Kind::Bits => self.number(meaning),
        }
    }

    fn number(&self, meaning: &Meaning) -> Value {
        let found = match (self.coding, self.variable) {
            (Coding::Real, _) => real(self.bytes),
            (Coding::Bcd(_), _) => bcd(self.bytes),
            (Coding::Variable, Some(0..TEXT_END)) if meaning.kind != Kind::Bits => {
                return Value::Text(text(self.bytes));
            }
            (Coding::Variable, Some(0xC0..=0xC9)) => bcd(self.bytes),
            (Coding::Variable, Some(0xD0..=0xD9)) => bcd(self.bytes).map(|number| -number),
            // No meter's register has more than 64 bits.
            _ if self.bytes.len() > 8 => return Value::Bytes(self.bytes.to_vec()),
            _ => binary(self.bytes, meaning.kind),
        };
        found.map_or(Value::Missing, |number| Value::Number(scaled(number, meaning)))
    }

    /// Digits as they would be printed; leading zeros belong to them.
    fn label(&self) -> Value {
        match (self.coding, self.variable) {
            (Coding::Variable, Some(0..TEXT_END)) => Value::Text(text(self.bytes)),
            // Binary values are shown as hexadecimal digits: manufacturers pack several numbers into them.
            (Coding::Bcd(_) | Coding::Binary(_), _) | (Coding::Variable, Some(0xC0..=0xD9)) => {
                Value::Text(self.bytes.iter().rev().map(|byte| format!("{byte:02X}")).collect())
            }
            _ => Value::Bytes(self.bytes.iter().rev().copied().collect()),
        }
    }
}

/// ISO 8859-1, last letter first; what a terminal would obey is left out.
fn text(bytes: &[u8]) -> String {
    let letters = bytes.iter().rev().map(|byte| char::from(*byte));
    letters.filter(|letter| !letter.is_control()).collect()
}

/// A little-endian integer of at most eight bytes; beyond 2^53 it loses its last digits. `None` for the codes without a
/// value (EN 13757-3, annex A): the smallest number with a sign, the greatest one without.
pub(crate) fn binary(bytes: &[u8], kind: Kind) -> Option<f64> {
    let all = |bytes: &[u8], code: u8| bytes.iter().all(|byte| *byte == code);
    let is_signed = kind == Kind::Number;
    let is_none = match bytes.split_last()? {
        (0x80, low) => is_signed && all(low, 0),
        (0xFF, low) => kind == Kind::Unsigned && all(low, 0xFF),
        _ => false,
    };
    let mut wide = [0; 8];
    let width = bytes.len().min(8);
    wide[..width].copy_from_slice(&bytes[..width]);
    let number = if is_signed && wide[width - 1] & 0x80 != 0 {
        wide[width..].fill(0xFF);
        i64::from_le_bytes(wide) as f64
    } else {
        u64::from_le_bytes(wide) as f64
    };
    (!is_none).then_some(number)
}

/// Packed decimal digits; an F in front is a minus sign. `None` for digits that are none, which is how
/// meters mark an invalid value.
fn bcd(bytes: &[u8]) -> Option<f64> {
    let digits = bytes.iter().rev().flat_map(|byte| [byte >> 4, byte & 0x0F]);
    let mut negative = false;
    let mut number = 0_f64;
    for (place, digit) in digits.enumerate() {
        match digit {
            0..=9 => number = number * 10.0 + f64::from(digit),
            0xF if place == 0 => negative = true,
            _ => return None,
        }
    }
    Some(if negative { -number } else { number })
}

fn real(bytes: &[u8]) -> Option<f64> {
    let number = f32::from_le_bytes(bytes.try_into().ok()?);
    // By way of text, so that 21.1 stays 21.1 instead of becoming 21.100000381.
    if number.is_finite() { number.to_string().parse().ok() } else { None }
}

/// In the meaning's unit. Dividing by a whole power of ten gives the nearest number to the decimal
/// one, which multiplying by its fraction would not.
fn scaled(number: f64, meaning: &Meaning) -> f64 {
    let power = 10_f64.powi(i32::from(meaning.exponent.unsigned_abs()));
    let number = if meaning.exponent < 0 { number / power } else { number * power };
    if meaning.factor == 1.0 { number } else { number * meaning.factor }
}

/// A compact profile (EN 13757-3, annex F): control byte, spacing, values.
fn profile(bytes: &[u8], meaning: &Meaning) -> Option<Profile> {
    let [control, spacing, values @ ..] = bytes else { return None };
    let coding = Coding::from_nibble(*control)?;
    let width = coding.bytes().filter(|width| *width > 0)?;
    let every = match (control >> 4 & 3, spacing) {
        (3, 254) => MONTH.to_owned(),
        (3, 253) => "half a month".to_owned(),
        (unit, count) => format!("{count} {}", ["s", "min", "h", "d"][usize::from(unit)]),
    };
    let mode = ["absolute", "increments", "decrements", "differences"][usize::from(control >> 6)];
    let kind = if matches!(control >> 6, 0 | 3) { Kind::Number } else { Kind::Unsigned };
    let value = |bytes: &[u8]| {
        let number = match coding {
            Coding::Real => real(bytes),
            Coding::Bcd(_) => bcd(bytes),
            _ => binary(bytes, kind),
        };
        number.map(|number| scaled(number, meaning))
    };
    let values = values.chunks_exact(width).map(value).collect();
    Some(Profile { mode, every, values, times: Vec::new() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_coding() {
        assert_eq!(binary(&[0xFF, 0xFF, 0xFF, 0xFF], Kind::Number), Some(-1.0));
        assert_eq!(binary(&[0xFE, 0xFF, 0xFF], Kind::Unsigned), Some(16_777_214.0));
        assert_eq!(binary(&[0xFF, 0xFF, 0xFF], Kind::Unsigned), None);
        assert_eq!(binary(&[0xFF, 0xFF, 0xFF], Kind::Bits), Some(16_777_215.0));
        assert_eq!(binary(&[0, 0, 0x80], Kind::Number), None);
        assert_eq!(binary(&[1, 0, 0x80], Kind::Number), Some(-8_388_607.0));
        assert_eq!(bcd(&[0x34, 0x12]), Some(1234.0));
        assert_eq!(bcd(&[0x23, 0xF1]), Some(-123.0));
        assert_eq!(bcd(&[0xEE, 0xEE]), None);
        assert_eq!(bcd(&[0x12, 0x3F]), None, "a sign stands only in front");
        assert_eq!(real(&21.1_f32.to_le_bytes()), Some(21.1));
        assert_eq!(real(&f32::NAN.to_le_bytes()), None);
        assert_eq!(binary(&(i64::MIN + 1).to_le_bytes(), Kind::Number), Some(i64::MIN as f64));
    }

    #[test]
    fn variable_lengths() {
        let lengths =
            [(0x05, 5), (0xC2, 2), (0xD9, 9), (0xE8, 8), (0xF0, 16), (0xF4, 32), (0xF6, 64)];
        for (lvar, bytes) in lengths {
            assert_eq!(variable_bytes(lvar).unwrap(), bytes, "{lvar:02X}");
        }
        assert!(variable_bytes(0xFF).is_err());
        assert!(split(Coding::Variable, &[3, b'a', b'b']).is_err());
        assert!(split(Coding::Variable, &[]).is_err());
    }

    #[test]
    fn text_cannot_drive_a_terminal() {
        assert_eq!(text(b"\x1b[2J01"), "10J2[");
    }
}
