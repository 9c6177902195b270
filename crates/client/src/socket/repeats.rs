//! Datagrams of one connection that are sent again, see `fulmar_congestion::copies`: those of thin streams where packets
//! are lost, and the first flights, until all of them are acknowledged.
//!
//! There is a task for them only while there are any.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use fulmar_congestion::copies::{
    Acknowledged, Copied, CopyQueue, FirstFlights, SentDatagram, SharedCopies, share,
};
use quinn::udp::{EcnCodepoint, Transmit};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::sleep_until;

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
/// The bits of the first byte that say so, and the type of packet; with `LONG_HEADER` alone it is an Initial.
const LONG_TYPE: u8 = 0xB0;

pub(crate) struct Repeats {
    copies: SharedCopies,
    waiting: Mutex<Waiting>,
    /// Something is due sooner than what the task waits for.
    sooner: Arc<Notify>,
    socket: Weak<dyn Resend>,
    runtime: Handle,
    /// Copies sent since the last packet from the server, which may be refused like the originals.
    refusable: AtomicU32,
}

#[derive(Debug)]
struct Waiting {
    queue: CopyQueue<Datagram>,
    setup: Option<Setup>,
    /// There is a task that sends them.
    is_served: bool,
}

/// First flights and round trip of a connection that is being set up.
#[derive(Debug)]
struct Setup {
    flights: FirstFlights<Datagram>,
    begun: Instant,
    /// From its first datagram to the first answer.
    round_trip: Option<Duration>,
    /// A packet was sent with keys that only a finished handshake has.
    is_connected: bool,
}

#[derive(Debug)]
struct Datagram {
    destination: SocketAddr,
    ecn: Option<EcnCodepoint>,
    src_ip: Option<IpAddr>,
    segment_size: Option<usize>,
    bytes: Vec<u8>,
}

impl Setup {
    fn new(now: Instant) -> Setup {
        let flights = FirstFlights::new(now);
        Setup { flights, begun: now, round_trip: None, is_connected: false }
    }

    /// Takes note of acknowledgements; whether all is said that sets the connection up.
    fn is_over(&mut self, news: Option<Acknowledged>) -> bool {
        let Some(news) = news else { return false };
        if news.is_all {
            self.flights.answered();
            return self.is_connected;
        }
        let is_initial = |datagram: &Datagram| {
            datagram.bytes.first().is_some_and(|first| first & LONG_TYPE == LONG_HEADER)
        };
        self.flights.acknowledged(news.sent, is_initial);
        false
    }
}

impl Waiting {
    fn next(&self) -> Option<Instant> {
        let setup = self.setup.as_ref().and_then(|setup| setup.flights.next());
        self.queue.next().into_iter().chain(setup).min()
    }

    fn settle(&mut self, news: Option<Acknowledged>) {
        self.setup.take_if(|setup| setup.is_over(news));
    }
}

impl Repeats {
    /// For a socket that is being made, on the runtime that serves it; `is_first` if a connection begins with it.
    pub(crate) fn new(copies: SharedCopies, socket: Weak<dyn Resend>, is_first: bool) -> Repeats {
        let setup = is_first.then(|| Setup::new(Instant::now()));
        let waiting = Waiting { queue: CopyQueue::new(MAX_WAITING), setup, is_served: false };
        let (runtime, refusable) = (Handle::current(), AtomicU32::new(0));
        let (waiting, sooner) = (Mutex::new(waiting), Arc::default());
        Repeats { copies, waiting, sooner, socket, runtime, refusable }
    }

    /// A datagram was sent.
    pub(crate) fn sent(&self, transmit: &Transmit<'_>) {
        let bytes = transmit.contents;
        // A run of datagrams is a long one.
        let is_single = transmit.segment_size.is_none_or(|segment| segment >= bytes.len());
        let is_handshake = bytes.first().is_some_and(|first| first & LONG_HEADER != 0);
        let now = Instant::now();
        // A client has chosen the address itself.
        let sent = SentDatagram { bytes: bytes.len(), is_handshake, is_validated: is_single };
        let (plan, news) = {
            let mut copies = share(&self.copies);
            (copies.sent(now, sent), copies.take_acknowledged())
        };
        let mut waiting = self.waiting();
        waiting.settle(news);
        if plan.copies == 0 && waiting.setup.is_none() {
            return;
        }
        let before = waiting.next();
        waiting.queue.push(now, plan, || Datagram::new(transmit));
        if let Some(setup) = &mut waiting.setup {
            setup.is_connected |= !is_handshake;
            setup.flights.sent(now, setup.round_trip, bytes.len(), || Datagram::new(transmit));
        }
        let next = waiting.next();
        if next.is_none() {
            return;
        }
        if !std::mem::replace(&mut waiting.is_served, true) {
            self.runtime.spawn(serve(Weak::clone(&self.socket), Arc::clone(&self.sooner)));
        } else if before.is_none() || next < before {
            self.sooner.notify_one();
        }
    }

