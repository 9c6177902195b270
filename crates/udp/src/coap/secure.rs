//! The DTLS sessions of one `coaps` listener: which user is at an address, and decryption and encryption of its
//! datagrams. The messages themselves are not inspected here.
//!
//! A new client first gets a cookie, and nothing is stored about it until it returns the cookie (`CookieExchange`).
//! Handshakes have a share of the thread's time, so that open sessions are served even during an attack.
//!
//! A client that has lost its session begins a new one from the same address. The old session stays until the new one
//! is open, so that an attacker who forges the client's address cannot end it.
//!
//! A session is identified by the address at which it began; a later session from there replaces it. A client with a
//! connection ID (RFC 9146) may continue from another address: datagrams for it are sent to the source of its newest
//! message. An attacker on the path could forward a message from an address that is not the client's. That address then
//! gets the answer and one confirmable message at a time, and nothing after one that is not acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use fulmar_broker::{PeerIdentity, User};
use fulmar_coap::Peer as _;
use fulmar_coap::dtls::{
    Certificate, ConnectionId, CookieExchange, DtlsSession, Keys, Verdict, connection_id,
};
use fulmar_config::set;
use fulmar_part::{Core, psk};
use fulmar_transport::tls::{self, Identity};
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::{CertificateDer, UnixTime};

use super::Address;
use super::share::Share;

/// Handshakes at once; a further one replaces the oldest.
const MAX_HANDSHAKES: usize = 256;
/// Divisor of the share of time for beginning handshakes, and how much of it may accumulate.
const PART: u32 = 2;
const MAX_SAVED: Duration = Duration::from_millis(500);
/// The fatal alert `access_denied` (RFC 5246 section 7.2) as a DTLS record before any key.
const ACCESS_DENIED: [u8; 15] = [21, 0xFE, 0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 49];
/// Longest time that a session may be idle.
const IDLE: Duration = Duration::from_secs(24 * 3600);

/// Settings of a listener's sessions.
pub(crate) struct Settings {
    /// The certificate for new sessions.
    pub(crate) identity: Arc<Identity>,
    /// Keys of users, if there are any.
    pub(crate) keys: Option<Keys>,
    /// Verifies clients' certificates; `None` if none is requested.
    pub(crate) verifier: Option<Arc<dyn ClientCertVerifier>>,
    pub(crate) max_sessions: usize,
}

/// The result of handling a datagram.
pub(super) enum Outcome {
    /// A session is open, with its user if that is known.
    Opened(Address, Option<PeerIdentity>),
    /// A message from a peer with an open session.
    Message(Address, Vec<u8>),
    /// A session has ended.
    Closed(Address),
}

struct Entry {
    session: DtlsSession,
    /// The client's present address.
    at: Address,
    /// A handshake with which the client begins a new session.
    next: Option<DtlsSession>,
    heard: Instant,
    /// When the client's certificate ends.
    ends: Option<Instant>,
    due: Instant,
}

impl Entry {
    fn ids(&self) -> impl Iterator<Item = ConnectionId> {
        let next = self.next.as_ref().and_then(DtlsSession::connection_id);
        self.session.connection_id().into_iter().chain(next)
    }
}

/// All sessions.
pub(super) struct Secure {
    settings: Settings,
    sessions: BTreeMap<Address, Entry>,
    /// Sessions by connection ID.
    ids: BTreeMap<ConnectionId, Address>,
    due: BTreeSet<(Instant, Address)>,
    out: Vec<(Address, Vec<u8>)>,
    cookies: CookieExchange,
    /// Time for beginning handshakes.
    share: Share,
}

impl Settings {
    /// Those of the configuration; `None` if the certificate's key is not ECDSA, the only kind that DTLS supports here.
    /// Pre-shared keys are read once: a change requires a restart.
    pub(super) fn new(core: &Core) -> anyhow::Result<Option<Settings>> {
        let (config, certificates) = (&core.config, &core.certificates);
        if certificates.dtls_identity().ecdsa().is_none() {
            return Ok(None);
        }
        let identity = Arc::clone(certificates.dtls_identity());
        // dimpl either requires a certificate or requests none; where a certificate is optional, it requests none.
        let verifier = match config.tls.client_auth {
            tls::ClientAuth::Required => Some(certificates.tls.client_verifier()),
            tls::ClientAuth::Off | tls::ClientAuth::Optional => None,
        };
        let keys = set(&config.coap.psk_file).map(psk::read).transpose()?;
        let max_sessions = config.coap.max_sessions;
        Ok(Some(Settings { identity, keys, verifier, max_sessions }))
    }
}

