//! Diehl's own forms, under the names of Diehl Metering, Hydrometer, Sappel and others: PRIOS (IZAR water
//! meters) and "real data" (Sharky heat meters, IZAR RS).
//!
//! The layouts, the shift register and its two general keys are what the wmbusmeters project found out.
//! The register only hides the data: a telegram has no protection worth the name unless its owner has
//! replaced the general keys.
//!
//! - PRIOS: a CI field of A0 to A7 or B1 to B3, four bytes in the clear (interval, battery, alarms), then
//!   hidden ones: a mark 4B, volume in litres, volume at the last due date, that date.
//! - Real data: a short header whose security mode has its highest bit set, or an alarm (CI 71); hidden
//!   records of the standard's form, whose sum is the last byte of the header, but for one bit.
//!
//! Their link addresses begin with version and medium, except Sappel's.

use crate::address::{Address, Medium};
use crate::error::Error;
use crate::keys::Key;
use crate::records::date::Moment;
use crate::records::value::Value;
use crate::records::{Reading, Records};

/// The keys of meters whose owner asked for none of his own.
const GENERAL: [u32; 2] = [0x39BC_8A10 ^ 0xE66D_83F8, 0x5172_8910 ^ 0xE66D_83F8];
/// CI field and the four bytes behind it, which also seed the register.
const HEAD: usize = 5;
const MONTHS_A_STEP: f64 = 6.0;
const PRIOS_MARK: u8 = 0x4B;
/// The bit of the sum that is not checked.
const SUM_BITS: u8 = 0xEF;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Prios,
    RealData,
}

fn is_ours(meter: Address) -> bool {
    let name = meter.manufacturer.to_string();
    matches!(name.as_str(), "DME" | "EWT" | "HYD" | "SAP" | "SPL")
}

/// The second of the general keys, twice.
pub(super) fn general_key(meter: Address) -> Option<Key> {
    let half = [0x51, 0x72, 0x89, 0x10, 0xE6, 0x6D, 0x83, 0xF8];
    let [a, b, c, d, e, f, g, h] = half;
    is_ours(meter).then(|| Key::new([a, b, c, d, e, f, g, h, a, b, c, d, e, f, g, h]))
}

fn form(meter: Address, payload: &[u8]) -> Option<Form> {
    if !is_ours(meter) || payload.len() <= HEAD {
        return None;
    }
    match payload[0] {
        0xA0..=0xA7 | 0xB1..=0xB3 => Some(Form::Prios),
        0x71 => Some(Form::RealData),
        0x7A if payload[4] & 0x10 != 0 => Some(Form::RealData),
        _ => None,
    }
}

/// The meter's address as the standard would have it.
pub(super) fn address(sender: Address, payload: &[u8]) -> Option<Address> {
    const COLD_WATER: u8 = 7;
    let form = form(sender, payload)?;
    let link = sender.to_link();
    Some(if sender.manufacturer.letters() == ['S', 'A', 'P'] && form == Form::Prios {
        Address { version: 0, medium: Medium(COLD_WATER), ..sender }
    } else {
        let [m0, m1, version, medium, id @ ..] = link;
        let [a, b, c, d] = id;
        Address::from_link([m0, m1, a, b, c, d, version, medium])
    })
}

/// Decodes a telegram; `sender` is the link layer's address, not changed.
pub(super) fn decode(
    sender: Address,
    payload: &[u8],
    key: Option<&Key>,
) -> Option<Result<Records, Error>> {
    let form = form(sender, payload)?;
    let (head, hidden) = payload.split_at(HEAD);
    let own = key.map(|key| word(key.bytes(), 0) ^ word(key.bytes(), 4));
    let keys = own.map_or(GENERAL.to_vec(), |own| vec![own]);
    let plain = keys.into_iter().find_map(|key| {
        let seed = seed(key, sender, head);
        let plain: Vec<u8> =
            hidden.iter().zip(Register(seed)).map(|(byte, key)| byte ^ key).collect();
        let fits = match form {
            Form::Prios => plain[0] == PRIOS_MARK,
            Form::RealData => {
                let sum = plain.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
                sum & SUM_BITS == head[4] & SUM_BITS
            }
        };
        fits.then_some(plain)
    });
    Some(match (plain, form) {
        (Some(plain), Form::Prios) => prios(head, &plain),
        (Some(plain), Form::RealData) => Ok(Records::parse(&plain)),
        // Some send the same form in the clear.
        (None, Form::RealData) if own.is_none() && is_clear(hidden) => Ok(Records::parse(hidden)),
        (None, _) => Err(Error::WrongKey(address(sender, payload).unwrap_or(sender))),
    })
}

