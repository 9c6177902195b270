//! The cookie exchange (RFC 6347 section 4.2.1): a client must first prove that it receives datagrams at its address.
//! Until then nothing is stored about it, and only one HMAC is computed.
//!
//! dimpl can request cookies, but needs a session per address for that. The exchange therefore takes place here. When
//! it succeeds, a session is created, which gets the same ClientHello twice: without a cookie, and with the cookie that
//! dimpl requests. The client's own cookie is moved to an extension after all others, and put back in its place
//! wherever the handshake is hashed ([`on_the_wire`]).

use std::time::{Duration, Instant};

use ring::hmac;
use ring::rand::SystemRandom;

use super::hello::{self, Parts};

/// Time for which a secret is used for new cookies; they are valid for as long again.
const TURN: Duration = Duration::from_secs(60);
/// Sessions per second, and at once, for clients whose address is not validated: those that offer DTLS 1.3, which has
/// another exchange, and those whose ClientHello is fragmented.
const UNPROVEN_A_SECOND: u32 = 4;
const UNPROVEN_AT_ONCE: u32 = 16;

/// The extension supported_versions, which clients with DTLS 1.3 send.
const SUPPORTED_VERSIONS: u16 = 43;
/// An unassigned extension number, which servers ignore.
const NOBODYS: u16 = 0xFC00;
/// Extensions with a client's cookie, with and without others.
const AFTER_OTHERS: u16 = 0xFC01;
const ALONE: u16 = 0xFC02;

/// Treatment of a ClientHello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send this to the source address, and drop the ClientHello.
    Ask(Vec<u8>),
    /// The client's address is validated.
    Proven,
    /// The client's address is not validated; a session may be created nevertheless.
    Unproven,
    /// Drop the ClientHello.
    Drop,
}

/// Decides which clients get a session of a server.
#[derive(Debug)]
pub struct CookieExchange {
    random: SystemRandom,
    /// The current secret and the previous one.
    secrets: [hmac::Key; 2],
    turned: Instant,
    /// Sessions that may be created without a cookie, and when that number was computed.
    unproven: f64,
    reckoned: Instant,
}

impl CookieExchange {
    /// A cookie exchange with its own secrets; `None` without random numbers.
    #[must_use]
    pub fn new(now: Instant) -> Option<CookieExchange> {
        let random = SystemRandom::new();
        let secret = || hmac::Key::generate(hmac::HMAC_SHA256, &random).ok();
        let secrets = [secret()?, secret()?];
        let unproven = f64::from(UNPROVEN_AT_ONCE);
        Some(CookieExchange { random, secrets, turned: now, unproven, reckoned: now })
    }

    /// Checks a datagram that begins with a ClientHello; `peer` is the source address as bytes.
    pub fn check(&mut self, now: Instant, peer: &[u8], datagram: &[u8]) -> Verdict {
        self.turn(now);
        let hello = hello::handshake_messages(datagram)
            .and_then(|messages| hello::first(messages, hello::CLIENT_HELLO))
            .and_then(|(hello, _)| hello::parts(hello));
        let Some(parts) = hello else { return self.accept_unproven(now).unwrap_or(Verdict::Drop) };
        let is_right = |secret: &hmac::Key| {
            hmac::verify(secret, &cookie_input(peer, &parts), parts.cookie).is_ok()
        };
        if self.secrets.iter().any(is_right) {
            return Verdict::Proven;
        }
        let list = parts.extensions.unwrap_or_default();
        if parts.cookie.is_empty()
            && hello::extension(list, SUPPORTED_VERSIONS).is_some()
            && let Some(verdict) = self.accept_unproven(now)
        {
            return verdict;
        }
        let cookie = hmac::sign(&self.secrets[0], &cookie_input(peer, &parts));
        request(datagram, cookie.as_ref()).map_or(Verdict::Drop, Verdict::Ask)
    }

    fn turn(&mut self, now: Instant) {
        while now.saturating_duration_since(self.turned) >= TURN {
            // Without random numbers the old ones stay: they are still secret.
            if let Ok(next) = hmac::Key::generate(hmac::HMAC_SHA256, &self.random) {
                self.secrets = [next, self.secrets[0].clone()];
            }
            // After two turns none of the old secrets is left.
            let behind = now.saturating_duration_since(self.turned);
            self.turned = if behind > 2 * TURN { now - TURN } else { self.turned + TURN };
        }
    }

    fn accept_unproven(&mut self, now: Instant) -> Option<Verdict> {
        let gone = now.saturating_duration_since(self.reckoned).as_secs_f64();
        let more = self.unproven + gone * f64::from(UNPROVEN_A_SECOND);
        (self.unproven, self.reckoned) = (more.min(f64::from(UNPROVEN_AT_ONCE)), now);
        (self.unproven >= 1.0).then(|| {
            self.unproven -= 1.0;
            Verdict::Unproven
        })
    }
}

