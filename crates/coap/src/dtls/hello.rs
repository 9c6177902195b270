//! Parses and changes the first messages of a DTLS 1.2 handshake (RFC 6347 section 4.2.2, RFC 5246 section 7.4.1), for
//! fields that dimpl does not have. Fragments are not parsed.

use std::ops::Range;

pub(super) const CLIENT_HELLO: u8 = 1;
pub(super) const SERVER_HELLO: u8 = 2;
pub(super) const HELLO_VERIFY_REQUEST: u8 = 3;
/// The record type of handshakes.
pub(super) const HANDSHAKE: u8 = 22;
/// The length of a record's header, whose last two bytes are the length of the rest.
const RECORD_HEADER: usize = 13;
/// Position of a record's number, after type, version and epoch.
const NUMBER: usize = 5;
/// The length of a handshake message's header: type, length, number, offset and length of the fragment.
const HEADER: usize = 12;
/// Position of the random in a hello, after the version.
const RANDOM: usize = HEADER + 2;
const RANDOM_LENGTH: usize = 32;

/// The messages in a datagram's first record, if it has any that are not encrypted.
pub(super) fn handshake_messages(datagram: &[u8]) -> Option<&[u8]> {
    let header = datagram.get(..RECORD_HEADER)?;
    let plain = header[0] == HANDSHAKE && header[3..5] == [0; 2];
    vector(datagram, RECORD_HEADER - 2, 2).filter(|_| plain).map(|range| &datagram[range])
}

/// A datagram with other messages in its first record.
pub(super) fn with_messages(datagram: &[u8], messages: &[u8]) -> Option<Vec<u8>> {
    let old = vector(datagram, RECORD_HEADER - 2, 2)?;
    let length = u16::try_from(messages.len()).ok()?.to_be_bytes();
    Some([&datagram[..RECORD_HEADER - 2], &length, messages, &datagram[old.end..]].concat())
}

/// The first message and those after it, if the first has this type and is complete.
pub(super) fn first(messages: &[u8], kind: u8) -> Option<(&[u8], &[u8])> {
    let header = messages.get(..HEADER)?;
    let whole = header[0] == kind && header[6..9] == [0; 3] && header[1..4] == header[9..];
    let body = vector(messages, HEADER - 3, 3).filter(|_| whole)?;
    Some(messages.split_at(body.end))
}

pub(super) fn random(hello: &[u8]) -> Option<&[u8; RANDOM_LENGTH]> {
    hello.get(RANDOM..)?.first_chunk()
}

/// The random of a datagram that begins with a complete ClientHello.
pub(super) fn random_of(datagram: &[u8]) -> Option<[u8; RANDOM_LENGTH]> {
    random(first(handshake_messages(datagram)?, CLIENT_HELLO)?.0).copied()
}

/// The number of a datagram's first record, without its epoch.
pub(super) fn record_number(datagram: &[u8]) -> Option<u64> {
    let bytes = datagram.get(NUMBER..NUMBER + 6)?;
    Some(bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

/// Gives a datagram's first record another number.
pub(super) fn renumber(datagram: &mut [u8], number: u64) {
    if let Some(bytes) = datagram.get_mut(NUMBER..NUMBER + 6) {
        bytes.copy_from_slice(&number.to_be_bytes()[2..]);
    }
}

/// Adds to the numbers of all records of a datagram that are not encrypted.
pub(super) fn add_to_record_numbers(mut datagram: &mut [u8], by: u64) {
    while let Some(range) = vector(datagram, RECORD_HEADER - 2, 2) {
        if datagram[3..5] == [0; 2]
            && let Some(number) = record_number(datagram)
        {
            renumber(datagram, number.wrapping_add(by));
        }
        datagram = &mut datagram[range.end..];
    }
}

/// The parts of a ClientHello.
pub(super) struct Parts<'a> {
    pub(super) version_random_session: &'a [u8],
    pub(super) cookie: &'a [u8],
    pub(super) suites_and_compression: &'a [u8],
    /// The list of extensions; `None` if there is none.
    pub(super) extensions: Option<&'a [u8]>,
}

/// Splits a ClientHello.
pub(super) fn parts(hello: &[u8]) -> Option<Parts<'_>> {
    let session = vector(hello, RANDOM + RANDOM_LENGTH, 1)?;
    let cookie = vector(hello, session.end, 1)?;
    let suites = vector(hello, cookie.end, 2)?;
    let compression = vector(hello, suites.end, 1)?;
    let extensions = match hello.len() == compression.end {
        true => None,
        false => Some(vector(hello, compression.end, 2).filter(|list| list.end == hello.len())?),
    };
    Some(Parts {
        version_random_session: &hello[HEADER..session.end],
        suites_and_compression: &hello[cookie.end..compression.end],
        cookie: &hello[cookie],
        extensions: extensions.map(|list| &hello[list]),
    })
}

