//! Water meters Apator NA-1 (version 0x14): CI A0, one encrypted block of packed fields.
//!
//! Derived from a single telegram whose values were known, so what was zero in it is not read. The
//! block is AES-128-CBC as in security mode 5, its access number being the byte after the CI field;
//! decrypted it begins with one filler byte.
//!
//! | bits, lowest first | |
//! |---|---|
//! | 8 | filler, 2F |
//! | 4 | unknown |
//! | 28 | volume, l |
//! | 32 | meter's time, seconds since 2000 |
//! | 9 | age of the earlier volume, h |
//! | 2, then after 5 unknown 26 | volume since then, l |

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
        && payload.first() == Some(&0xA0)
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
    let (total, now, age) = (field(12, 28), field(40, 32), field(72, 9));
    let since = field(81, 2) | field(88, 26) << 2;
    let cubic = |litres: u64| Value::Number(litres as f64 / 1000.0);
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
