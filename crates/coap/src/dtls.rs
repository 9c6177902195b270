//! A DTLS session (RFC 6347, and RFC 9147 where the client offers it) as datagrams in and out, over the
//! crate dimpl, which has neither sockets nor clock: with a pre-shared key or with certificates (RFC 7252
//! section 9.1).
//!
//! The key's owner is known when the session is open. A certificate is not validated here; the caller must validate it
//! before it does anything else. This module adds features that dimpl lacks and other implementations need: a client's
//! signal that it supports secure renegotiation, and connection IDs (RFC 9146) for a server's clients.

mod connection_id;
mod cookie;
mod hello;
mod renegotiation;
mod sealed;
mod transcript;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dimpl::{Config, Dtls, DtlsCertificate, Output, PskResolver};

pub use self::connection_id::{ConnectionId, connection_id};
pub use self::cookie::{CookieExchange, Verdict};
use self::transcript::Changed;

/// Size for any datagram of this module.
const LARGEST: usize = 2048;
/// The largest datagrams that dimpl may send: IPv6's minimum MTU, less the headers of IPv6 and UDP and the data added
/// to hellos.
const MTU: usize = 1232 - 16;
/// Time limit of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(30);
/// Maximum number of plaintexts that wait. The caller takes them after each datagram, which contains few.
const MAX_RECEIVED: usize = 64;

/// A certificate and its key, DER; the key in PKCS#8. dimpl supports ECDSA with P-256 and P-384.
#[derive(Clone)]
pub struct Certificate {
    /// The certificate; intermediate certificates cannot be sent.
    pub certificate: Vec<u8>,
    /// The certificate's private key.
    pub key: Vec<u8>,
}

// Never the key.
fulmar_text::opaque_debug!(Certificate {});

/// Finds the key of an identity.
pub type Keys = Arc<dyn Fn(&[u8]) -> Option<Vec<u8>> + Send + Sync>;

/// A client's credentials.
#[derive(Clone)]
pub enum Credentials {
    /// A name and the key that only its owner and the server know.
    Psk {
        /// The name.
        identity: Vec<u8>,
        /// The key.
        key: Vec<u8>,
    },
    /// A certificate, sent if the server requests one.
    Certificate(Certificate),
}

