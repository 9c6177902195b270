//! Handshakes with a server of a few lines, made of the client's own key schedule, for what servers in
//! libraries do not do when asked: HelloRetryRequest (RFC 8446, section 4.1.4), with and without a ticket.
//! tests/interop has it with aioquic's TLS, over a network.
#![allow(clippy::unwrap_used)]

use ed25519_dalek::{Signer, SigningKey};

use super::*;
use crate::{Resume, Session, limits};

const COOKIE: &[u8] = b"a cookie that only the server understands";
const PSK: Hash = [8; HASH_BYTES];

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32).to_be_bytes();
    [&[kind], &length[1..], body].concat()
}

fn extension_of(number: u16, content: &[u8]) -> Vec<u8> {
    [&number.to_be_bytes()[..], &(content.len() as u16).to_be_bytes(), content].concat()
}

fn server_hello(random: &[u8; 32], extensions: &[Vec<u8>]) -> Vec<u8> {
    let extensions = extensions.concat();
    let length = (extensions.len() as u16).to_be_bytes();
    message(
        SERVER_HELLO,
        &[&[3, 3][..], random, &[0, 0x13, 0x01, 0], &length, &extensions].concat(),
    )
}

fn version() -> Vec<u8> {
    extension_of(extension::SUPPORTED_VERSIONS, &[3, 4])
}

fn retry(extensions: &[Vec<u8>]) -> Vec<u8> {
    let random = crate::crypto::sha256(&[b"HelloRetryRequest"]);
    server_hello(&random, &[&[version()], extensions].concat())
}

fn cookie() -> Vec<u8> {
    let length = (COOKIE.len() as u16).to_be_bytes();
    extension_of(extension::COOKIE, &[&length, COOKIE].concat())
}

/// The content of one of a ClientHello's extensions.
fn content(hello: &[u8], number: u16) -> Option<Vec<u8>> {
    let mut reader = Reader::new(hello);
    reader.bytes(HEADER_BYTES + 34).unwrap();
    reader.block8().unwrap();
    reader.block16().unwrap();
    reader.block8().unwrap();
    let mut found = None;
    each_extension(reader.block16().unwrap(), |this, value| {
        if this == number {
            found = Some(value.rest().to_vec());
        }
        Some(Ok(()))
    })
    .unwrap();
    found
}

/// A client that has said hello, and its memory for that.
struct Client {
    tls: Tls,
    memory: [u8; limits::HELLO_BYTES],
    signing: SigningKey,
}

impl Client {
    fn start(with_ticket: bool) -> Self {
        let signing = SigningKey::from_bytes(&[5; 32]);
        let public = signing.verifying_key().to_bytes();
        let resume = Resume { ticket: &[], age_ms: 7, early_data: true };
        let options = Options {
            server_name: "broker.example",
            trust: Trust::Ed25519(&public),
            resume: with_ticket.then_some(resume),
            session: Session::default(),
        };
        let limits = SendLimits::default();
        let identity = &[4; 40];
        let ticket =
            Ticket { lifetime_s: 100, age_add: 3, early: true, limits, psk: PSK, identity };
        let mut client = Self { tls: Tls::new(), memory: [0; limits::HELLO_BYTES], signing };
        let (key, ticket) = (KeyPair::new(&[6; 32]), with_ticket.then_some(&ticket));
        client.tls.start(&options, ticket, &key, &[7; 32], 30_000, &mut client.memory).unwrap();
        client
    }

    fn hello(&self) -> Vec<u8> {
        self.memory[..self.tls.hello_len()].to_vec()
    }

    fn hear<'a>(&mut self, space: Space, message: &'a [u8]) -> Result<Progress<'a>, Alert> {
        self.tls.message(space, message, &mut self.memory)
    }
}

