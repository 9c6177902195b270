//! Compact frames (EN 13757-7, 8.3): records without their headers, which the receiver knows from an
//! earlier full frame of the same signature.
//!
//! A format counts for the meter that sent it, and for its messages that are protected no better: a signature of two bytes
//! is easily that of another format, so a stranger, or the owner of another meter, could change what values mean.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::address::{Address, Manufacturer, MeterId};
use crate::crc::crc;
use crate::error::Error;
use crate::protection::Protection;
use crate::records;

/// Formats kept: a few of each meter, of the meters that send compact frames.
const MAX_FORMATS: usize = 65_536;
/// Formats kept of one meter.
const MAX_METERS_FORMATS: usize = 8;

/// Formats a receiver would otherwise have to wait for: Kamstrup's water meters send one full frame in
/// eight. The wmbusmeters project lists most of them with its drivers; others are of full frames, or fit both checksums of a
/// compact one. A format's signature is the checksum of
/// these bytes, so a wrong one would never be found.
#[rustfmt::skip]
pub(crate) const WELL_KNOWN: [&[u8]; 22] = [
    b"\x02\xFF\x20\x04\x13\x44\x13\x61\x5B\x61\x67",
    b"\x02\xFF\x20\x04\x13\x92\x01\x3B\xA1\x01\x5B\x81\x01\xE7\xFF\x0F",
    b"\x02\xFF\x20\x04\x13\x44\x13\xA1\x01\x5B\x81\x01\xE7\xFF\x0F",
    b"\x02\xFF\x20\x04\x13\x44\x13\x61\x5B\x51\x67",
    b"\x02\xFF\x20\x04\x13\x44\x13",
    b"\x02\xFF\x20\x04\x13\x44\x13\x42\x6C",
    b"\x02\xFF\x20\x04\x13\x52\x3B",
    b"\x02\xFF\x20\x04\x13\x62\x3B\x61\x5B\x51\x5B\x61\x67\x51\x67",
    b"\x02\xFF\x20\x04\x13\x44\x13\x42\x6C\x52\x3B\x61\x5B\x51\x67\x81\x01\xE7\xFF\x0F\x06\xFF\x1B",
    b"\x04\xFF\x23\x44\x13\x52\x3B\x06\xFF\x1B\x42\x6C\x61\x67\x51\x67\x02\x3B\x04\x13\x81\x01\xE7\xFF\x0F",
    b"\x04\xFF\x23\x04\x13\x44\x13\x42\x6C\x02\x3B\x92\x01\x3B\xA2\x01\x3B\x06\xFF\x1B\xA1\x01\x5B\x91\x01\x5B\xA1\x01\x67",
    b"\x02\xFF\x20\x04\x13\x44\x13\x42\x6C\x52\x3B\x61\x5B\x61\x67\x51\x67\x81\x01\xE7\xFF\x0F\x06\xFF\x1B",
    b"\x03\x06\x43\x06\x03\x14\x42\x6C\x02\x2D\x01\xFF\x21",
    b"\x03\x0E\x43\x0E\x03\x13\x42\x6C\x02\x2D\x01\xFF\x21",
    b"\x02\xF9\xFF\x15\x04\x06\x04\xEE\xFF\x07\x04\xEE\xFF\x08\x04\x14\x84\x40\x14\x84\x80\x40\x14\x02\xFD\x17\x02\x6C\x42\x6C\x44\x06\x44\x14\xC4\x40\x14\xC4\x80\x40\x14\x04\x3B\x02\x59\x02\x5D",
    b"\x04\x06\x04\x14\x04\xFF\x07\x04\xFF\x08\x02\x59\x02\x5D\x02\x3B\x02\xFF\x22\x02\x6C\x44\x06\x44\x14\x42\x6C",
    b"\x04\x06\x04\xFF\x07\x04\xFF\x08\x04\x14\x04\x3B\x02\x59\x02\x5D\x04\xFF\x22\x02\x6C\x44\x06\x44\x14\x42\x6C",
    b"\x04\x0F\x04\xFF\x07\x04\xFF\x08\x04\x14\x84\x40\x14\x84\x80\x40\x14\x04\x3B\x02\x59\x02\x5D\x14\x2D\x84\x10\x0F\x84\x20\x0F\x04\xFF\x22\x02\x6C\x44\x0F\x44\x14\xC4\x40\x14\xC4\x80\x40\x14\x42\x6C",
    b"\x04\x04\x04\x84\x3C\x04\x2B\x04\xAB\x3C",
    b"\x04\x05\x04\xFB\x82\x75\x04\x85\x3C\x04\xFB\x82\xF5\x3C\x01\xFD\x17",
    b"\x22\x69\x12\x69\x02\x69\x05\xFF\x09\x05\xFF\x0A\x02\xFD\x17",
    b"\x42\x6C\x44\x13\x01\xFD\x17\x84\x01\x13\xC4\x01\x13\x84\x02\x13\xC4\x02\x13\x84\x03\x13\xC4\x03\x13\x84\x04\x13\xC4\x04\x13\x84\x05\x13\xC4\x05\x13\x84\x06\x13\xC4\x06\x13\x84\x07\x13\xC4\x07\x13\x84\x08\x13\x04\x6D\x04\x13",
];

