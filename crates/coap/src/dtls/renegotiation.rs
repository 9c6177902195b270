//! The client's signal that it supports secure renegotiation, without which some servers refuse it (tinydtls by
//! default): the signalling suite TLS_EMPTY_RENEGOTIATION_INFO_SCSV (RFC 5746 section 3.3) as the last suite of the
//! ClientHello. There is no renegotiation: dimpl refuses it (RFC 7925 section 17).
//!
//! dimpl 0.9 has neither the suite nor the extension in its ClientHello for DTLS 1.2, and cannot be given other suites.
//! A ClientHello with the suite is not changed.

use dimpl::crypto::CryptoProvider;

use super::hello;
use super::transcript::Changed;

/// TLS_EMPTY_RENEGOTIATION_INFO_SCSV.
const SUITE: [u8; 2] = [0x00, 0xff];

/// A datagram that begins with a ClientHello, with the suite.
pub(super) fn add_suite(datagram: &[u8]) -> Option<Vec<u8>> {
    hello::with_messages(datagram, &with_suite(hello::handshake_messages(datagram)?)?)
}

/// The cryptography of a client whose datagrams [`add_suite`] rewrites.
pub(super) fn provider() -> CryptoProvider {
    static WITH_SUITE: Changed = Changed(with_suite);
    WITH_SUITE.client()
}

/// The messages, with the suite if the first of them is a ClientHello without.
fn with_suite(messages: &[u8]) -> Option<Vec<u8>> {
    let (hello, after) = hello::first(messages, hello::CLIENT_HELLO)?;
    let list = hello::suites(hello)?;
    if hello[list.clone()].chunks_exact(SUITE.len()).any(|suite| suite == SUITE) {
        return None;
    }
    Some([&hello::with_more(hello, &list, &SUITE), after].concat())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::dtls::hello::tests::client_hello;

    #[test]
    fn the_suite_is_the_last_one_and_told_once() {
        let before = client_hello(&[0, 23, 0, 0]);
        let after = add_suite(&before).unwrap();
        let (hello, _) =
            hello::first(hello::handshake_messages(&after).unwrap(), hello::CLIENT_HELLO).unwrap();
        assert_eq!(hello[hello::suites(hello).unwrap()], [0xc0, 0xa8, 0x00, 0xff]);
        assert_eq!(after.len(), before.len() + SUITE.len());
        assert_eq!(add_suite(&after), None);
    }

    #[test]
    fn only_client_hellos_are_changed() {
        let mut other = client_hello(&[]);
        // The type of the message.
        other[13] = 16;
        assert_eq!(add_suite(&other), None);
        // The type of the record.
        other[0] = 23;
        assert_eq!(add_suite(&other), None);
    }
}