/// Whether this reads as records to its end, which hidden bytes hardly ever do.
fn is_clear(bytes: &[u8]) -> bool {
    let records = Records::parse(bytes);
    records.problem.is_none() && records.manufacturer.is_empty() && !records.readings.is_empty()
}

fn prios(head: &[u8], plain: &[u8]) -> Result<Records, Error> {
    let volume = |at: usize| plain.get(at..at + 4).map(super::thousandths);
    let total = volume(1).ok_or(Error::Short("volume"))?;
    let mut readings = vec![Reading::now("volume", "m³", total)];
    if let Some(then) = volume(5) {
        readings.push(Reading { storage: 1, ..Reading::now("volume", "m³", then) });
    }
    if let Some(date) = plain.get(9..11).and_then(Moment::parse) {
        readings.push(Reading { storage: 1, ..Reading::now("date", "", Value::Moment(date)) });
    }
    let battery = f64::from(head[2] & 0x1F) * MONTHS_A_STEP;
    readings.push(Reading::now("remaining battery life", "months", Value::Number(battery)));
    let interval = f64::from(4_u32 << (head[1] & 0x0F));
    readings.push(Reading::now("transmission period", "s", Value::Number(interval)));
    Ok(Records { readings, ..Records::default() })
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

fn seed(key: u32, sender: Address, head: &[u8]) -> u32 {
    let link = sender.to_link();
    key ^ word(&link, 0) ^ word(&link, 4) ^ word(head, 0)
}

/// A linear feedback shift register of 32 bits, eight steps a byte.
struct Register(u32);

impl Iterator for Register {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        for _ in 0..8 {
            let bit = (self.0 >> 1 ^ self.0 >> 2 ^ self.0 >> 11 ^ self.0 >> 31) & 1;
            self.0 = self.0 << 1 | bit;
        }
        Some(self.0 as u8)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Hides what a meter would say.
    fn hide(sender: Address, head: &[u8; HEAD], plain: &[u8], key: u32) -> Vec<u8> {
        let hidden = plain.iter().zip(Register(seed(key, sender, head))).map(|(a, b)| a ^ b);
        head.iter().copied().chain(hidden).collect()
    }

    fn izar() -> Address {
        // As sent: version and medium before the number.
        Address::from_link([0xA5, 0x11, 0x78, 0x07, 0x79, 0x19, 0x48, 0x20])
    }

    #[test]
    fn prios_is_read_with_the_general_keys() {
        let plain = [PRIOS_MARK, 0x0E, 0x11, 0, 0, 0xD2, 0x04, 0, 0, 0x3F, 0x2C, 9, 9];
        for key in GENERAL {
            let sent = hide(izar(), &[0xA1, 1, 2, 3, 4], &plain, key);
            let records = decode(izar(), &sent, None).unwrap().unwrap();
            assert_eq!(records.readings[0].value, Value::Number(4.366));
            assert_eq!(records.readings[1].value, Value::Number(1.234));
            assert!(matches!(records.readings[2].value, Value::Moment(_)));
        }
        let meter = address(izar(), &[0xA1; 9]).unwrap();
        assert_eq!(meter.id.to_string(), "20481979");
        assert_eq!((meter.version, meter.medium), (0x78, Medium(7)));
    }

    #[test]
    fn another_key_is_a_wrong_key() {
        let plain = [PRIOS_MARK, 1, 0, 0, 0];
        let own: Key = "0102030405060708090A0B0C0D0E0F10".parse().unwrap();
        let sent = hide(izar(), &[0xA1, 1, 2, 3, 4], &plain, 0x0102_0304 ^ 0x0506_0708);
        assert!(decode(izar(), &sent, Some(&own)).unwrap().is_ok());
        let general = decode(izar(), &sent, None).unwrap();
        assert!(
            matches!(general, Err(Error::WrongKey(meter)) if meter.id.to_string() == "20481979")
        );
        for cut in 0..sent.len() {
            let _ = decode(izar(), &sent[..cut], Some(&own));
        }
    }

    #[test]
    fn real_data_are_records_that_add_up() {
        let records = [0x04, 0x13, 0x17, 0x17, 1, 0];
        let sum = records.iter().sum::<u8>();
        let head = [0x7A, 0x8F, 0, sum & SUM_BITS, 0x10 | sum & 0xEF];
        let sent = hide(izar(), &head, &records, GENERAL[1]);
        let read = decode(izar(), &sent, None).unwrap().unwrap();
        assert_eq!(read.readings[0].value, Value::Number(71.447));
        let clear = [&head[..], &records].concat();
        let read = decode(izar(), &clear, None).unwrap().unwrap();
        assert_eq!(read.readings[0].value, Value::Number(71.447));
    }
}
