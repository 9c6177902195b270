//! Qundis' and Landis+Gyr's record for receivers that walk by: one record of 53 bytes among the standard's.
//!
//! Its layout is what the wmbusmeters project found out: `00 82`, an access number, `00`, and 35 if the other 48 bytes
//! are encrypted, otherwise 00 (AES-128-CBC; the IV is the link address and eight times the access number). Of these, in
//! the clear: two bytes of status, `07` and a code that fits the value information, which all values share, a date of an
//! error, the value of now (packed decimal), date and value at the last due date, date and value at the end of the last
//! month, what the twelve months before changed, and a filler. Nothing is read from a record that differs.

use crate::address::Address;
use crate::error::Error;
use crate::keys::Key;
use crate::layers::cipher::{self, BLOCK};
use crate::layers::tpl::FILLER;
use crate::protection::Protection;
use crate::records::date::Moment;
use crate::records::value::{Value, binary};
use crate::records::{Kind, Reading, Records};

/// The record's data and value information.
const RECORD: [u8; 4] = [0x0D, 0xFF, 0x5F, LENGTH];
const LENGTH: u8 = 53;
/// Bytes before those that may be encrypted.
const HEAD: usize = 5;
const ENCRYPTED: u8 = 0x35;
/// Value information of heat cost allocators, whose changes have a sign, which the standard's values have not.
const ALLOCATION: u8 = 0x6E;
/// Storage numbers as in the long telegrams of the same meters.
const DUE_DATE: u64 = 1;
const MONTH_END: u64 = 17;
const FIRST_CHANGE: u64 = 2;

/// Decodes a message, and returns the part of it that was encrypted in the record.
pub(super) fn decode(
    meter: Address,
    records: &[u8],
    key: Option<&Key>,
) -> Option<(Records, Vec<u8>)> {
    if !matches!(meter.manufacturer.letters(), ['Q', 'D', 'S'] | ['L', 'S', 'E']) {
        return None;
    }
    let at = records.windows(RECORD.len()).position(|bytes| bytes == RECORD)?;
    let (before, data) = (&records[..at], &records[at + RECORD.len()..]);
    let (data, after) = data.split_at_checked(usize::from(LENGTH))?;
    let mut all = Records::parse(&[before, after].concat());
    match open(meter, data, key) {
        Ok((plain, protection)) => {
            let readings = readings(&plain)?;
            all.readings.extend(readings.into_iter().map(|own| Reading { protection, ..own }));
            let is_sealed = protection != Protection::Unauthenticated;
            Some((all, if is_sealed { data.to_vec() } else { Vec::new() }))
        }
        Err(problem) => Some((Records { problem: Some(problem), ..all }, Vec::new())),
    }
}

/// The record in the clear.
fn open(meter: Address, data: &[u8], key: Option<&Key>) -> Result<(Vec<u8>, Protection), Error> {
    let mut plain = data.to_vec();
    let (protection, wrong) = if data[HEAD - 1] == ENCRYPTED {
        let mut iv = [data[2]; BLOCK];
        iv[..8].copy_from_slice(&meter.to_link());
        cipher::cbc_decrypt(key.ok_or(Error::NoKey(meter))?, &iv, &mut plain[HEAD..]);
        (Protection::Encrypted, Error::WrongKey(meter))
    } else {
        (Protection::Unauthenticated, Error::Malformed("record for receivers that walk by"))
    };
    let is_walk_by = matches!(
        *plain,
        [0, 0x82, _, 0, 0 | ENCRYPTED, _, _, 0x07, _, 0..=0x17 | ALLOCATION, .., FILLER]
    );
    if is_walk_by { Ok((plain, protection)) } else { Err(wrong) }
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
        let mut change = value(0x02, bytes)?;
        if vif == ALLOCATION {
            change.value = binary(bytes, Kind::Number).map_or(Value::Missing, Value::Number);
        }
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
        (data[1], data[7], data[9], data[52]) = (0x82, 7, 0x13, FILLER);
        data[12..16].copy_from_slice(&[0x48, 0x20, 0, 0]);
        data[16..22].copy_from_slice(&[0xBF, 0x2C, 0x91, 0x17, 0, 0]);
        data[22..28].copy_from_slice(&[0xDF, 0x21, 0x20, 0x20, 0, 0]);
        data[30..32].copy_from_slice(&[0x07, 0]);
        let message = [&RECORD[..], &data, &[0x02, 0x5A, 1, 0]].concat();
        let (read, sealed) = decode(meter, &message, None).unwrap();
        assert_eq!((&read.problem, sealed.len()), (&None, 0));
        let has = |storage, number: f64| {
            read.readings.iter().any(|reading| {
                reading.quantity == "volume"
                    && reading.storage == storage
                    && matches!(reading.value, Value::Number(ours) if (ours - number).abs() < 1e-9)
            })
        };
        assert!(has(0, 2.048) && has(DUE_DATE, 1.791) && has(MONTH_END, 2.02) && has(3, 0.007));
        for cut in 0..message.len() {
            let _ = decode(meter, &message[..cut], None);
        }
        for (at, byte) in [(1, 0x81), (4, ENCRYPTED), (7, 0), (9, 0x20), (52, 0)] {
            let mut other = message.clone();
            other[RECORD.len() + at] = byte;
            let (read, _) = decode(meter, &other, None).unwrap();
            assert_eq!(read.readings.len(), 1, "only the record behind it: byte {at}");
            assert!(read.problem.is_some());
        }
    }
}
