//! The client's sign that it knows of secure renegotiation, without which some servers refuse it (tinydtls unless told
//! otherwise): the signalling suite TLS_EMPTY_RENEGOTIATION_INFO_SCSV (RFC 5746 section 3.3) at the end of the suites a
//! ClientHello offers. Nobody renegotiates: dimpl refuses to (RFC 7925 section 17).
//!
//! dimpl 0.9 has neither the suite nor the extension in its ClientHello for DTLS 1.2, and no suites but its own can be
//! given to it. So the suite is written into what it sends ([`told`]) and, the same, into what a client hashes
//! and signs of the handshake ([`provider`]): what both ends compare is what was on the wire. Were the two different,
//! no handshake would succeed; nothing weaker could come of it. A ClientHello that has the suite stays as it is.

use std::ops::Range;

use dimpl::CryptoError;
use dimpl::crypto::{
    Buf, CryptoProvider, HashAlgorithm, HashContext, HashProvider, KeyProvider, SignatureAlgorithm,
    SigningKey, rust_crypto,
};

/// The record type of handshakes.
const HANDSHAKE: u8 = 22;
/// The length of a record's header, whose last two bytes tell the length of what follows.
const RECORD_HEADER: usize = 13;
/// The message type of a ClientHello.
const CLIENT_HELLO: u8 = 1;
/// The length of a handshake message's header: type, length, number, offset and length of the fragment.
const MESSAGE_HEADER: usize = 12;
/// A ClientHello's version and random.
const VERSION_AND_RANDOM: usize = 34;
/// TLS_EMPTY_RENEGOTIATION_INFO_SCSV.
const SUITE: [u8; 2] = [0x00, 0xff];

/// The datagram, with the suite if it is a ClientHello.
pub(super) fn told(datagram: Vec<u8>) -> Vec<u8> {
    let longer = datagram
        .split_at_checked(RECORD_HEADER)
        .filter(|(header, _)| header.first() == Some(&HANDSHAKE))
        .and_then(|(header, messages)| Some((header, with_suite(messages)?)));
    let Some((header, messages)) = longer else { return datagram };
    let mut record = [header, &messages].concat();
    lengthen(&mut record[RECORD_HEADER - 2..RECORD_HEADER]);
    record
}

/// What dimpl's own cryptography is, but hashing and signing a handshake as [`told`] sent it.
pub(super) fn provider() -> CryptoProvider {
    CryptoProvider { hash_provider: &Told, key_provider: &Told, ..rust_crypto::default_provider() }
}

/// The messages, with the suite if the first of them is a ClientHello without.
fn with_suite(messages: &[u8]) -> Option<Vec<u8>> {
    let list = suites(messages)?;
    if messages[list.clone()].chunks_exact(2).any(|suite| suite == SUITE) {
        return None;
    }
    let (before, after) = messages.split_at(list.end);
    let mut longer = [before, &SUITE, after].concat();
    for length in [1..4, MESSAGE_HEADER - 3..MESSAGE_HEADER, list.start - 2..list.start] {
        lengthen(&mut longer[length]);
    }
    Some(longer)
}

/// Where the first message has the suites it offers, if it is a whole ClientHello.
fn suites(messages: &[u8]) -> Option<Range<usize>> {
    let header = messages.get(..MESSAGE_HEADER)?;
    let whole = header[6..9] == [0; 3] && header[1..4] == header[9..];
    if header[0] != CLIENT_HELLO || !whole {
        return None;
    }
    let mut at = MESSAGE_HEADER + VERSION_AND_RANDOM;
    // The session's identifier, then the cookie: a byte of length each.
    for _ in 0..2 {
        at += 1 + usize::from(*messages.get(at)?);
    }
    let length = messages.get(at..)?.first_chunk()?;
    let list = at + 2..at + 2 + usize::from(u16::from_be_bytes(*length));
    messages.get(list.clone()).map(|_| list)
}

/// Adds the suite's length to a length.
fn lengthen(length: &mut [u8]) {
    let mut more = 2;
    for byte in length.iter_mut().rev() {
        let (sum, over) = byte.overflowing_add(more);
        *byte = sum;
        more = u8::from(over);
    }
}

/// Hashes and signs what [`told`] sent.
#[derive(Debug)]
struct Told;

