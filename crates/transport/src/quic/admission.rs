//! How much work unknown clients may cause (RFC 9000 section 21.1).
//!
//! Datagrams that may begin a connection wait in two short queues, those with a token first, and are handled after
//! everything from known clients, for a limited part of a turn. Initial packets to the connection ID of a handshake in
//! progress are a known client's: one that waited would be overtaken by what the client sends right behind its
//! handshake, which is lost then. Failed handshakes are counted: above a rate that
//! honest clients do not reach, new clients must validate their address by a Retry, and unknown clients get at most a
//! share of the worker's time. Validated addresses that fail nevertheless are then ignored for some time; forged
//! addresses do not count against their owners.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use fulmar_text::network::site;
use quinn_proto::ConnectionId;

use super::peek::{self, First};
use super::socket::Datagram;
use super::steering::may_be_ours;

/// The most datagrams in each queue; for a further one, the oldest is dropped, as in a network.
const MAX_WAITING: usize = 1024;
/// The longest time for unknown clients in one turn. A handshake takes some 0.2 ms.
const TURN: Duration = Duration::from_millis(2);
/// The share of a worker's time for unknown clients while many handshakes fail: one part of this many.
const SHARE: f64 = 2.0;
/// The longest time without unknown clients, in seconds.
const MAX_PAUSE: f64 = 0.1;
/// The most seconds for unknown clients that are saved.
const MAX_SAVED: f64 = 0.02;

/// Failures per second that are ordinary.
const FAILURES_A_SECOND: f64 = 20.0;
/// Further failures from which addresses must be validated.
const FAILURES: f64 = 50.0;
/// The most failures that count; determines how long addresses must be validated after the last failure.
const MAX_FAILURES: f64 = 400.0;

/// Failures of one validated address, and how many of them are forgotten per second.
const OF_ADDRESS: Bound = Bound { most: 8.0, a_second: 1.0 };
/// The same for an IPv4 address with any port, or the 64-bit prefix of an IPv6 address: a few hundred handshakes per
/// second take a small part of a core, and a whole site may be behind one address.
const OF_SITE: Bound = Bound { most: 200.0, a_second: 200.0 };
/// The most addresses and prefixes remembered.
const MAX_BLAMED: usize = 4096;

/// A number of failures that decreases over time.
#[derive(Clone, Copy, Debug)]
struct Level {
    level: f64,
    at: Instant,
}

impl Level {
    fn at(self, now: Instant, a_second: f64) -> f64 {
        let gone = now.saturating_duration_since(self.at).as_secs_f64();
        (self.level - gone * a_second).max(0.0)
    }
}

#[derive(Clone, Copy, Debug)]
struct Bound {
    most: f64,
    a_second: f64,
}

/// Addresses that have failed recently.
#[derive(Debug)]
struct Blamed<K> {
    bound: Bound,
    levels: HashMap<K, Level>,
}

impl<K: Eq + Hash> Blamed<K> {
    fn new(bound: Bound) -> Blamed<K> {
        Blamed { bound, levels: HashMap::new() }
    }

    fn add(&mut self, key: K, now: Instant) {
        let Bound { most, a_second } = self.bound;
        if self.levels.len() >= MAX_BLAMED && !self.levels.contains_key(&key) {
            self.levels.retain(|_, level| level.at(now, a_second) > 0.0);
            if self.levels.len() >= MAX_BLAMED {
                return;
            }
        }
        let level = self.levels.entry(key).or_insert(Level { level: 0.0, at: now });
        // No more than twice the limit, so that an address that stops failing is soon accepted again.
        *level = Level { level: (level.at(now, a_second) + 1.0).min(2.0 * most), at: now };
    }

    fn is_too_much(&self, key: &K, now: Instant) -> bool {
        let Bound { most, a_second } = self.bound;
        self.levels.get(key).is_some_and(|level| level.at(now, a_second) >= most)
    }
}

/// How many handshakes fail, and so whether new clients must validate their address.
#[derive(Clone, Copy, Debug, Default)]
pub struct HandshakePressure(Option<Level>);

