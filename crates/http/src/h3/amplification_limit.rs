//! The anti-amplification limit: an address that is not validated is sent at most three times the bytes received from it
//! (RFC 9000 sections 8.1 and 9.3.1).
//!
//! quinn sends one datagram more than that, and sends a path challenge of 1200 bytes to every new address. Therefore a
//! wrapper of quinn's UDP socket counts bytes, and drops datagrams above the limit as a network might.
//!
//! Only a client that has received datagrams knows the server's connection IDs. So a packet with one of them, other
//! than an Initial, validates the address from which an Initial came. A new address of an open connection is validated
//! when a datagram as large as a path challenge was sent there, and one as large as the response was received.

use std::collections::HashMap;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use fulmar_transport::ServerId;
use parking_lot::Mutex;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{
    AsyncTimer, AsyncUdpSocket, ConnectionId, ConnectionIdGenerator, Runtime, TokioRuntime,
    UdpPoller,
};
use quinn_proto::{HashedConnectionIdGenerator, InvalidCid};
use ring::hmac;

/// Bytes that may be sent per byte received (RFC 9000 section 8.1).
const FACTOR: u64 = 3;
/// The size of datagrams with path challenges and responses (RFC 9000 sections 8.2.1 and 8.2.2).
const CHALLENGE: usize = 1200;
/// Addresses remembered: validated ones and others, at most twice these numbers. Addresses that sent something
/// recently stay.
const MAX_VALIDATED: usize = 32_768;
const MAX_UNVALIDATED: usize = 8192;

/// Makes the server's connection IDs, and recognizes them by a key. Those of a node of a cluster have its server ID in
/// front.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ids {
    key: u64,
    server_id: Option<ServerId>,
}

impl Ids {
    /// Derives the key from `root`.
    pub(crate) fn new(root: &hmac::Key, server_id: Option<ServerId>) -> Ids {
        let key = hmac::sign(root, b"connection IDs");
        let key = key.as_ref().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        Ids { key, server_id }
    }

    /// The generator of the connection IDs.
    pub(crate) fn generator(self) -> NodeIds {
        let hashed = HashedConnectionIdGenerator::from_key(self.key);
        NodeIds { hashed, prefix: self.server_id.map(ServerId::prefix) }
    }

    /// Whether a datagram begins with a packet for one of these IDs. Initial and 0-RTT packets do not count, because
    /// the client may have chosen their ID.
    fn are_ours(self, datagram: &[u8]) -> bool {
        let generator = self.generator();
        let length = generator.cid_len();
        let id = match datagram {
            [flags, ..] if flags & 0x80 == 0 => datagram.get(1..1 + length),
            [flags, _, _, _, _, own, id @ ..] if flags >> 4 & 3 == 2 => {
                id.get(..length).filter(|_| usize::from(*own) == length)
            }
            _ => None,
        };
        id.is_some_and(|id| generator.validate(&ConnectionId::new(id)).is_ok())
    }
}

/// quinn's connection IDs, in a cluster behind the node's server ID and a byte that names a worker of other listeners.
pub(crate) struct NodeIds {
    hashed: HashedConnectionIdGenerator,
    prefix: Option<[u8; ServerId::PREFIX_BYTES]>,
}

