//! A UDP socket that reads and writes many datagrams a system call (GRO, GSO, recvmmsg).
//!
//! The poller is asked about room to write only while some is missed. The kernel reports it for
//! every datagram that has left, so a socket that always asked would wake its worker once more for
//! each turn in which it sent something.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};

use bytes::BytesMut;
use mio::{Interest, Registry, Token};
use quinn_proto::{EcnCodepoint, Transmit};
use quinn_udp::{BATCH_SIZE, RecvMeta, UdpSocketState};
use smallvec::SmallVec;

/// Bytes of one receive buffer: a run of datagrams joined by the kernel.
const RECEIVE_BYTES: usize = 64 * 1024;

/// Datagram runs kept while the kernel's buffer is full; more are dropped, as the network might.
const MAX_UNSENT: usize = 256;

/// Errors left over from datagrams sent before that one read passes over.
const MAX_PASSED_OVER: usize = 64;

/// One datagram that has come in.
#[derive(Debug)]
pub(crate) struct Datagram {
    pub(crate) remote: SocketAddr,
    pub(crate) local_ip: Option<IpAddr>,
    pub(crate) ecn: Option<EcnCodepoint>,
    pub(crate) bytes: BytesMut,
}

/// A datagram, or a run of them, that is to be sent later.
#[derive(Debug)]
pub(crate) struct Unsent {
    destination: SocketAddr,
    ecn: Option<EcnCodepoint>,
    segment_size: Option<usize>,
    src_ip: Option<IpAddr>,
    bytes: Vec<u8>,
}

pub(crate) struct Socket {
    io: mio::net::UdpSocket,
    state: UdpSocketState,
    buffers: Vec<Vec<u8>>,
    metas: Vec<RecvMeta>,
    batch: Vec<Datagram>,
    /// Whether the last read emptied the socket.
    emptied: bool,
    unsent: VecDeque<Unsent>,
    /// Where it is registered, and with which token.
    poller: Option<(Registry, Token)>,
    /// Whether the poller reports room to write.
    asks_for_room: bool,
}

impl Socket {
    pub(crate) fn new(socket: UdpSocket) -> io::Result<Socket> {
        let state = UdpSocketState::new((&socket).into())?;
        Ok(Socket {
            io: mio::net::UdpSocket::from_std(socket),
            state,
            buffers: (0..BATCH_SIZE).map(|_| vec![0; RECEIVE_BYTES]).collect(),
            metas: vec![RecvMeta::default(); BATCH_SIZE],
            batch: Vec::new(),
            emptied: false,
            unsent: VecDeque::new(),
            poller: None,
            asks_for_room: false,
        })
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(&mut self.io, token, Interest::READABLE)?;
        self.poller = Some((registry.try_clone()?, token));
        Ok(())
    }

    /// Has the poller report room to write while datagrams wait for it, and only then.
    fn ask_for_room(&mut self) {
        let asks = self.is_blocked();
        if asks == self.asks_for_room {
            return;
        }
        let Some((registry, token)) = &self.poller else { return };
        let interest =
            if asks { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
        match registry.reregister(&mut self.io, *token, interest) {
            Ok(()) => self.asks_for_room = asks,
            Err(error) => tracing::error!(%error, "cannot wait for room to send by UDP"),
        }
    }

    pub(crate) fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    pub(crate) fn max_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    /// The next datagrams; `None` when the socket is empty. Hand the batch back for reuse. After an error, the socket
    /// may have datagrams nevertheless, and the poller will not report it again.
    pub(crate) fn receive(&mut self) -> io::Result<Option<Vec<Datagram>>> {
        if std::mem::take(&mut self.emptied) {
            return Ok(None);
        }
        let mut slices: SmallVec<[IoSliceMut<'_>; BATCH_SIZE]> =
            self.buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
        let mut passed_over = 0;
        let count = loop {
            match self.state.recv((&self.io).into(), &mut slices, &mut self.metas) {
                Ok(count) => break count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                // Usually an ICMP error about a datagram sent earlier, which the kernel reports once. The connection
                // detects the loss by itself, and the socket may have datagrams of other connections.
                Err(_) if passed_over < MAX_PASSED_OVER => passed_over += 1,
                Err(error) => return Err(error),
            }
        };
        drop(slices);
        // A read that returns fewer datagrams than it could has emptied the socket; the poller reports new ones.
        self.emptied = BATCH_SIZE > 1 && count < BATCH_SIZE;
        let mut batch = std::mem::take(&mut self.batch);
        for (meta, buffer) in self.metas.iter().zip(&self.buffers).take(count) {
            let run = &buffer[..meta.len];
            for bytes in run.chunks(meta.stride.max(1)) {
                batch.push(Datagram {
                    remote: meta.addr,
                    local_ip: meta.dst_ip,
                    ecn: meta.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8)),
                    bytes: BytesMut::from(bytes),
                });
            }
        }
        Ok(Some(batch))
    }

    pub(crate) fn give_back(&mut self, batch: Vec<Datagram>) {
        self.batch = batch;
    }

    /// Whether the kernel takes no more for now.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Tries again what the kernel did not take.
    pub(crate) fn retry(&mut self) {
        while let Some(unsent) = self.unsent.pop_front() {
            if !self.try_send(&unsent.as_transmit()) {
                self.unsent.push_front(unsent);
                break;
            }
        }
        self.ask_for_room();
    }