impl HandshakePressure {
    /// A handshake has failed.
    pub fn failed(&mut self, now: Instant) {
        self.count(1.0, now);
    }

    /// A client got a Retry. Until it validates its address, it counts as failed: forged addresses never do, and the
    /// Retries must not end because of that.
    pub fn asked_for_proof(&mut self, now: Instant) {
        self.count(1.0, now);
    }

    /// A client has validated its address.
    pub fn proven(&mut self, now: Instant) {
        self.count(-1.0, now);
    }

    /// Whether more fail than usual.
    pub fn is_high(&self, now: Instant) -> bool {
        self.0.is_some_and(|level| level.at(now, FAILURES_A_SECOND) >= FAILURES)
    }

    fn count(&mut self, number: f64, now: Instant) {
        let was_high = self.is_high(now);
        let before = self.0.map_or(0.0, |level| level.at(now, FAILURES_A_SECOND));
        let level = (before + number).clamp(0.0, MAX_FAILURES);
        self.0 = Some(Level { level, at: now });
        if !was_high && self.is_high(now) {
            tracing::info!("many QUIC handshakes fail: new clients must prove their address");
        }
    }
}

fulmar_text::with_defaults! {
    /// The limits for unknown clients of one port of a worker.
    #[derive(Debug)]
    pub(super) struct Admission {
        with_token: VecDeque<Datagram> = VecDeque::new(),
        without: VecDeque<Datagram> = VecDeque::new(),
        /// Connection IDs of the handshakes in progress, also by connection handle.
        handshake_cids: HashSet<ConnectionId> = HashSet::new(),
        handshakes: HashMap<usize, ConnectionId> = HashMap::new(),
        pressure: HandshakePressure = HandshakePressure::default(),
        addresses: Blamed<SocketAddr> = Blamed::new(OF_ADDRESS),
        sites: Blamed<IpAddr> = Blamed::new(OF_SITE),
        /// Seconds that unknown clients may still use, negative after too many, and when this was calculated.
        saved: f64 = MAX_SAVED,
        reckoned: Option<Instant> = None,
    }
}

impl Admission {
    /// Returns a known client's datagram; an unknown client's is queued or dropped.
    pub(super) fn sort(&mut self, datagram: Datagram, now: Instant) -> Option<Datagram> {
        let First::Early { token } = peek::first(&datagram.bytes) else { return Some(datagram) };
        if self.is_of_handshake(&datagram.bytes) {
            return Some(datagram);
        }
        if self.is_pressed(now) && self.is_blamed(datagram.remote, now) {
            return None;
        }
        let queue = if token { &mut self.with_token } else { &mut self.without };
        if queue.len() >= MAX_WAITING {
            queue.pop_front();
        }
        queue.push_back(datagram);
        None
    }

    fn is_of_handshake(&self, datagram: &[u8]) -> bool {
        let cid = peek::destination(datagram).filter(|cid| may_be_ours(cid));
        cid.is_some_and(|cid| self.handshake_cids.contains(&ConnectionId::new(cid)))
    }

    /// The connection with this handle has begun a handshake; its client is to use this connection ID.
    pub(super) fn begun(&mut self, handle: usize, cid: ConnectionId) {
        self.handshake_cids.insert(cid);
        self.handshakes.insert(handle, cid);
    }

    /// The handshake of this connection has ended.
    pub(super) fn ended(&mut self, handle: usize) {
        if let Some(cid) = self.handshakes.remove(&handle) {
            self.handshake_cids.remove(&cid);
        }
    }

    /// The next datagram to handle, in a turn in which unknown clients have used `taken` so far.
    pub(super) fn next(&mut self, taken: Duration, now: Instant) -> Option<Datagram> {
        let has_share = !self.is_pressed(now) || taken.as_secs_f64() < self.save(now);
        if taken >= TURN || !has_share {
            return None;
        }
        self.with_token.pop_front().or_else(|| self.without.pop_front())
    }

