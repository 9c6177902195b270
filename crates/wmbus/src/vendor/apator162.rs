//! Water meters Apator 162 (version 05): fields with a register number each, after the marker of
//! manufacturer-specific data in a standard transport layer.
//!
//! The registers' lengths are what the wmbusmeters project found out; only the volume's meaning is sure,
//! so that is what is read.

use crate::address::{Address, Manufacturer};
use crate::records::{Reading, Records};

/// Fillers, the mark, and seven bytes of state before the first register.
const STATE_BYTES: usize = 7;
const FILLER: u8 = 0x2F;
const VOLUME: u8 = 0x10;

/// Bytes behind a register's number; `None` ends the walk.
const fn register(number: u8) -> Option<usize> {
    Some(match number {
        0x00 | 0x10 | 0x42 | 0xA0 | 0xA1 | 0xA4 | 0xF0 => 4,
        0x01 | 0x44 | 0xA6 | 0xB6..=0xBF | 0xC0..=0xC7 | 0xD0 | 0xD3 => 3,
        0x11 | 0x41 | 0x43 | 0xA7 | 0xA8 | 0xAA..=0xAD | 0xB4 => 2,
        0x40 | 0x8B | 0x8C => 6,
        0x71..=0x7C => 1 + 4 * (number as usize - 0x6F),
        0x80..=0x84 | 0x86 | 0x87 => 10,
        0x85 | 0x88 | 0x8F => 11,
        0x8A => 9,
        0x8E | 0xA3 => 7,
        0xA2 | 0xA5 | 0xA9 | 0xAF => 1,
        0xB0 => 5,
        0xB1 | 0xB3 => 8,
        0xB2 | 0xB5 => 16,
        _ => return None,
    })
}

/// Some send a layer around the standard's (CI B6): a length, and as many bytes with the manufacturer of the address that
/// the layers inside are for.
pub(super) fn unwrap(sender: Address, payload: &[u8]) -> Option<(Address, &[u8])> {
    let (['A', 'P', 'T'], [0xB6, length, rest @ ..]) = (sender.manufacturer.letters(), payload)
    else {
        return None;
    };
    let (head, inner) = rest.split_at_checked(usize::from(*length))?;
    let [_, _, _, _, low, high, ..] = *head else { return None };
    let manufacturer = Manufacturer::from_code(u16::from_le_bytes([low, high]));
    Some((Address { manufacturer, ..sender }, inner))
}

pub(super) fn decode(meter: Address, records: &[u8]) -> Option<Records> {
    if meter.manufacturer.letters() != ['A', 'P', 'A'] || meter.version != 0x05 {
        return None;
    }
    let start = records.iter().position(|byte| *byte != FILLER)?;
    // Old ones have 80 for the mark.
    let (0x0F | 0x80, after) = records[start..].split_first()? else { return None };
    let mut rest = after.get(STATE_BYTES..)?;
    let mut readings = Vec::new();
    while let [number, after @ ..] = rest {
        let Some((data, after)) = register(*number).and_then(|count| after.split_at_checked(count))
        else {
            break;
        };
        if *number == VOLUME {
            readings.push(Reading::now("volume", "m³", super::thousandths(data)));
        }
        rest = after;
    }
    Some(Records { readings, manufacturer: after.to_vec(), ..Records::default() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::records::value::Value;

    #[test]
    fn the_volume_is_found_among_registers() {
        let meter = Address::from_link([0x01, 0x06, 0, 0, 0, 0x10, 0x05, 0x07]);
        let message = [
            0x2F, 0x2F, 0x0F, 1, 2, 3, 4, 5, 6, 7, 0x71, 0, 0x10, 0x10, 0x10, 0x10, 9, 9, 9, 9,
            0xA0, 1, 1, 1, 1, 0x10, 0xC6, 0xCC, 0x0D, 0, 0xCE, 0xCC, 0x0D, 0, 0xFF,
        ];
        let records = decode(meter, &message).unwrap();
        assert_eq!(records.readings.len(), 1);
        assert_eq!(records.readings[0].value, Value::Number(904.39));
        for cut in 0..message.len() {
            let _ = decode(meter, &message[..cut]);
        }
        let other = Address::from_link([0x01, 0x06, 0, 0, 0, 0x10, 0x06, 0x07]);
        assert!(decode(other, &message).is_none());
    }
}
