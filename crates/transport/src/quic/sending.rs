//! Puts on the wire what a connection has to send.

use std::net::IpAddr;
use std::time::Instant;

use quinn_proto::{Connection, Transmit};

use super::conn::{Sending, Setup, UnvalidatedPath};
use super::copies::{ConnCopies, Waiting};
use super::socket::Socket;

/// Where a connection's datagrams go.
pub(super) struct Out<'a> {
    pub(super) socket: &'a mut Socket,
    pub(super) scratch: &'a mut Vec<u8>,
    pub(super) copies: Option<(&'a mut ConnCopies, &'a mut Waiting)>,
    pub(super) setup: Option<&'a mut Setup>,
    /// The address to send from, unless it is the connection's first.
    pub(super) own_ip: Option<IpAddr>,
    pub(super) now: Instant,
}

impl Out<'_> {
    fn send(&mut self, inner: &Connection, transmit: &Transmit, is_validated: bool) {
        let datagram = &self.scratch[..transmit.size];
        self.socket.send(transmit, datagram);
        if let Some(setup) = &mut self.setup {
            setup.sent(inner, transmit, datagram, self.now);
        }
        if let Some((copies, waiting)) = &mut self.copies {
            // What ends a connection is said again when the client asks.
            let is_validated = is_validated && !inner.is_closed();
            waiting.sent(copies, transmit, datagram, is_validated, self.now);
        }
    }
}

/// Puts everything a connection has to send, and may, on the wire; false when the kernel is full.
pub(super) fn transmit(
    inner: &mut Connection,
    unvalidated: &mut Option<Box<UnvalidatedPath>>,
    out: &mut Out<'_>,
) -> bool {
    while !out.socket.is_blocked() {
        out.scratch.clear();
        let most = out.socket.max_segments();
        let room = unvalidated.as_ref().map(|path| path.room(inner, most));
        let unused = room.as_ref().map_or(0, |room| room.unused);
        let datagrams = room.map_or(most, |room| room.datagrams);
        if datagrams == 0 {
            // Continues when the next datagram from the client arrives.
            return true;
        }
        let resize = |unused| unvalidated.iter().for_each(|path| path.resize(unused));
        resize(unused);
        let built = inner.poll_transmit(out.now, datagrams, out.scratch);
        resize(0);
        let Some(mut transmit) = built else { return true };
        transmit.size -= unused;
        transmit.src_ip = out.own_ip.or(transmit.src_ip);
        let is_validated = unvalidated.is_none();
        match unvalidated.as_mut().map(|unvalidated| unvalidated.sending(inner, &transmit)) {
            None | Some(Sending::Allowed) => {}
            Some(Sending::Nowhere) => continue,
            Some(Sending::Proven) => *unvalidated = None,
        }
        out.send(inner, &transmit, is_validated);
    }
    false
}