/// A meter's format: manufacturer and number of the meter, signature.
type Key = (Manufacturer, MeterId, u16);

#[derive(Debug)]
struct Format {
    headers: Vec<u8>,
    protection: Protection,
    /// When it was learned.
    number: u64,
}

/// The formats that were seen.
#[derive(Debug)]
pub(crate) struct Formats {
    well_known: HashMap<u16, &'static [u8]>,
    known: BTreeMap<Key, Format>,
    /// The worst protected first, of these the oldest, to make room.
    order: BTreeSet<(Protection, u64, Key)>,
    learned: u64,
}

impl Formats {
    pub(crate) fn new() -> Self {
        Self {
            well_known: WELL_KNOWN.iter().map(|headers| (crc(headers), *headers)).collect(),
            known: BTreeMap::new(),
            order: BTreeSet::new(),
            learned: 0,
        }
    }

    /// Remembers the headers of a meter's full frame. Other headers with the same signature do not replace them unless they
    /// are protected better: anyone who can alter a message can give it any signature.
    pub(crate) fn learn(&mut self, meter: Address, headers: &[u8], protection: Protection) {
        let key = (meter.manufacturer, meter.id, crc(headers));
        if let Some(known) = self.known.get(&key) {
            let is_newer = protection == Protection::Authenticated && headers != known.headers;
            if protection <= known.protection && !is_newer {
                return;
            }
            self.order.remove(&(known.protection, known.number, key));
        } else if let Some(least) = self.displaced(meter) {
            if protection < least.0 {
                return;
            }
            self.order.remove(&least);
            self.known.remove(&least.2);
        }
        self.learned += 1;
        let number = self.learned;
        self.order.insert((protection, number, key));
        self.known.insert(key, Format { headers: headers.to_vec(), protection, number });
    }

    /// The format that makes room for another one of this meter, if there is no room.
    fn displaced(&self, meter: Address) -> Option<(Protection, u64, Key)> {
        let key = |signature| (meter.manufacturer, meter.id, signature);
        let own = self.known.range(key(u16::MIN)..=key(u16::MAX));
        if own.clone().count() == MAX_METERS_FORMATS {
            return own.map(|(key, format)| (format.protection, format.number, *key)).min();
        }
        self.order.first().copied().filter(|_| self.known.len() == MAX_FORMATS)
    }

    /// The full frame that a compact one stands for (signature, checksum of the full frame, data), and
    /// whether it fits the checksum.
    ///
    /// Some of Kamstrup's meters send the checksum of the last full frame they sent although a value
    /// has changed since; so a frame that has exactly the data its signature promises is read, and
    /// the caller tells of the checksum.
    pub(crate) fn expand(
        &self,
        meter: Address,
        body: &[u8],
        protection: Protection,
    ) -> Result<(Vec<u8>, bool), Error> {
        let [s0, s1, c0, c1, data @ ..] = body else { return Err(Error::Short("compact frame")) };
        let signature = u16::from_le_bytes([*s0, *s1]);
        let own = self.known.get(&(meter.manufacturer, meter.id, signature));
        let own = own.filter(|format| format.protection >= protection);
        // Nobody has altered those that are well known.
        let well_known = self.well_known.get(&signature).copied();
        let headers = well_known.or_else(|| own.map(|format| &*format.headers));
        let (full, fits) = records::join(headers.ok_or(Error::UnknownFormat(signature))?, data)?;
        let checked = crc(&full) == u16::from_le_bytes([*c0, *c1]);
        if checked || fits { Ok((full, checked)) } else { Err(Error::CompactMismatch) }
    }
}