impl Secure {
    /// `None` if there are no random numbers.
    pub(super) fn new(settings: Settings, now: Instant) -> Option<Secure> {
        let (sessions, ids) = (BTreeMap::new(), BTreeMap::new());
        let (due, out, cookies) = (BTreeSet::new(), Vec::new(), CookieExchange::new(now)?);
        let share = Share::new(PART, MAX_SAVED, now);
        Some(Secure { settings, sessions, ids, due, out, cookies, share })
    }

    /// Handles a datagram from the socket.
    pub(super) fn receive(&mut self, now: Instant, from: Address, datagram: &[u8]) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        let id = connection_id(datagram);
        let address = id.and_then(|id| self.ids.get(&id).copied()).unwrap_or(from);
        let mut proven = false;
        if begins_handshake(datagram) && !self.goes_on(address) {
            match self.cookies.check(now, &from.bytes(), datagram) {
                Verdict::Ask(request) => {
                    self.out.push((from, request));
                    return outcomes;
                }
                Verdict::Drop => return outcomes,
                Verdict::Proven => proven = true,
                Verdict::Unproven => {}
            }
            if !self.is_begun(address, datagram) && !self.share.has_time(now) {
                // A repetition.
                return outcomes;
            }
            self.forget_other(address, datagram);
        }
        let begun = Instant::now();
        if !self.sessions.contains_key(&address) {
            if !begins_handshake(datagram) {
                return outcomes;
            }
            self.make_room(&mut outcomes);
            let Some(session) = self.accept(now, address, datagram, proven) else {
                return outcomes;
            };
            let (heard, due) = (now, now);
            let entry = Entry { session, at: from, next: None, heard, ends: None, due };
            self.sessions.insert(address, entry);
        }
        self.with(now, address, &mut outcomes, |entry, accept| {
            entry.heard = now;
            let again = entry.session.is_open() && begins_handshake(datagram);
            if again && entry.next.is_none() {
                entry.next = accept(datagram, proven);
            }
            let handshake = datagram.first().is_some_and(|kind| is_handshake(*kind));
            let is_for =
                |next: &DtlsSession| handshake || id.is_some() && next.connection_id() == id;
            match entry.next.as_mut().filter(|next| is_for(next)) {
                Some(next) => {
                    if next.receive(now, datagram).is_err() {
                        entry.next = None;
                    }
                    true
                }
                None => match entry.session.receive(now, datagram) {
                    Ok(newer) => {
                        if newer && entry.at != from {
                            tracing::debug!(peer = %address, now_at = %from, "coaps: it has moved");
                            entry.at = from;
                        }
                        true
                    }
                    Err(error) => {
                        tracing::info!(peer = %address, "coaps: {error}");
                        false
                    }
                },
            }
        });
        if begins_handshake(datagram) {
            self.share.spend(begun.elapsed());
        }
        outcomes
    }

    /// Whether a ClientHello belongs to an open handshake that does its own cookie exchange.
    fn goes_on(&self, address: Address) -> bool {
        let entry = self.sessions.get(&address);
        let session = entry.map(|entry| entry.next.as_ref().unwrap_or(&entry.session));
        session.is_some_and(|session| !session.is_open() && !session.was_proven())
    }

    /// Answers a datagram of a client that may not connect; nothing is computed or stored for it.
    pub(super) fn refuse(&mut self, from: Address, datagram: &[u8]) {
        if begins_handshake(datagram) && datagram.len() > ACCESS_DENIED.len() {
            self.out.push((from, ACCESS_DENIED.to_vec()));
        }
    }

    /// Closes the sessions of clients that `are_refused` at their first or present address.
    pub(super) fn close(
        &mut self,
        now: Instant,
        are_refused: impl Fn(Address) -> bool,
    ) -> Vec<Outcome> {
        let entries = self.sessions.iter();
        let refused =
            entries.filter(|(first, entry)| are_refused(**first) || are_refused(entry.at));
        let refused: Vec<Address> = refused.map(|(first, _)| *first).collect();
        let mut outcomes = Vec::new();
        for address in refused {
            self.with(now, address, &mut outcomes, |entry, _| {
                entry.session.close();
                false
            });
        }
        outcomes
    }

    /// Whether a ClientHello is the one with which an open handshake began.
    fn is_begun(&self, address: Address, hello: &[u8]) -> bool {
        let entry = self.sessions.get(&address);
        let session = entry.map(|entry| entry.next.as_ref().unwrap_or(&entry.session));
        session.is_some_and(|session| session.is_begun_by(hello))
    }

    /// A client with a validated address that sends another ClientHello has abandoned its open handshake.
    fn forget_other(&mut self, address: Address, hello: &[u8]) {
        if self.is_begun(address, hello) {
            return;
        }
        let Some(mut entry) = self.remove_entry(address) else { return };
        entry.next = None;
        if entry.session.is_open() {
            self.due.insert((entry.due, address));
            self.ids.extend(entry.ids().map(|id| (id, address)));
            self.sessions.insert(address, entry);
        }
    }

    /// Sends a message to a peer; without a session it is lost.
    pub(super) fn send(&mut self, now: Instant, address: Address, message: &[u8]) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        self.with(now, address, &mut outcomes, |entry, _| entry.session.send(message).is_ok());
        outcomes
    }

    /// The next datagram for the socket.
    pub(super) fn poll_transmit(&mut self) -> Option<(Address, Vec<u8>)> {
        (!self.out.is_empty()).then(|| self.out.remove(0))
    }

    /// When [`Secure::on_deadline`] is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Handles deadlines.
    pub(super) fn on_deadline(&mut self, now: Instant) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        while let Some(&(at, address)) = self.due.first() {
            if at > now {
                break;
            }
            self.with(now, address, &mut outcomes, |entry, _| {
                if entry.next.as_mut().is_some_and(|next| next.on_deadline(now).is_err()) {
                    entry.next = None;
                }
                entry.session.on_deadline(now).is_ok() && entry.heard + IDLE > now
            });
        }
        outcomes
    }

    /// Calls `work` on an entry and handles the resulting events. Removes the entry if `work` returns false, because
    /// its session has ended.
    fn with(
        &mut self,
        now: Instant,
        address: Address,
        outcomes: &mut Vec<Outcome>,
        work: impl FnOnce(&mut Entry, &dyn Fn(&[u8], bool) -> Option<DtlsSession>) -> bool,
    ) {
        let Some(mut entry) = self.remove_entry(address) else { return };
        let was_open = entry.session.is_open();
        let mut alive = work(&mut entry, &|hello, proven| self.accept(now, address, hello, proven));
        let mut opened = entry.session.is_open() && !was_open;
        if let Some(next) = entry.next.take_if(|next| next.is_open()) {
            drain(&mut entry.session, entry.at, &mut self.out);
            (entry.session, entry.at) = (next, address);
            (alive, opened) = (true, true);
            outcomes.extend(was_open.then_some(Outcome::Closed(address)));
        }
        if opened && alive {
            match self.identify(&entry.session) {
                Ok(who) => {
                    let is_certified = who.as_ref().is_some_and(PeerIdentity::is_certified);
                    entry.ends = is_certified.then(|| end_of(&entry.session, now)).flatten();
                    outcomes.push(Outcome::Opened(address, who));
                }
                Err(error) => {
                    tracing::info!(peer = %address, "coaps: certificate refused: {error}");
                    entry.session.close();
                    alive = false;
                }
            }
        }
        if alive && entry.ends.is_some_and(|at| at <= now) {
            tracing::info!(peer = %address, "coaps: closed, because the client's certificate has ended");
            entry.session.close();
            alive = false;
        }
        if alive && entry.session.is_open() {
            while let Some(message) = entry.session.poll_received() {
                outcomes.push(Outcome::Message(address, message));
            }
        }
        drain(&mut entry.session, entry.at, &mut self.out);
        if let Some(next) = &mut entry.next {
            drain(next, address, &mut self.out);
        }
        if !alive || entry.session.is_closed() {
            outcomes.extend((was_open || opened).then_some(Outcome::Closed(address)));
            return;
        }
        let next = entry.next.as_ref().and_then(DtlsSession::deadline);
        let due = entry.session.deadline().into_iter().chain(next).chain(entry.ends).min();
        // Never at once again: a deadline in the past would keep the task busy.
        let soon = now + Duration::from_millis(10);
        entry.due = due.unwrap_or(now + IDLE).clamp(soon, entry.heard.max(now) + IDLE);
        self.due.insert((entry.due, address));
        self.ids.extend(entry.ids().map(|id| (id, address)));
        self.sessions.insert(address, entry);
    }

    /// Removes an entry and the references to it.
    fn remove_entry(&mut self, address: Address) -> Option<Entry> {
        let entry = self.sessions.remove(&address)?;
        self.due.remove(&(entry.due, address));
        for id in entry.ids() {
            self.ids.remove(&id);
        }
        Some(entry)
    }

    fn accept(
        &self,
        now: Instant,
        address: Address,
        hello: &[u8],
        proven: bool,
    ) -> Option<DtlsSession> {
        let settings = &self.settings;
        let demand = settings.verifier.is_some();
        let keys = settings.keys.as_ref();
        let Some((certificate, key)) = settings.identity.ecdsa() else {
            tracing::warn!(peer = %address, "coaps: the certificate has no ECDSA key since it was changed");
            return None;
        };
        let certificate = Certificate { certificate, key };
        match DtlsSession::server(&certificate, keys, demand, hello, proven, now) {
            Ok(session) => Some(session),
            Err(error) => {
                tracing::warn!(peer = %address, "coaps: {error}");
                None
            }
        }
    }

    /// The session's user.
    fn identify(&self, session: &DtlsSession) -> Result<Option<PeerIdentity>, String> {
        if let Some(identity) = session.identity() {
            let name = String::from_utf8(identity).map_err(|_| "a name that is not UTF-8")?;
            let user = User::named(&name).map_err(|error| error.to_string())?;
            return Ok(Some(user.into()));
        }
        let (Some(verifier), Some(shown)) = (&self.settings.verifier, session.certificate()) else {
            return Ok(None);
        };
        let leaf = CertificateDer::from(shown);
        verifier
            .verify_client_cert(&leaf, &[], UnixTime::now())
            .map_err(|error| error.to_string())?;
        let chain = std::slice::from_ref(&leaf);
        Ok(Some(tls::client_name(chain).ok_or("it contains no user name")?))
    }

    /// Makes room for a further session: removes a handshake, or else the session that was idle longest.
    fn make_room(&mut self, outcomes: &mut Vec<Outcome>) {
        let handshakes = self.sessions.values().filter(|entry| !entry.session.is_open()).count();
        let full = self.sessions.len() >= self.settings.max_sessions;
        if !full && handshakes < MAX_HANDSHAKES {
            return;
        }
        let oldest =
            self.sessions.iter().min_by_key(|(_, entry)| (entry.session.is_open(), entry.heard));
        let Some((&address, _)) = oldest else { return };
        if let Some(entry) = self.remove_entry(address) {
            outcomes.extend(entry.session.is_open().then_some(Outcome::Closed(address)));
        }
    }
}