    /// Whether a refusal is put down to a copy. As many are as copies were sent.
    pub(super) fn is_of_copy(&self) -> bool {
        let one_less = |copies: u32| copies.checked_sub(1);
        self.refusable.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    /// The server has answered: copies that it has not refused by now will not be refused.
    pub(crate) fn heard(&self) {
        self.refusable.store(0, Ordering::Relaxed);
        if let Some(setup) = &mut self.waiting().setup {
            setup.round_trip.get_or_insert_with(|| setup.begun.elapsed());
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the next copy is due; `None` ends the task.
    fn next(&self) -> Option<Instant> {
        let mut waiting = self.waiting();
        let next = waiting.next();
        waiting.is_served = next.is_some();
        next
    }

    fn send_due(&self, socket: &dyn Resend) {
        let (now, mut repeated) = (Instant::now(), Copied::default());
        let news = share(&self.copies).take_acknowledged();
        let mut waiting = self.waiting();
        waiting.settle(news);
        let send = |datagram: &Datagram| {
            if socket.resend(&datagram.as_transmit()) {
                self.refusable.fetch_add(1, Ordering::Relaxed);
            }
        };
        waiting.queue.send_due(now, send);
        if let Some(Setup { flights, round_trip, .. }) = &mut waiting.setup {
            flights.send_due(now, *round_trip, |datagram| {
                send(datagram);
                repeated.datagrams += 1;
                repeated.bytes += datagram.bytes.len() as u64;
            });
        }
        drop(waiting);
        share(&self.copies).repeated(repeated);
    }
}

impl fmt::Debug for Repeats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Repeats").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

/// Sends what is due until nothing is, or the socket is gone, which it does not keep.
async fn serve(own: Weak<dyn Resend>, sooner: Arc<Notify>) {
    let next = || own.upgrade().and_then(|socket| socket.repeats().and_then(Repeats::next));
    while let Some(at) = next() {
        tokio::select! {
            () = sleep_until(at.into()) => {
                if let Some(socket) = own.upgrade()
                    && let Some(repeats) = socket.repeats()
                {
                    repeats.send_due(&*socket);
                }
            }
            () = sooner.notified() => {}
        }
    }
}

impl Datagram {
    fn new(transmit: &Transmit<'_>) -> Datagram {
        let Transmit { destination, ecn, src_ip, segment_size, contents } = *transmit;
        Datagram { destination, ecn, src_ip, segment_size, bytes: contents.to_vec() }
    }

    fn as_transmit(&self) -> Transmit<'_> {
        let Datagram { destination, ecn, src_ip, segment_size, .. } = *self;
        Transmit { destination, ecn, contents: &self.bytes, segment_size, src_ip }
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

    use super::super::{MAX_WAITING_EVENTS, Socket, SocketEvent, Wiring};
    use super::*;
    use quinn::AsyncUdpSocket;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn transmit(destination: SocketAddr, contents: &[u8]) -> Transmit<'_> {
        Transmit { destination, ecn: None, contents, segment_size: None, src_ip: None }
    }

    fn lossy(remote: SocketAddr) -> (Arc<Socket>, SharedCopies, mpsc::Receiver<SocketEvent>) {
        let copies = Arc::new(Mutex::new(Copies::new(Instant::now(), 0.2)));
        let (events, told) = mpsc::channel(MAX_WAITING_EVENTS);
        // Of a connection that has moved: it has no first flights.
        let wiring = Wiring::of_test(remote, events, Some(Arc::clone(&copies)));
        let socket = Socket::new(remote, true, wiring).unwrap();
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
