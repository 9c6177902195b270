//! A certificate chain to a pinned P-256 authority (RFC 5280, as far as such a chain needs it): signatures,
//! names, validity, what a key may be used for. A certificate with a critical extension that is not read
//! in here is refused. Revocation is not looked at; the authority's own certificate is not needed.

use super::Alert;
use crate::bytes::Reader;
use crate::crypto::verify_p256;
use crate::limits::SERVER_NAME_BYTES;

const SEQUENCE: u8 = 0x30;
const BOOLEAN: u8 = 0x01;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OBJECT_ID: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
/// A dNSName in a subjectAltName.
const DNS_NAME: u8 = 0x82;

/// id-ecPublicKey with the named curve prime256v1, as an AlgorithmIdentifier's content.
const P256_KEY: &[u8] = &[
    0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d,
    0x03, 0x01, 0x07,
];
/// ecdsa-with-SHA256, likewise.
const ECDSA_SHA256: &[u8] = &[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
/// id-kp-serverAuth.
const SERVER_AUTH: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01];

/// Extensions: id-ce and one byte.
const KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x0f];
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];
const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25];

/// Whom certificates must come from, for what name, and when they must be valid.
pub(super) struct Authority {
    key: [u8; 65],
    unix_s: u64,
    name: [u8; SERVER_NAME_BYTES],
    name_len: usize,
}

/// Parts of a certificate that are read.
struct Certificate<'a> {
    /// Bytes that are signed.
    signed: &'a [u8],
    signature: &'a [u8],
    issuer: &'a [u8],
    subject: &'a [u8],
    not_before: u64,
    not_after: u64,
    key: [u8; 65],
    is_authority: bool,
    may_sign: bool,
    may_certify: bool,
    for_servers: bool,
    names: Reader<'a>,
}

impl Authority {
    pub(super) const fn none() -> Self {
        Self { key: [0; 65], unix_s: 0, name: [0; SERVER_NAME_BYTES], name_len: 0 }
    }

    pub(super) fn set(&mut self, key: &[u8; 65], unix_s: u64, name: &str) -> Option<()> {
        self.key = *key;
        self.unix_s = unix_s;
        self.name.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        self.name_len = name.len();
        Some(())
    }

    /// Checks the content of a Certificate message; gives the server's key.
    #[inline(never)]
    pub(super) fn check(&self, body: &[u8]) -> Result<[u8; 65], Alert> {
        let (first, second) = entries(body).ok_or(Alert::DECODE_ERROR)?;
        let leaf = parse(first).ok_or(Alert::BAD_CERTIFICATE)?;
        self.check_time(&leaf)?;
        if !leaf.may_sign || !leaf.for_servers {
            return Err(Alert::BAD_CERTIFICATE);
        }
        let name = self.name.get(..self.name_len).unwrap_or_default();
        if !names_match(leaf.names.clone(), name) {
            return Err(Alert::CERTIFICATE_UNKNOWN);
        }
        if is_signed(&leaf, &self.key) {
            return Ok(leaf.key);
        }
        let issuer = parse(second.ok_or(Alert::UNKNOWN_CA)?).ok_or(Alert::BAD_CERTIFICATE)?;
        self.check_time(&issuer)?;
        if !issuer.is_authority || !issuer.may_certify || issuer.subject != leaf.issuer {
            return Err(Alert::BAD_CERTIFICATE);
        }
        if is_signed(&issuer, &self.key) && is_signed(&leaf, &issuer.key) {
            Ok(leaf.key)
        } else {
            Err(Alert::UNKNOWN_CA)
        }
    }

    fn check_time(&self, certificate: &Certificate<'_>) -> Result<(), Alert> {
        if (certificate.not_before..=certificate.not_after).contains(&self.unix_s) {
            Ok(())
        } else {
            Err(Alert::CERTIFICATE_EXPIRED)
        }
    }
}

fn is_signed(certificate: &Certificate<'_>, key: &[u8; 65]) -> bool {
    verify_p256(key, &[certificate.signed], certificate.signature)
}