/// Why a session could not be opened, or has ended.
#[derive(Debug, thiserror::Error)]
#[error("DTLS: {0}")]
pub struct Error(#[from] dimpl::Error);

/// One end of a session.
pub struct DtlsSession {
    dtls: Dtls,
    identity: Arc<Mutex<Option<Vec<u8>>>>,
    certificate: Option<Vec<u8>>,
    /// A server whose client requests a connection ID.
    uses_connection_id: bool,
    granted: Option<ConnectionId>,
    /// True if [`CookieExchange`] has accepted the client, whose ClientHello is still to be received.
    proven: bool,
    was_proven: bool,
    /// The hello's random.
    hello_random: Option<[u8; 32]>,
    /// Added to the numbers of its records before they are encrypted: the first has the number of the hello that it
    /// answers (RFC 6347 section 4.2.1).
    shift: u64,
    /// Epoch and number of the newest record with the ID that contained a message.
    newest: u64,
    open: bool,
    closed: bool,
    outgoing: VecDeque<Vec<u8>>,
    received: VecDeque<Vec<u8>>,
    due: Option<Instant>,
}

fulmar_text::opaque_debug!(DtlsSession { open });

/// Remembers the identity whose key was requested: the handshake succeeds only if the peer has the key.
struct Resolver {
    keys: Keys,
    requested_identity: Arc<Mutex<Option<Vec<u8>>>>,
}

impl std::panic::UnwindSafe for Resolver {}
impl std::panic::RefUnwindSafe for Resolver {}

impl PskResolver for Resolver {
    fn resolve(&self, identity: &[u8]) -> Option<Vec<u8>> {
        *self.requested_identity.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(identity.to_vec());
        (self.keys)(identity)
    }
}

impl DtlsSession {
    /// The server's end, for one peer, which begins with the datagram `hello`; pass that to [`DtlsSession::receive`]
    /// next. `proven` is true if [`CookieExchange`] has validated the peer's address: no cookie is requested again
    /// then. Clients choose between a key, if there are any, and `certificate`; with `require_certificate`, clients
    /// that choose the latter must have a certificate.
    ///
    /// # Errors
    /// dimpl cannot use these settings.
    pub fn server(
        certificate: &Certificate,
        keys: Option<&Keys>,
        require_certificate: bool,
        hello: &[u8],
        proven: bool,
        now: Instant,
    ) -> Result<DtlsSession, Error> {
        static PROVEN: Changed = Changed(cookie::on_the_wire);
        let identity = Arc::new(Mutex::new(None));
        let uses_connection_id = connection_id::is_wanted(hello);
        let mut config = Config::builder()
            .mtu(MTU)
            .handshake_timeout(HANDSHAKE)
            .require_client_certificate(require_certificate);
        if uses_connection_id {
            config = config.with_crypto_provider(connection_id::provider());
        } else if proven {
            config = config.with_crypto_provider(PROVEN.server());
        }
        if let Some(keys) = keys {
            let resolver =
                Resolver { keys: Arc::clone(keys), requested_identity: Arc::clone(&identity) };
            config = config.with_psk_server(None, Arc::new(resolver));
        }
        let certificate = DtlsCertificate {
            certificate: certificate.certificate.clone(),
            private_key: certificate.key.clone(),
        };
        let dtls = Dtls::new_auto(Arc::new(config.build()?), certificate, now);
        let mut session = DtlsSession::start(dtls, identity, false, uses_connection_id, now)?;
        (session.proven, session.was_proven) = (proven, proven);
        session.hello_random = hello::random_of(hello);
        Ok(session)
    }

    /// The client's end; it sends the first datagram.
    ///
    /// # Errors
    /// dimpl cannot use these credentials.
    pub fn client(credentials: &Credentials, now: Instant) -> Result<DtlsSession, Error> {
        let identity = Arc::new(Mutex::new(None));
        let config = Config::builder()
            .mtu(MTU)
            .handshake_timeout(HANDSHAKE)
            .with_crypto_provider(renegotiation::provider());
        let dtls = match credentials {
            Credentials::Psk { identity: name, key } => {
                let key = key.clone();
                let keys: Keys = Arc::new(move |_| Some(key.clone()));
                let resolver = Resolver { keys, requested_identity: Arc::clone(&identity) };
                let config = config.with_psk_client(name.clone(), Arc::new(resolver)).build()?;
                Dtls::new_12_psk(Arc::new(config), now)
            }
            Credentials::Certificate(own) => {
                let certificate = DtlsCertificate {
                    certificate: own.certificate.clone(),
                    private_key: own.key.clone(),
                };
                Dtls::new_12(Arc::new(config.build()?), certificate, now)
            }
        };
        DtlsSession::start(dtls, identity, true, false, now)
    }

    fn start(
        mut dtls: Dtls,
        identity: Arc<Mutex<Option<Vec<u8>>>>,
        client: bool,
        uses_connection_id: bool,
        now: Instant,
    ) -> Result<DtlsSession, Error> {
        dtls.set_active(client);
        let mut session = DtlsSession {
            dtls,
            identity,
            certificate: None,
            uses_connection_id,
            granted: None,
            proven: false,
            was_proven: false,
            hello_random: None,
            shift: 0,
            newest: 0,
            open: false,
            closed: false,
            outgoing: VecDeque::new(),
            received: VecDeque::new(),
            due: None,
        };
        session.dtls.handle_timeout(now)?;
        session.drain();
        Ok(session)
    }

    /// Handles a datagram. Returns whether it contained the newest message of a client with a connection ID: the client
    /// is then at the datagram's source address (RFC 9146 section 6).
    ///
    /// # Errors
    /// The session has ended.
    pub fn receive(&mut self, now: Instant, datagram: &[u8]) -> Result<bool, Error> {
        if std::mem::take(&mut self.proven)
            && let Some(answer) = self.answer_for(now, datagram)?
        {
            let number = hello::record_number(datagram).unwrap_or(0);
            self.shift = number.saturating_sub(1);
            return self.receive(now, &answer);
        }
        let Some(id) = self.granted else {
            let taken =
                self.dtls.handle_timeout(now).and_then(|()| self.dtls.handle_packet(datagram));
            // An alert may contain the reason.
            self.drain();
            return taken.map(|()| false).map_err(Error);
        };
        let records = connection_id::records(datagram, id, self.open);
        let before = self.received.len();
        for reading in records.readings {
            let taken =
                self.dtls.handle_timeout(now).and_then(|()| self.dtls.handle_packet(&reading));
            self.drain();
            taken?;
        }
        let number = records.number.filter(|_| self.received.len() > before).unwrap_or(0);
        let newer = number > self.newest;
        self.newest = self.newest.max(number);
        Ok(newer)
    }

    /// Lets dimpl request a cookie, which is not sent, and puts that cookie into the ClientHello.
    fn answer_for(&mut self, now: Instant, datagram: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let Some(first) = cookie::unasked(datagram) else { return Ok(None) };
        self.dtls.handle_timeout(now)?;
        self.dtls.handle_packet(&first)?;
        self.drain();
        let answering = self.outgoing.drain(..).find_map(|packet| {
            hello::requested_cookie(&packet).and_then(|cookie| cookie::answering(datagram, cookie))
        });
        Ok(answering)
    }

    /// Whether the client's address was validated before the session was created.
    #[must_use]
    pub fn was_proven(&self) -> bool {
        self.was_proven
    }

    /// Whether a ClientHello is the one with which this session began.
    #[must_use]
    pub fn is_begun_by(&self, datagram: &[u8]) -> bool {
        self.hello_random.is_some() && self.hello_random == hello::random_of(datagram)
    }

    /// Handles the deadlines at `now`.
    ///
    /// # Errors
    /// The session has ended, or could not be opened.
    pub fn on_deadline(&mut self, now: Instant) -> Result<(), Error> {
        let done = self.dtls.handle_timeout(now);
        self.drain();
        Ok(done?)
    }

    /// Sends a message; before the session is open it waits.
    ///
    /// # Errors
    /// The session has ended.
    pub fn send(&mut self, message: &[u8]) -> Result<(), Error> {
        let sent = self.dtls.send_application_data(message);
        self.drain();
        sent.map(drop).map_err(Error)
    }

    /// Closes the session, with an alert.
    pub fn close(&mut self) {
        // A session that cannot be closed has ended anyway.
        drop(self.dtls.close());
        self.closed = true;
        self.drain();
    }

    /// The next datagram to be sent.
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.outgoing.pop_front()
    }

    /// The next message from the peer.
    pub fn poll_received(&mut self) -> Option<Vec<u8>> {
        self.received.pop_front()
    }

    /// When [`DtlsSession::on_deadline`] is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.due
    }

    /// The ID in the client's records, if it was granted: it identifies them at any source address.
    #[must_use]
    pub fn connection_id(&self) -> Option<ConnectionId> {
        self.granted
    }

    /// Whether the handshake is complete.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Whether either end has closed the session.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// The identity of the peer's key, in an open session.
    #[must_use]
    pub fn identity(&self) -> Option<Vec<u8>> {
        self.identity.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The peer's certificate in DER. It is not validated; the peer has its key.
    #[must_use]
    pub fn certificate(&self) -> Option<&[u8]> {
        self.certificate.as_deref()
    }

    /// A datagram of dimpl, with the additions.
    fn completed(&mut self, packet: &[u8]) -> Vec<u8> {
        let mut packet = self.rewrite(packet);
        if self.shift > 0 {
            hello::add_to_record_numbers(&mut packet, self.shift);
        }
        packet
    }

    fn rewrite(&mut self, packet: &[u8]) -> Vec<u8> {
        if self.uses_connection_id
            && let Some((packet, id)) = connection_id::granted(packet)
        {
            self.granted = Some(id);
            return packet;
        }
        renegotiation::add_suite(packet).unwrap_or_else(|| packet.to_vec())
    }

    fn drain(&mut self) {
        let mut room = vec![0; LARGEST];
        loop {
            match self.dtls.poll_output(&mut room) {
                Output::Packet(packet) => {
                    let packet = self.completed(packet);
                    self.outgoing.push_back(packet);
                }
                Output::ApplicationData(data) if self.received.len() < MAX_RECEIVED => {
                    self.received.push_back(data.to_vec());
                }
                Output::PeerCert(certificate) => self.certificate = Some(certificate.to_vec()),
                Output::Connected => self.open = true,
                Output::CloseNotify => self.closed = true,
                Output::BufferTooSmall { needed } => room.resize(needed, 0),
                Output::Timeout(due) => {
                    self.due = Some(due);
                    return;
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn certificate() -> Certificate {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = made.signing_key.serialize_der();
        Certificate { certificate: made.cert.der().to_vec(), key }
    }

    fn keys() -> Keys {
        Arc::new(|identity| (identity == b"meter-7").then(|| b"0123456789abcdef".to_vec()))
    }

    /// Passes datagrams until neither end has any; returns whether both are open.
    fn meet(client: &mut DtlsSession, server: &mut DtlsSession) -> bool {
        let now = Instant::now();
        loop {
            let mut quiet = true;
            while let Some(datagram) = client.poll_transmit() {
                quiet = false;
                if server.receive(now, &datagram).is_err() {
                    return false;
                }
            }
            while let Some(datagram) = server.poll_transmit() {
                quiet = false;
                if client.receive(now, &datagram).is_err() {
                    return false;
                }
            }
            if quiet {
                return client.is_open() && server.is_open();
            }
        }
    }

    #[test]
    fn who_has_the_key_is_known_by_name() {
        let now = Instant::now();
        let psk = |identity: &[u8], key: &[u8]| {
            let credentials = Credentials::Psk { identity: identity.into(), key: key.into() };
            let mut client = DtlsSession::client(&credentials, now).unwrap();
            let mut server =
                DtlsSession::server(&certificate(), Some(&keys()), false, &[], false, now).unwrap();
            let open = meet(&mut client, &mut server);
            (open, client, server)
        };
        let (open, mut client, mut server) = psk(b"meter-7", b"0123456789abcdef");
        assert!(open);
        assert_eq!(server.identity().unwrap(), b"meter-7");
        assert_eq!(server.certificate(), None);
        client.send(b"hello").unwrap();
        meet(&mut client, &mut server);
        assert_eq!(server.poll_received().unwrap(), b"hello");
        client.close();
        meet(&mut client, &mut server);
        assert!(server.is_closed());
        assert!(!psk(b"meter-7", b"another key of 16").0);
        assert!(!psk(b"meter-8", b"0123456789abcdef").0);
    }

    #[test]
    fn a_client_says_that_it_knows_of_secure_renegotiation() {
        let key = b"0123456789abcdef".to_vec();
        let credentials = Credentials::Psk { identity: b"meter-7".to_vec(), key };
        let mut client = DtlsSession::client(&credentials, Instant::now()).unwrap();
        let hello = client.poll_transmit().unwrap();
        // Two suites: that of the key, and the one that says it.
        let suites = [0, 4, 0xc0, 0xa8, 0x00, 0xff];
        assert!(hello.windows(suites.len()).any(|bytes| bytes == suites), "{hello:02x?}");
    }

    /// Both ends with a cookie exchange between them.
    fn meet_with_cookies(
        client: &mut DtlsSession,
        require_certificate: bool,
        shift: bool,
    ) -> Option<DtlsSession> {
        let now = Instant::now();
        let mut cookies = CookieExchange::new(now).unwrap();
        let mut hello = client.poll_transmit().unwrap();
        if shift {
            // As if it had been repeated.
            hello::renumber(&mut hello, 3);
        }
        let Verdict::Ask(request) = cookies.check(now, b"here", &hello) else { return None };
        client.receive(now, &request).unwrap();
        let mut hello = client.poll_transmit().unwrap();
        if shift {
            hello::renumber(&mut hello, 4);
        }
        assert_eq!(cookies.check(now, b"here", &hello), Verdict::Proven);
        let (own, keys) = (certificate(), keys());
        let server = DtlsSession::server(&own, Some(&keys), require_certificate, &hello, true, now);
        let mut server = server.unwrap();
        server.receive(now, &hello).unwrap();
        if shift {
            let answer = server.outgoing.front().unwrap();
            assert_eq!(hello::record_number(answer), Some(4));
        }
        meet(client, &mut server).then_some(server)
    }

    #[test]
    fn who_was_asked_at_the_door_is_not_asked_again() {
        let now = Instant::now();
        let key = b"0123456789abcdef".to_vec();
        let psk = Credentials::Psk { identity: b"meter-7".to_vec(), key };
        for shift in [false, true] {
            let mut client = DtlsSession::client(&psk, now).unwrap();
            let mut server = meet_with_cookies(&mut client, false, shift).expect("no session");
            assert_eq!(server.identity().unwrap(), b"meter-7");
            client.send(b"hello").unwrap();
            meet(&mut client, &mut server);
            assert_eq!(server.poll_received().unwrap(), b"hello");
        }
        for demand in [false, true] {
            let own = certificate();
            let mut client =
                DtlsSession::client(&Credentials::Certificate(own.clone()), now).unwrap();
            let server = meet_with_cookies(&mut client, demand, false).expect("no session");
            assert_eq!(server.certificate(), demand.then_some(&*own.certificate));
        }
    }

    #[test]
    fn certificates_are_shown() {
        let now = Instant::now();
        let (ours, theirs) = (certificate(), certificate());
        for demand in [false, true] {
            let credentials = Credentials::Certificate(theirs.clone());
            let mut client = DtlsSession::client(&credentials, now).unwrap();
            let mut server =
                DtlsSession::server(&ours, Some(&keys()), demand, &[], false, now).unwrap();
            assert!(meet(&mut client, &mut server));
            assert_eq!(client.certificate(), Some(&*ours.certificate));
            assert_eq!(server.certificate(), demand.then_some(&*theirs.certificate));
            assert_eq!(server.identity(), None);
        }
    }
}