impl ConnectionIdGenerator for NodeIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let hashed = self.hashed.generate_cid();
        match self.prefix {
            None => hashed,
            Some(prefix) => ConnectionId::new(&[&prefix[..], &[0], &hashed].concat()),
        }
    }

    fn validate(&self, cid: &ConnectionId) -> Result<(), InvalidCid> {
        let Some(prefix) = self.prefix else { return self.hashed.validate(cid) };
        let hashed = cid.strip_prefix(&prefix[..]).and_then(|rest| rest.get(1..));
        let hashed = hashed.filter(|hashed| hashed.len() == self.hashed.cid_len());
        self.hashed.validate(&ConnectionId::new(hashed.ok_or(InvalidCid)?))
    }

    fn cid_len(&self) -> usize {
        self.hashed.cid_len() + self.prefix.map_or(0, |prefix| prefix.len() + 1)
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// A map that, when full, forgets the entries not used for longest.
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
            self.insert(address, value);
        }
        self.now.get_mut(&address)
    }

    fn insert(&mut self, address: SocketAddr, value: T) {
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

/// Bytes received from an address and sent to it.
#[derive(Clone, Copy, Debug, Default)]
struct ByteCounts {
    received: u64,
    sent: u64,
    /// The first packet was an Initial.
    handshake: bool,
    challenged: bool,
}

/// The addresses of a socket.
#[derive(Debug)]
struct AddressLimits {
    validated: Recent<()>,
    unvalidated: Recent<ByteCounts>,
    ids: Ids,
}

impl AddressLimits {
    fn new(ids: Ids) -> AddressLimits {
        AddressLimits {
            validated: Recent::new(MAX_VALIDATED),
            unvalidated: Recent::new(MAX_UNVALIDATED),
            ids,
        }
    }

    /// Counts a received datagram.
    fn received(&mut self, from: SocketAddr, datagram: &[u8]) {
        if self.validated.get(from).is_some() {
            return;
        }
        let early = !self.ids.are_ours(datagram);
        if self.unvalidated.get(from).is_none() {
            self.unvalidated.insert(from, ByteCounts { handshake: early, ..ByteCounts::default() });
        }
        let Some(counts) = self.unvalidated.get(from) else { return };
        counts.received += datagram.len() as u64;
        let by_handshake = counts.handshake && !early && counts.sent > 0;
        let by_response = counts.challenged && !early && datagram.len() >= CHALLENGE;
        if by_handshake || by_response {
            self.validate(from);
        }
    }

    fn validate(&mut self, address: SocketAddr) {
        self.unvalidated.remove(address);
        if self.validated.get(address).is_none() {
            self.validated.insert(address, ());
        }
    }

    /// Returns the part of `bytes`, in datagrams of `segment` bytes, that may be sent.
    fn may_send(&mut self, to: SocketAddr, bytes: usize, segment: usize) -> usize {
        if self.validated.get(to).is_some() {
            return bytes;
        }
        let Some(counts) = self.unvalidated.get(to) else {
            // Forgotten.
            return bytes;
        };
        let left = (counts.received * FACTOR).saturating_sub(counts.sent);
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        let fits = if bytes <= left { bytes } else { left / segment.max(1) * segment };
        counts.sent += fits as u64;
        counts.challenged |= fits >= CHALLENGE;
        fits
    }
}

/// tokio's runtime, with sockets that keep to the limit.
#[derive(Clone, Debug)]
pub(crate) struct AmplificationLimit(Arc<Mutex<AddressLimits>>);

impl AmplificationLimit {
    pub(crate) fn new(ids: Ids) -> AmplificationLimit {
        AmplificationLimit(Arc::new(Mutex::new(AddressLimits::new(ids))))
    }

    /// A token has validated an address.
    pub(crate) fn validate(&self, address: SocketAddr) {
        self.0.lock().validate(address);
    }
}

impl Runtime for AmplificationLimit {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        TokioRuntime.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let inner = TokioRuntime.wrap_udp_socket(socket)?;
        Ok(Arc::new(Socket { inner, amplification_limit: self.clone() }))
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}

#[derive(Debug)]
struct Socket {
    inner: Arc<dyn AsyncUdpSocket>,
    amplification_limit: AmplificationLimit,
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.inner).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let bytes = transmit.contents.len();
        let segment = transmit.segment_size.unwrap_or(bytes);
        let fits = self.amplification_limit.0.lock().may_send(transmit.destination, bytes, segment);
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
        let mut limits = self.amplification_limit.0.lock();
        for (meta, buffer) in metas.iter().zip(buffers.iter()).take(count) {
            let run = buffer.get(..meta.len).unwrap_or_default();
            for datagram in run.chunks(meta.stride.max(1)) {
                limits.received(meta.addr, datagram);
            }
        }
        drop(limits);
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
    const IDS: Ids = Ids { key: 7, server_id: None };

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
    fn a_handshake_gets_three_times_the_received_bytes_until_the_address_is_validated() {
        let mut limits = AddressLimits::new(IDS);
        limits.received(address(1), &INITIAL);
        assert_eq!(limits.may_send(address(1), 2400, 1200), 2400);
        assert_eq!(limits.may_send(address(1), 2400, 1200), 1200);
        assert_eq!(limits.may_send(address(1), 100, 100), 0);
        limits.received(address(1), &handshake());
        assert_eq!(limits.may_send(address(1), 24_000, 1200), 24_000);
        // A client that has received nothing does not know the server's connection IDs.
        limits.received(address(2), &INITIAL);
        assert_eq!(limits.may_send(address(2), 1200, 1200), 1200);
        let mut forged = handshake();
        forged[8] ^= 1;
        limits.received(address(2), &forged);
        assert_eq!(limits.may_send(address(2), 4800, 1200), 2400);
    }

    #[test]
    fn connection_ids_of_a_node_name_it() {
        let (here, other) = (ServerId::of_node("c", "a"), ServerId::of_node("c", "b"));
        let [here_ids, other_ids] = [here, other].map(|id| Ids { key: 7, server_id: Some(id) });
        let cid = here_ids.generator().generate_cid();
        assert_eq!((cid.len(), ServerId::read(&cid)), (ServerId::CID_BYTES, Some(here)));
        let packet = [&[0x40][..], &cid, &[0; 30]].concat();
        assert!(here_ids.are_ours(&packet));
        assert!(!other_ids.are_ours(&packet));
        assert!(!here_ids.are_ours(&short(43)), "of a server without a cluster");
        assert!(!here_ids.are_ours(&packet[..10]));
        let mut forged = packet;
        forged[15] ^= 1;
        assert!(!here_ids.are_ours(&forged));
    }

    #[test]
    fn a_new_address_is_challenged_only_when_enough_was_received() {
        let mut limits = AddressLimits::new(IDS);
        limits.received(address(1), &short(43));
        assert_eq!(limits.may_send(address(1), CHALLENGE, CHALLENGE), 0);
        assert_eq!(limits.may_send(address(1), 100, 100), 100);
        for _ in 0..10 {
            limits.received(address(1), &short(43));
        }
        assert_eq!(limits.may_send(address(1), CHALLENGE, CHALLENGE), CHALLENGE);
        assert_eq!(limits.may_send(address(1), CHALLENGE, CHALLENGE), 0);
        limits.received(address(1), &short(CHALLENGE));
        assert_eq!(limits.may_send(address(1), 9000, 1200), 9000);
    }

    #[test]
    fn unknown_addresses_displace_no_validated_one_and_take_little_memory() {
        let mut limits = AddressLimits::new(IDS);
        limits.received(address(1), &INITIAL);
        limits.may_send(address(1), 1200, 1200);
        limits.received(address(1), &handshake());
        for host in 0..100_000_u32 {
            limits.received(SocketAddr::from((std::net::Ipv4Addr::from(host), 9)), &INITIAL);
        }
        assert!(
            limits.unvalidated.now.len() + limits.unvalidated.before.len() <= 2 * MAX_UNVALIDATED
        );
        assert_eq!(limits.may_send(address(1), 9000, 1200), 9000);
    }
}
