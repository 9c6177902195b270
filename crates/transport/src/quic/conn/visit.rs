//! An address that has not proven itself: how much it is sent, at most three times what came from it (RFC 9000
//! sections 8.1 and 9.3.1).
//!
//! quinn-proto lets one datagram more pass than that, and answers anything that comes from a new address with
//! a path challenge of 1200 bytes. So what it may send during a handshake is asked here first; and a
//! connection is told of a new address only when a challenge may be sent there. Until then what came from
//! the address is taken as if it had come from the old one, and what fits is sent where it came from: a
//! client behind a router that forgot it is answered at once, in small packets as it sends them itself. It is
//! sent PINGs as well, which have it say more, so that after a few round trips the address can be challenged.

use std::net::SocketAddr;

use quinn_proto::{Connection, ConnectionEvent, FrameStats, Transmit};

use super::QuicConn;
use crate::quic::peek::First;

/// A path challenge is as large (RFC 9000 section 8.2.1).
const CHALLENGE: u64 = 1200;
/// How often more may be sent than has come.
const FACTOR: u64 = 3;
/// A packet with a PING takes no more; the client answers every second one.
const PING: u64 = 36;
/// PINGs that are sent at once, at most.
const MAX_PINGS: u64 = 16;
/// A datagram from a new address that may be answered by a challenge at once.
pub(in crate::quic) const MIN_VISIT: usize = (CHALLENGE / FACTOR) as usize;

/// How the client of a new connection has proven its address.
#[derive(Clone, Copy, Debug)]
pub(in crate::quic) enum Proof {
    /// By a token.
    Shown,
    /// Not yet; so many bytes have come from there.
    Owed(usize),
}

/// What is known of a datagram that has come in.
#[derive(Clone, Copy, Debug)]
pub(in crate::quic) struct Arrival {
    pub(in crate::quic) remote: SocketAddr,
    /// Its bytes.
    pub(in crate::quic) length: usize,
    pub(in crate::quic) first: First,
    /// The connection is told that it came from another address, see [`QuicConn::hides_visit`].
    pub(in crate::quic) hidden: bool,
}

/// What to do with a datagram to be sent.
pub(in crate::quic) enum Sending {
    /// Send it to this address.
    To(SocketAddr),
    /// Drop it.
    Nowhere,
    /// Send it: the address has proven itself.
    Proven,
}

/// The address, and what it sent and was sent.
#[derive(Debug)]
pub(in crate::quic) struct Visit {
    address: SocketAddr,
    /// Where the client is known to have been before.
    home: SocketAddr,
    received: u64,
    sent: u64,
    /// The client was last heard from there.
    is_newest: bool,
    /// PINGs to be sent, and datagrams that are awaited before there are more.
    pings: u64,
    awaited: u64,
    /// What the connection's counters said when it was told of the address: path responses that came, path
    /// challenges that were sent.
    responses: u64,
    challenges: u64,
}

impl Visit {
    pub(super) fn new(address: SocketAddr, home: SocketAddr, received: u64) -> Visit {
        Visit {
            address,
            home,
            received,
            sent: 0,
            is_newest: false,
            pings: 0,
            awaited: 0,
            responses: 0,
            challenges: 0,
        }
    }

    fn left(&self) -> u64 {
        (self.received * FACTOR).saturating_sub(self.sent)
    }

    /// The client has been heard from there, but too little came for a challenge.
    fn have_it_say_more(&mut self) {
        self.awaited = self.awaited.saturating_sub(1);
        if self.awaited == 0 {
            self.pings = (self.left() / PING).min(MAX_PINGS);
            self.awaited = self.pings.div_ceil(2);
        }
    }

    /// Whether a PING is to be sent now.
    pub(in crate::quic) fn pings(&mut self, inner: &Connection) -> bool {
        let hidden = self.is_newest && inner.remote_address() != self.address;
        self.pings = if hidden { self.pings } else { 0 };
        let pings = self.pings > 0;
        self.pings = self.pings.saturating_sub(1);
        pings
    }

    /// How many datagrams may be made at once, at most `most`.
    pub(in crate::quic) fn may_send(&self, inner: &Connection, most: usize) -> usize {
        if inner.remote_address() != self.address {
            return most;
        }
        let stats = inner.stats();
        if !inner.is_handshaking() && stats.frame_rx.path_response > self.responses {
            // Whether the response was the right one shows in what is sent next.
            return 1;
        }
        let room = self.left() / u64::from(stats.path.current_mtu.max(1));
        usize::try_from(room).unwrap_or(most).min(most)
    }

