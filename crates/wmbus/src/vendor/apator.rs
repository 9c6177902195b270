//! Water meters Apator NA-1 (version 0x14): CI A0, one encrypted block of packed fields.
//!
//! The layout is what the wmbusmeters project found out. The block is AES-128-CBC as in security mode
//! 5, its access number being the byte after the CI field; decrypted it begins with one filler byte.
//! CI A1 says the same as A0.
//!
//! | bits, lowest first | |
//! |---|---|
//! | 8 | filler, 2F |
//! | 4 | volume, lowest bits |
//! | 2 | what volumes count: 1, 10, 100 or 1000 l |
//! | 2 | unknown |
//! | 24 | volume, other bits |
//! | 32 | meter's time, seconds since 2000 |
//! | 8 | age of the earlier volume in hours, lowest bits |
//! | 2 | volume since then, lowest bits |
//! | 6 | the age's other bits |
//! | 24 | that volume's other bits |

use crate::address::Address;
use crate::error::Error;
use crate::keys::Key;
use crate::layers::cipher;
use crate::records::date::Moment;
use crate::records::value::Value;
use crate::records::{Reading, Records};

const SECONDS_AN_HOUR: u64 = 3600;
const FILLER: u8 = 0x2F;

pub(super) fn is_ours(meter: Address, payload: &[u8]) -> bool {
    meter.manufacturer.to_string() == "APA"
        && meter.version == 0x14
        && matches!(payload.first(), Some(0xA0 | 0xA1))
        && payload.len() == 3 + cipher::BLOCK
}

pub(super) fn decode(meter: Address, payload: &[u8], key: Option<&Key>) -> Result<Records, Error> {
    let (head, block) = payload.split_last_chunk::<16>().ok_or(Error::Short("block"))?;
    let [_, access, _] = head else { return Err(Error::Short("header")) };
    let key = key.ok_or(Error::NoKey(meter))?;
    let mut iv = [*access; cipher::BLOCK];
    iv[..8].copy_from_slice(&meter.to_link());
    let mut block = *block;
    cipher::cbc_decrypt(key, &iv, &mut block);
    if block[0] != FILLER {
        return Err(Error::WrongKey(meter));
    }
    let bits = u128::from_le_bytes(block);
    let field = |from: u32, count: u32| (bits >> from) as u64 & ((1 << count) - 1);
    let (total, now) = (field(8, 4) | field(16, 24) << 4, field(40, 32));
    let (age, since) = (field(72, 8) | field(82, 6) << 8, field(80, 2) | field(88, 24) << 2);
    let litres = 10_u64.pow(field(12, 2) as u32);
    let cubic = |count: u64| Value::Number((count * litres) as f64 / 1000.0);
    let moment = |seconds| Value::Moment(Moment::since_2000(seconds));
    let mut readings = vec![
        Reading::now("volume", "m³", cubic(total)),
        Reading::now("date and time", "", moment(now)),
    ];
    if let Some(earlier) = total.checked_sub(since) {
        let then = now.saturating_sub(age * SECONDS_AN_HOUR);
        readings.push(Reading { storage: 1, ..Reading::now("volume", "m³", cubic(earlier)) });
        readings.push(Reading { storage: 1, ..Reading::now("date and time", "", moment(then)) });
    }
    Ok(Records { readings, ..Records::default() })
}
