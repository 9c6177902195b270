//! Shared by the UDP listeners of `coap` and `mqttsn`: opens sockets, reads them for one task, and waits for deadlines.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::UdpSocket;
use tokio::sync::mpsc;

/// Room for the largest datagram there is.
const MAX_DATAGRAM: usize = 65_535;
/// Datagrams that wait for a task, over all its sockets; further ones wait in the kernel, or are lost.
pub(super) const MAX_WAITING_DATAGRAMS: usize = 1024;

/// How often the task empties the channel before it looks for silent clients: after a pause, more may wait in the socket.
const READS_BEFORE_DEADLINES: usize = 16;
/// Kernel buffers, so that a burst of sensors is not lost while the task works.
const SOCKET_BUFFER_BYTES: usize = 1 << 20;

/// A peer: its listener and its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Address {
    pub(super) listener: usize,
    pub(super) peer: SocketAddr,
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

/// Binds a socket. Needs the runtime.
pub(super) fn open(address: SocketAddr) -> io::Result<UdpSocket> {
    use socket2::{Domain, Protocol, SockAddr, Socket, Type};
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    // Best effort: the kernel may give less.
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES);
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::from(address))?;
    UdpSocket::from_std(socket.into())
}

/// Sends a datagram. One that cannot be sent now counts as lost, which both protocols handle.
pub(super) fn send(socket: &UdpSocket, peer: SocketAddr, datagram: &[u8]) {
    if let Err(error) = socket.try_send_to(datagram, peer) {
        tracing::debug!(%peer, "a datagram was not sent: {error}");
    }
}

/// Reads a socket for the task.
pub(super) async fn receive(
    listener: usize,
    socket: Arc<UdpSocket>,
    datagrams: mpsc::Sender<(Address, Vec<u8>)>,
) {
    let mut room = vec![0; MAX_DATAGRAM];
    loop {
        match socket.recv_from(&mut room).await {
            Ok((len, peer)) => {
                let address = Address { listener, peer };
                if datagrams.send((address, room[..len].to_vec())).await.is_err() {
                    return;
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
/// and then read by [`receive`], so that what has come is known before anyone is found silent.
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