    /// A turn has ended in which unknown clients used this time.
    pub(super) fn spent(&mut self, taken: Duration) {
        self.saved -= taken.as_secs_f64();
    }

    /// When the queued datagrams have their next turn.
    pub(super) fn next_turn(&mut self, now: Instant) -> Option<Instant> {
        if self.with_token.is_empty() && self.without.is_empty() {
            return None;
        }
        let owed = if self.is_pressed(now) { -self.save(now) } else { 0.0 };
        Some(now + Duration::from_secs_f64((owed * SHARE).clamp(0.0, MAX_PAUSE)))
    }

    /// A handshake has failed.
    pub(super) fn failed(&mut self, peer: SocketAddr, is_proven: bool, now: Instant) {
        self.pressure.failed(now);
        if is_proven {
            self.addresses.add(peer, now);
            self.sites.add(site(peer.ip()), now);
        }
    }

    /// An unknown client got a Retry.
    pub(super) fn asked_for_proof(&mut self, now: Instant) {
        self.pressure.asked_for_proof(now);
    }

    /// An unknown client has validated its address.
    pub(super) fn proven(&mut self, now: Instant) {
        self.pressure.proven(now);
    }

    /// Whether more fail than usual.
    pub(super) fn is_pressed(&self, now: Instant) -> bool {
        self.pressure.is_high(now)
    }

    fn is_blamed(&self, peer: SocketAddr, now: Instant) -> bool {
        self.addresses.is_too_much(&peer, now) || self.sites.is_too_much(&site(peer.ip()), now)
    }

