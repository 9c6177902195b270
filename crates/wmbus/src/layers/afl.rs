//! The authentication and fragmentation layer (EN 13757-7, 6): CI 90.
//!
//! Carries the message counter that mode 7's keys are derived from and the code that vouches for
//! the whole transport layer. Messages in several frames are told apart but not put together.

use super::{Fields, cipher};
use crate::error::Error;
use crate::keys::Key;

pub(crate) const CI: u8 = 0x90;

/// Bits of the fragmentation control field.
const RESERVED: u16 = 1 << 15 | 1 << 8;
const MORE: u16 = 1 << 14;
const CONTROL: u16 = 1 << 13;
const LENGTH: u16 = 1 << 12;
const COUNTER: u16 = 1 << 11;
const MAC: u16 = 1 << 10;
const KEY: u16 = 1 << 9;

/// The layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Afl<'a> {
    control: Option<u8>,
    counter: Option<[u8; 4]>,
    length: Option<[u8; 2]>,
    mac: Option<&'a [u8]>,
    /// The transport layer.
    pub(crate) rest: &'a [u8],
}

impl<'a> Afl<'a> {
    /// Reads the layer that begins with this CI field.
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, Error> {
        let mut outer = Fields::new(payload, "authentication layer");
        let [_, length] = outer.array()?;
        let mut fields = Fields::new(outer.bytes(usize::from(length))?, "authentication layer");
        let flags = u16::from_le_bytes(fields.array()?);
        if flags & MORE != 0 || flags & 0xFF != 0 {
            return Err(Error::Fragment(flags as u8));
        }
        if flags & RESERVED != 0 {
            return Err(Error::Malformed("authentication layer"));
        }
        let has = |flag| flags & flag != 0;
        let control = if has(CONTROL) { Some(fields.byte()?) } else { None };
        if has(KEY) {
            // Which of several keys, and how it is derived. There is one key a meter here, and the
            // transport layer names the derivation again.
            fields.array::<2>()?;
        }
        let counter = if has(COUNTER) { Some(fields.array()?) } else { None };
        let mac = match (has(MAC), control) {
            (false, _) => None,
            (true, Some(control)) => Some(fields.bytes(mac_bytes(control)?)?),
            (true, None) => return Err(Error::Malformed("authentication layer")),
        };
        let length = if has(LENGTH) { Some(fields.array()?) } else { None };
        Ok(Self { control, counter, length, mac, rest: outer.rest() })
    }

    /// The message counter, in the order of the wire.
    pub(crate) const fn counter(&self) -> Option<[u8; 4]> {
        self.counter
    }

    pub(crate) const fn is_authenticated(&self) -> bool {
        self.mac.is_some()
    }

    /// Whether the code fits, under a key derived for it.
    pub(crate) fn verify(&self, key: &Key) -> bool {
        let Some(mac) = self.mac else { return false };
        // What follows the layer is vouched for, and those of its fields that the receiver needs.
        let control = self.control.as_slice();
        let counter = self.counter.as_ref().map_or(&[][..], |bytes| bytes);
        let length = self.length.as_ref().map_or(&[][..], |bytes| bytes);
        cipher::mac_fits(key, &[control, counter, length, self.rest], mac)
    }
}

/// Length of the code, by the authentication type; all are AES-128 CMAC. The one of two bytes is refused: it is guessed
/// within hours.
fn mac_bytes(control: u8) -> Result<usize, Error> {
    match control & 0x0F {
        4 => Ok(4),
        5 => Ok(8),
        6 => Ok(12),
        7 => Ok(16),
        _ => Err(Error::Malformed("authentication type")),
    }
}

/// Makes the layer in front of a transport layer: counter and a code of 8 bytes, as OMS profile B
/// asks for.
pub(crate) fn seal(counter: u32, mac_key: &Key, transport: &[u8]) -> Vec<u8> {
    const EIGHT_BYTES_WITH_COUNTER: u8 = 0x25;
    let counter = counter.to_le_bytes();
    let mac = cipher::cmac(mac_key, &[&[EIGHT_BYTES_WITH_COUNTER], &counter, transport]);
    let mut out = vec![CI, 15];
    out.extend((CONTROL | COUNTER | MAC).to_le_bytes());
    out.push(EIGHT_BYTES_WITH_COUNTER);
    out.extend(counter);
    out.extend(&mac[..8]);
    out.extend(transport);
    out
}