    /// Sends, or keeps for later when the kernel is full.
    pub(crate) fn send(&mut self, transmit: &Transmit, bytes: &[u8]) {
        let unsent = Unsent::new(transmit, &[]);
        let sent = self.unsent.is_empty()
            && self.try_send(&quinn_udp::Transmit { contents: bytes, ..unsent.as_transmit() });
        if !sent && self.unsent.len() < MAX_UNSENT {
            self.unsent.push_back(Unsent { bytes: bytes.to_vec(), ..unsent });
            self.ask_for_room();
        }
    }

    /// Sends a copy of what was sent before. A full kernel has no room for extras.
    pub(crate) fn send_again(&mut self, datagram: &Unsent) {
        if self.unsent.is_empty() {
            self.try_send(&datagram.as_transmit());
        }
    }

    /// False when the kernel is full. Other errors count as loss, which is what they are.
    fn try_send(&self, transmit: &quinn_udp::Transmit<'_>) -> bool {
        match self.state.try_send((&self.io).into(), transmit) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(error) => {
                tracing::debug!(peer = %transmit.destination, "UDP send failed: {error}");
                true
            }
        }
    }
}

impl Unsent {
    pub(crate) fn new(transmit: &Transmit, bytes: &[u8]) -> Unsent {
        Unsent {
            destination: transmit.destination,
            ecn: transmit.ecn,
            segment_size: transmit.segment_size,
            src_ip: transmit.src_ip,
            bytes: bytes.to_vec(),
        }
    }

    /// Bytes, without the headers of UDP and IP.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    fn as_transmit(&self) -> quinn_udp::Transmit<'_> {
        quinn_udp::Transmit {
            destination: self.destination,
            ecn: self.ecn.and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8)),
            contents: &self.bytes,
            segment_size: self.segment_size,
            src_ip: self.src_ip,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use mio::{Events, Poll};

    use super::*;

    const TOKEN: Token = Token(1);

    fn bound() -> (UdpSocket, SocketAddr) {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        (socket, address)
    }

    fn registered() -> (Socket, SocketAddr, Poll) {
        let (own, address) = bound();
        own.set_nonblocking(true).unwrap();
        let mut socket = Socket::new(own).unwrap();
        let poll = Poll::new().unwrap();
        socket.register(poll.registry(), TOKEN).unwrap();
        (socket, address, poll)
    }

    fn transmit(destination: SocketAddr, size: usize) -> Transmit {
        Transmit { destination, size, ecn: None, segment_size: None, src_ip: None }
    }

    #[test]
    fn an_error_hides_no_datagrams_behind_it() {
        let (peer, at) = bound();
        let (own, here) = bound();
        own.connect(at).unwrap();
        own.set_nonblocking(true).unwrap();
        let sender = own.try_clone().unwrap();
        let mut socket = Socket::new(own).unwrap();
        drop(peer);
        // Nobody listens: the kernel keeps the refusal for the next call that reads.
        sender.send(b"x").unwrap();
        let peer = UdpSocket::bind(at).unwrap();
        peer.send_to(b"hello", here).unwrap();
        let mut batch = socket.receive().unwrap().expect("the datagram behind the error");
        assert_eq!(&batch.remove(0).bytes[..], b"hello");
        socket.give_back(batch);
        assert!(socket.receive().unwrap().is_none());
        // An emptied socket is read again when there is more.
        peer.send_to(b"again", here).unwrap();
        assert_eq!(&socket.receive().unwrap().unwrap()[0].bytes[..], b"again");
    }

    #[test]
    fn sending_wakes_nobody() {
        let (mut socket, _, mut poll) = registered();
        let (peer, at) = bound();
        for _ in 0..10 {
            socket.send(&transmit(at, 5), b"hello");
            peer.recv(&mut [0; 10]).unwrap();
        }
        let mut events = Events::with_capacity(8);
        poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
        assert!(events.is_empty(), "{events:?}");
    }

    #[test]
    fn what_the_kernel_refused_goes_first_when_there_is_room() {
        let (mut socket, _, mut poll) = registered();
        let (peer, at) = bound();
        // As if the kernel had been full: loopback never is.
        socket.send(&transmit(at, 1), b"0");
        let refused = Unsent {
            destination: at,
            ecn: None,
            segment_size: None,
            src_ip: None,
            bytes: b"1".to_vec(),
        };
        socket.unsent.push_back(refused);
        socket.send(&transmit(at, 1), b"2");
        assert!(socket.is_blocked());
        let mut events = Events::with_capacity(8);
        poll.poll(&mut events, Some(Duration::from_secs(10))).unwrap();
        assert!(events.iter().any(|event| event.token() == TOKEN && event.is_writable()));
        socket.retry();
        assert!(!socket.is_blocked() && !socket.asks_for_room);
        let mut got = [0; 1];
        for expected in *b"012" {
            peer.recv(&mut got).unwrap();
            assert_eq!(got[0], expected);
        }
    }

    #[test]
    fn a_full_kernel_does_not_fill_the_memory() {
        let (mut socket, _, _poll) = registered();
        let (_peer, at) = bound();
        let held = || Unsent {
            destination: at,
            ecn: None,
            segment_size: None,
            src_ip: None,
            bytes: Vec::new(),
        };
        socket.unsent.push_back(held());
        for _ in 0..2 * MAX_UNSENT {
            socket.send(&transmit(at, 5), b"hello");
        }
        assert_eq!(socket.unsent.len(), MAX_UNSENT);
    }
}