impl HashProvider for Told {
    fn create_hash(&self, algorithm: HashAlgorithm) -> Box<dyn HashContext> {
        let inner = rust_crypto::default_provider().hash_provider.create_hash(algorithm);
        Box::new(Hash { inner, begun: false })
    }
}

impl KeyProvider for Told {
    fn load_private_key(&self, key: &[u8]) -> Result<Box<dyn SigningKey>, CryptoError> {
        let inner = rust_crypto::default_provider().key_provider.load_private_key(key)?;
        Ok(Box::new(Key(inner)))
    }
}

#[derive(Debug)]
struct Hash {
    inner: Box<dyn HashContext>,
    /// A handshake has one ClientHello, at its beginning.
    begun: bool,
}

impl HashContext for Hash {
    fn update(&mut self, data: &[u8]) {
        let longer = if self.begun { None } else { with_suite(data) };
        self.begun = true;
        self.inner.update(longer.as_deref().unwrap_or(data));
    }

    fn clone_and_finalize(&self, out: &mut Buf) {
        self.inner.clone_and_finalize(out);
    }
}

#[derive(Debug)]
struct Key(Box<dyn SigningKey>);

impl SigningKey for Key {
    fn sign(
        &mut self,
        data: &[u8],
        algorithm: HashAlgorithm,
        out: &mut Buf,
    ) -> Result<(), CryptoError> {
        self.0.sign(with_suite(data).as_deref().unwrap_or(data), algorithm, out)
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.0.algorithm()
    }

    fn hash_algorithm(&self) -> HashAlgorithm {
        self.0.hash_algorithm()
    }

    fn supported_hash_algorithms(&self) -> &[HashAlgorithm] {
        self.0.supported_hash_algorithms()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A record with a ClientHello that has a cookie, offers TLS_PSK_WITH_AES_128_CCM_8 and has `rest` bytes more.
    fn hello(rest: u8) -> Vec<u8> {
        let mut body = vec![0xfe, 0xfd];
        body.extend([7; 32]);
        body.extend([0, 3, 1, 2, 3, 0, 2, 0xc0, 0xa8, 1, 0]);
        body.extend(vec![9; usize::from(rest)]);
        let length = u8::try_from(body.len()).unwrap();
        let mut record = vec![22, 0xfe, 0xfd, 0, 0, 0, 0, 0, 0, 0, 1];
        record.extend((u16::from(length) + 12).to_be_bytes());
        record.extend([1, 0, 0, length, 0, 1, 0, 0, 0, 0, 0, length]);
        record.extend(body);
        record
    }

    #[test]
    fn the_suite_is_the_last_one_and_lengths_are_right() {
        // With 198 and 209 more, the length of the record and that of the message get their second byte.
        for rest in [0, 198, 209] {
            let before = hello(rest);
            let after = told(before.clone());
            assert_eq!(after.len(), before.len() + 2);
            let at = RECORD_HEADER + MESSAGE_HEADER + VERSION_AND_RANDOM + 5;
            assert_eq!(after[at..at + 8], [0, 4, 0xc0, 0xa8, 0x00, 0xff, 1, 0]);
            assert_eq!(after[at + 8..], vec![9; usize::from(rest)]);
            let length = |range: Range<usize>| {
                after[range].iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
            };
            assert_eq!(length(11..13), after.len() - RECORD_HEADER);
            for message in [14..17, 22..25] {
                assert_eq!(length(message), after.len() - RECORD_HEADER - MESSAGE_HEADER);
            }
            assert_eq!(told(after.clone()), after, "it is told once");
        }
    }

    #[test]
    fn all_else_stays_as_it_is() {
        let whole = hello(0);
        let changed = |at: usize, byte: u8| {
            let mut changed = whole.clone();
            changed[at] = byte;
            changed
        };
        let others = [
            ("application data", changed(0, 23)),
            ("another message", changed(RECORD_HEADER, 2)),
            ("a later fragment", changed(RECORD_HEADER + 8, 1)),
            ("a first fragment", changed(RECORD_HEADER + 11, 1)),
            ("a list beyond the end", changed(RECORD_HEADER + MESSAGE_HEADER + 40, 200)),
        ];
        for (what, datagram) in others {
            assert_eq!(told(datagram.clone()), datagram, "{what}");
        }
        for end in 0..RECORD_HEADER + MESSAGE_HEADER + 43 {
            assert_eq!(told(whole[..end].to_vec()), whole[..end], "{end} bytes of it");
        }
    }
}
