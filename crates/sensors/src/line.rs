//! Readings as lines of text, which any source can print: a script, a serial port, another program.
//!
//! ```text
//! # a comment; empty lines are passed over too
//! kitchen temperature 21.5
//! kitchen temperature 21.5 2026-11-21T17:30:00Z
//! {"device":"kitchen","quantity":"temperature","value":21.5,"at":"2026-11-21T17:30:00Z","unit":"°C"}
//! {"device":"kitchen","at":"2026-11-21T17:30:00Z","temperature":21.5,"co2":640}
//! ```
//!
//! Words are separated by blanks. Every line is complete: it does not depend on others.

use serde_json::{Map, Value};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::reading::{Reading, is_device, is_quantity};

/// Longest line that is read, in bytes.
pub const MAX_BYTES: usize = 16 * 1024;

/// Maximum number of readings in one line.
pub const MAX_READINGS: usize = 64;

/// Maximum length of a unit in bytes.
const MAX_UNIT_BYTES: usize = 32;

/// Mistakes in a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// Longer than [`MAX_BYTES`].
    #[error("longer than {MAX_BYTES} bytes")]
    TooLong,
    /// Not UTF-8.
    #[error("not UTF-8 text")]
    NotText,
    /// Neither words nor an object.
    #[error("expected DEVICE QUANTITY VALUE [TIME] or a JSON object")]
    Form,
    /// Begins like an object and is none.
    #[error("not JSON: {0}")]
    Json(String),
    /// The name of a device is missing or has other letters.
    #[error("the device's name must be 1 to 64 letters, digits, dots, underscores or hyphens")]
    Device,
    /// The name of a quantity has other letters.
    #[error("a quantity's name must be 1 to 32 lower-case letters, digits or underscores: {0:?}")]
    Quantity(String),
    /// Not a finite number.
    #[error("{0}: the value is not a number")]
    Value(String),
    /// Not a time.
    #[error("the time is not as in 2026-11-21T17:30:00Z (RFC 3339, since 1970)")]
    Time,
    /// Not a unit.
    #[error("the unit is not a text of at most {MAX_UNIT_BYTES} bytes")]
    Unit,
    /// More than [`MAX_READINGS`].
    #[error("more than {MAX_READINGS} readings")]
    TooMany,
}

/// The readings of a line, and which of its quantities have none.
pub type Readings = (Vec<Reading>, Vec<LineError>);

/// The readings of a line; none for an empty line or a comment. Of an object of quantities, one without a number costs only
/// itself; switches are 0 and 1.
///
/// # Errors
/// The line is not as documented; then none of its readings are returned.
pub fn parse(line: &[u8]) -> Result<Readings, LineError> {
    if line.len() > MAX_BYTES {
        return Err(LineError::TooLong);
    }
    let line = std::str::from_utf8(line).map_err(|_| LineError::NotText)?.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(Readings::default());
    }
    if line.starts_with('{') {
        let object =
            serde_json::from_str(line).map_err(|error| LineError::Json(error.to_string()))?;
        return of_object(object);
    }
    let words: Vec<&str> = line.split_ascii_whitespace().take(5).collect();
    let (device, quantity, value, time) = match *words.as_slice() {
        [device, quantity, value] => (device, quantity, value, None),
        [device, quantity, value, time] => (device, quantity, value, Some(time)),
        _ => return Err(LineError::Form),
    };
    let value = value.parse().map_err(|_| LineError::Value(quantity.to_owned()))?;
    let at_ms = time.map(parse_time).transpose()?;
    Ok((vec![checked(device, quantity, value, None, at_ms)?], Vec::new()))
}

fn of_object(mut object: Map<String, Value>) -> Result<Readings, LineError> {
    let Some(Value::String(device)) = object.remove("device") else {
        return Err(LineError::Device);
    };
    let at_ms = match object.remove("at") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(parse_time(&text)?),
        Some(_) => return Err(LineError::Time),
    };
    if let Some(quantity) = object.remove("quantity") {
        let Value::String(quantity) = quantity else {
            return Err(LineError::Quantity(quantity.to_string()));
        };
        let value = number(&quantity, object.get("value"))?;
        let unit = match object.remove("unit") {
            None | Some(Value::Null) => None,
            Some(Value::String(unit)) if unit.len() <= MAX_UNIT_BYTES => Some(unit),
            Some(_) => return Err(LineError::Unit),
        };
        return Ok((vec![checked(&device, &quantity, value, unit, at_ms)?], Vec::new()));
    }
    if object.len() > MAX_READINGS {
        return Err(LineError::TooMany);
    }
    if object.is_empty() {
        return Err(LineError::Form);
    }
    let (mut readings, mut unusable) = Readings::default();
    for (quantity, value) in &object {
        let value = number(quantity, Some(value));
        match value.and_then(|value| checked(&device, quantity, value, None, at_ms)) {
            Ok(reading) => readings.push(reading),
            Err(error) => unusable.push(error),
        }
    }
    if readings.is_empty() && !unusable.is_empty() {
        return Err(unusable.swap_remove(0));
    }
    // The order of an object's keys depends on serde_json's features.
    readings.sort_by(|a, b| a.quantity.cmp(&b.quantity));
    Ok((readings, unusable))
}