/// The input of a cookie: the address, and the fields that a client repeats (RFC 6347 section 4.2.1).
fn cookie_input(peer: &[u8], parts: &Parts<'_>) -> Vec<u8> {
    let length = (peer.len() as u64).to_be_bytes();
    [&length, peer, parts.version_random_session, parts.suites_and_compression].concat()
}

/// A HelloVerifyRequest, in answer to a ClientHello.
fn request(datagram: &[u8], cookie: &[u8]) -> Option<Vec<u8>> {
    // The version is always DTLS 1.0 here.
    let body = [&[0xFE, 0xFF, u8::try_from(cookie.len()).ok()?], cookie].concat();
    let message = hello::message(hello::HELLO_VERIFY_REQUEST, 0, &body)?;
    let mut header = [hello::HANDSHAKE, 0xFE, 0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    hello::renumber(&mut header, hello::record_number(datagram)?);
    hello::with_messages(&header, &message)
}

/// A datagram with the ClientHello of a validated client, as if it had no cookie, and as if the client had only DTLS
/// 1.2, because the exchange was that of DTLS 1.2.
pub(super) fn unasked(datagram: &[u8]) -> Option<Vec<u8>> {
    let (hello, _) = hello::first(hello::handshake_messages(datagram)?, hello::CLIENT_HELLO)?;
    let parts = hello::parts(hello)?;
    let extensions = parts.extensions.map(|list| {
        let mut list = list.to_vec();
        let versions = hello::extensions(&list).find(|(kind, _)| *kind == SUPPORTED_VERSIONS);
        let at = versions.map(|(_, range)| range.start);
        if let Some(kind) = at.and_then(|at| list.get_mut(at..at + 2)) {
            kind.copy_from_slice(&NOBODYS.to_be_bytes());
        }
        list
    });
    let plain = Parts { cookie: &[], extensions: extensions.as_deref(), ..parts };
    let mut datagram = hello::with_messages(datagram, &hello::client_hello(&plain, 0)?)?;
    hello::renumber(&mut datagram, 0);
    Some(datagram)
}

/// The same datagram with the cookie that dimpl has requested, and the client's in an extension.
pub(super) fn answering(datagram: &[u8], asked: &[u8]) -> Option<Vec<u8>> {
    let (hello, after) = hello::first(hello::handshake_messages(datagram)?, hello::CLIENT_HELLO)?;
    let parts = hello::parts(hello)?;
    let kind = if parts.extensions.is_some() { AFTER_OTHERS } else { ALONE };
    let length = u16::try_from(parts.cookie.len()).ok()?.to_be_bytes();
    let list = parts.extensions.unwrap_or_default();
    let list = [list, &kind.to_be_bytes(), &length, parts.cookie].concat();
    let carrying = Parts { cookie: asked, extensions: Some(&list), ..parts };
    let number = u16::from_be_bytes(*hello.get(4..)?.first_chunk()?);
    let messages = [&hello::client_hello(&carrying, number)?, after].concat();
    let mut datagram = hello::with_messages(datagram, &messages)?;
    // After the one without a cookie, whose number is 0.
    let number = hello::record_number(&datagram)?.max(1);
    hello::renumber(&mut datagram, number);
    Some(datagram)
}

/// A handshake as its client has it, from the form of [`answering`].
pub(super) fn on_the_wire(messages: &[u8]) -> Option<Vec<u8>> {
    let (hello, after) = hello::first(messages, hello::CLIENT_HELLO)?;
    let parts = hello::parts(hello)?;
    let list = parts.extensions?;
    let (kind, range) = hello::extensions(list).last()?;
    if kind != AFTER_OTHERS && kind != ALONE {
        return None;
    }
    let cookie = list.get(range.start + 4..range.end)?;
    let extensions = (kind == AFTER_OTHERS).then_some(&list[..range.start]);
    let number = u16::from_be_bytes(*hello.get(4..)?.first_chunk()?);
    let original = hello::client_hello(&Parts { cookie, extensions, ..parts }, number)?;
    Some([&original, after].concat())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::dtls::hello::tests::client_hello;

    /// The same datagram with this cookie, as a client repeats it.
    fn with_cookie(datagram: &[u8], cookie: &[u8]) -> Vec<u8> {
        let (hello, _) =
            hello::first(hello::handshake_messages(datagram).unwrap(), hello::CLIENT_HELLO)
                .unwrap();
        let parts = Parts { cookie, ..hello::parts(hello).unwrap() };
        let hello = hello::client_hello(&parts, 1).unwrap();
        hello::with_messages(datagram, &hello).unwrap()
    }

    fn asked(verdict: &Verdict) -> Vec<u8> {
        let Verdict::Ask(request) = verdict else { panic!("not asked: {verdict:?}") };
        hello::requested_cookie(request).unwrap().to_vec()
    }

    #[test]
    fn who_gets_what_is_sent_to_its_address_is_proven() {
        let now = Instant::now();
        let mut cookies = CookieExchange::new(now).unwrap();
        let first = with_cookie(&client_hello(&[0, 23, 0, 0]), &[]);
        let verdict = cookies.check(now, b"here", &first);
        let cookie = asked(&verdict);
        let Verdict::Ask(request) = &verdict else { unreachable!() };
        assert!(request.len() < first.len(), "nobody is sent more than came");
        assert_eq!(hello::record_number(request), hello::record_number(&first));
        let again = with_cookie(&first, &cookie);
        assert_eq!(cookies.check(now, b"here", &again), Verdict::Proven);
        asked(&cookies.check(now, b"elsewhere", &again));
        let mut other = again.clone();
        // Its random.
        other[13 + 14] ^= 1;
        asked(&cookies.check(now, b"here", &other));
        // Cookies are valid for some time.
        assert_eq!(cookies.check(now + TURN, b"here", &again), Verdict::Proven);
        asked(&cookies.check(now + 2 * TURN, b"here", &again));
        asked(&cookies.check(now + 20 * TURN, b"here", &again));
    }

    #[test]
    fn few_sessions_are_made_for_who_cannot_be_asked() {
        let now = Instant::now();
        let mut cookies = CookieExchange::new(now).unwrap();
        let newer = with_cookie(&client_hello(&[0, 43, 0, 3, 2, 0xFE, 0xFC]), &[]);
        let mut fragment = newer.clone();
        // The length of the fragment.
        fragment[13 + 11] -= 1;
        let mut count = |datagram: &[u8], now| {
            let verdicts = (0..100).map(|_| cookies.check(now, b"here", datagram));
            verdicts.filter(|verdict| *verdict == Verdict::Unproven).count()
        };
        assert_eq!(count(&newer, now), UNPROVEN_AT_ONCE as usize);
        assert_eq!(count(&fragment, now + Duration::from_secs(1)), UNPROVEN_A_SECOND as usize);
        // A client with both versions continues with the older one.
        asked(&cookies.check(now + Duration::from_secs(1), b"here", &newer));
        let later = now + Duration::from_secs(1);
        assert_eq!(cookies.check(later, b"here", &fragment), Verdict::Drop);
    }

    #[test]
    fn the_handshake_is_hashed_as_it_was_on_the_wire() {
        let mut bare = client_hello(&[]);
        // Without the list of extensions, which is empty.
        bare.truncate(bare.len() - 2);
        for at in [12, 13 + 3, 13 + 11] {
            bare[at] -= 2;
        }
        for datagram in [client_hello(&[]), client_hello(&[0, 54, 0, 1, 0]), bare] {
            let inner = answering(&datagram, &[5; 32]).unwrap();
            let (hello, _) =
                hello::first(hello::handshake_messages(&inner).unwrap(), hello::CLIENT_HELLO)
                    .unwrap();
            assert_eq!(hello::parts(hello).unwrap().cookie, [5; 32]);
            let handshake = [hello, b"and the rest"].concat();
            let sent = hello::handshake_messages(&datagram).unwrap();
            let expected = [sent, b"and the rest"].concat();
            assert_eq!(on_the_wire(&handshake), Some(expected));
            let plain = unasked(&datagram).unwrap();
            let (hello, _) =
                hello::first(hello::handshake_messages(&plain).unwrap(), hello::CLIENT_HELLO)
                    .unwrap();
            assert!(hello::parts(hello).unwrap().cookie.is_empty());
        }
    }

    proptest::proptest! {
        #[test]
        fn whatever_comes_is_read_within_bounds(
            extensions in proptest::collection::vec(0_u8.., 0..60),
            cut in 0_usize..120,
            junk in proptest::collection::vec(0_u8.., 0..80),
        ) {
            let now = Instant::now();
            let mut cookies = CookieExchange::new(now).unwrap();
            let mut datagram = client_hello(&extensions);
            for bytes in [&datagram.clone()[..], &datagram[..cut.min(datagram.len())], &junk] {
                cookies.check(now, b"here", bytes);
                unasked(bytes);
                answering(bytes, &[1; 32]);
                on_the_wire(bytes);
                hello::requested_cookie(bytes);
            }
            hello::add_to_record_numbers(&mut datagram, u64::MAX);
        }
    }
}
