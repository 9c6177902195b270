//! A reading: a device's measurement of a quantity at a time. Names are only checked here.

use std::fmt::Write as _;

use serde_json::{Value, json};
use time::OffsetDateTime;

/// Maximum length of a device's name in letters.
pub const MAX_DEVICE_LETTERS: usize = 64;
/// Maximum length of a quantity's name in letters.
pub const MAX_QUANTITY_LETTERS: usize = 32;

/// One value that a device measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// The device: letters, digits, `.`, `_` and `-`.
    pub device: String,
    /// Quantity that was measured, such as `temperature`: lower-case letters, digits and `_`.
    pub quantity: String,
    /// The value; finite.
    pub value: f64,
    /// The unit, if given.
    pub unit: Option<String>,
    /// The time in ms since 1970 (UTC); `None` if not given.
    pub at_ms: Option<u64>,
}

impl Reading {
    /// Returns the payload of a message: `{"value":21.5,"at":"2026-01-05T08:00:00.000Z","unit":"°C"}`.
    pub fn payload(&self) -> Value {
        let mut object = json!({ "value": self.value });
        if let Some(at) = self.at_ms {
            object["at"] = instant(at).into();
        }
        if let Some(unit) = self.unit.as_deref().or_else(|| unit(&self.quantity)) {
            object["unit"] = unit.into();
        }
        object
    }
}

/// Whether a device's name is valid.
pub fn is_device(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=MAX_DEVICE_LETTERS).contains(&name.len()) && name.bytes().all(letter)
}

/// Whether a quantity's name is valid.
pub fn is_quantity(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    (1..=MAX_QUANTITY_LETTERS).contains(&name.len()) && name.bytes().all(letter)
}

/// The default unit of a quantity.
pub fn unit(quantity: &str) -> Option<&'static str> {
    match quantity {
        "radon" => Some("Bq/m³"),
        "co2" | "co" => Some("ppm"),
        "temperature" => Some("°C"),
        "humidity" | "battery" => Some("%"),
        "pressure" => Some("hPa"),
        "illuminance" => Some("lx"),
        _ => None,
    }
}

/// A time in ms since 1970 in RFC 3339 with milliseconds; after the year 9999, the last instant before.
pub fn instant(ms: u64) -> String {
    const LAST_MS: u64 = 253_402_300_799_999;
    let ms = ms.min(LAST_MS);
    let seconds = (ms / 1000).cast_signed();
    let at = OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let mut text = String::with_capacity(24);
    let (date, clock) = (at.date(), at.time());
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
        date.year(),
        u8::from(date.month()),
        date.day(),
        clock.hour(),
        clock.minute(),
        clock.second(),
        ms % 1000
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert!(is_device("kitchen-2.left_A"));
        for bad in ["", "a b", "a/b", "+", "#", "küche", &"x".repeat(65)] {
            assert!(!is_device(bad), "{bad}");
        }
        assert!(is_quantity("co2") && is_quantity("pm_2_5"));
        for bad in ["", "CO2", "a/b", "a-b", &"x".repeat(33)] {
            assert!(!is_quantity(bad), "{bad}");
        }
    }

    #[test]
    fn instants_have_milliseconds() {
        assert_eq!(instant(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(instant(1_772_366_401_050), "2026-03-01T12:00:01.050Z");
        assert_eq!(instant(u64::MAX), "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn a_payload_says_the_usual_unit() {
        let reading = Reading {
            device: "a".into(),
            quantity: "radon".into(),
            value: 35.0,
            unit: None,
            at_ms: Some(1000),
        };
        let expected = json!({ "value": 35.0, "unit": "Bq/m³", "at": "1970-01-01T00:00:01.000Z" });
        assert_eq!(reading.payload(), expected);
    }
}