    /// A datagram is about to be sent.
    pub(in crate::quic) fn sending(&mut self, inner: &Connection, transmit: &Transmit) -> Sending {
        let size = transmit.size as u64;
        let fits = size <= self.left();
        if inner.remote_address() != self.address {
            let moves = self.is_newest && fits && transmit.destination == inner.remote_address();
            let to = if moves { self.address } else { transmit.destination };
            if to == self.address {
                self.sent += size;
            }
            return Sending::To(to);
        }
        if transmit.destination != self.address {
            // To where the client was before.
            return Sending::To(transmit.destination);
        }
        let stats = inner.stats();
        let challenges = std::mem::replace(&mut self.challenges, stats.frame_tx.path_challenge);
        let answered = stats.frame_rx.path_response > self.responses;
        if !inner.is_handshaking() && answered && stats.frame_tx.path_challenge == challenges {
            // quinn challenges a path with each packet until the right response has come.
            return Sending::Proven;
        }
        self.responses = stats.frame_rx.path_response;
        if !fits {
            return Sending::Nowhere;
        }
        self.sent += size;
        Sending::To(self.address)
    }
}

impl QuicConn {
    /// The address that a datagram of `length` bytes from `remote` is to be taken to come from, if that is
    /// not the one it came from.
    pub(in crate::quic) fn hides_visit(
        &self,
        remote: SocketAddr,
        length: usize,
    ) -> Option<SocketAddr> {
        let known = self.inner.remote_address();
        let is_home = self.visit.as_ref().is_some_and(|visit| visit.home == remote);
        if remote == known || is_home || self.inner.is_handshaking() {
            return None;
        }
        let visit = self.visit.as_ref().filter(|visit| visit.address == remote);
        let left = visit.map_or(0, |visit| visit.left());
        (left + length as u64 * FACTOR < CHALLENGE).then_some(known)
    }

    /// Where the client was last heard from, proven or not.
    pub(super) fn client_address(&self) -> SocketAddr {
        let newest = self.visit.as_ref().filter(|visit| visit.is_newest);
        newest.map_or(self.inner.remote_address(), |visit| visit.address)
    }

    /// Takes a datagram.
    pub(in crate::quic) fn receive(&mut self, event: ConnectionEvent, arrival: Arrival) {
        let Arrival { remote, length, first, hidden } = arrival;
        let before = self.inner.remote_address();
        if self.visit.is_none() && remote == before {
            self.inner.handle_event(event);
            return;
        }
        let frames = count(&self.inner.stats().frame_rx);
        self.inner.handle_event(event);
        let stats = self.inner.stats();
        let is_clients = frames != count(&stats.frame_rx);
        let known = self.inner.remote_address();
        let of_visit = self.visit.as_ref().is_some_and(|visit| visit.address == remote);
        if !of_visit {
            let home = self.visit.as_ref().map_or(before, |visit| visit.home);
            if remote == home {
                if is_clients && known == home {
                    self.visit = None;
                }
                return;
            }
            if !is_clients {
                return;
            }
            self.visit = Some(Box::new(Visit::new(remote, home, 0)));
        }
        let Some(visit) = &mut self.visit else { return };
        visit.received += length as u64;
        if !is_clients {
            return;
        }
        visit.is_newest |= hidden || known == remote;
        if hidden {
            visit.have_it_say_more();
        }
        if known == remote && before != remote {
            visit.responses = stats.frame_rx.path_response;
            visit.challenges = stats.frame_tx.path_challenge;
        }
        // Nobody makes a Handshake packet without the server's first flight.
        let is_proof = first == First::Handshake { alone: true } || !self.inner.is_handshaking();
        if self.counts_as_handshake && is_proof {
            self.visit = None;
        }
    }
}

/// How many frames have come that were the client's.
fn count(stats: &FrameStats) -> u64 {
    [
        stats.acks,
        stats.connection_close,
        stats.crypto,
        stats.max_data,
        stats.max_stream_data,
        stats.max_streams_bidi,
        stats.max_streams_uni,
        stats.new_connection_id,
        stats.path_challenge,
        stats.path_response,
        stats.ping,
        stats.reset_stream,
        stats.retire_connection_id,
        stats.stop_sending,
        stats.stream,
    ]
    .iter()
    .sum()
}
