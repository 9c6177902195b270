//! The application layer (EN 13757-3): data records, as readings.
//!
//! Bytes are read once, front to back. At a record that cannot be read, reading ends; the records before it are kept,
//! because meters send the important records first and manufacturers' peculiarities last.

pub(crate) mod date;
mod header;
mod units;
pub(crate) mod value;

use std::borrow::Cow;

use serde::{Serialize, Serializer};

use date::Moment;
pub use header::Function;
use header::RecordHeader;
pub(crate) use units::Kind;
use units::Meaning;
use value::{MONTH, Value};

use crate::error::Error;
use crate::layers::tpl::FILLER;
use crate::protection::{Protected, Protection};

/// Manufacturer's data to the end of the message.
const REST_IS_MANUFACTURERS: u8 = 0x0F;
/// The same, and the meter has more to say in its next message.
const MORE_FOLLOWS: u8 = 0x1F;

/// One value of a meter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reading {
    /// Quantity that was measured, such as `volume` or `flow temperature`.
    pub quantity: &'static str,
    /// Value in `unit`.
    pub value: Value,
    /// The unit; empty for what has none.
    pub unit: Cow<'static, str>,
    /// Value, maximum or minimum.
    pub function: Function,
    /// 0 for now, other numbers for earlier times: 1 is mostly the last due date.
    pub storage: u64,
    /// 0 for the sum of all tariffs.
    pub tariff: u32,
    /// Number of the part of the device.
    pub subunit: u32,
    /// Qualifiers of the value, such as `backward` or `at base conditions`.
    pub qualifiers: Vec<&'static str>,
    /// The value information as it was sent.
    #[serde(serialize_with = "hex")]
    pub vif: Vec<u8>,
    /// Evidence that the meter sent it.
    pub protection: Protection,
}

impl Reading {
    /// A reading of the kind most are: a value of now.
    #[must_use]
    pub(crate) fn now(quantity: &'static str, unit: &'static str, value: Value) -> Self {
        Self {
            quantity,
            value,
            unit: Cow::Borrowed(unit),
            function: Function::Instantaneous,
            storage: 0,
            tariff: 0,
            subunit: 0,
            qualifiers: Vec::new(),
            vif: Vec::new(),
            protection: Protection::default(),
        }
    }
}

fn hex<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&Value::Bytes(bytes.to_vec()))
}

/// Contents of a message.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Records {
    /// Readings that could be decoded.
    pub readings: Vec<Reading>,
    /// Data whose format only the manufacturer knows.
    pub manufacturer: Vec<u8>,
    /// Whether the meter has more to say in its next message.
    pub more_follows: bool,
    /// Error that ended the walk too early.
    pub problem: Option<Error>,
}

impl Records {
    /// Reads the records of a message that is not protected.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        Self::parse_protected(bytes, Protected::default())
    }

    /// Reads a message's records. One that is not protected to its end counts as not protected.
    pub(crate) fn parse_protected(bytes: &[u8], protected: Protected) -> Self {
        let mut records = Self::default();
        let mut rest = bytes;
        while let Some((&first, after)) = rest.split_first() {
            match first {
                FILLER => rest = after,
                REST_IS_MANUFACTURERS | MORE_FOLLOWS => {
                    records.manufacturer = after.to_vec();
                    records.more_follows = first == MORE_FOLLOWS;
                    break;
                }
                _ => match record(rest) {
                    Ok((reading, after)) => {
                        let protection = protected.until(bytes.len() - after.len());
                        records.readings.push(Reading { protection, ..reading });
                        rest = after;
                    }
                    Err(problem) => {
                        records.problem = Some(problem);
                        break;
                    }
                },
            }
        }
        date_profiles(&mut records.readings);
        records
    }
}

/// Tells when the values of monthly profiles were: one month after another from the date of the same
/// storage number, back in time for an inverse profile (EN 13757-3, annex F).
fn date_profiles(readings: &mut [Reading]) {
    for at in 0..readings.len() {
        let Reading { value: Value::Profile(profile), qualifiers, storage, protection, .. } =
            &readings[at]
        else {
            continue;
        };
        let direction = if qualifiers.contains(&"inverse compact profile") {
            -1
        } else if qualifiers.contains(&"compact profile") {
            1
        } else {
            continue;
        };
        let base = readings.iter().find_map(|reading| match reading.value {
            Value::Moment(moment) if reading.storage == *storage => {
                moment.date.filter(|_| reading.protection >= *protection).map(|_| moment)
            }
            _ => None,
        });
        let Some(base) = base.filter(|_| profile.every == MONTH) else { continue };
        let months = (1..).take(profile.values.len());
        let dated = months.map(|month| base.plus_months(direction * month)).collect();
        if let Value::Profile(profile) = &mut readings[at].value {
            profile.times = dated;
        }
    }
}

fn record(bytes: &[u8]) -> Result<(Reading, &[u8]), Error> {
    let header = RecordHeader::parse(bytes)?;
    let (data, rest) = value::split(header.coding, &bytes[header.bytes.len()..])?;
    let mut meaning = Meaning::of_header(&header);
    let value = data.value(&meaning);
    if matches!(value, Value::Moment(Moment { doubtful: true, .. })) {
        meaning.qualifiers.push("marked invalid");
    }
    let reading = Reading {
        quantity: meaning.quantity,
        value,
        unit: meaning.unit,
        function: header.function,
        storage: header.storage,
        tariff: header.tariff,
        subunit: header.subunit,
        qualifiers: meaning.qualifiers,
        vif: header.value_information().to_vec(),
        protection: Protection::default(),
    };
    Ok((reading, rest))
}

/// The records' headers, up to what no header could be read of: what a meter's messages of one kind have in common. Also
/// whether everything could be read, up to a manufacturer's data.
pub(crate) fn format(bytes: &[u8]) -> (Vec<u8>, bool) {
    let mut all = Vec::new();
    let mut rest = bytes;
    while let Some((&first, after)) = rest.split_first() {
        if first == FILLER {
            rest = after;
            continue;
        }
        let Ok(header) = RecordHeader::parse(rest) else {
            all.push(first);
            return (all, matches!(first, REST_IS_MANUFACTURERS | MORE_FOLLOWS));
        };
        all.extend_from_slice(header.bytes);
        match value::split(header.coding, &rest[header.bytes.len()..]) {
            Ok((_, after)) => rest = after,
            Err(_) => return (all, false),
        }
    }
    (all, true)
}

/// Joins headers with the data of a compact frame, and tells whether nothing but fillers was over.
pub(crate) fn join(mut headers: &[u8], data: &[u8]) -> Result<(Vec<u8>, bool), Error> {
    let mut full = Vec::with_capacity(headers.len() + data.len());
    let mut data = data;
    while !headers.is_empty() {
        let header = RecordHeader::parse(headers)?;
        let (_, after) = value::split(header.coding, data)?;
        full.extend_from_slice(header.bytes);
        full.extend_from_slice(&data[..data.len() - after.len()]);
        headers = &headers[header.bytes.len()..];
        data = after;
    }
    // Encryption in blocks leaves fillers, which are no part of the frame that was checked.
    let fits = data.iter().all(|byte| *byte == FILLER);
    if !fits {
        full.extend_from_slice(data);
    }
    Ok((full, fits))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