/// The first certificates of the message: the server's and, if there is one, its issuer's.
fn entries(body: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    let mut reader = Reader::new(body);
    let context = reader.block8()?;
    let mut list = reader.block24()?;
    if !context.is_empty() || !reader.is_empty() {
        return None;
    }
    let first = list.block24()?.rest();
    list.block16()?;
    if list.is_empty() {
        return Some((first, None));
    }
    let second = list.block24()?.rest();
    list.block16()?;
    Some((first, Some(second)))
}

/// The content of the next element, which must have this tag.
fn element<'a>(reader: &mut Reader<'a>, tag: u8) -> Option<Reader<'a>> {
    if reader.u8()? != tag {
        return None;
    }
    let length = match reader.u8()? {
        short @ 0..=0x7f => usize::from(short),
        0x81 => usize::from(reader.u8()?),
        0x82 => usize::from(reader.u16()?),
        _ => return None,
    };
    reader.bytes(length).map(Reader::new)
}

/// Whether the next element has this tag.
fn is_next(reader: &Reader<'_>, tag: u8) -> bool {
    reader.rest().first() == Some(&tag)
}

/// The bytes that `read` takes off the reader.
fn bytes_of<'a>(
    reader: &mut Reader<'a>,
    read: impl FnOnce(&mut Reader<'a>) -> Option<Reader<'a>>,
) -> Option<&'a [u8]> {
    let before = reader.rest();
    read(reader)?;
    before.get(..before.len() - reader.rest().len())
}

#[inline(never)]
fn parse(der: &[u8]) -> Option<Certificate<'_>> {
    let mut reader = Reader::new(der);
    let mut outer = element(&mut reader, SEQUENCE)?;
    let mut signed = Reader::new(&[]);
    let signed_bytes = bytes_of(&mut outer, |outer| {
        signed = element(outer, SEQUENCE)?;
        Some(signed.clone())
    })?;
    let algorithm = element(&mut outer, SEQUENCE)?;
    let signature = bit_string(&mut outer)?;
    if !reader.is_empty() || !outer.is_empty() || algorithm.rest() != ECDSA_SHA256 {
        return None;
    }
    if element(&mut signed, VERSION)?.rest() != [INTEGER, 1, 2] {
        return None; // Only version 3 has extensions.
    }
    element(&mut signed, INTEGER)?; // serial number
    if element(&mut signed, SEQUENCE)?.rest() != ECDSA_SHA256 {
        return None;
    }
    let issuer = element(&mut signed, SEQUENCE)?.rest();
    let mut validity = element(&mut signed, SEQUENCE)?;
    let not_before = time(&mut validity)?;
    let not_after = time(&mut validity)?;
    let subject = element(&mut signed, SEQUENCE)?.rest();
    let mut key_info = element(&mut signed, SEQUENCE)?;
    if element(&mut key_info, SEQUENCE)?.rest() != P256_KEY {
        return None;
    }
    let key = bit_string(&mut key_info)?.try_into().ok()?;
    let mut certificate = Certificate {
        signed: signed_bytes,
        signature,
        issuer,
        subject,
        not_before,
        not_after,
        key,
        is_authority: false,
        may_sign: true,
        may_certify: true,
        for_servers: true,
        names: Reader::new(&[]),
    };
    let mut extensions = element(&mut signed, EXTENSIONS)?;
    let mut list = element(&mut extensions, SEQUENCE)?;
    while !list.is_empty() {
        read_extension(&mut certificate, element(&mut list, SEQUENCE)?)?;
    }
    Some(certificate)
}

/// A BIT STRING of whole bytes.
fn bit_string<'a>(reader: &mut Reader<'a>) -> Option<&'a [u8]> {
    let mut content = element(reader, BIT_STRING)?;
    (content.u8()? == 0).then_some(content.rest())
}

fn read_extension<'a>(certificate: &mut Certificate<'a>, mut extension: Reader<'a>) -> Option<()> {
    let id = element(&mut extension, OBJECT_ID)?.rest();
    let critical =
        is_next(&extension, BOOLEAN) && element(&mut extension, BOOLEAN)?.rest() == [0xff];
    let mut value = element(&mut extension, OCTET_STRING)?;
    match id {
        KEY_USAGE => {
            let mut bits = element(&mut value, BIT_STRING)?;
            bits.u8()?; // unused bits
            let bits = bits.u8()?;
            certificate.may_sign = bits & 0x80 != 0;
            certificate.may_certify = bits & 0x04 != 0;
        }
        BASIC_CONSTRAINTS => {
            let mut content = element(&mut value, SEQUENCE)?;
            certificate.is_authority =
                is_next(&content, BOOLEAN) && element(&mut content, BOOLEAN)?.rest() == [0xff];
        }
        SUBJECT_ALT_NAME => certificate.names = element(&mut value, SEQUENCE)?,
        EXTENDED_KEY_USAGE => {
            let mut purposes = element(&mut value, SEQUENCE)?;
            certificate.for_servers = false;
            while !purposes.is_empty() {
                certificate.for_servers |= element(&mut purposes, OBJECT_ID)?.rest() == SERVER_AUTH;
            }
        }
        _ if critical => return None,
        _ => {}
    }
    Some(())
}

