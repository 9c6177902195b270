//! A UDP socket that reads and writes many datagrams a system call (GRO, GSO, recvmmsg).

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};

use bytes::BytesMut;
use mio::{Interest, Registry};
use quinn_proto::{EcnCodepoint, Transmit};
use quinn_udp::{BATCH_SIZE, RecvMeta, UdpSocketState};

/// Bytes of one receive buffer: a run of datagrams joined by the kernel.
const RECEIVE_BYTES: usize = 64 * 1024;

/// Datagram runs kept while the kernel's buffer is full; more are dropped, as the network might.
const MAX_UNSENT: usize = 256;

/// One datagram that has come in.
pub(crate) struct Datagram {
    pub(crate) remote: SocketAddr,
    pub(crate) local_ip: Option<IpAddr>,
    pub(crate) ecn: Option<EcnCodepoint>,
    pub(crate) bytes: BytesMut,
}

struct Unsent {
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
    unsent: VecDeque<Unsent>,
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
            unsent: VecDeque::new(),
        })
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: mio::Token) -> io::Result<()> {
        registry.register(&mut self.io, token, Interest::READABLE | Interest::WRITABLE)
    }

    pub(crate) fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    pub(crate) fn max_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    /// The next datagrams; `None` when the socket is empty. Hand the batch back for reuse.
    pub(crate) fn receive(&mut self) -> io::Result<Option<Vec<Datagram>>> {
        let mut slices: Vec<IoSliceMut<'_>> =
            self.buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
        let count = match self.state.recv((&self.io).into(), &mut slices, &mut self.metas) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            // An ICMP error about a datagram sent earlier; the connection finds out by itself.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
            Err(error) => return Err(error),
        };
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
                return;
            }
        }
    }

    /// Sends, or keeps for later when the kernel is full.
    pub(crate) fn send(&mut self, transmit: &Transmit, bytes: &[u8]) {
        let unsent = Unsent {
            destination: transmit.destination,
            ecn: transmit.ecn,
            segment_size: transmit.segment_size,
            src_ip: transmit.src_ip,
            bytes: Vec::new(),
        };
        let sent = self.unsent.is_empty()
            && self.try_send(&quinn_udp::Transmit { contents: bytes, ..unsent.as_transmit() });
        if !sent && self.unsent.len() < MAX_UNSENT {
            self.unsent.push_back(Unsent { bytes: bytes.to_vec(), ..unsent });
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
