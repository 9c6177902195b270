//! Datagrams of one connection that are sent again, see `fulmar_congestion::copies`.
//!
//! There is a task for them only while there are any, which is for milliseconds at a time.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use fulmar_congestion::copies::{CopyQueue, Sent, SharedCopies, share};
use quinn::udp::{EcnCodepoint, Transmit};
use tokio::runtime::Handle;

/// A socket whose datagrams are sent again.
pub(crate) trait Resend: Send + Sync {
    /// The datagrams that wait for it.
    fn repeats(&self) -> Option<&Repeats>;

    /// Sends a copy if the kernel has room for it now; whether it has.
    fn resend(&self, copy: &Transmit<'_>) -> bool;
}

/// Datagrams that wait for their copies.
const MAX_WAITING: usize = 64;

/// Set in the first byte of packets of a handshake and of 0-RTT (RFC 9000 section 17.2).
const LONG_HEADER: u8 = 0x80;

pub(crate) struct Repeats {
    copies: SharedCopies,
    waiting: Mutex<Waiting>,
    socket: Weak<dyn Resend>,
    runtime: Handle,
    /// Copies sent since the last packet from the server, which may be refused like the originals.
    refusable: AtomicU32,
}

#[derive(Debug)]
struct Waiting {
    queue: CopyQueue<Datagram>,
    /// There is a task that sends them.
    is_served: bool,
}

#[derive(Debug)]
struct Datagram {
    destination: SocketAddr,
    ecn: Option<EcnCodepoint>,
    src_ip: Option<IpAddr>,
    bytes: Vec<u8>,
}

impl Repeats {
    /// For a socket that is being made, on the runtime that serves it.
    pub(crate) fn new(copies: SharedCopies, socket: Weak<dyn Resend>) -> Repeats {
        let waiting = Waiting { queue: CopyQueue::new(MAX_WAITING), is_served: false };
        let (runtime, refusable) = (Handle::current(), AtomicU32::new(0));
        Repeats { copies, waiting: Mutex::new(waiting), socket, runtime, refusable }
    }

    /// A datagram was sent.
    pub(crate) fn sent(&self, transmit: &Transmit<'_>) {
        let bytes = transmit.contents;
        // A run of datagrams is a long one.
        let is_single = transmit.segment_size.is_none_or(|segment| segment >= bytes.len());
        let is_handshake = bytes.first().is_some_and(|first| first & LONG_HEADER != 0);
        let now = Instant::now();
        // A client has chosen the address itself.
        let sent = Sent { bytes: bytes.len(), is_handshake, is_validated: is_single };
        let plan = share(&self.copies).sent(now, sent);
        if plan.copies == 0 {
            return;
        }
        let Some(socket) = self.socket.upgrade() else { return };
        let mut waiting = self.waiting();
        waiting.queue.push(now, plan, || Datagram::of(transmit));
        if !std::mem::replace(&mut waiting.is_served, true) {
            self.runtime.spawn(serve(socket));
        }
    }

    /// Whether a refusal is put down to a copy. As many are as copies were sent.
    pub(super) fn is_of_copy(&self) -> bool {
        let one_less = |copies: u32| copies.checked_sub(1);
        self.refusable.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    /// The server has answered: copies that it has not refused by now will not be refused.
    pub(super) fn heard(&self) {
        self.refusable.store(0, Ordering::Relaxed);
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the next copy is due; `None` ends the task.
    fn next(&self) -> Option<Instant> {
        let mut waiting = self.waiting();
        let next = waiting.queue.next();
        waiting.is_served = next.is_some();
        next
    }

    fn send_due(&self, socket: &dyn Resend) {
        self.waiting().queue.send_due(Instant::now(), |datagram| {
            if socket.resend(&datagram.as_transmit()) {
                self.refusable.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
}

impl fmt::Debug for Repeats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Repeats").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

async fn serve(socket: Arc<dyn Resend>) {
    let Some(repeats) = socket.repeats() else { return };
    while let Some(at) = repeats.next() {
        tokio::time::sleep_until(at.into()).await;
        repeats.send_due(&*socket);
    }
}

impl Datagram {
    fn of(transmit: &Transmit<'_>) -> Datagram {
        let Transmit { destination, ecn, src_ip, contents, .. } = *transmit;
        Datagram { destination, ecn, src_ip, bytes: contents.to_vec() }
    }

    fn as_transmit(&self) -> Transmit<'_> {
        let Datagram { destination, ecn, src_ip, .. } = *self;
        Transmit { destination, ecn, contents: &self.bytes, segment_size: None, src_ip }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use fulmar_congestion::copies::Copies;
    use tokio::sync::mpsc;
    use tokio::time::timeout;

    use super::super::{MAX_WAITING_EVENTS, Socket, SocketEvent};
    use super::*;
    use quinn::AsyncUdpSocket;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn transmit(destination: SocketAddr, contents: &[u8]) -> Transmit<'_> {
        Transmit { destination, ecn: None, contents, segment_size: None, src_ip: None }
    }

    fn lossy(remote: SocketAddr) -> (Arc<Socket>, SharedCopies, mpsc::Receiver<SocketEvent>) {
        let copies = Arc::new(Mutex::new(Copies::new(Instant::now(), 0.2)));
        let (events, told) = mpsc::channel(MAX_WAITING_EVENTS);
        let socket = Socket::new(remote, false, events, Some(Arc::clone(&copies))).unwrap();
        (socket, copies, told)
    }

    #[tokio::test]
    async fn datagrams_are_sent_again_where_packets_are_lost() {
        let peer = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let remote = peer.local_addr().unwrap();
        let (socket, copies, _told) = lossy(remote);
        socket.io.writable().await.unwrap();
        let flight = [0xC0; 1200];
        let text = b"\x40 something small";
        let run = [0x40; 200];
        socket.try_send(&transmit(remote, &flight)).unwrap();
        socket.try_send(&transmit(remote, text)).unwrap();
        socket.try_send(&Transmit { segment_size: Some(100), ..transmit(remote, &run) }).unwrap();
        let (mut flights, mut texts, mut others) = (0, 0, 0);
        let mut buffer = [0; 2000];
        while (flights, texts, others) != (3, 3, 2) {
            let length = timeout(PATIENCE, peer.recv(&mut buffer)).await.unwrap().unwrap();
            match &buffer[..length] {
                got if got == flight => flights += 1,
                got if got == text => texts += 1,
                _ => others += 1,
            }
            assert!(flights <= 3 && texts <= 3 && others <= 2);
        }
        assert_eq!(share(&copies).copied().datagrams, 4);
    }

    /// A server that is being replaced refuses a datagram and its copies, which is one refusal.
    #[tokio::test]
    async fn refusals_of_copies_count_as_one() {
        let gone = UdpSocket::bind("127.0.0.1:0").unwrap();
        let remote = gone.local_addr().unwrap();
        drop(gone);
        let (socket, _copies, mut told) = lossy(remote);
        socket.io.writable().await.unwrap();
        socket.try_send(&transmit(remote, &[0xC0; 100])).unwrap();
        let repeats = socket.repeats.as_ref().unwrap();
        let served = async {
            while repeats.waiting().is_served {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, served).await.unwrap();
        // The kernel reports the refusal of the last copy instead of sending this datagram.
        if let Err(error) = socket.try_once(&transmit(remote, b"x")) {
            socket.note(&error);
        }
        let mut events = Vec::new();
        while let Ok(event) = told.try_recv() {
            events.push(event);
        }
        assert!(events.is_empty() || events == [SocketEvent::Refused(1)], "{events:?}");
    }
}
