//! Shared by the UDP listeners of `coap` and `mqttsn`: opens sockets, reads them for one task, and waits for deadlines.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmar_transport::listening_socket;
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;

/// Room for the largest datagram there is.
const MAX_DATAGRAM: usize = 65_535;
/// Datagrams that wait for a task, over all its sockets; further ones wait in the kernel, or are lost.
pub(super) const MAX_WAITING_DATAGRAMS: usize = 1024;

/// Times that the task empties the channel before it looks for silent clients: after a pause, more may wait in the socket.
const READS_BEFORE_DEADLINES: usize = 16;
/// Kernel buffers, so that a burst of sensors is not lost while the task works.
const SOCKET_BUFFER_BYTES: usize = 1 << 20;

/// A peer: its listener, its address, and that of this machine which it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Address {
    pub(super) listener: usize,
    pub(super) peer: SocketAddr,
    /// At a listener of all addresses, that to which the peer sent: answers come from there (RFC 7252 section 5.3.2).
    pub(super) local: Option<IpAddr>,
}

impl Address {
    /// Only this machine can use its loopback addresses.
    pub(super) fn is_near(&self) -> bool {
        self.peer.ip().to_canonical().is_loopback()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.peer.fmt(f)
    }
}

/// The socket of a listener.
pub(super) struct Udp {
    socket: UdpSocket,
    state: UdpSocketState,
    bound: SocketAddr,
}

impl Udp {
    /// Binds a socket. Needs the runtime.
    pub(super) fn open(address: SocketAddr) -> io::Result<Udp> {
        let socket = listening_socket(address, true)?;
        // Best effort: the kernel may give less.
        let _ = sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BUFFER_BYTES);
        let state = UdpSocketState::new((&socket).into())?;
        // Messages may be larger than the path's MTU, other than QUIC's.
        let _ = match address {
            SocketAddr::V4(_) => sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::WANT),
            SocketAddr::V6(_) => {
                sockopt::set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::WANT)
            }
        };
        let socket = UdpSocket::from_std(socket.into())?;
        Ok(Udp { bound: socket.local_addr()?, state, socket })
    }

    /// Address and port of the socket.
    pub(super) fn bound(&self) -> SocketAddr {
        self.bound
    }

    /// Allows datagrams to a network's broadcast address.
    pub(super) fn set_broadcast(&self) -> io::Result<()> {
        self.socket.set_broadcast(true)
    }

    /// Sends a datagram from this address, or from one that the kernel chooses. One that cannot be sent now counts as lost,
    /// which both protocols handle.
    pub(super) fn send(&self, peer: SocketAddr, from: Option<IpAddr>, contents: &[u8]) {
        let datagram =
            Transmit { destination: peer, ecn: None, contents, segment_size: None, src_ip: from };
        let send = || self.state.try_send((&self.socket).into(), &datagram);
        match self.socket.try_io(Interest::WRITABLE, send) {
            Err(error) if from.is_some() && error.kind() != io::ErrorKind::WouldBlock => {
                // A broadcast address, for instance, or one that is gone.
                self.send(peer, None, contents);
            }
            Err(error) => tracing::debug!(%peer, "a datagram was not sent: {error}"),
            Ok(()) => {}
        }
    }

    /// Reads for the task of the listener of this number.
    pub(super) async fn receive(
        self: Arc<Self>,
        listener: usize,
        datagrams: mpsc::Sender<(Address, Vec<u8>)>,
    ) {
        // The kernel may join datagrams of one peer.
        let mut room = vec![0; MAX_DATAGRAM];
        loop {
            let mut meta = RecvMeta::default();
            let read = || {
                let mut buffers = [IoSliceMut::new(&mut room)];
                self.state.recv((&self.socket).into(), &mut buffers, slice::from_mut(&mut meta))
            };
            match self.socket.async_io(Interest::READABLE, read).await {
                Ok(_) => {
                    let local = meta
                        .dst_ip
                        .filter(|ip| self.bound.ip().is_unspecified() && !ip.is_multicast());
                    let address = Address { listener, peer: meta.addr, local };
                    for datagram in room[..meta.len].chunks(meta.stride.max(1)) {
                        if datagrams.send((address, datagram.to_vec())).await.is_err() {
                            return;
                        }
                    }
                }
                Err(error) => {
                    // Usually an earlier datagram that could not be delivered.
                    tracing::debug!(%error, "UDP socket");
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        }
    }
}

/// Handles the waiting datagrams. Returns whether there were any.
pub(super) fn take_waiting(
    datagrams: &mut mpsc::Receiver<(Address, Vec<u8>)>,
    mut take: impl FnMut(Address, &[u8]),
) -> bool {
    let mut took_any = false;
    while let Ok((address, datagram)) = datagrams.try_recv() {
        take(address, &datagram);
        took_any = true;
    }
    took_any
}

/// The same, and what is in the socket.
pub(super) async fn take_all(
    datagrams: &mut mpsc::Receiver<(Address, Vec<u8>)>,
    mut take: impl FnMut(Address, &[u8]),
) {
    let mut reads = 0..READS_BEFORE_DEADLINES;
    while take_waiting(datagrams, &mut take) && reads.next().is_some() {
        tokio::task::yield_now().await;
    }
}

/// Waits; for ever without a deadline. After a pause of the process, timers are ready before sockets: these are polled first,
/// and then read by [`Udp::receive`], so that what has come is known before anyone is found silent.
pub(super) async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(at) => {
            tokio::time::sleep_until(at.into()).await;
            for _ in 0..2 {
                tokio::task::yield_now().await;
            }
        }
        None => std::future::pending().await,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn answers_come_from_the_address_that_was_asked() {
        let server = Arc::new(Udp::open("0.0.0.0:0".parse().unwrap()).unwrap());
        let (sender, mut datagrams) = mpsc::channel(4);
        let reader = tokio::spawn(Arc::clone(&server).receive(7, sender));
        // A connected socket takes nothing from other addresses.
        let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        client.connect(("127.0.0.2", server.bound().port())).await.unwrap();
        client.send(b"question").await.unwrap();
        let came = tokio::time::timeout(PATIENCE, datagrams.recv()).await.unwrap();
        let (from, question) = came.unwrap();
        assert_eq!((from.listener, from.local), (7, Some([127, 0, 0, 2].into())));
        assert_eq!(question, b"question");
        server.send(from.peer, from.local, b"answer");
        let mut room = [0; 16];
        let length = tokio::time::timeout(PATIENCE, client.recv(&mut room)).await.unwrap();
        assert_eq!(&room[..length.unwrap()], b"answer");
        // A message larger than most paths' packets is one datagram nevertheless.
        client.send(&[1; 9000]).await.unwrap();
        let came = tokio::time::timeout(PATIENCE, datagrams.recv()).await.unwrap();
        assert_eq!(came.unwrap().1.len(), 9000);
        reader.abort();
    }

    #[tokio::test]
    async fn both_families_listen_on_one_port() {
        // Another program may have the port in the other family.
        let is_possible = (0..20).any(|_| {
            let Ok(six) = Udp::open("[::]:0".parse().unwrap()) else { return false };
            Udp::open(([0; 4], six.bound().port()).into()).is_ok()
        });
        let has_ipv6 = std::net::UdpSocket::bind("[::1]:0").is_ok();
        assert_eq!(is_possible, has_ipv6);
    }
}
