//! The path to an address that is not validated yet: at most three times the bytes received from it are sent there,
//! which is the anti-amplification limit of RFC 9000 (sections 8.1 and 9.3.1).
//!
//! quinn-proto exceeds that limit by one datagram, and answers the first datagram from any new address with
//! a path challenge of 1200 bytes. So this module decides what may be sent during a handshake, and hides a
//! new address from quinn-proto until the limit permits a challenge. Until then quinn-proto is given what
//! comes from the new address as if it came from the old one, and packets that fit within the limit are sent
//! to the new one: a client whose router has forgotten it is answered at once, in packets as small as its
//! own. It is also sent PINGs, whose acknowledgements raise the limit, so that after a few round trips the
//! address can be challenged.

use std::net::SocketAddr;
use std::time::Instant;

use quinn_proto::{Connection, ConnectionEvent, FrameStats, Transmit};

use super::QuicConn;
use crate::quic::peek::First;

/// Size in bytes of a datagram with a path challenge (RFC 9000 section 8.2.1).
const CHALLENGE: u64 = 1200;
/// Bytes that may be sent per byte received.
const FACTOR: u64 = 3;
/// Largest size in bytes of a packet with a PING; the client answers every second one.
const PING: u64 = 36;
/// Maximum number of PINGs that are sent at once.
const MAX_PINGS: u64 = 16;
/// Size in bytes from which a datagram from a new address may be answered by a challenge at once.
pub(in crate::quic) const MIN_DIRECT_BYTES: usize = (CHALLENGE / FACTOR) as usize;

/// Whether the address of a new connection's client is validated.
#[derive(Clone, Copy, Debug)]
pub(in crate::quic) enum Proof {
    /// By a token (RFC 9000 section 8.1.2).
    Shown,
    /// Not yet; holds the number of bytes received from there.
    Owed(usize),
}

/// A received datagram.
#[derive(Clone, Copy, Debug)]
pub(in crate::quic) struct Arrival {
    pub(in crate::quic) remote: SocketAddr,
    /// Its length in bytes.
    pub(in crate::quic) length: usize,
    pub(in crate::quic) first: First,
    /// quinn-proto is given another source address, see [`QuicConn::substitute_address`].
    pub(in crate::quic) hidden: bool,
}

/// What to do with a datagram to be sent.
pub(in crate::quic) enum Sending {
    /// Send it to this address.
    To(SocketAddr),
    /// Drop it.
    Nowhere,
    /// Send it: the address is validated now.
    Proven,
}

/// The address, and the bytes received from it and sent to it.
#[derive(Debug)]
pub(in crate::quic) struct UnvalidatedPath {
    address: SocketAddr,
    /// The client's last validated address.
    home: SocketAddr,
    received: u64,
    sent: u64,
    /// The client's newest packet came from there.
    is_newest: bool,
    /// PINGs to be sent, and datagrams to be received before more are sent.
    pings: u64,
    awaited: u64,
    /// The connection's counters when quinn-proto learned of the address: path responses received, path
    /// challenges sent.
    responses: u64,
    challenges: u64,
}

impl UnvalidatedPath {
    pub(super) fn new(address: SocketAddr, home: SocketAddr, received: u64) -> UnvalidatedPath {
        UnvalidatedPath {
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

    /// Whether this many more bytes may be sent there, which then count as sent.
    pub(super) fn spend(&mut self, bytes: u64) -> bool {
        let fits = bytes <= self.left();
        self.sent += if fits { bytes } else { 0 };
        fits
    }

    /// The client has sent something from there, but too little for a challenge: makes it send more.
    fn elicit_more(&mut self) {
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

    /// How many datagrams may be built at once, at most `most`.
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
            // To the client's previous address.
            return Sending::To(transmit.destination);
        }
        let stats = inner.stats();
        let challenges = std::mem::replace(&mut self.challenges, stats.frame_tx.path_challenge);
        let answered = stats.frame_rx.path_response > self.responses;
        if !inner.is_handshaking() && answered && stats.frame_tx.path_challenge == challenges {
            // quinn sends a challenge with each packet until the right response was received.
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
    /// The address to give to quinn-proto as the source of a datagram of `length` bytes from `remote`, if
    /// that is not `remote` itself.
    pub(in crate::quic) fn substitute_address(
        &self,
        remote: SocketAddr,
        length: usize,
    ) -> Option<SocketAddr> {
        let known = self.inner.remote_address();
        let is_home =
            self.unvalidated.as_ref().is_some_and(|unvalidated| unvalidated.home == remote);
        if remote == known || is_home || self.inner.is_handshaking() {
            return None;
        }
        let unvalidated =
            self.unvalidated.as_ref().filter(|unvalidated| unvalidated.address == remote);
        let left = unvalidated.map_or(0, |unvalidated| unvalidated.left());
        (left + length as u64 * FACTOR < CHALLENGE).then_some(known)
    }

    /// Where the client's newest packet came from, validated or not.
    pub(super) fn client_address(&self) -> SocketAddr {
        let newest = self.unvalidated.as_ref().filter(|unvalidated| unvalidated.is_newest);
        newest.map_or(self.inner.remote_address(), |unvalidated| unvalidated.address)
    }

    /// Receives a datagram.
    pub(in crate::quic) fn receive(
        &mut self,
        event: ConnectionEvent,
        arrival: Arrival,
        now: Instant,
    ) {
        let Arrival { remote, length, first, hidden } = arrival;
        let before = self.inner.remote_address();
        if self.unvalidated.is_none() && remote == before {
            self.handle(event, (remote, first), now);
            return;
        }
        let frames = count(&self.inner.stats().frame_rx);
        self.handle(event, (remote, first), now);
        let stats = self.inner.stats();
        let is_clients = frames != count(&stats.frame_rx);
        let known = self.inner.remote_address();
        let is_this_path =
            self.unvalidated.as_ref().is_some_and(|unvalidated| unvalidated.address == remote);
        if !is_this_path {
            let home = self.unvalidated.as_ref().map_or(before, |unvalidated| unvalidated.home);
            if remote == home {
                if is_clients && known == home {
                    self.unvalidated = None;
                }
                return;
            }
            if !is_clients {
                return;
            }
            self.unvalidated = Some(Box::new(UnvalidatedPath::new(remote, home, 0)));
        }
        let Some(unvalidated) = &mut self.unvalidated else { return };
        unvalidated.received += length as u64;
        if !is_clients {
            return;
        }
        unvalidated.is_newest |= hidden || known == remote;
        if hidden {
            unvalidated.elicit_more();
        }
        if known == remote && before != remote {
            unvalidated.responses = stats.frame_rx.path_response;
            unvalidated.challenges = stats.frame_tx.path_challenge;
        }
        // Nobody makes a Handshake packet without the server's first flight.
        let is_proof = first == First::Handshake { alone: true } || !self.inner.is_handshaking();
        if self.counts_as_handshake && is_proof {
            self.unvalidated = None;
        }
    }
}

/// Number of authentic frames received from the client.
pub(super) fn count(stats: &FrameStats) -> u64 {
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
