//! The path to an address that is not validated yet: at most three times the bytes received from it are sent there,
//! which is the anti-amplification limit of RFC 9000 (sections 8.1 and 9.3.1).
//!
//! quinn-proto exceeds that limit by one datagram, and answers the first datagram from any new address with a path
//! challenge of 1200 bytes. So this module decides what may be sent, and makes packets small enough: a client whose
//! router has forgotten it says little, such as PINGREQ, and is challenged at once by a packet that is not much larger.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use quinn_proto::{Connection, ConnectionEvent, FrameStats, Transmit};

use super::QuicConn;
use crate::quic::extended_tls::UnusedBytes;
use crate::quic::peek::FirstPacket;

/// Bytes that may be sent per byte received.
const FACTOR: u64 = 3;
/// Size in bytes of a datagram that has room for a header with the longest connection ID, ACK, PATH_CHALLENGE and a tag.
const SMALLEST: usize = 72;
/// Most bytes left unused: with them, the tag must stay below the size to which quinn-proto pads a PATH_CHALLENGE.
const MOST_UNUSED: usize = 1200 - SMALLEST;

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
    /// This machine's address to which it was sent, if that is known.
    pub(in crate::quic) local_ip: Option<IpAddr>,
    /// Length in bytes.
    pub(in crate::quic) length: usize,
    pub(in crate::quic) first: FirstPacket,
}

/// Datagrams that may be built now.
pub(in crate::quic) struct SendAllowance {
    /// Number of datagrams.
    pub(in crate::quic) datagrams: usize,
    /// Bytes by which each is to be smaller than the path's MTU.
    pub(in crate::quic) unused: usize,
}

/// The way to handle a datagram to be sent.
pub(in crate::quic) enum Sending {
    /// Send it.
    Allowed,
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
    /// Makes the packets of an open connection smaller.
    unused: Option<UnusedBytes>,
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
            unused: None,
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

    /// Datagrams that may be built now, at most `most`.
    pub(in crate::quic) fn room(&self, inner: &Connection, most: usize) -> SendAllowance {
        let full = |datagrams| SendAllowance { datagrams, unused: 0 };
        if inner.remote_address() != self.address {
            return full(most);
        }
        let stats = inner.stats();
        if !inner.is_handshaking() && stats.frame_rx.path_response > self.responses {
            // Whether the response was the right one shows in what is sent next.
            return full(1);
        }
        let (left, mtu) = (usize::try_from(self.left()).unwrap_or(most), stats.path.current_mtu);
        let mtu = usize::from(mtu.max(1));
        if left >= mtu || self.unused.is_none() {
            return full((left / mtu).min(most));
        }
        // What is left after this one repeats it.
        let unused = mtu.saturating_sub((left / 2).max(SMALLEST)).min(MOST_UNUSED);
        SendAllowance { datagrams: usize::from(mtu - unused <= left), unused }
    }

    /// Sets the size of packets that are built from now on.
    pub(in crate::quic) fn resize(&self, unused: usize) {
        if let Some(packets) = &self.unused {
            packets.set(unused);
        }
    }

    /// A datagram is about to be sent.
    pub(in crate::quic) fn sending(&mut self, inner: &Connection, transmit: &Transmit) -> Sending {
        if transmit.destination != self.address {
            // To the client's previous address.
            return Sending::Allowed;
        }
        let stats = inner.stats();
        let challenges = std::mem::replace(&mut self.challenges, stats.frame_tx.path_challenge);
        let answered = stats.frame_rx.path_response > self.responses;
        if !inner.is_handshaking() && answered && stats.frame_tx.path_challenge == challenges {
            // quinn sends a challenge with each packet until the right response was received.
            return Sending::Proven;
        }
        self.responses = stats.frame_rx.path_response;
        if self.spend(transmit.size as u64) { Sending::Allowed } else { Sending::Nowhere }
    }
}

impl QuicConn {
    fn own_ip(&self) -> Option<IpAddr> {
        self.own_ip.as_deref().copied().or(self.inner.local_ip())
    }

    /// Receives a datagram.
    pub(in crate::quic) fn receive(
        &mut self,
        event: ConnectionEvent,
        arrival: Arrival,
        now: Instant,
    ) {
        let Arrival { remote, local_ip, length, first } = arrival;
        let before = self.inner.remote_address();
        let is_own_new = local_ip.is_some() && local_ip != self.own_ip();
        if self.unvalidated.is_none() && remote == before && !is_own_new {
            self.handle(event, remote, first, now);
            return;
        }
        let frames = count(&self.inner.stats().frame_rx);
        self.handle(event, remote, first, now);
        let stats = self.inner.stats();
        let is_clients = frames != count(&stats.frame_rx);
        let known = self.inner.remote_address();
        if is_own_new && is_clients && known == remote {
            // quinn-proto would answer from the address that the connection began with, which may be gone.
            tracing::info!(peer = %remote, to = ?local_ip, "QUIC client follows this machine to another address");
            self.own_ip = local_ip.map(Box::new);
        }
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
            if known != remote {
                return;
            }
            let mut path = UnvalidatedPath::new(remote, home, 0);
            path.unused = UnusedBytes::find(&self.inner).filter(|_| !self.inner.is_handshaking());
            self.unvalidated = Some(Box::new(path));
        }
        let Some(unvalidated) = &mut self.unvalidated else { return };
        unvalidated.received += length as u64;
        if !is_clients {
            return;
        }
        if known == remote && before != remote {
            unvalidated.responses = stats.frame_rx.path_response;
            unvalidated.challenges = stats.frame_tx.path_challenge;
        }
        // Nobody makes a Handshake packet without the server's first flight.
        let is_proof =
            first == FirstPacket::Handshake { alone: true } || !self.inner.is_handshaking();
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