/// The server's half of a handshake whose messages so far are `said`.
fn answer(client: &mut Client, mut said: Vec<u8>, resumed: bool) {
    let share = content(&client.hello(), extension::KEY_SHARE).unwrap();
    let client_public: [u8; 32] = share[6..].try_into().unwrap();
    let ours = KeyPair::new(&[9; 32]);
    let mut extensions = vec![version()];
    extensions
        .push(extension_of(extension::KEY_SHARE, &[&[0, 29, 0, 32][..], &ours.public].concat()));
    if resumed {
        extensions.push(extension_of(extension::PRE_SHARED_KEY, &[0, 0]));
    }
    let hash = |said: &[u8]| crate::crypto::sha256(&[said]);
    let hello = server_hello(&[1; 32], &extensions);
    assert!(matches!(client.hear(Space::Initial, &hello), Ok(Progress::HandshakeSecrets)));
    said.extend(&hello);

    let early = hmac(&[], &[if resumed { &PSK } else { &[0; HASH_BYTES] }]);
    let shared = x25519_dalek::x25519(ours.secret, client_public);
    let handshake = hmac(&derive_secret(&early, "derived", &EMPTY_HASH), &[&shared]);
    let server = derive_secret(&handshake, "s hs traffic", &hash(&said));

    let parameters = extension_of(extension::QUIC_TRANSPORT_PARAMETERS, b"parameters");
    let list = [extension_of(extension::ALPN, b"\0\x05\x04mqtt"), parameters].concat();
    let length = (list.len() as u16).to_be_bytes();
    let encrypted = message(ENCRYPTED_EXTENSIONS, &[&length[..], &list].concat());
    let heard = client.hear(Space::Handshake, &encrypted);
    assert!(matches!(heard, Ok(Progress::Parameters(b"parameters"))));
    said.extend(&encrypted);
    if !resumed {
        let certificate = message(CERTIFICATE, b"\0\0\0\0");
        assert!(matches!(client.hear(Space::Handshake, &certificate), Ok(Progress::More)));
        said.extend(&certificate);
        let mut signed = vec![b' '; 64];
        signed.extend(b"TLS 1.3, server CertificateVerify\0");
        signed.extend(hash(&said));
        let signature = client.signing.sign(&signed).to_bytes();
        let verify = message(CERTIFICATE_VERIFY, &[&[8, 7, 0, 64], &signature[..]].concat());
        assert!(matches!(client.hear(Space::Handshake, &verify), Ok(Progress::More)));
        said.extend(&verify);
    }
    let finished = message(FINISHED, &verify_data(&server, &hash(&said)));
    assert!(matches!(client.hear(Space::Handshake, &finished), Ok(Progress::Done)));
    said.extend(&finished);
    let master = hmac(&derive_secret(&handshake, "derived", &EMPTY_HASH), &[&[0; HASH_BYTES]]);
    assert_eq!(client.tls.server, derive_secret(&master, "s ap traffic", &hash(&said)));
    assert_eq!(client.tls.resumed, resumed);
}

/// A retry has been heard; gives what has been said, as the transcript has it.
fn asked_again(client: &mut Client) -> Vec<u8> {
    let first = client.hello();
    let retry = retry(&[cookie()]);
    assert!(matches!(client.hear(Space::Initial, &retry), Ok(Progress::HelloAgain)));
    let second = client.hello();
    for same in [extension::KEY_SHARE, extension::SERVER_NAME, extension::ALPN] {
        assert_eq!(content(&first, same), content(&second, same), "extension {same}");
    }
    let expected = cookie()[4..].to_vec();
    assert_eq!(content(&second, extension::COOKIE), Some(expected));
    assert_eq!(content(&second, extension::EARLY_DATA), None);
    assert!(!client.tls.early_data);
    let mut said = message(MESSAGE_HASH, &crate::crypto::sha256(&[&first]));
    said.extend(&retry);
    said.extend(&second);
    said
}

#[test]
fn a_cookie_leads_to_a_handshake() {
    let mut client = Client::start(false);
    let said = asked_again(&mut client);
    answer(&mut client, said, false);
}

#[test]
fn a_ticket_survives_a_cookie_but_early_data_does_not() {
    for resumed in [true, false] {
        let mut client = Client::start(true);
        assert!(client.tls.early_data);
        let said = asked_again(&mut client);
        // The binder is over all that was said, the list of binders excepted (section 4.2.11.2).
        let (before, binders) = said.split_at(said.len() - 3 - HASH_BYTES);
        let key = derive_secret(&hmac(&[], &[&PSK]), "res binder", &EMPTY_HASH);
        assert_eq!(binders[3..], verify_data(&key, &crate::crypto::sha256(&[before])));
        answer(&mut client, said, resumed);
    }
}

#[test]
fn a_server_asks_again_once_and_for_what_there_is() {
    let again = retry(&[cookie()]);
    let mut client = Client::start(false);
    asked_again(&mut client);
    assert_eq!(client.hear(Space::Initial, &again).err(), Some(Alert::UNEXPECTED_MESSAGE));
    // P-256, which was not offered, and X25519, of which there is a share.
    for group in [23, 29] {
        let wants = extension_of(extension::KEY_SHARE, &[0, group]);
        for extensions in [vec![wants.clone()], vec![wants, cookie()]] {
            let refused = Client::start(false).hear(Space::Initial, &retry(&extensions)).err();
            assert_eq!(refused, Some(Alert::ILLEGAL_PARAMETER), "group {group}");
        }
    }
    // A cookie that there is no room for.
    let long = [&[1, 1][..], &[0; 257]].concat();
    let refused = retry(&[extension_of(extension::COOKIE, &long)]);
    let refused = Client::start(false).hear(Space::Initial, &refused).err();
    assert_eq!(refused, Some(Alert::ILLEGAL_PARAMETER));
}