/// Assembles a ClientHello, the `number`th message of the client.
pub(super) fn client_hello(parts: &Parts<'_>, number: u16) -> Option<Vec<u8>> {
    let mut body = parts.version_random_session.to_vec();
    body.push(u8::try_from(parts.cookie.len()).ok()?);
    body.extend_from_slice(parts.cookie);
    body.extend_from_slice(parts.suites_and_compression);
    if let Some(list) = parts.extensions {
        body.extend(u16::try_from(list.len()).ok()?.to_be_bytes());
        body.extend_from_slice(list);
    }
    message(CLIENT_HELLO, number, &body)
}

/// A handshake message in one piece.
pub(super) fn message(kind: u8, number: u16, body: &[u8]) -> Option<Vec<u8>> {
    let length = u32::try_from(body.len()).ok().filter(|length| *length < 1 << 24)?.to_be_bytes();
    let [high, low] = number.to_be_bytes();
    let header = [kind, length[1], length[2], length[3], high, low, 0, 0, 0];
    Some([&header, &length[1..], body].concat())
}

/// The cookie in a datagram that is a HelloVerifyRequest.
pub(super) fn requested_cookie(datagram: &[u8]) -> Option<&[u8]> {
    let (request, _) = first(handshake_messages(datagram)?, HELLO_VERIFY_REQUEST)?;
    vector(request, HEADER + 2, 1).map(|range| &request[range])
}

/// Range of a ClientHello's cipher suites.
pub(super) fn suites(hello: &[u8]) -> Option<Range<usize>> {
    let session = vector(hello, RANDOM + RANDOM_LENGTH, 1)?;
    let cookie = vector(hello, session.end, 1)?;
    vector(hello, cookie.end, 2)
}

/// Range of a ClientHello's extensions.
pub(super) fn client_extensions(hello: &[u8]) -> Option<Range<usize>> {
    let compression = vector(hello, suites(hello)?.end, 1)?;
    vector(hello, compression.end, 2)
}

/// Range of a ServerHello's extensions.
pub(super) fn server_extensions(hello: &[u8]) -> Option<Range<usize>> {
    let session = vector(hello, RANDOM + RANDOM_LENGTH, 1)?;
    // After the suite and the compression.
    vector(hello, session.end + 3, 2)
}

/// The data of an extension in a list.
pub(super) fn extension(mut list: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let (this, after) = list.split_first_chunk()?;
        let said = vector(after, 0, 2)?;
        if u16::from_be_bytes(*this) == kind {
            return Some(&after[said]);
        }
        list = &after[said.end..];
    }
}

/// The extensions of a list, as far as it can be parsed: their types and ranges.
pub(super) fn extensions(list: &[u8]) -> impl Iterator<Item = (u16, Range<usize>)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let kind = u16::from_be_bytes(*list.get(at..)?.first_chunk()?);
        let said = vector(list, at + 2, 2)?;
        let range = at..said.end;
        at = said.end;
        Some((kind, range))
    })
}

/// A message with data appended to one of its lists, whose length has two bytes.
pub(super) fn with_more(message: &[u8], list: &Range<usize>, more: &[u8]) -> Vec<u8> {
    let (before, after) = message.split_at(list.end);
    let mut longer = [before, more, after].concat();
    for length in [1..4, HEADER - 3..HEADER, list.start - 2..list.start] {
        let length = &mut longer[length];
        let sum = (number(length) + more.len()).to_be_bytes();
        length.copy_from_slice(&sum[sum.len() - length.len()..]);
    }
    longer
}

/// Range of the vector whose length is in the `width` bytes at `at`.
fn vector(bytes: &[u8], at: usize, width: usize) -> Option<Range<usize>> {
    let begin = at + width;
    let range = begin..begin + number(bytes.get(at..begin)?);
    bytes.get(range.clone()).map(|_| range)
}

fn number(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
#[path = "hello_tests.rs"]
pub(super) mod tests;
