//! Heat cost allocators BFW 240 radio: a fixed layout behind the usual two fillers.
//!
//! Derived from six telegrams whose values were known. Behind the fillers are two bytes of unknown
//! meaning, the last period's and this one's count (high byte first), two more unknown bytes, 27 bytes with 18 months of
//! twelve bits each, newest last, and the date as packed decimal digits.

use crate::address::{Address, Medium};
use crate::records::date::{Moment, calendar};
use crate::records::value::Value;
use crate::records::{Reading, Records};

const LENGTH: usize = 40;
const MONTHS_AT: usize = 10;

pub(super) fn decode(meter: Address, records: &[u8]) -> Option<Records> {
    let ours = meter.manufacturer.to_string() == "BFW"
        && meter.version == 2
        && meter.medium == Medium(8)
        && records.len() == LENGTH
        && records.starts_with(&[0x2F, 0x2F]);
    if !ours {
        return None;
    }
    let word = |at: usize| f64::from(u16::from_be_bytes([records[at], records[at + 1]]));
    let count = |value: f64, storage: u64| Reading {
        storage,
        ..Reading::now("heat cost allocation", "units", Value::Number(value))
    };
    let mut readings = vec![count(word(6), 0), count(word(4), 1)];
    let months = records[MONTHS_AT..LENGTH - 3].rchunks_exact(3).flat_map(|three| {
        let high = three[1];
        [
            u16::from(three[2]) | u16::from(high & 0x0F) << 8,
            u16::from(three[0]) | u16::from(high >> 4) << 8,
        ]
    });
    readings.extend(months.zip(2..).map(|(month, storage)| count(f64::from(month), storage)));
    let date = date(&records[LENGTH - 3..]).map_or(Value::Missing, Value::Moment);
    readings.push(Reading::now("date", "", date));
    Some(Records { readings, ..Records::default() })
}

fn date(bytes: &[u8]) -> Option<Moment> {
    let [day, month, year] = *bytes else { return None };
    let digits =
        |byte: u8| (byte >> 4 < 10 && byte & 15 < 10).then_some((byte >> 4) * 10 + (byte & 15));
    let (day, month, year) = (digits(day)?, digits(month)?, digits(year)?);
    let date = calendar(2000 + u16::from(year), month, day)?;
    Some(Moment { date: Some(date), ..Moment::default() })
}