fn drain(session: &mut DtlsSession, address: Address, out: &mut Vec<(Address, Vec<u8>)>) {
    while let Some(datagram) = session.poll_transmit() {
        out.push((address, datagram));
    }
}

/// When a client's certificate ends.
fn end_of(session: &DtlsSession, now: Instant) -> Option<Instant> {
    let leaf = CertificateDer::from(session.certificate()?);
    let end = *fulmar_certs::validity(&leaf)?.end();
    now.checked_add(end.duration_since(SystemTime::now()).unwrap_or_default())
}

/// Whether a record is part of a handshake, rather than data or an alert of an open session.
fn is_handshake(kind: u8) -> bool {
    // change_cipher_spec and handshake (RFC 5246 section 6.2.1).
    matches!(kind, 20 | 22)
}

/// Whether a datagram begins with the ClientHello of a new session: a plain handshake record whose message is
/// a ClientHello (RFC 6347 sections 4.1 and 4.2.2).
fn begins_handshake(datagram: &[u8]) -> bool {
    matches!(datagram, [22, 0xFE, _, 0, 0, _, _, _, _, _, _, _, _, 1, ..])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use fulmar_certs::authority::Authority;
    use fulmar_certs::files;
    use fulmar_coap::dtls::Credentials;

    use super::*;

    fn secure(now: Instant) -> Secure {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::open(folder.path()).unwrap();
        let (chain, key) = authority.server_files(&["localhost".to_owned()]).unwrap();
        let (chain, key) = (files::read_chain(&chain).unwrap(), files::read_key(&key).unwrap());
        let identity = Identity::new(chain, key).unwrap();
        let keys: Keys = Arc::new(|name| (name == b"meter-7").then(|| b"0123456789abcdef".into()));
        let settings = Settings { identity, keys: Some(keys), verifier: None, max_sessions: 1000 };
        Secure::new(settings, now).unwrap()
    }

    fn address(port: u16) -> Address {
        Address { listener: 0, peer: ([192, 0, 2, 1], port).into(), local: None }
    }

    fn client(now: Instant) -> DtlsSession {
        let (identity, key) = (b"meter-7".to_vec(), b"0123456789abcdef".to_vec());
        DtlsSession::client(&Credentials::Psk { identity, key }, now).unwrap()
    }

    /// Passes datagrams between a client and the server until neither has any.
    fn meet(
        secure: &mut Secure,
        client: &mut DtlsSession,
        at: Address,
        now: Instant,
    ) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        loop {
            let sent: Vec<_> = std::iter::from_fn(|| client.poll_transmit()).collect();
            for datagram in &sent {
                outcomes.extend(secure.receive(now, at, datagram));
            }
            let answers: Vec<_> = std::iter::from_fn(|| secure.poll_transmit()).collect();
            if sent.is_empty() && answers.is_empty() {
                return outcomes;
            }
            for (_, answer) in answers {
                client.receive(now, &answer).unwrap();
            }
        }
    }

    #[test]
    fn nothing_is_kept_of_who_has_not_shown_its_address() {
        let now = Instant::now();
        let mut secure = secure(now);
        let hello = client(now).poll_transmit().unwrap();
        for port in 1..=1000 {
            assert!(secure.receive(now, address(port), &hello).is_empty());
        }
        assert!(secure.sessions.is_empty() && secure.due.is_empty() && secure.ids.is_empty());
        let answers: Vec<_> = std::iter::from_fn(|| secure.poll_transmit()).collect();
        assert_eq!(answers.len(), 1000);
        assert!(answers.iter().all(|(_, answer)| answer.len() <= hello.len()));
        // A client that answers gets a session.
        let mut client = client(now);
        let outcomes = meet(&mut secure, &mut client, address(1), now);
        assert!(client.is_open());
        assert!(
            matches!(&outcomes[..], [Outcome::Opened(_, Some(who))] if who.user().text() == "meter-7")
        );
    }

    #[test]
    fn who_has_proven_its_address_waits_while_handshakes_have_had_their_share() {
        let now = Instant::now();
        let mut secure = secure(now);
        secure.share.spend(MAX_SAVED + Duration::from_millis(7));
        let mut early = client(now);
        // It has its cookie, and repeats its ClientHello as if it had been lost.
        meet(&mut secure, &mut early, address(1), now);
        assert!(!early.is_open() && secure.sessions.is_empty());
        let later = now + PART * Duration::from_millis(8);
        let mut client = client(later);
        meet(&mut secure, &mut client, address(1), later);
        assert!(client.is_open());
    }

    #[test]
    fn new_sessions_see_a_changed_certificate_and_open_ones_stay() {
        let now = Instant::now();
        let (mut secure, other) = (secure(now), super::tests::secure(now));
        let (certificate, key) = other.settings.identity.ecdsa().unwrap();
        let credentials = Credentials::Certificate(Certificate { certificate, key });
        let mut sessions = [1, 2].map(|_| DtlsSession::client(&credentials, now).unwrap());
        for (port, session) in (1..).zip(&mut sessions) {
            meet(&mut secure, session, address(port), now);
            let shown = secure.settings.identity.ecdsa().unwrap().0;
            assert_eq!(session.certificate(), Some(&shown[..]), "session {port}");
            secure.settings.identity.replace(&other.settings.identity);
        }
        assert_ne!(sessions[0].certificate(), sessions[1].certificate());
        for (port, session) in (1..).zip(&mut sessions) {
            session.send(b"here").unwrap();
            let outcomes = meet(&mut secure, session, address(port), now);
            assert!(matches!(&outcomes[..], [Outcome::Message(_, said)] if said == b"here"));
        }
    }

    #[test]
    fn who_begins_again_has_another_session_and_a_stranger_ends_none() {
        let now = Instant::now();
        let mut secure = secure(now);
        let mut first = client(now);
        meet(&mut secure, &mut first, address(1), now);
        // Halfway, and then from the beginning.
        for _ in 0..2 {
            let mut halfway = client(now);
            for _ in 0..2 {
                let hello = halfway.poll_transmit().unwrap();
                secure.receive(now, address(1), &hello);
                while let Some((_, answer)) = secure.poll_transmit() {
                    halfway.receive(now, &answer).unwrap();
                }
            }
        }
        // The first client's session has not changed.
        first.send(b"still here").unwrap();
        let outcomes = meet(&mut secure, &mut first, address(1), now);
        assert!(matches!(&outcomes[..], [Outcome::Message(_, said)] if said == b"still here"));
        let mut again = client(now);
        let outcomes = meet(&mut secure, &mut again, address(1), now);
        assert!(again.is_open());
        assert!(matches!(&outcomes[..], [Outcome::Closed(_), Outcome::Opened(..)]));
    }
}
