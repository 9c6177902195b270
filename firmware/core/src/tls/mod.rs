//! TLS 1.3 as a client in QUIC (RFC 8446; RFC 9001, section 4): the handshake's messages in, secrets and
//! what to send out. One suite, one group, a server key to be proved or a pre-shared key.
//!
//! There are no records in here, and no packets: whoever calls collects whole messages, and protects what
//! is sent. Memory for the ClientHello belongs to the caller too.

mod alert;
mod hello;
#[cfg(all(test, feature = "ed25519"))]
mod scripted_tests;
mod ticket;
#[cfg(feature = "x509")]
mod x509;

pub(crate) use alert::Alert;
pub(crate) use ticket::Ticket;

use crate::bytes::{Reader, Writer};
use crate::crypto::{
    EMPTY_HASH, HASH_BYTES, Hash, ServerKey, Transcript, derive_secret, equal, expand_label, hmac,
};
use crate::quic::{SendLimits, Space};
use crate::{KeyPair, Options, Trust};
use hello::{Answer, Layout, Offer, extension};

/// Protocol that we speak on QUIC.
pub(crate) const ALPN: &[u8] = b"mqtt";

pub(crate) const SERVER_HELLO: u8 = 2;
const NEW_SESSION_TICKET: u8 = 4;
const ENCRYPTED_EXTENSIONS: u8 = 8;
const CERTIFICATE: u8 = 11;
const CERTIFICATE_REQUEST: u8 = 13;
const CERTIFICATE_VERIFY: u8 = 15;
const FINISHED: u8 = 20;
const MESSAGE_HASH: u8 = 254;
/// Type and length.
pub(crate) const HEADER_BYTES: usize = 4;
const FINISHED_BYTES: usize = HEADER_BYTES + HASH_BYTES;
/// Says that we have no certificate.
const NO_CERTIFICATE: [u8; 8] = [CERTIFICATE, 0, 0, 4, 0, 0, 0, 0];
/// Size of the client's last messages: an empty Certificate if asked for one, and Finished.
pub(crate) const FLIGHT_BYTES: usize = NO_CERTIFICATE.len() + FINISHED_BYTES;

/// Message that the server has to send next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    ServerHello,
    EncryptedExtensions,
    Certificate,
    CertificateVerify,
    Finished,
    Done,
}

