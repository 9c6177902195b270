//! The UDP socket of one QUIC connection, which reports errors that quinn's own socket ignores.
//!
//! The socket is connected to the server: then the kernel reports if no socket listens there (ICMP port unreachable,
//! checked against this socket's addresses and ports), and a dead broker is detected with the second datagram instead
//! of after the idle timeout. A connected socket keeps its source address when the network changes, so its owner has
//! to move to a new socket then; `network` detects that.
//!
//! `repeats` sends first flights again that are not answered, and small datagrams where packets are lost.

pub(crate) mod repeats;

use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use fulmar_congestion::copies::SharedCopies;
use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::io::Interest;
use tokio::sync::mpsc;

use crate::search::Unanswered;
use repeats::{Repeats, Resend};

/// Events that may wait for their reader; further ones add nothing and are dropped.
pub(crate) const MAX_WAITING_EVENTS: usize = 8;

/// An event of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketEvent {
    /// A datagram was refused because the server's port is closed; the number of refusals since the server last
    /// answered.
    Refused(u32),
    /// The network refuses datagrams from here.
    Unreachable,
    /// The server has answered on a socket to which the connection moved.
    Moved(SocketAddr),
    /// Several datagrams were sent, and nothing was received for some time.
    Silent,
}

/// State that the sockets of one connection share.
#[derive(Clone, Debug)]
pub(crate) struct Wiring {
    /// The server's address in quinn's view, which stays when the server's address changes.
    pub(crate) named: SocketAddr,
    pub(crate) events: mpsc::Sender<SocketEvent>,
    /// Set whenever something is received.
    pub(crate) heard: Arc<AtomicBool>,
    pub(crate) unanswered: Arc<Unanswered>,
    /// Decides which datagrams are sent again.
    pub(crate) copies: Option<SharedCopies>,
}

#[derive(Debug)]
pub(crate) struct Socket {
    io: tokio::net::UdpSocket,
    state: UdpSocketState,
    /// The server's address.
    remote: SocketAddr,
    wiring: Wiring,
    refused: AtomicU32,
    /// The connection has moved to this socket, and nothing was received on it yet.
    unconfirmed: AtomicBool,
    repeats: Option<Repeats>,
}

/// A socket of the right family, connected.
pub(crate) fn connected(remote: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = match remote {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(remote)?;
    Ok(socket)
}

impl Socket {
    /// A new socket to `remote`; `moved` if a connection moves to it.
    pub(crate) fn new(remote: SocketAddr, moved: bool, wiring: Wiring) -> io::Result<Arc<Socket>> {
        let socket = connected(remote)?;
        socket.set_nonblocking(true)?;
        let state = UdpSocketState::new((&socket).into())?;
        let io = tokio::net::UdpSocket::from_std(socket)?;
        let (refused, unconfirmed) = (AtomicU32::new(0), AtomicBool::new(moved));
        Ok(Arc::new_cyclic(|own| {
            let repeats = wiring.copies.clone().map(|copies| {
                let own: Weak<Socket> = Weak::clone(own);
                Repeats::new(copies, own, !moved)
            });
            Socket { io, state, remote, wiring, refused, unconfirmed, repeats }
        }))
    }

    fn report(&self, event: SocketEvent) {
        // Full: the owner has enough events. Closed: the owner is gone.
        let _ = self.wiring.events.try_send(event);
    }

    fn note(&self, error: &io::Error) {
        match error.kind() {
            // A copy is refused as well, which says no more than the refusal of the first.
            ErrorKind::ConnectionRefused
                if self.repeats.as_ref().is_some_and(Repeats::is_of_copy) => {}
            // The connection has left it.
            ErrorKind::ConnectionRefused if !self.wiring.unanswered.is_at(self.remote) => {}
            ErrorKind::ConnectionRefused => {
                self.report(SocketEvent::Refused(self.refused.fetch_add(1, Ordering::Relaxed) + 1));
            }
            // quinn finds the path's MTU by datagrams that are too large.
            _ if error.raw_os_error() == Some(libc::EMSGSIZE) => {}
            _ => {
                tracing::debug!(%error, "UDP");
                self.report(SocketEvent::Unreachable);
            }
        }
    }

    fn try_once(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let transmit = Transmit { destination: self.remote, ..transmit.clone() };
        self.io.try_io(Interest::WRITABLE, || self.state.try_send((&self.io).into(), &transmit))
    }

    fn heard(&self) {
        self.refused.store(0, Ordering::Relaxed);
        self.wiring.heard.store(true, Ordering::Relaxed);
        self.wiring.unanswered.heard(self.remote);
        self.repeats.iter().for_each(Repeats::heard);
        if self.unconfirmed.swap(false, Ordering::Relaxed)
            && let Ok(address) = self.io.local_addr()
        {
            self.report(SocketEvent::Moved(address));
        }
    }
}

impl Resend for Socket {
    fn repeats(&self) -> Option<&Repeats> {
        self.repeats.as_ref()
    }

    fn resend(&self, copy: &Transmit<'_>) -> bool {
        match self.try_once(copy) {
            Ok(()) => return true,
            // A full kernel has no room for extras.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // The kernel reports the error of an earlier datagram instead of sending this one.
            Err(error) => self.note(&error),
        }
        false
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Writable { socket: self, waiting: None })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        // The kernel reports the error of an earlier datagram instead of sending this one: send again.
        for _ in 0..2 {
            match self.try_once(transmit) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(error),
                Err(error) => self.note(&error),
                Ok(()) => {
                    if let Some(repeats) = &self.repeats {
                        repeats.sent(transmit);
                    }
                    if self.wiring.unanswered.sent(Instant::now) {
                        self.report(SocketEvent::Silent);
                    }
                    return Ok(());
                }
            }
        }
        // Lost, as datagrams may be; quinn sends again.
        Ok(())
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.io.poll_recv_ready(context))?;
            let received = self
                .io
                .try_io(Interest::READABLE, || self.state.recv((&self.io).into(), buffers, meta));
            match received {
                Ok(count) => {
                    self.heard();
                    meta[..count].iter_mut().for_each(|meta| meta.addr = self.wiring.named);
                    return Poll::Ready(Ok(count));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => self.note(&error),
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.local_addr()
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    fn max_transmit_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.state.gro_segments()
    }
}

