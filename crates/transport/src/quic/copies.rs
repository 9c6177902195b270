//! Copies of what thin connections send where their paths lose packets; `fulmar_congestion::copies` decides.
//!
//! A connection that has lost nothing has no more than the time of the last look at its losses, unless others from the
//! same network have (`losses.rs`). Copies wait in one small queue for each endpoint, and go where the datagram went,
//! whatever has become of its connection since: they are due within milliseconds.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use fulmar_congestion::copies::{Copied, Copies, CopyQueue, SentDatagram};
use quinn_proto::{Connection, PathStats, Transmit};

use super::losses::{Losses, PathLoss};
use super::socket::{Socket, Unsent};

/// Datagrams of one endpoint that wait for their copies; 300 bytes each, or 1200 of a handshake.
const MAX_WAITING: usize = 256;

/// Milliseconds between two looks at what a connection has lost.
const LOOK_MS: u32 = 100;

/// Copies of one connection, once it has lost something.
#[derive(Debug)]
pub(super) struct ConnCopies {
    policy: Copies,
    /// quinn's counters at the last look.
    sent: u64,
    lost: u64,
    acks: u64,
    /// What was lost is remembered for the client's network.
    is_kept: bool,
}

/// Looks now and then at what a connection has lost. `looked_ms` is when, on a clock that may begin anywhere and
/// overflow: an instant would take four times the bytes, in every connection.
pub(super) fn update_losses(
    copies: &mut Option<Box<ConnCopies>>,
    looked_ms: &mut u32,
    inner: &Connection,
    now_ms: u32,
    now: Instant,
) {
    if now_ms.wrapping_sub(*looked_ms) < LOOK_MS {
        return;
    }
    *looked_ms = now_ms;
    let stats = inner.stats();
    let path = stats.path;
    if path.lost_packets == 0 && copies.is_none() {
        return;
    }
    let copies = copies.get_or_insert_with(|| Box::new(ConnCopies::new(now, 0.0)));
    copies.observe(now, &path, stats.frame_rx.acks);
}

impl ConnCopies {
    /// From a network that loses this share of packets; 0 where nothing is known.
    fn new(now: Instant, known_loss: f64) -> ConnCopies {
        ConnCopies {
            policy: Copies::new(now, known_loss),
            sent: 0,
            lost: 0,
            acks: 0,
            is_kept: false,
        }
    }

    /// Of a new connection from this address: `None` unless others have lost packets there.
    pub(super) fn expected(losses: &Losses, from: IpAddr, now: Instant) -> Option<Box<ConnCopies>> {
        losses.expected(from, now).map(|known| Box::new(ConnCopies::new(now, known.share)))
    }

    /// First flights of a connection were sent again.
    pub(super) fn repeated(copies: &mut Option<Box<ConnCopies>>, repeated: Copied, now: Instant) {
        let copies = copies.get_or_insert_with(|| Box::new(ConnCopies::new(now, 0.0)));
        copies.policy.repeated(repeated);
    }

    /// quinn's counters now: those of the path, and of ACK frames received.
    fn observe(&mut self, now: Instant, path: &PathStats, acks: u64) {
        // Before the first, the round trip is that of another connection, or quinn's guess.
        if acks == 0 {
            return;
        }
        let sent = path.sent_packets.saturating_sub(self.sent);
        let lost = path.lost_packets.saturating_sub(self.lost);
        (self.sent, self.lost) = (path.sent_packets, path.lost_packets);
        self.policy.observe(now, path.rtt, sent, lost);
        if std::mem::replace(&mut self.acks, acks) != acks {
            self.policy.acknowledged();
        }
    }

    /// The connection, from this validated address, has ended; `round_trip` is the smoothed one.
    pub(super) fn remember_losses(
        &mut self,
        losses: &Losses,
        from: IpAddr,
        round_trip: Duration,
        now: Instant,
    ) {
        if !std::mem::replace(&mut self.is_kept, true) {
            losses.remember(from, PathLoss { share: self.policy.loss(), round_trip }, now);
        }
    }

    /// The client has another address: what is known is about the path to the one before.
    pub(super) fn moved(&mut self, now: Instant) {
        self.policy.forget(now);
    }

    pub(super) fn copied(&self) -> Copied {
        self.policy.copied()
    }
}

/// The copies of an endpoint that are still to be sent.
#[derive(Debug)]
pub(super) struct Waiting(CopyQueue<Unsent>);

impl Waiting {
    pub(super) fn new() -> Waiting {
        Waiting(CopyQueue::new(MAX_WAITING))
    }

