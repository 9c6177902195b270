//! Qundis' and Landis+Gyr's record for receivers that walk by: one record of 53 bytes among the standard's.
//!
//! Its layout is what the wmbusmeters project found out: nine bytes of no known use, the value information
//! that all values share, a date of an error, the value of now (packed decimal), date and value at the
//! last due date, date and value at the end of the last month, and what the twelve months before changed.

use crate::address::Address;
use crate::records::date::Moment;
use crate::records::value::Value;
use crate::records::{Reading, Records};

/// The record's data and value information.
const RECORD: [u8; 4] = [0x0D, 0xFF, 0x5F, LENGTH];
const LENGTH: u8 = 53;
/// Storage numbers as in the long telegrams of the same meters.
const DUE_DATE: u64 = 1;
const MONTH_END: u64 = 17;
const FIRST_CHANGE: u64 = 2;

pub(super) fn decode(meter: Address, records: &[u8]) -> Option<Records> {
    if !matches!(meter.manufacturer.letters(), ['Q', 'D', 'S'] | ['L', 'S', 'E']) {
        return None;
    }
    let at = records.windows(RECORD.len()).position(|bytes| bytes == RECORD)?;
    let data = records.get(at + RECORD.len()..)?.get(..usize::from(LENGTH))?;
    let mut all = Records::parse(records);
    all.readings.extend(readings(data)?);
    Some(all)
}

fn readings(data: &[u8]) -> Option<Vec<Reading>> {
    let vif = *data.get(9)?;
    // Eight packed digits (DIF 0C) and words (DIF 02), read as the standard's records.
    let value = |dif: u8, bytes: &[u8]| {
        let record = [&[dif, vif], bytes].concat();
        Records::parse(&record).readings.pop()
    };
    let at_end = |storage, date: usize| {
        let day = data.get(date..date + 2).and_then(Moment::parse);
        let day = day.map_or(Value::Missing, Value::Moment);
        let then = value(0x0C, data.get(date + 2..date + 6)?)?;
        Some([Reading { storage, ..then }, Reading { storage, ..Reading::now("date", "", day) }])
    };
    let mut readings = vec![value(0x0C, data.get(12..16)?)?];
    readings.extend(at_end(DUE_DATE, 16)?);
    readings.extend(at_end(MONTH_END, 22)?);
    let changes = data.get(28..52)?.chunks_exact(2).zip(FIRST_CHANGE..);
    readings.extend(changes.filter_map(|(bytes, storage)| {
        let change = value(0x02, bytes)?;
        Some(Reading { storage, qualifiers: vec!["difference"], ..change })
    }));
    Some(readings)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::str::FromStr;

    use crate::address::{Manufacturer, Medium, MeterId};

    #[test]
    fn values_and_dates_are_read() {
        let meter = Address {
            manufacturer: Manufacturer::from_str("QDS").unwrap(),
            id: MeterId::from_number(1),
            version: 0x18,
            medium: Medium(6),
        };
        let mut data = [0_u8; 53];
        data[9] = 0x13;
        data[12..16].copy_from_slice(&[0x48, 0x20, 0, 0]);
        data[16..22].copy_from_slice(&[0xBF, 0x2C, 0x91, 0x17, 0, 0]);
        data[22..28].copy_from_slice(&[0xDF, 0x21, 0x20, 0x20, 0, 0]);
        data[30..32].copy_from_slice(&[0x07, 0]);
        let message = [&RECORD[..], &data, &[0x02, 0x5A, 1, 0]].concat();
        let read = decode(meter, &message).unwrap();
        let has = |storage, number: f64| {
            read.readings.iter().any(|reading| {
                reading.quantity == "volume"
                    && reading.storage == storage
                    && matches!(reading.value, Value::Number(ours) if (ours - number).abs() < 1e-9)
            })
        };
        assert!(has(0, 2.048) && has(DUE_DATE, 1.791) && has(MONTH_END, 2.02) && has(3, 0.007));
        for cut in 0..message.len() {
            let _ = decode(meter, &message[..cut]);
        }
    }
}
