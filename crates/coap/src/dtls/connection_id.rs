//! Connection IDs (RFC 9146) at the server. Clients that put one into their records keep their session when their
//! address changes, for example behind a NAT that loses its mapping. dimpl 0.9 does not support them: its datagrams are
//! rewritten, and its cryptography gets the messages as they were on the wire ([`transcript`](super::transcript),
//! [`sealed`]).
//!
//! Only the client's records have an ID. A client that requests one in the server's records as well does not get the
//! extension, and has an ordinary session, and so has one that offers DTLS 1.3, or whose ClientHello is fragmented.

use dimpl::crypto::CryptoProvider;

use super::transcript::Changed;
use super::{cookie, hello, sealed};

/// The length of an ID.
pub(super) const LENGTH: usize = 8;
/// The ID in a client's records. Two clients of this process have the same one with a probability of 2^-64.
pub type ConnectionId = [u8; LENGTH];

/// The extension connection_id.
const EXTENSION: u16 = 54;
/// The extension supported_versions, of clients with DTLS 1.3.
const SUPPORTED_VERSIONS: u16 = 43;
/// The record type tls12_cid.
pub(super) const WITH_ID: u8 = 25;
/// Type, version, epoch and number of a record, which are before the ID.
const BEFORE_ID: usize = 11;
/// Record types.
const ALERT: u8 = 21;
const APPLICATION_DATA: u8 = 23;

/// The ID in a datagram's first record.
#[must_use]
pub fn connection_id(datagram: &[u8]) -> Option<ConnectionId> {
    let id = datagram.get(BEFORE_ID..)?.first_chunk()?;
    (datagram[0] == WITH_ID).then_some(*id)
}

/// Whether a datagram is the ClientHello of a client that requests an ID in its own records only.
pub(super) fn is_wanted(datagram: &[u8]) -> bool {
    hello::handshake_messages(datagram)
        .and_then(|messages| hello::first(messages, hello::CLIENT_HELLO))
        .is_some_and(|(hello, _)| wants(hello))
}

fn wants(hello: &[u8]) -> bool {
    let Some(offered) = hello::client_extensions(hello).map(|range| &hello[range]) else {
        return false;
    };
    hello::extension(offered, EXTENSION) == Some(&[0])
        && hello::extension(offered, SUPPORTED_VERSIONS).is_none()
}

/// The cryptography of a server whose datagrams [`granted`] and [`records`] rewrite.
pub(super) fn provider() -> CryptoProvider {
    static GRANTED: Changed = Changed(|messages| {
        let wire = cookie::on_the_wire(messages);
        transcript(wire.as_deref().unwrap_or(messages)).or(wire)
    });
    CryptoProvider { cipher_suites: sealed::suites(), ..GRANTED.server() }
}

/// A datagram that begins with a ServerHello, with the ID it grants.
pub(super) fn granted(datagram: &[u8]) -> Option<(Vec<u8>, ConnectionId)> {
    let (messages, id) = with_id(hello::handshake_messages(datagram)?)?;
    Some((hello::with_messages(datagram, &messages)?, id))
}

/// A handshake, with the ID that was granted.
fn transcript(messages: &[u8]) -> Option<Vec<u8>> {
    let (hello, after) = hello::first(messages, hello::CLIENT_HELLO)?;
    let (answer, _) = with_id(after).filter(|_| wants(hello))?;
    Some([hello, &answer].concat())
}

/// The messages from a ServerHello on, with the extension. The ID is part of the random in it, so that both ends know
/// it from the message. The random's first four bytes are the time, and the last eight may have a meaning (RFC 8446
/// section
/// 4.1.3).
fn with_id(messages: &[u8]) -> Option<(Vec<u8>, ConnectionId)> {
    let (hello, after) = hello::first(messages, hello::SERVER_HELLO)?;
    let id: ConnectionId = *hello::random(hello)?[8..].first_chunk()?;
    let [high, low] = EXTENSION.to_be_bytes();
    // The lengths of the extension's data and of the ID.
    let extension = [&[high, low, 0, LENGTH as u8 + 1, LENGTH as u8], &id[..]].concat();
    let hello = hello::with_more(hello, &hello::server_extensions(hello)?, &extension);
    Some(([&hello, after].concat(), id))
}

