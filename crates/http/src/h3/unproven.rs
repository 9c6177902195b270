//! Addresses that have not proven themselves are sent at most three times what came from them (RFC 9000 sections
//! 8.1 and 9.3.1). quinn lets one datagram more pass, and answers anything that comes from a new address with a path
//! challenge of 1200 bytes; so bytes are counted at the socket, and what is too much is dropped as a network might.
//!
//! Nobody knows the server's connection IDs who has not received them: what is no Initial proves the address that
//! an Initial came from. A new address of an open connection has proven itself when something as large as a path
//! challenge has been sent there and something as large as the response has come.

use std::collections::HashMap;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use quinn::udp::{RecvMeta, Transmit};
use quinn::{
    AsyncTimer, AsyncUdpSocket, ConnectionIdGenerator as _, Runtime, TokioRuntime, UdpPoller,
};
use quinn_proto::HashedConnectionIdGenerator;
use ring::hmac;

/// How often more may be sent than has come.
const FACTOR: u64 = 3;
/// Path challenges and responses are as large (RFC 9000 sections 8.2.1 and 8.2.2).
const CHALLENGE: usize = 1200;
/// Addresses remembered: those that have proven themselves, and those that have not. Twice as many at most; who
/// has been heard of lately stays.
const MAX_PROVEN: usize = 32_768;
const MAX_UNPROVEN: usize = 8192;

/// The server's connection IDs, known by a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ids(u64);

impl Ids {
    /// With a key that is derived from this one.
    pub(crate) fn new(root: &hmac::Key) -> Ids {
        let key = hmac::sign(root, b"connection IDs");
        Ids(key.as_ref().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)))
    }

    /// What makes them.
    pub(crate) fn generator(self) -> Box<dyn quinn::ConnectionIdGenerator> {
        Box::new(HashedConnectionIdGenerator::from_key(self.0))
    }

    /// Whether a datagram begins with a packet for one of them that is no Initial or 0-RTT packet, whose ID may
    /// be the client's own choice.
    fn are_ours(self, datagram: &[u8]) -> bool {
        let generator = HashedConnectionIdGenerator::from_key(self.0);
        let length = generator.cid_len();
        let id = match datagram {
            [flags, ..] if flags & 0x80 == 0 => datagram.get(1..1 + length),
            [flags, _, _, _, _, own, id @ ..] if flags >> 4 & 3 == 2 => {
                id.get(..length).filter(|_| usize::from(*own) == length)
            }
            _ => None,
        };
        id.is_some_and(|id| generator.validate(&quinn::ConnectionId::new(id)).is_ok())
    }
}

/// A map that forgets what was not looked at for long when it is full.
#[derive(Debug)]
struct Recent<T> {
    now: HashMap<SocketAddr, T>,
    before: HashMap<SocketAddr, T>,
    most: usize,
}

impl<T> Recent<T> {
    fn new(most: usize) -> Recent<T> {
        Recent { now: HashMap::new(), before: HashMap::new(), most }
    }

    fn get(&mut self, address: SocketAddr) -> Option<&mut T> {
        if !self.now.contains_key(&address) {
            let value = self.before.remove(&address)?;
            self.put(address, value);
        }
        self.now.get_mut(&address)
    }

    fn put(&mut self, address: SocketAddr, value: T) {
        if self.now.len() >= self.most {
            self.before = std::mem::take(&mut self.now);
        }
        self.now.insert(address, value);
    }

    fn remove(&mut self, address: SocketAddr) {
        self.now.remove(&address);
        self.before.remove(&address);
    }
}

/// What an address sent and was sent.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    received: u64,
    sent: u64,
    /// It began with an Initial.
    handshake: bool,
    challenged: bool,
}

/// The accounts of a socket.
#[derive(Debug)]
struct Ledger {
    proven: Recent<()>,
    unproven: Recent<Account>,
    ids: Ids,
}

impl Ledger {
    fn new(ids: Ids) -> Ledger {
        Ledger { proven: Recent::new(MAX_PROVEN), unproven: Recent::new(MAX_UNPROVEN), ids }
    }

    /// A datagram has come.
    fn received(&mut self, from: SocketAddr, datagram: &[u8]) {
        if self.proven.get(from).is_some() {
            return;
        }
        let early = !self.ids.are_ours(datagram);
        if self.unproven.get(from).is_none() {
            self.unproven.put(from, Account { handshake: early, ..Account::default() });
        }
        let Some(account) = self.unproven.get(from) else { return };
        account.received += datagram.len() as u64;
        let by_handshake = account.handshake && !early && account.sent > 0;
        let by_response = account.challenged && !early && datagram.len() >= CHALLENGE;
        if by_handshake || by_response {
            self.prove(from);
        }
    }

    fn prove(&mut self, address: SocketAddr) {
        self.unproven.remove(address);
        if self.proven.get(address).is_none() {
            self.proven.put(address, ());
        }
    }

    /// How much of this may be sent, of datagrams of `segment` bytes.
    fn may_send(&mut self, to: SocketAddr, bytes: usize, segment: usize) -> usize {
        if self.proven.get(to).is_some() {
            return bytes;
        }
        let Some(account) = self.unproven.get(to) else {
            // Heard of too long ago.
            return bytes;
        };
        let left = (account.received * FACTOR).saturating_sub(account.sent);
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        let fits = if bytes <= left { bytes } else { left / segment.max(1) * segment };
        account.sent += fits as u64;
        account.challenged |= fits >= CHALLENGE;
        fits
    }
}

