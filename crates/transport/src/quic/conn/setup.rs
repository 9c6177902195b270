//! A connection that is being set up: its first flights are sent again as a whole until the client has answered, and what
//! overtakes the end of the handshake waits for it.
//!
//! quinn drops packets with the keys that follow the handshake as long as that is not over, and every copy of them
//! later, because it remembers their numbers. So they are kept from it: a client whose Finished is lost need not say
//! CONNECT again, only Finished.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fulmar_congestion::copies::{Copied, FirstFlights};
use quinn_proto::{Connection, ConnectionEvent, Transmit};

use super::QuicConn;
use super::unvalidated::count;
use crate::quic::config::QuicSettings;
use crate::quic::copies::ConnCopies;
use crate::quic::peek::FirstPacket;
use crate::quic::socket::{Socket, Unsent};

/// Datagrams that wait for the end of the handshake; what comes beyond them is lost, as it was before.
const MOST_EARLY: usize = 4;

/// Round trip below which any acknowledgement counts: quinn's timers are short there, too, and what is measured in a
/// handshake contains the time that the cryptography of both ends takes.
const SHORT: Duration = Duration::from_millis(50);
/// While packets arrive, a connection may take this many times as long as otherwise to be set up.
const MOST_TIMEOUTS: u32 = 3;

/// State that a connection keeps until it is set up.
#[derive(Debug)]
pub(in crate::quic) struct Setup {
    begun: Instant,
    timeout: Duration,
    /// `None` where nothing is sent again.
    flights: Option<FirstFlights<Unsent>>,
    early: Vec<ConnectionEvent>,
    /// ACK frames received when the last datagram was sent.
    acks: u64,
    /// One came since, but so soon that it may be about less than all.
    is_answered_early: bool,
}

impl Setup {
    pub(super) fn new(settings: &QuicSettings, now: Instant) -> Setup {
        let (flights, timeout) = (FirstFlights::new(now), settings.handshake_timeout);
        let flights = settings.copies.then_some(flights);
        let (acks, is_answered_early) = (0, false);
        Setup { begun: now, timeout, flights, early: Vec::new(), acks, is_answered_early }
    }

    /// By when it must be done, after a packet of the client.
    fn begin_by(&self, by: Instant, now: Instant) -> Instant {
        by.max((now + self.timeout / 2).min(self.begun + self.timeout * MOST_TIMEOUTS))
    }

    /// A datagram was sent.
    pub(in crate::quic) fn sent(
        &mut self,
        inner: &Connection,
        transmit: &Transmit,
        bytes: &[u8],
        now: Instant,
    ) {
        (self.acks, self.is_answered_early) = (inner.stats().frame_rx.acks, false);
        if let Some(flights) = &mut self.flights {
            flights.sent(now, round_trip(inner), bytes.len(), || Unsent::new(transmit, bytes));
        }
    }

    /// Keeps what cannot be handled yet; `None` if it does.
    fn withhold(
        &mut self,
        inner: &Connection,
        event: ConnectionEvent,
        remote: SocketAddr,
        first: FirstPacket,
    ) -> Option<ConnectionEvent> {
        let is_early = inner.is_handshaking() && first == FirstPacket::Short;
        if !is_early || remote != inner.remote_address() || self.early.len() >= MOST_EARLY {
            return Some(event);
        }
        self.early.push(event);
        None
    }

    /// A datagram was handled. Returns whether the client has all that it needs.
    fn heard(&mut self, inner: &mut Connection, was_up: bool, now: Instant) -> bool {
        let is_up = !inner.is_handshaking();
        if is_up {
            self.early.drain(..).for_each(|event| inner.handle_event(event));
        }
        let round_trip = round_trip(inner);
        let Some(flights) = &mut self.flights else { return is_up };
        match (is_up, was_up) {
            (false, _) => flights.poked(now, round_trip),
            (true, false) => flights.answered(),
            (true, true) if inner.stats().frame_rx.acks > self.acks => {
                let since = flights.waiting_since().unwrap_or(self.begun);
                let is_early = now.saturating_duration_since(since) < inner.rtt() / 2;
                self.is_answered_early = is_early && inner.rtt() > SHORT;
                return !self.is_answered_early;
            }
            (true, true) => {}
        }
        false
    }
}

/// The measured one.
fn round_trip(inner: &Connection) -> Option<Duration> {
    (inner.stats().frame_rx.acks > 0).then(|| inner.rtt())
}

impl QuicConn {
    /// Gives a datagram to quinn, now or when the handshake is over.
    pub(super) fn handle(
        &mut self,
        event: ConnectionEvent,
        remote: SocketAddr,
        first: FirstPacket,
        now: Instant,
    ) {
        let Some(setup) = &mut self.setup else { return self.inner.handle_event(event) };
        let was_up = !self.inner.is_handshaking();
        let Some(event) = setup.withhold(&self.inner, event, remote, first) else { return };
        let before = self.inner.stats().frame_rx;
        self.inner.handle_event(event);
        if count(&before) != count(&self.inner.stats().frame_rx) {
            self.begin_by = self.begin_by.map(|by| setup.begin_by(by, now));
        }
        if setup.heard(&mut self.inner, was_up, now) {
            self.setup = None;
        }
    }

    /// When first flights are to be sent again.
    pub(super) fn next_repetition(&self) -> Option<Instant> {
        self.setup.as_ref()?.flights.as_ref()?.next()
    }

    /// Sends first flights again that are due; to an address that is not validated within its limit.
    pub(in crate::quic) fn repeat_first_flights(&mut self, socket: &mut Socket, now: Instant) {
        if self.inner.is_closed() || self.inner.remote_address() != self.last_remote {
            self.setup = None;
        }
        let Some(setup) = &mut self.setup else { return };
        let Some(flights) = &mut setup.flights else { return };
        let is_due = flights.next().is_some_and(|due| due <= now);
        let (unvalidated, mut repeated) = (&mut self.unvalidated, Copied::default());
        flights.send_due(now, round_trip(&self.inner), |datagram| {
            let bytes = datagram.len() as u64;
            if unvalidated.as_mut().is_none_or(|unvalidated| unvalidated.spend(bytes)) {
                socket.send_again(datagram);
                repeated.datagrams += 1;
                repeated.bytes += bytes;
            }
        });
        if repeated.datagrams > 0 {
            ConnCopies::repeated(&mut self.copies, repeated, now);
        }
        if is_due && setup.is_answered_early {
            self.setup = None;
        }
    }
}