/// A datagram of a client with an ID, rewritten for dimpl.
pub(super) struct Records {
    /// The forms to try in order: a record's type is inside its encryption only (RFC 9146 section 4).
    pub(super) readings: Vec<Vec<u8>>,
    /// Epoch and number of the first record with the ID.
    pub(super) number: Option<u64>,
}

/// Reads a datagram. Encrypted records without the ID are dropped: it is in all of them (RFC 9146
/// section 3).
pub(super) fn records(datagram: &[u8], id: ConnectionId, open: bool) -> Records {
    let number = walk(datagram, id).find_map(|record| match record {
        Record::WithId { before, .. } => {
            before.last_chunk().map(|bytes| u64::from_be_bytes(*bytes))
        }
        Record::Plain(_) => None,
    });
    // Before the session is open, the end of the handshake follows, and dimpl would end the session after a record that
    // it cannot decrypt.
    let kinds: &[u8] = match number.is_some() && open {
        true => &[APPLICATION_DATA, ALERT, hello::HANDSHAKE],
        false => &[hello::HANDSHAKE],
    };
    let reading = |kind: &u8| {
        let mut reading = Vec::with_capacity(datagram.len());
        for record in walk(datagram, id) {
            match record {
                Record::Plain(record) => reading.extend_from_slice(record),
                Record::WithId { before, sealed } => {
                    reading.push(*kind);
                    reading.extend_from_slice(&before[1..]);
                    sealed::push(&mut reading, sealed, &id);
                }
            }
        }
        reading
    };
    let readings = kinds.iter().map(reading).filter(|reading| !reading.is_empty()).collect();
    Records { readings, number }
}

enum Record<'a> {
    /// A complete record that is not encrypted.
    Plain(&'a [u8]),
    /// The header before the ID, and the encrypted part.
    WithId { before: &'a [u8], sealed: &'a [u8] },
}