/// tokio's runtime with a socket that counts.
#[derive(Clone, Debug)]
pub(crate) struct Counting(Arc<Mutex<Ledger>>);

impl Counting {
    pub(crate) fn new(ids: Ids) -> Counting {
        Counting(Arc::new(Mutex::new(Ledger::new(ids))))
    }

    /// A token has proven an address.
    pub(crate) fn prove(&self, address: SocketAddr) {
        self.ledger().prove(address);
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Runtime for Counting {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        TokioRuntime.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let inner = TokioRuntime.wrap_udp_socket(socket)?;
        Ok(Arc::new(Socket { inner, counting: self.clone() }))
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}

#[derive(Debug)]
struct Socket {
    inner: Arc<dyn AsyncUdpSocket>,
    counting: Counting,
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.inner).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let bytes = transmit.contents.len();
        let segment = transmit.segment_size.unwrap_or(bytes);
        let fits = self.counting.ledger().may_send(transmit.destination, bytes, segment);
        match &transmit.contents[..fits] {
            [] => Ok(()),
            contents if contents.len() == bytes => self.inner.try_send(transmit),
            contents => {
                let segment_size = transmit.segment_size.filter(|segment| *segment < fits);
                self.inner.try_send(&Transmit {
                    destination: transmit.destination,
                    ecn: transmit.ecn,
                    contents,
                    segment_size,
                    src_ip: transmit.src_ip,
                })
            }
        }
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(self.inner.poll_recv(context, buffers, metas))?;
        let mut ledger = self.counting.ledger();
        for (meta, buffer) in metas.iter().zip(buffers.iter()).take(count) {
            let run = buffer.get(..meta.len).unwrap_or_default();
            for datagram in run.chunks(meta.stride.max(1)) {
                ledger.received(meta.addr, datagram);
            }
        }
        drop(ledger);
        Poll::Ready(Ok(count))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INITIAL: [u8; CHALLENGE] = [0xC0; CHALLENGE];
    const IDS: Ids = Ids(7);

    /// A packet of an open connection.
    fn short(length: usize) -> Vec<u8> {
        let mut packet = vec![0x40];
        packet.extend_from_slice(&IDS.generator().generate_cid());
        packet.resize(length, 0);
        packet
    }

    /// A Handshake packet.
    fn handshake() -> Vec<u8> {
        let mut packet = vec![0xE0, 0, 0, 0, 1, 8];
        packet.extend_from_slice(&IDS.generator().generate_cid());
        packet.resize(40, 0);
        packet
    }

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    #[test]
    fn a_handshake_is_answered_with_three_times_what_came_until_it_is_proven() {
        let mut ledger = Ledger::new(IDS);
        ledger.received(address(1), &INITIAL);
        assert_eq!(ledger.may_send(address(1), 2400, 1200), 2400);
        assert_eq!(ledger.may_send(address(1), 2400, 1200), 1200);
        assert_eq!(ledger.may_send(address(1), 100, 100), 0);
        ledger.received(address(1), &handshake());
        assert_eq!(ledger.may_send(address(1), 24_000, 1200), 24_000);
        // Without having been answered nobody has the server's connection IDs.
        ledger.received(address(2), &INITIAL);
        assert_eq!(ledger.may_send(address(2), 1200, 1200), 1200);
        let mut forged = handshake();
        forged[8] ^= 1;
        ledger.received(address(2), &forged);
        assert_eq!(ledger.may_send(address(2), 4800, 1200), 2400);
    }

    #[test]
    fn a_new_address_is_challenged_only_when_enough_has_come() {
        let mut ledger = Ledger::new(IDS);
        ledger.received(address(1), &short(43));
        assert_eq!(ledger.may_send(address(1), CHALLENGE, CHALLENGE), 0);
        assert_eq!(ledger.may_send(address(1), 100, 100), 100);
        for _ in 0..10 {
            ledger.received(address(1), &short(43));
        }
        assert_eq!(ledger.may_send(address(1), CHALLENGE, CHALLENGE), CHALLENGE);
        assert_eq!(ledger.may_send(address(1), CHALLENGE, CHALLENGE), 0);
        ledger.received(address(1), &short(CHALLENGE));
        assert_eq!(ledger.may_send(address(1), 9000, 1200), 9000);
    }

    #[test]
    fn strangers_crowd_out_nobody_and_take_little_room() {
        let mut ledger = Ledger::new(IDS);
        ledger.received(address(1), &INITIAL);
        ledger.may_send(address(1), 1200, 1200);
        ledger.received(address(1), &handshake());
        for host in 0..100_000_u32 {
            ledger.received(SocketAddr::from((std::net::Ipv4Addr::from(host), 9)), &INITIAL);
        }
        assert!(ledger.unproven.now.len() + ledger.unproven.before.len() <= 2 * MAX_UNPROVEN);
        assert_eq!(ledger.may_send(address(1), 9000, 1200), 9000);
    }
}