/// Whether one of the subject's names is `name`, or has `*` where `name` has its first label (RFC 6125).
fn names_match(mut names: Reader<'_>, name: &[u8]) -> bool {
    while let Some(&tag) = names.rest().first() {
        let Some(entry) = element(&mut names, tag) else { return false };
        if tag != DNS_NAME {
            continue;
        }
        let matches = match entry.rest() {
            [b'*', suffix @ ..] => name
                .iter()
                .position(|byte| *byte == b'.')
                .and_then(|dot| name.split_at_checked(dot))
                .is_some_and(|(label, rest)| {
                    !label.is_empty() && suffix.len() > 1 && suffix.eq_ignore_ascii_case(rest)
                }),
            exact => exact.eq_ignore_ascii_case(name),
        };
        if matches {
            return true;
        }
    }
    false
}

/// A point in time, in seconds since 1970.
fn time(reader: &mut Reader<'_>) -> Option<u64> {
    let tag = *reader.rest().first()?;
    let mut digits = element(reader, tag)?;
    let mut pair = || {
        let [tens, ones] = digits.array()?;
        let digit = |byte: u8| byte.is_ascii_digit().then(|| u32::from(byte - b'0'));
        Some(digit(tens)? * 10 + digit(ones)?)
    };
    let year = match tag {
        UTC_TIME => {
            let year = pair()?;
            year + if year < 50 { 2000 } else { 1900 }
        }
        GENERALIZED_TIME => pair()? * 100 + pair()?,
        _ => return None,
    };
    let (month, day) = (pair()?, pair()?);
    let (hour, minute, second) = (pair()?, pair()?, pair()?);
    let valid = year >= 1970
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 61
        && digits.rest() == b"Z";
    // Days since 1970-01-01, the year beginning with March so that the leap day comes last.
    let (years, months) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = years * 365 + years / 4 - years / 100 + years / 400 + (months * 153 + 2) / 5 + day;
    let days = u64::from(days.checked_sub(719_469)?);
    valid.then(|| days * 86_400 + u64::from(hour * 3600 + minute * 60 + second))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        let utc = |text: &str| {
            let mut der = vec![UTC_TIME, text.len() as u8];
            der.extend(text.as_bytes());
            time(&mut Reader::new(&der))
        };
        assert_eq!(utc("700101000000Z"), Some(0));
        assert_eq!(utc("000229235959Z"), Some(951_868_799));
        assert_eq!(utc("261121140000Z"), Some(1_795_269_600));
        assert_eq!(utc("261321140000Z"), None);
        assert_eq!(utc("261121140000+"), None);
        let mut der = vec![GENERALIZED_TIME, 15];
        der.extend(b"20500101000000Z");
        assert_eq!(time(&mut Reader::new(&der)), Some(2_524_608_000));
        der.pop();
        assert_eq!(time(&mut Reader::new(&der)), None, "cut off");
    }

    #[test]
    fn names_are_compared_by_label() {
        let names = |name: &[u8]| {
            let mut list = vec![DNS_NAME, name.len() as u8];
            list.extend(name);
            list
        };
        let matches = |pattern: &[u8], name: &[u8]| names_match(Reader::new(&names(pattern)), name);
        assert!(matches(b"broker.example", b"Broker.Example"));
        assert!(matches(b"*.example", b"broker.example"));
        assert!(!matches(b"*.example", b"a.broker.example"));
        assert!(!matches(b"*.example", b".example"));
        assert!(!matches(b"*", b"broker"));
        assert!(!matches(b"broker.example", b"broker.example.org"));
    }
}