type Waiting = Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>;

/// One task's wait for room to send: tokio's own `poll_send_ready` wakes only one task.
struct Writable {
    socket: Arc<Socket>,
    waiting: Option<Waiting>,
}

impl std::fmt::Debug for Writable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writable").finish_non_exhaustive()
    }
}

impl UdpPoller for Writable {
    fn poll_writable(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let socket = Arc::clone(&self.socket);
        let waiting =
            self.waiting.get_or_insert_with(|| Box::pin(async move { socket.io.writable().await }));
        let done = ready!(waiting.as_mut().poll(context));
        self.waiting = None;
        Poll::Ready(done)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::time::Duration;

    impl Wiring {
        pub(super) fn of_test(
            named: SocketAddr,
            events: mpsc::Sender<SocketEvent>,
            copies: Option<SharedCopies>,
        ) -> Wiring {
            let (heard, now) = (Arc::default(), Instant::now());
            let unanswered = Arc::new(Unanswered::new(now, named));
            Wiring { named, events, heard, unanswered, copies }
        }
    }

    fn transmit(destination: SocketAddr) -> Transmit<'static> {
        Transmit { destination, ecn: None, contents: b"x", segment_size: None, src_ip: None }
    }

    #[tokio::test]
    async fn a_port_where_nobody_listens_is_told_and_an_answer_counts_again() {
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        let remote = peer.local_addr().unwrap();
        drop(peer);
        let (events, mut told) = mpsc::channel(MAX_WAITING_EVENTS);
        let socket = Socket::new(remote, true, Wiring::of_test(remote, events, None)).unwrap();
        socket.io.writable().await.unwrap();
        // The refusal of one datagram is reported when the next is sent; loopback may take some time.
        let deadline = Instant::now() + Duration::from_secs(20);
        for times in 1..=2 {
            let event = loop {
                socket.try_send(&transmit(remote)).unwrap();
                match told.try_recv() {
                    Ok(event) => break event,
                    Err(_) => assert!(Instant::now() < deadline, "no refusal was told"),
                }
                tokio::task::yield_now().await;
            };
            assert_eq!(event, SocketEvent::Refused(times));
        }
        let (mut buffer, mut meta) = ([0; 64], [RecvMeta::default()]);
        let peer = UdpSocket::bind(remote).unwrap();
        peer.send_to(b"y", socket.local_addr().unwrap()).unwrap();
        let receive = poll_fn(|context| {
            socket.poll_recv(context, &mut [IoSliceMut::new(&mut buffer)], &mut meta)
        });
        assert_eq!(receive.await.unwrap(), 1);
        let moved = SocketEvent::Moved(socket.local_addr().unwrap());
        // The last datagram was refused as well.
        while told.try_recv().unwrap() != moved {}
        assert_eq!(socket.refused.load(Ordering::Relaxed), 0);
    }
}
