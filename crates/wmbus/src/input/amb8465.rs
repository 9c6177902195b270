//! Amber (Würth) AMB8465: frames of the command interface.
//!
//! `FF`, command, length, payload, perhaps a level, exclusive or of all before. The payload is a link
//! frame whose length field is the length; checksums are removed. Whether a level is sent is a setting
//! of the stick, so it is found out from which checksum fits.

use super::{Step, out_of_step};
use crate::frame::Format;
use crate::received::Received;

pub(super) const START: u8 = 0xFF;
const FRAME_RECEIVED: u8 = 0x03;

pub(super) fn step(bytes: &[u8]) -> Step {
    let [START, command, length, rest @ ..] = bytes else {
        return if bytes.first() == Some(&START) { Step::More } else { out_of_step(bytes, START) };
    };
    let payload = usize::from(*length);
    let fits = |at: usize| rest.get(at).map(|sum| xor(&bytes[..3 + at]) == *sum);
    let (level, used) = match (fits(payload), fits(payload + 1)) {
        (None, _) => return Step::More,
        (Some(true), _) => (None, payload + 4),
        (Some(false), None) => return Step::More,
        (Some(false), Some(true)) => (Some(rest[payload]), payload + 5),
        (Some(false), Some(false)) => return out_of_step(bytes, START),
    };
    if *command != FRAME_RECEIVED {
        return Step::Done(used, None);
    }
    let frame = bytes[2..3 + payload].to_vec();
    let (format, rssi_dbm) = (Some(Format::Stripped), level.map(dbm));
    Step::Done(used, Some(Ok(Received { bytes: frame, format, rssi_dbm, ..Received::default() })))
}

/// The level of a Texas Instruments radio, as CUL sticks give it too.
pub(super) fn dbm(level: u8) -> f32 {
    f32::from(level.cast_signed()) / 2.0 - 74.0
}

fn xor(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum ^ byte)
}