/// The records of a datagram that may be this client's, up to the first incomplete one.
fn walk(mut datagram: &[u8], id: ConnectionId) -> impl Iterator<Item = Record<'_>> {
    std::iter::from_fn(move || {
        loop {
            let with_id = *datagram.first()? == WITH_ID;
            let header = BEFORE_ID + if with_id { LENGTH } else { 0 };
            let length = u16::from_be_bytes(*datagram.get(header..)?.first_chunk()?);
            let (record, after) = datagram.split_at_checked(header + 2 + usize::from(length))?;
            datagram = after;
            let (before, sealed) = (&record[..BEFORE_ID], &record[header + 2..]);
            if with_id && record[BEFORE_ID..header] == id {
                return Some(Record::WithId { before, sealed });
            } else if !with_id && before[3..5] == [0; 2] {
                return Some(Record::Plain(record));
            }
        }
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::dtls::hello::tests::client_hello;

    const ID: ConnectionId = *b"a client";

    /// A ServerHello with one extension, and a ServerHelloDone.
    fn answer() -> Vec<u8> {
        let body =
            [&[0xfe, 0xfd][..], &[7; 8], &ID, &[9; 16], &[0, 0xc0, 0xa8, 0, 0, 4, 0, 23, 0, 0]];
        let body = body.concat();
        let length = u8::try_from(body.len()).unwrap();
        let mut messages = vec![hello::SERVER_HELLO, 0, 0, length, 0, 1, 0, 0, 0, 0, 0, length];
        messages.extend(body);
        messages.extend([14, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0]);
        let header = [hello::HANDSHAKE, 0xfe, 0xfd, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0];
        hello::with_messages(&header, &messages).unwrap()
    }

    fn with_id(number: u8, id: &[u8], sealed: &[u8]) -> Vec<u8> {
        let mut record = vec![WITH_ID, 0xfe, 0xfd, 0, 1, 0, 0, 0, 0, 0, number];
        record.extend(id);
        record.extend(u16::try_from(sealed.len()).unwrap().to_be_bytes());
        record.extend(sealed);
        record
    }

    #[test]
    fn who_wants_an_id_in_its_own_records_alone_is_granted_one() {
        let wants = [0, 23, 0, 0, 0, 54, 0, 1, 0];
        assert!(is_wanted(&client_hello(&wants)));
        let both = [0, 54, 0, 3, 2, 1, 2];
        let newer = [0, 54, 0, 1, 0, 0, 43, 0, 3, 2, 0xfe, 0xfc];
        for others in [&[][..], &[0, 23, 0, 0], &both, &newer, &[0, 54, 0, 9, 0]] {
            assert!(!is_wanted(&client_hello(others)), "{others:?}");
        }
    }

    #[test]
    fn what_is_granted_is_sent_and_hashed_alike() {
        let plain = answer();
        let (datagram, id) = granted(&plain).unwrap();
        assert_eq!(id, ID);
        let sent = hello::handshake_messages(&datagram).unwrap();
        let (answer, after) = hello::first(sent, hello::SERVER_HELLO).unwrap();
        let list = &answer[hello::server_extensions(answer).unwrap()];
        assert_eq!(hello::extension(list, EXTENSION), Some(&[&[8], &ID[..]].concat()[..]));
        assert_eq!(hello::extension(list, 23), Some(&[][..]));
        assert_eq!(after[0], 14);
        let asked = client_hello(&[0, 54, 0, 1, 0]);
        let asked = hello::handshake_messages(&asked).unwrap();
        let handshake = [asked, hello::handshake_messages(&plain).unwrap()].concat();
        assert_eq!(transcript(&handshake), Some([asked, sent].concat()));
        let asked = client_hello(&[]);
        let handshake = [hello::handshake_messages(&asked).unwrap(), sent].concat();
        assert_eq!(transcript(&handshake), None, "it was not asked for");
    }

    #[test]
    fn records_are_what_they_may_be() {
        let plain = [20, 0xfe, 0xfd, 0, 0, 0, 0, 0, 0, 0, 5, 0, 1, 1];
        let mut encrypted = plain;
        encrypted[4] = 1;
        let other = with_id(7, b"somebody", &[1; 30]);
        let datagram = [&plain[..], &encrypted, &other, &with_id(8, &ID, &[2; 30])].concat();
        assert_eq!(connection_id(&datagram), None);
        assert_eq!(connection_id(&datagram[28..]), Some(*b"somebody"));
        for (open, kinds) in [(false, &[22][..]), (true, &[23, 21, 22])] {
            let read = records(&datagram, ID, open);
            assert_eq!(read.number, Some(1 << 48 | 8));
            let expected = kinds.iter().map(|kind| {
                let header = [*kind, 0xfe, 0xfd, 0, 1, 0, 0, 0, 0, 0, 8, 0, 38];
                [&plain[..], &header, &[2; 30], &ID].concat()
            });
            assert_eq!(read.readings, expected.collect::<Vec<_>>());
        }
        // Incomplete records are dropped.
        let whole = with_id(8, &ID, &[2; 30]);
        for end in 0..whole.len() {
            let read = records(&whole[..end], ID, true);
            assert!(read.readings.is_empty() && read.number.is_none(), "{end} bytes");
        }
    }

    proptest::proptest! {
        /// Any number of records, complete or not, of this client and of others.
        #[test]
        fn whatever_comes_is_read_within_bounds(
            parts in proptest::collection::vec((0..4, proptest::collection::vec(0_u8.., 0..60)), 0..6),
            open in proptest::bool::ANY,
        ) {
            let mut datagram = Vec::new();
            for (kind, bytes) in &parts {
                match kind {
                    0 => datagram.extend(with_id(1, &ID, bytes)),
                    1 => datagram.extend(with_id(2, b"somebody", bytes)),
                    2 => datagram.extend(client_hello(bytes)),
                    _ => datagram.extend(bytes),
                }
            }
            let read = records(&datagram, ID, open);
            proptest::prop_assert!(read.readings.len() <= 3);
            for reading in read.readings {
                proptest::prop_assert!(reading.len() <= datagram.len());
            }
            is_wanted(&datagram);
            granted(&datagram);
            transcript(&datagram);
        }
    }
}