    /// A datagram of a connection was sent, to an address that is validated or not.
    pub(super) fn sent(
        &mut self,
        copies: &mut ConnCopies,
        transmit: &Transmit,
        bytes: &[u8],
        is_validated: bool,
        now: Instant,
    ) {
        // A run of datagrams is a long one.
        let is_single = transmit.segment_size.is_none_or(|segment| segment >= bytes.len());
        let is_handshake = bytes.first().is_some_and(|first| first & LONG_HEADER != 0);
        let is_validated = is_validated && is_single;
        let plan = copies
            .policy
            .sent(now, SentDatagram { bytes: bytes.len(), is_handshake, is_validated });
        self.0.push(now, plan, || Unsent::new(transmit, bytes));
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.0.next()
    }

    pub(super) fn send_due(&mut self, socket: &mut Socket, now: Instant) {
        self.0.send_due(now, |datagram| socket.send_again(datagram));
    }
}

/// Set in the first byte of packets of a handshake and of 0-RTT (RFC 9000 section 17.2).
const LONG_HEADER: u8 = 0x80;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use super::*;

    /// A connection that has lost one packet in five.
    fn lossy(now: Instant) -> ConnCopies {
        ConnCopies::new(now, 0.2)
    }

    /// Sends datagrams, and returns how many copies of them arrive.
    fn arriving(
        copies: &mut ConnCopies,
        transmits: &[(Transmit, Vec<u8>, bool)],
        now: Instant,
        peer: &UdpSocket,
    ) -> usize {
        let mut waiting = Waiting::new();
        for (transmit, bytes, is_validated) in transmits {
            waiting.sent(copies, transmit, bytes, *is_validated, now);
        }
        let own = UdpSocket::bind("127.0.0.1:0").unwrap();
        own.set_nonblocking(true).unwrap();
        let mut socket = Socket::new(own).unwrap();
        while let Some(at) = waiting.next() {
            waiting.send_due(&mut socket, at);
        }
        let mut buffer = [0; 2000];
        std::iter::from_fn(|| peer.recv(&mut buffer).ok()).count()
    }

    #[test]
    fn addresses_that_are_not_validated_and_long_runs_get_no_copies() {
        let now = Instant::now();
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        peer.set_nonblocking(true).unwrap();
        let destination = peer.local_addr().unwrap();
        let datagram = |size, segment_size, is_validated| {
            let ecn = None;
            let transmit = Transmit { destination, size, ecn, segment_size, src_ip: None };
            (transmit, vec![0x40; size], is_validated)
        };
        let count = |datagrams: &[_]| arriving(&mut lossy(now), datagrams, now, &peer);
        assert_eq!(count(&[datagram(100, None, true)]), 2);
        assert_eq!(count(&[datagram(100, Some(100), true)]), 2);
        assert_eq!(count(&[datagram(100, None, false)]), 0);
        assert_eq!(count(&[datagram(200, Some(100), true)]), 0);
        assert_eq!(count(&[datagram(1200, None, true)]), 0);
        let mut fresh = ConnCopies::new(now, 0.0);
        assert_eq!(arriving(&mut fresh, &[datagram(100, None, true)], now, &peer), 0);
        let mut moved = lossy(now);
        moved.moved(now);
        assert_eq!(arriving(&mut moved, &[datagram(100, None, true)], now, &peer), 0);
    }

    /// While acknowledgements come, a large datagram is no timer's probe.
    #[test]
    fn a_probe_has_copies_until_an_acknowledgement_comes() {
        let rtt = Duration::from_millis(100);
        let begun = Instant::now();
        let mut copies = lossy(begun);
        let path = |sent_packets, lost_packets| {
            let mut path = PathStats::default();
            (path.rtt, path.sent_packets, path.lost_packets) = (rtt, sent_packets, lost_packets);
            path
        };
        let large = SentDatagram { bytes: 1200, is_handshake: false, is_validated: true };
        copies.observe(begun, &path(100, 30), 1);
        assert_eq!(copies.policy.sent(begun, large).copies, 0);
        copies.observe(begun + 2 * rtt, &path(102, 30), 1);
        assert!(copies.policy.sent(begun + 2 * rtt, large).copies > 0);
        copies.observe(begun + 2 * rtt, &path(104, 30), 2);
        assert_eq!(copies.policy.sent(begun + 2 * rtt, large).copies, 0);
    }

    /// Next to some 20 KiB of quinn and rustls, and only where packets are lost.
    #[test]
    fn what_a_connection_with_losses_adds_is_small() {
        assert!(size_of::<ConnCopies>() <= 344, "{} bytes", size_of::<ConnCopies>());
    }
}