    /// Seconds that unknown clients may use now.
    fn save(&mut self, now: Instant) -> f64 {
        let before = self.reckoned.replace(now).unwrap_or(now);
        let more = now.saturating_duration_since(before).as_secs_f64() / SHARE;
        self.saved = (self.saved + more).clamp(-MAX_PAUSE / SHARE, MAX_SAVED);
        self.saved
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use bytes::BytesMut;

    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    /// An Initial from a port, with or without a token.
    fn initial(port: u16, token: bool) -> Datagram {
        let header = [0xC0, 0, 0, 0, 1, 0, 0, u8::from(token), 0];
        Datagram {
            remote: address(port),
            local_ip: None,
            ecn: None,
            bytes: BytesMut::from(&header[..]),
        }
    }

    fn ports(admission: &mut Admission, now: Instant) -> Vec<u16> {
        std::iter::from_fn(|| admission.next(Duration::ZERO, now))
            .map(|datagram| datagram.remote.port())
            .collect()
    }

    #[test]
    fn known_clients_do_not_wait_and_tokens_go_first() {
        let (mut admission, now) = (Admission::default(), Instant::now());
        let mut known = initial(9, false);
        known.bytes[0] = 0x40;
        assert!(admission.sort(known, now).is_some());
        for (port, token) in [(1, false), (2, true), (3, false), (4, true)] {
            assert!(admission.sort(initial(port, token), now).is_none());
        }
        assert_eq!(admission.next_turn(now), Some(now));
        assert_eq!(ports(&mut admission, now), [2, 4, 1, 3]);
        assert_eq!(admission.next_turn(now), None);
    }

    #[test]
    fn a_handshake_in_progress_does_not_wait() {
        let (mut admission, now) = (Admission::default(), Instant::now());
        let second_flight = || {
            let header = [&[0xC0, 0, 0, 0, 1, 8][..], &[7; 8], &[0, 0]].concat();
            Datagram { bytes: BytesMut::from(&header[..]), ..initial(1, false) }
        };
        admission.begun(3, ConnectionId::new(&[7; 8]));
        assert!(admission.sort(second_flight(), now).is_some());
        assert!(admission.sort(initial(1, false), now).is_none());
        admission.ended(3);
        assert!(admission.sort(second_flight(), now).is_none());
    }

    #[test]
    fn the_oldest_is_dropped_when_too_many_wait() {
        let (mut admission, now) = (Admission::default(), Instant::now());
        for port in 0..=u16::try_from(MAX_WAITING).unwrap() {
            admission.sort(initial(port, false), now);
        }
        let left = ports(&mut admission, now);
        assert_eq!((left.len(), left[0]), (MAX_WAITING, 1));
    }

    #[test]
    fn failures_make_strangers_prove_themselves_until_they_end() {
        let (mut admission, now) = (Admission::default(), Instant::now());
        for _ in 0..40 {
            admission.failed(address(1), false, now);
        }
        assert!(!admission.is_pressed(now), "as many as after a network came back");
        for _ in 0..40 {
            admission.failed(address(1), false, now);
        }
        assert!(admission.is_pressed(now));
        // Forged addresses do not answer: the limit lasts as long as their datagrams arrive.
        let mut later = now;
        for _ in 0..60 {
            later += Duration::from_secs(1);
            (0..100).for_each(|_| admission.asked_for_proof(later));
            assert!(admission.is_pressed(later));
        }
        assert!(!admission.is_pressed(later + Duration::from_secs(30)));
    }

    #[test]
    fn a_fleet_that_proves_its_addresses_is_not_kept_under_suspicion() {
        let (mut admission, mut now) = (Admission::default(), Instant::now());
        (0..60).for_each(|_| admission.failed(address(1), false, now));
        assert!(admission.is_pressed(now));
        for _ in 0..10 {
            now += Duration::from_secs(1);
            for _ in 0..1000 {
                admission.asked_for_proof(now);
                admission.proven(now);
            }
        }
        assert!(!admission.is_pressed(now));
    }

    #[test]
    fn strangers_have_a_share_of_a_turn_and_of_the_time() {
        let (mut admission, mut now) = (Admission::default(), Instant::now());
        admission.sort(initial(1, false), now);
        assert!(admission.next(TURN, now).is_none(), "a turn is bounded at any time");
        (0..200).for_each(|_| admission.failed(address(1), false, now));
        let mut taken = Duration::ZERO;
        let begin = now;
        while now < begin + Duration::from_secs(1) {
            admission.sort(initial(1, false), now);
            if admission.next(Duration::ZERO, now).is_some() {
                admission.spent(TURN);
                taken += TURN;
                now += TURN;
            }
            now = now.max(admission.next_turn(now).unwrap_or(now)) + Duration::from_micros(10);
        }
        assert!(taken <= Duration::from_millis(600), "{taken:?} of a second");
    }

    #[test]
    fn only_proven_addresses_are_blamed_and_only_while_many_fail() {
        let (mut admission, now) = (Admission::default(), Instant::now());
        let waits = |admission: &mut Admission, port, now| {
            admission.sort(initial(port, true), now);
            ports(admission, now) == [port]
        };
        (0..20).for_each(|_| admission.failed(address(1), true, now));
        assert!(waits(&mut admission, 1, now), "there is time for everybody");
        (0..100).for_each(|_| admission.failed(address(2), false, now));
        assert!(!waits(&mut admission, 1, now));
        assert!(waits(&mut admission, 2, now), "anybody may have sent that");
        assert!(waits(&mut admission, 3, now), "who shares an address is not to blame");
        let later = now + Duration::from_secs(10);
        (0..100).for_each(|_| admission.asked_for_proof(later));
        assert!(waits(&mut admission, 1, later), "it is forgiven");
    }

    #[test]
    fn who_is_blamed_takes_little_room() {
        let (mut admission, now) = (Admission::default(), Instant::now());
        for host in 0..20_000_u32 {
            let peer = SocketAddr::from((std::net::Ipv4Addr::from(host), 1));
            admission.failed(peer, true, now);
        }
        assert!(admission.addresses.levels.len() <= MAX_BLAMED);
        assert!(admission.sites.levels.len() <= MAX_BLAMED);
    }

    #[test]
    fn a_site_is_a_prefix_in_ipv6() {
        let site_of = |text: &str| site(text.parse().unwrap()).to_string();
        assert_eq!(site_of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(site_of("::ffff:192.0.2.1"), "192.0.2.1");
    }
}
