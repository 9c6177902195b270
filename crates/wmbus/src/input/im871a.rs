//! IMST iM871A and iM170A: WiMOD's host controller interface.
//!
//! `A5`, flags and endpoint, message, length, payload, then what the flags say: time of the stick's
//! clock (4), level (1), checksum (2, CRC-16/X-25 from the flags on). The payload is a link frame
//! without its length field and without checksums.

use super::{Step, out_of_step};
use crate::frame::Format;
use crate::received::Received;

pub(super) const START: u8 = 0xA5;
const RADIO_LINK: u8 = 0x02;
const FRAME_RECEIVED: u8 = 0x03;
const HAS_TIME: u8 = 0x20;
const HAS_LEVEL: u8 = 0x40;
const HAS_CHECKSUM: u8 = 0x80;

pub(super) fn step(bytes: &[u8]) -> Step {
    let [START, flags, message, length, rest @ ..] = bytes else {
        return if bytes.first() == Some(&START) { Step::More } else { out_of_step(bytes, START) };
    };
    let extra = |flag, bytes| if flags & flag != 0 { bytes } else { 0 };
    let payload = usize::from(*length);
    let level_at = payload + extra(HAS_TIME, 4);
    let sum_at = level_at + extra(HAS_LEVEL, 1);
    let total = sum_at + extra(HAS_CHECKSUM, 2);
    let Some(body) = rest.get(..total) else { return Step::More };
    let used = 4 + total;
    if flags & HAS_CHECKSUM != 0 {
        let sum = u16::from_le_bytes([body[sum_at], body[sum_at + 1]]);
        if x25(&bytes[1..4 + sum_at]) != sum {
            return out_of_step(bytes, START);
        }
    }
    if flags & 0x0F != RADIO_LINK || *message != FRAME_RECEIVED {
        return Step::Done(used, None);
    }
    let mut frame = Vec::with_capacity(1 + payload);
    frame.push(*length);
    frame.extend_from_slice(&body[..payload]);
    let rssi_dbm = (flags & HAS_LEVEL != 0).then(|| dbm(body[level_at]));
    let format = Some(Format::Stripped);
    Step::Done(used, Some(Ok(Received { bytes: frame, format, rssi_dbm, ..Received::default() })))
}

/// 45 is -100 dBm and 205 is -20 dBm, in a straight line.
fn dbm(level: u8) -> f32 {
    f32::from(level) / 2.0 - 122.5
}

fn x25(bytes: &[u8]) -> u16 {
    let crc = bytes.iter().fold(0xFFFF_u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte), |crc, _| {
            if crc & 1 != 0 { (crc >> 1) ^ 0x8408 } else { crc >> 1 }
        })
    });
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_checksums_are_the_manufacturers() {
        assert_eq!((dbm(45), dbm(205)), (-100.0, -20.0));
        assert_eq!(x25(b"123456789"), 0x906E, "the catalogue's check value");
    }
}