fn number(quantity: &str, value: Option<&Value>) -> Result<f64, LineError> {
    let switch = value.and_then(Value::as_bool).map(|is_on| f64::from(u8::from(is_on)));
    let number = switch.or_else(|| value.and_then(Value::as_f64));
    number.ok_or_else(|| LineError::Value(quantity.to_owned()))
}

fn checked(
    device: &str,
    quantity: &str,
    value: f64,
    unit: Option<String>,
    at_ms: Option<u64>,
) -> Result<Reading, LineError> {
    if !is_device(device) {
        return Err(LineError::Device);
    }
    if !is_quantity(quantity) {
        return Err(LineError::Quantity(quantity.to_owned()));
    }
    if !value.is_finite() {
        return Err(LineError::Value(quantity.to_owned()));
    }
    Ok(Reading { device: device.into(), quantity: quantity.into(), value, unit, at_ms })
}

fn parse_time(text: &str) -> Result<u64, LineError> {
    let at = OffsetDateTime::parse(text, &Rfc3339).map_err(|_| LineError::Time)?;
    u64::try_from(at.unix_timestamp_nanos() / 1_000_000).map_err(|_| LineError::Time)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reading(device: &str, quantity: &str, value: f64, at_ms: Option<u64>) -> Reading {
        Reading { device: device.into(), quantity: quantity.into(), value, unit: None, at_ms }
    }

    #[test]
    fn words_and_objects_say_the_same() {
        let expected = vec![reading("kitchen", "temperature", 21.5, Some(1_795_282_200_250))];
        for line in [
            "kitchen temperature 21.5 2026-11-21T17:30:00.250Z",
            "  kitchen\ttemperature  2.15e1   2026-11-21T18:30:00.250+01:00\r",
            r#"{"device":"kitchen","quantity":"temperature","value":21.5,"at":"2026-11-21T17:30:00.25Z"}"#,
            r#"{"device":"kitchen","at":"2026-11-21T17:30:00.250Z","temperature":21.5}"#,
        ] {
            assert_eq!(parse(line.as_bytes()).unwrap().0, expected, "{line}");
        }
        let wide = br#"{"device":"k","co2":640,"temperature":21.5}"#;
        let both = vec![reading("k", "co2", 640.0, None), reading("k", "temperature", 21.5, None)];
        assert_eq!(parse(wide).unwrap(), (both, vec![]));
        let partly = br#"{"device":"k","co2":null,"motion":true,"temperature":"21.5"}"#;
        let (readings, unusable) = parse(partly).unwrap();
        assert_eq!((readings, unusable.len()), (vec![reading("k", "motion", 1.0, None)], 2));
    }

    #[test]
    fn nothing_is_said_by_empty_lines_and_comments() {
        for line in ["", "   ", "# kitchen temperature 1", "\r"] {
            assert_eq!(parse(line.as_bytes()), Ok(Readings::default()));
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (line, error) in [
            ("kitchen temperature", LineError::Form),
            ("kitchen temperature 21.5 2026-11-21T17:30:00Z more", LineError::Form),
            ("kit/chen temperature 1", LineError::Device),
            ("kitchen Temperature 1", LineError::Quantity("Temperature".into())),
            ("kitchen temperature warm", LineError::Value("temperature".into())),
            ("kitchen temperature inf", LineError::Value("temperature".into())),
            ("kitchen temperature NaN", LineError::Value("temperature".into())),
            ("kitchen temperature 1 yesterday", LineError::Time),
            ("kitchen temperature 1 1960-01-01T00:00:00Z", LineError::Time),
            (r#"{"temperature":1}"#, LineError::Device),
            (r#"{"device":"a"}"#, LineError::Form),
            (r#"{"device":"a","at":1,"co2":1}"#, LineError::Time),
            (r#"{"device":"a","co2":"1"}"#, LineError::Value("co2".into())),
            (r#"{"device":"a","quantity":"co2","value":1,"unit":7}"#, LineError::Unit),
        ] {
            assert_eq!(parse(line.as_bytes()), Err(error), "{line}");
        }
        assert!(matches!(parse(b"{"), Err(LineError::Json(_))));
        assert_eq!(parse(&[0xff]), Err(LineError::NotText));
        assert_eq!(parse(&vec![b' '; MAX_BYTES + 1]), Err(LineError::TooLong));
        let many: String = (0..=MAX_READINGS).map(|number| format!(r#","q{number}":1"#)).collect();
        assert_eq!(parse(format!(r#"{{"device":"a"{many}}}"#).as_bytes()), Err(LineError::TooMany));
    }

    proptest! {
        #[test]
        fn any_line_is_answered(line in ".{0,200}") {
            if let Ok((readings, _)) = parse(line.as_bytes()) {
                prop_assert!(readings.iter().all(|one| one.value.is_finite() && is_device(&one.device)));
            }
        }
    }
}