/// The headers in a format frame, which has their length, their signature, and themselves.
pub(crate) fn headers(body: &[u8]) -> Result<&[u8], Error> {
    let [_, low, high, headers @ ..] = body else { return Err(Error::Short("format frame")) };
    if crc(headers) != u16::from_le_bytes([*low, *high]) {
        return Err(Error::Malformed("signature of a format frame"));
    }
    Ok(headers)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const FULL: &[u8] = &[0x04, 0x13, 1, 2, 3, 4, 0x02, 0x5A, 5, 6, 0x0D, 0x78, 2, b'a', b'b'];
    const HEADERS: &[u8] = &[0x04, 0x13, 0x02, 0x5A, 0x0D, 0x78];

    fn compact(full: &[u8], data: &[u8]) -> Vec<u8> {
        let signature = crc(&records::format(full).0).to_le_bytes();
        [&signature[..], &crc(full).to_le_bytes(), data].concat()
    }

    use Protection::{Authenticated, Encrypted, Unauthenticated};

    fn meter(number: u8) -> Address {
        Address::from_link([1, 6, number, 2, 3, 4, 1, 7])
    }

    #[test]
    fn what_was_left_out_is_put_back() {
        let mut formats = Formats::new();
        let expand =
            |formats: &Formats, frame: &[u8]| formats.expand(meter(1), frame, Unauthenticated);
        let frame = compact(FULL, &[1, 2, 3, 4, 5, 6, 2, b'a', b'b']);
        assert!(matches!(expand(&formats, &frame), Err(Error::UnknownFormat(_))));
        formats.learn(meter(1), HEADERS, Encrypted);
        assert_eq!(expand(&formats, &frame).unwrap(), (FULL.to_vec(), true));
        let filled = [&frame[..], &[0x2F; 3]].concat();
        assert_eq!(expand(&formats, &filled).unwrap(), (FULL.to_vec(), true));
        let damaged = compact(FULL, &[1, 2, 3, 4, 5, 7, 2, b'a', b'b']);
        assert!(matches!(expand(&formats, &damaged), Ok((_, false))));
        let longer = [&damaged[..], &[1]].concat();
        assert_eq!(expand(&formats, &longer), Err(Error::CompactMismatch));
        for cut in 0..frame.len() {
            assert!(expand(&formats, &frame[..cut]).is_err());
        }
    }

    #[test]
    fn a_format_counts_for_its_meter_and_no_better_protection() {
        let frame = compact(FULL, &[1, 2, 3, 4, 5, 6, 2, b'a', b'b']);
        for learned in [Unauthenticated, Encrypted, Authenticated] {
            let mut formats = Formats::new();
            formats.learn(meter(1), HEADERS, learned);
            // Neither does it any harm to a better one, nor has it the place of one.
            formats.learn(meter(1), HEADERS, Unauthenticated);
            for asked in [Unauthenticated, Encrypted, Authenticated] {
                assert_eq!(formats.expand(meter(1), &frame, asked).is_ok(), asked <= learned);
                assert!(formats.expand(meter(2), &frame, asked).is_err(), "another meter's");
            }
        }
    }

    /// Other headers with the same signature, as an attacker chooses them: of three records, the last has two or three bytes.
    fn colliding(headers: &[u8]) -> Vec<u8> {
        let plain = || 0..0x80_u8;
        let all = plain().flat_map(|a| plain().flat_map(move |b| plain().map(move |c| (a, b, c))));
        let mut all =
            all.flat_map(|(a, b, c)| [0x42, 0x43].map(|d| vec![0x02, 0xFF, a, 0x04, b, d, c]));
        all.find(|other| crc(other) == crc(headers) && other != headers).unwrap()
    }

    #[test]
    fn a_format_with_the_signature_of_another_does_not_take_its_place() {
        let well_known = WELL_KNOWN[4];
        for (headers, own) in [(HEADERS, true), (well_known, false)] {
            let (full, _) = records::join(headers, &[0x2F; 60]).unwrap();
            let frame = compact(&full, &vec![0x2F; full.len() - headers.len()]);
            let mut formats = Formats::new();
            if own {
                formats.learn(meter(1), headers, Encrypted);
            }
            formats.learn(meter(1), &colliding(headers), Encrypted);
            assert_eq!(formats.expand(meter(1), &frame, Encrypted), Ok((full, true)));
        }
        let mut formats = Formats::new();
        let (full, _) = records::join(HEADERS, &[0x2F; 60]).unwrap();
        let frame = compact(&full, &vec![0x2F; full.len() - HEADERS.len()]);
        formats.learn(meter(1), &colliding(HEADERS), Encrypted);
        formats.learn(meter(1), HEADERS, Authenticated);
        assert_eq!(formats.expand(meter(1), &frame, Encrypted), Ok((full, true)));
    }

    #[test]
    fn formats_are_bounded() {
        let mut formats = Formats::new();
        formats.learn(meter(1), HEADERS, Encrypted);
        for vif in 0..0x70 {
            formats.learn(meter(1), &[0x04, vif], Unauthenticated);
        }
        assert_eq!(formats.known.len(), MAX_METERS_FORMATS, "a meter's");
        for number in 0..70_000_u32 {
            let [a, b, c, _] = number.to_le_bytes();
            let stranger = Address::from_link([1, 6, 0, a, b, c, 1, 7]);
            formats.learn(stranger, HEADERS, Unauthenticated);
        }
        assert_eq!((formats.known.len(), formats.order.len()), (MAX_FORMATS, MAX_FORMATS));
        let frame = compact(FULL, &[1, 2, 3, 4, 5, 6, 2, b'a', b'b']);
        assert!(formats.expand(meter(1), &frame, Encrypted).is_ok(), "strangers displace it last");
    }
}
