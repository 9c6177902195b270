//! Receivers that give a line a frame: rtl_wmbus, rtl_433, CUL, hexadecimal digits, raw chips.

use super::amb8465::dbm;
use super::{InputError, Kind};
use crate::chips::{self, Mode};
use crate::frame::{Format, wire_bytes};
use crate::received::Received;

type Outcome = Result<Received, InputError>;

/// Reads a line. Empty ones and comments, which begin with `#`, give nothing.
pub(super) fn parse(kind: Kind, line: &[u8]) -> Option<Outcome> {
    let text = String::from_utf8_lossy(line);
    let line = text.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let outcome = match kind {
        Kind::RtlWmbus => rtl_wmbus(line),
        Kind::Cul => cul(line),
        Kind::Chips => raw_chips(line),
        Kind::Hex => hexadecimal(line),
        _ if line.starts_with('{') => return rtl_433(line),
        _ if line.contains(';') => rtl_wmbus(line),
        _ if line.starts_with('b') && !is_frame(line) => cul(line),
        _ if line.starts_with(|letter| "STCNstcn".contains(letter))
            && line.contains(' ')
            && !is_hex(line) =>
        {
            raw_chips(line)
        }
        _ => hexadecimal(line),
    };
    Some(outcome)
}

fn rtl_wmbus(line: &str) -> Outcome {
    const WRONG: InputError = InputError::NotALine("rtl_wmbus");
    let fields: Vec<&str> = line.split(';').collect();
    // Some builds put the name of an algorithm in front.
    let skip = fields.len().checked_sub(8).ok_or(WRONG)?;
    let [mode, crc_ok, _coding_ok, time, level, _level_now, _id, frame] = fields[skip..] else {
        return Err(WRONG);
    };
    // wmbusmeters logs the line's end as well.
    let digits = frame.trim_end_matches("<0A>").strip_prefix("0x").ok_or(WRONG)?;
    if crc_ok != "1" {
        return Err(InputError::ReceiverChecksum);
    }
    Ok(Received {
        bytes: bytes(digits)?,
        // Checksums are out, and the length field is corrected for format B.
        format: Some(Format::Stripped),
        mode: short(mode),
        rssi_raw: level.parse().ok(),
        time: short(time),
        ..Received::default()
    })
}

/// A field that is shown as it is: printable and short, or it is none.
fn short(field: &str) -> Option<String> {
    const MOST: usize = 32;
    let fine =
        (1..=MOST).contains(&field.len()) && field.bytes().all(|b| (b' '..=b'~').contains(&b));
    fine.then(|| field.to_owned())
}

fn cul(line: &str) -> Outcome {
    let digits = line.strip_prefix('b').ok_or(InputError::NotALine("CUL"))?;
    let (format, digits) = match digits.strip_prefix('Y') {
        Some(digits) => (Format::B, digits),
        None => (Format::A, digits),
    };
    let mut bytes = bytes(digits)?;
    let length = *bytes.first().ok_or(InputError::NotALine("CUL"))?;
    let frame = wire_bytes(length, format);
    // Link quality and level follow the frame, unless the stick is told not to send them.
    let rssi_dbm = match bytes.get(frame..) {
        Some([_quality, level]) => Some(dbm(*level)),
        _ => None,
    };
    if rssi_dbm.is_some() {
        bytes.truncate(frame);
    }
    Ok(Received { bytes, format: Some(format), rssi_dbm, ..Received::default() })
}

fn raw_chips(line: &str) -> Outcome {
    const WRONG: InputError = InputError::NotALine("chips");
    let (mode, digits) = line.split_once(' ').ok_or(WRONG)?;
    let mode = match mode {
        "S" | "s" => Mode::S,
        "T" | "t" => Mode::T,
        "C" | "c" => Mode::C,
        "N" | "n" => Mode::N,
        _ => return Err(WRONG),
    };
    let (bytes, format) = chips::decode(mode, &bytes(digits)?)?;
    let mode = Some(mode.name().to_owned());
    Ok(Received { bytes, format: Some(format), mode, ..Received::default() })
}

/// A line of JSON of rtl_433, which says nothing here if it is another sensor's. Of format A it gives the length field
/// less two, and the last checksum behind the frame.
fn rtl_433(line: &str) -> Option<Outcome> {
    let field = |name: &str| {
        let (_, value) = line.split_once(&format!("\"{name}\""))?;
        let value = value.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
        value.split_once('"').map(|(value, _)| value)
    };
    if field("model") != Some("Wireless-MBus") {
        return None;
    }
    Some(bytes(field("data").unwrap_or_default()).map(|mut bytes| {
        let length = bytes.first().copied().unwrap_or(0);
        if bytes.len() == usize::from(length) + 5 {
            bytes[0] = length.saturating_add(2);
            bytes.truncate(bytes.len() - 2);
        }
        let (mode, time) = (field("mode").and_then(short), field("time").and_then(short));
        Received { bytes, format: Some(Format::Stripped), mode, time, ..Received::default() }
    }))
}

/// Digits alone, or between `telegram=|` and `|+SECONDS` as wmbusmeters logs them.
fn hexadecimal(line: &str) -> Outcome {
    let logged = line.split_once("telegram=|").map(|(_, rest)| rest);
    let line = logged.map_or(line, |rest| rest.rsplit_once('|').map_or(rest, |(frame, _)| frame));
    let digits = line.strip_prefix("0x").unwrap_or(line);
    Ok(Received { bytes: bytes(digits)?, ..Received::default() })
}

fn is_hex(line: &str) -> bool {
    line.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b' ')
}

/// Whether a line of digits is a frame by its length, and its first `b` therefore a digit.
fn is_frame(line: &str) -> bool {
    bytes(line).is_ok_and(|bytes| {
        let length = bytes.first().copied().unwrap_or(0);
        [Format::A, Format::Stripped]
            .iter()
            .any(|format| wire_bytes(length, *format) == bytes.len())
    })
}

/// Digits as bytes; spaces, `|`, `_` and `#` between them are how people and other programs part layers.
fn bytes(digits: &str) -> Result<Vec<u8>, InputError> {
    let mut out = Vec::with_capacity(digits.len() / 2);
    let mut high = None;
    for letter in digits.chars().filter(|letter| !matches!(letter, ' ' | '|' | '_' | '#')) {
        let digit = letter.to_digit(16).ok_or(InputError::NotHex)? as u8;
        match high.take() {
            Some(high) => out.push(high << 4 | digit),
            None => high = Some(digit),
        }
    }
    if high.is_some() { Err(InputError::NotHex) } else { Ok(out) }
}