/// Result of a message.
pub(crate) enum Progress<'a> {
    /// Nothing to be done but to wait for more.
    More,
    /// There is another ClientHello to be sent, of [`Tls::hello_len`] bytes.
    HelloAgain,
    /// There are secrets for the Handshake level.
    HandshakeSecrets,
    /// The server's transport parameters; whether it takes early data is known now.
    Parameters(&'a [u8]),
    /// The server is whom we trust; there are secrets for the application's level, and a flight to send.
    Done,
    /// The server gave a ticket.
    Ticket(Ticket<'a>),
}

/// A handshake.
// In this order for the sake of flash: what is near the beginning is reached by shorter instructions.
#[repr(C)]
pub(crate) struct Tls {
    step: Step,
    #[cfg(feature = "x509")]
    authority: x509::Authority,
    retried: bool,
    offers_ticket: bool,
    certificate_wanted: bool,
    /// Whether early data was offered and has not been refused.
    pub(crate) early_data: bool,
    /// Whether the server accepted the pre-shared key.
    pub(crate) resumed: bool,
    layout: Layout,
    /// Secret of the key schedule: the early, then the handshake, then the master secret.
    secret: Hash,
    /// The client's newest traffic secret.
    pub(crate) client: Hash,
    /// The server's.
    pub(crate) server: Hash,
    resumption: Hash,
    private_key: [u8; 32],
    server_key: ServerKey,
    /// Messages that we send on the Handshake level; the first bytes are not used if there is no Certificate.
    flight: [u8; FLIGHT_BYTES],
    transcript: Transcript,
}

impl Tls {
    pub(crate) const fn new() -> Self {
        Self {
            step: Step::ServerHello,
            transcript: Transcript::new(),
            secret: [0; HASH_BYTES],
            client: [0; HASH_BYTES],
            server: [0; HASH_BYTES],
            resumption: [0; HASH_BYTES],
            private_key: [0; 32],
            server_key: ServerKey::None,
            #[cfg(feature = "x509")]
            authority: x509::Authority::none(),
            layout: Layout::none(),
            retried: false,
            offers_ticket: false,
            certificate_wanted: false,
            early_data: false,
            resumed: false,
            flight: [0; FLIGHT_BYTES],
        }
    }

    /// Begins: writes a ClientHello to `memory`. If early data is offered, `client` is its secret then.
    /// [`None`] if it does not fit.
    #[inline(never)]
    pub(crate) fn start(
        &mut self,
        options: &Options<'_>,
        ticket: Option<&Ticket<'_>>,
        key: &KeyPair,
        random: &[u8; 32],
        idle_timeout_ms: u32,
        memory: &mut [u8],
    ) -> Option<()> {
        self.step = Step::ServerHello;
        self.retried = false;
        self.certificate_wanted = false;
        self.resumed = false;
        self.private_key = key.secret;
        self.trust(options)?;
        let resume = options.resume.as_ref();
        let ticket = ticket.zip(resume.map(|resume| resume.age_ms));
        self.offers_ticket = ticket.is_some();
        self.early_data = ticket.is_some_and(|(ticket, _)| ticket.early)
            && resume.is_some_and(|resume| resume.early_data);
        self.secret = hmac(&[], &[&ticket.map_or([0; HASH_BYTES], |(ticket, _)| ticket.psk)]);
        let offer = Offer {
            random,
            server_name: options.server_name,
            public_key: &key.public,
            idle_timeout_ms,
            ticket,
            early_data: self.early_data,
        };
        self.layout = hello::write(&offer, memory)?;
        self.transcript.restart();
        self.finish_hello(memory)?;
        if self.early_data {
            self.client = derive_secret(&self.secret, "c e traffic", &self.transcript.hash());
        }
        Some(())
    }

    fn trust(&mut self, options: &Options<'_>) -> Option<()> {
        self.server_key = match options.trust {
            #[cfg(feature = "ed25519")]
            Trust::Ed25519(key) => ServerKey::Ed25519(*key),
            #[cfg(feature = "p256")]
            Trust::P256(key) => ServerKey::P256(*key),
            #[cfg(feature = "x509")]
            Trust::Authority { key, unix_s } => {
                self.authority.set(key, unix_s, options.server_name)?;
                self.server_key = ServerKey::None;
                return Some(());
            }
        };
        #[cfg(feature = "x509")]
        {
            self.authority = x509::Authority::none();
        }
        Some(())
    }

    /// For fuzzing: as if the server had said what comes before its certificate, or everything.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn pretend(&mut self, done: bool) {
        self.step = if done { Step::Done } else { Step::EncryptedExtensions };
    }

    pub(crate) fn hello_len(&self) -> usize {
        self.layout.len.into()
    }

    /// Messages for the Handshake level once the handshake is done.
    pub(crate) fn flight(&self) -> &[u8] {
        let start = if self.certificate_wanted { 0 } else { NO_CERTIFICATE.len() };
        self.flight.get(start..).unwrap_or_default()
    }

    pub(crate) fn is_done(&self) -> bool {
        self.step == Step::Done
    }

    /// Adds the binder, if a ticket is offered, and the whole to the transcript.
    fn finish_hello(&mut self, memory: &mut [u8]) -> Option<()> {
        let hello = memory.get_mut(..self.hello_len())?;
        if self.offers_ticket {
            let (before, binders) = hello.split_at_mut_checked(self.layout.without_binders())?;
            self.transcript.add(before);
            let key = derive_secret(&self.secret, "res binder", &EMPTY_HASH);
            let binder = verify_data(&key, &self.transcript.hash());
            binders.get_mut(3..)?.copy_from_slice(&binder);
            self.transcript.add(binders);
        } else {
            self.transcript.add(hello);
        }
        Some(())
    }

    /// Whether a message of this type that is too long for memory may be taken in pieces: nothing in it
    /// matters but its hash, or not even that.
    pub(crate) fn begin_long(&mut self, kind: u8) -> bool {
        let pinned = !matches!(self.server_key, ServerKey::None);
        if self.step == Step::Certificate && kind == CERTIFICATE && pinned {
            self.step = Step::CertificateVerify;
            return true;
        }
        self.step == Step::Done && kind == NEW_SESSION_TICKET
    }

    /// Takes a piece of a handshake message begun with [`begin_long`](Self::begin_long).
    pub(crate) fn add_piece(&mut self, piece: &[u8]) {
        self.transcript.add(piece);
    }

    /// Takes a whole message, header included, that came on the level of `space`. `hello` is the memory of
    /// the ClientHello.
    #[inline(never)]
    pub(crate) fn message<'a>(
        &mut self,
        space: Space,
        message: &'a [u8],
        hello: &mut [u8],
    ) -> Result<Progress<'a>, Alert> {
        let (kind, body) = match message {
            [kind, _, _, _, body @ ..] => (*kind, body),
            _ => return Err(Alert::DECODE_ERROR),
        };
        let expected = match (self.step, space, kind) {
            (Step::ServerHello, Space::Initial, SERVER_HELLO)
            | (Step::EncryptedExtensions, Space::Handshake, ENCRYPTED_EXTENSIONS)
            | (Step::Certificate, Space::Handshake, CERTIFICATE)
            | (Step::CertificateVerify, Space::Handshake, CERTIFICATE_VERIFY)
            | (Step::Finished, Space::Handshake, FINISHED)
            | (Step::Done, Space::Data, NEW_SESSION_TICKET) => true,
            (Step::Certificate, Space::Handshake, CERTIFICATE_REQUEST) => !self.certificate_wanted,
            _ => false,
        };
        if !expected {
            return Err(Alert::UNEXPECTED_MESSAGE);
        }
        match kind {
            SERVER_HELLO => self.server_hello(message, body, hello),
            ENCRYPTED_EXTENSIONS => self.encrypted_extensions(message, body),
            CERTIFICATE_REQUEST => {
                // In a handshake its context is empty, so that ours is too; what it asks for is not read.
                if body.first() != Some(&0) {
                    return Err(Alert::DECODE_ERROR);
                }
                self.certificate_wanted = true;
                self.add(message, Step::Certificate)
            }
            CERTIFICATE => {
                self.certificate(body)?;
                self.add(message, Step::CertificateVerify)
            }
            CERTIFICATE_VERIFY => {
                self.certificate_verify(body)?;
                self.add(message, Step::Finished)
            }
            FINISHED => self.finished(message, body),
            _ => self.new_session_ticket(body).ok_or(Alert::DECODE_ERROR)?,
        }
    }

    fn add(&mut self, message: &[u8], next: Step) -> Result<Progress<'static>, Alert> {
        self.transcript.add(message);
        self.step = next;
        Ok(Progress::More)
    }

    fn server_hello(
        &mut self,
        message: &[u8],
        body: &[u8],
        hello: &mut [u8],
    ) -> Result<Progress<'static>, Alert> {
        match hello::read_answer(body)? {
            Answer::Retry { cookie } => self.hello_retry(message, cookie, hello),
            Answer::Hello { public_key, resumed } => {
                if resumed && !self.offers_ticket {
                    return Err(Alert::ILLEGAL_PARAMETER);
                }
                self.resumed = resumed;
                if !resumed {
                    self.secret = hmac(&[], &[&[0; HASH_BYTES]]);
                }
                let shared = x25519_dalek::x25519(self.private_key, public_key);
                if equal(&shared, &[0; 32]) {
                    return Err(Alert::ILLEGAL_PARAMETER);
                }
                self.add(message, Step::EncryptedExtensions)?;
                self.advance(&shared);
                self.derive("c hs traffic", "s hs traffic");
                Ok(Progress::HandshakeSecrets)
            }
        }
    }

    /// Section 4.1.4. Early data counts as refused.
    fn hello_retry(
        &mut self,
        message: &[u8],
        cookie: &[u8],
        hello: &mut [u8],
    ) -> Result<Progress<'static>, Alert> {
        if self.retried {
            return Err(Alert::UNEXPECTED_MESSAGE);
        }
        self.retried = true;
        let first = self.transcript.hash();
        self.transcript.restart();
        self.transcript.add(&[MESSAGE_HASH, 0, 0, HASH_BYTES as u8]);
        self.transcript.add(&first);
        self.transcript.add(message);
        self.layout = hello::add_cookie(hello, self.layout, self.early_data, cookie)
            .ok_or(Alert::INTERNAL_ERROR)?;
        self.early_data = false;
        self.finish_hello(hello).ok_or(Alert::INTERNAL_ERROR)?;
        Ok(Progress::HelloAgain)
    }

    /// The next secret of the key schedule (section 7.1).
    fn advance(&mut self, input: &[u8]) {
        let derived = derive_secret(&self.secret, "derived", &EMPTY_HASH);
        self.secret = hmac(&derived, &[input]);
    }

    fn derive(&mut self, client: &str, server: &str) {
        let transcript = self.transcript.hash();
        self.client = derive_secret(&self.secret, client, &transcript);
        self.server = derive_secret(&self.secret, server, &transcript);
    }

    fn encrypted_extensions<'a>(
        &mut self,
        message: &[u8],
        body: &'a [u8],
    ) -> Result<Progress<'a>, Alert> {
        let mut reader = Reader::new(body);
        let extensions = reader.block16().filter(|_| reader.is_empty());
        let mut protocol = None;
        let mut parameters = None;
        let mut early = None;
        each_extension(extensions.ok_or(Alert::DECODE_ERROR)?, |number, mut value| {
            let repeated = match number {
                extension::ALPN => {
                    let mut list = value.block16()?;
                    let name = list.block8()?.rest();
                    protocol.replace((name, list.is_empty() && value.is_empty())).is_some()
                }
                extension::QUIC_TRANSPORT_PARAMETERS => parameters.replace(value.rest()).is_some(),
                extension::EARLY_DATA => early.replace(value.is_empty()).is_some(),
                // Those say nothing to us, but the server may say them.
                extension::SERVER_NAME | extension::SUPPORTED_GROUPS => false,
                _ => return Some(Err(Alert::UNSUPPORTED_EXTENSION)),
            };
            Some(if repeated { Err(Alert::ILLEGAL_PARAMETER) } else { Ok(()) })
        })?;
        if protocol != Some((ALPN, true)) {
            return Err(Alert::NO_APPLICATION_PROTOCOL);
        }
        let parameters = parameters.ok_or(Alert::MISSING_EXTENSION)?;
        if early == Some(false) || early.is_some() && !(self.early_data && self.resumed) {
            return Err(Alert::ILLEGAL_PARAMETER);
        }
        self.early_data = early.is_some();
        let next = if self.resumed { Step::Finished } else { Step::Certificate };
        self.add(message, next)?;
        Ok(Progress::Parameters(parameters))
    }

    /// With a pinned key, what the certificate says does not matter.
    #[cfg(not(feature = "x509"))]
    fn certificate(&mut self, _: &[u8]) -> Result<(), Alert> {
        Ok(())
    }

    #[cfg(feature = "x509")]
    fn certificate(&mut self, body: &[u8]) -> Result<(), Alert> {
        if matches!(self.server_key, ServerKey::None) {
            self.server_key = ServerKey::P256(self.authority.check(body)?);
        }
        Ok(())
    }

    /// Section 4.4.3.
    fn certificate_verify(&self, body: &[u8]) -> Result<(), Alert> {
        let mut reader = Reader::new(body);
        let (Some(scheme), Some(signature), true) =
            (reader.u16(), reader.block16(), reader.is_empty())
        else {
            return Err(Alert::DECODE_ERROR);
        };
        const CONTEXT: &[u8] = b"TLS 1.3, server CertificateVerify\0";
        let mut signed = [b' '; 64 + CONTEXT.len() + HASH_BYTES];
        let mut writer = Writer::new(&mut signed[64..]);
        writer.write_bytes(CONTEXT);
        writer.write_bytes(&self.transcript.hash());
        if self.server_key.verify(scheme, &signed, signature.rest()) {
            Ok(())
        } else {
            Err(Alert::DECRYPT_ERROR)
        }
    }

    fn finished(&mut self, message: &[u8], body: &[u8]) -> Result<Progress<'static>, Alert> {
        if !equal(&verify_data(&self.server, &self.transcript.hash()), body) {
            return Err(Alert::DECRYPT_ERROR);
        }
        self.add(message, Step::Done)?;
        let client_handshake = self.client;
        self.advance(&[0; HASH_BYTES]);
        self.derive("c ap traffic", "s ap traffic");
        if self.certificate_wanted {
            self.transcript.add(&NO_CERTIFICATE);
        }
        let mut flight = Writer::new(&mut self.flight);
        flight.write_bytes(&NO_CERTIFICATE);
        flight.write_bytes(&[FINISHED, 0, 0, HASH_BYTES as u8]);
        flight.write_bytes(&verify_data(&client_handshake, &self.transcript.hash()));
        self.transcript.add(self.flight.get(NO_CERTIFICATE.len()..).unwrap_or_default());
        self.resumption = derive_secret(&self.secret, "res master", &self.transcript.hash());
        self.private_key = [0; 32];
        Ok(Progress::Done)
    }

    /// Section 4.6.1; in QUIC the only size of early data that may be named is all (RFC 9001, section
    /// 4.6.1).
    fn new_session_ticket<'a>(&self, body: &'a [u8]) -> Option<Result<Progress<'a>, Alert>> {
        let mut reader = Reader::new(body);
        let lifetime_s = reader.u32()?;
        let age_add = reader.u32()?;
        let nonce = reader.block8()?.rest();
        let identity = reader.block16()?.rest();
        let extensions = reader.block16()?;
        if identity.is_empty() || !reader.is_empty() {
            return None;
        }
        let mut early = false;
        let read = each_extension(extensions, |number, mut value| {
            if number == extension::EARLY_DATA {
                early = true;
                if value.u32()? != u32::MAX {
                    return Some(Err(Alert::ILLEGAL_PARAMETER));
                }
            }
            Some(Ok(()))
        });
        if let Err(alert) = read {
            return Some(Err(alert));
        }
        let mut psk = [0; HASH_BYTES];
        expand_label(&self.resumption, "resumption", nonce, &mut psk);
        let limits = SendLimits::default();
        Some(Ok(Progress::Ticket(Ticket { lifetime_s, age_add, early, limits, psk, identity })))
    }
}

/// The content of a Finished message (section 4.4.4) or a binder.
fn verify_data(base: &Hash, transcript: &Hash) -> Hash {
    let mut key = [0; HASH_BYTES];
    expand_label(base, "finished", &[], &mut key);
    hmac(&key, &[transcript])
}

/// Calls `read` with each extension's number and content; it gives [`None`] for what is malformed.
fn each_extension<'a>(
    mut list: Reader<'a>,
    mut read: impl FnMut(u16, Reader<'a>) -> Option<Result<(), Alert>>,
) -> Result<(), Alert> {
    while !list.is_empty() {
        let (Some(number), Some(value)) = (list.u16(), list.block16()) else {
            return Err(Alert::DECODE_ERROR);
        };
        read(number, value).ok_or(Alert::DECODE_ERROR)??;
    }
    Ok(())
}
