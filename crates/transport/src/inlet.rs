//! MQTT connections that another part of the program has accepted, on their way to a worker: those
//! that arrive inside HTTP, as WebSocket or WebTransport.
//!
//! Who hands one over keeps one end of a local socket pair and copies bytes; the worker treats the
//! other end as any connection, so that bounds, access rules, deadlines and draining are in one
//! place. The pair's buffers, which the kernel bounds, carry back-pressure. The price is two system
//! calls and a copy a direction and batch. HTTP itself is not spoken here.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fulmar_broker::Peer;
use mio::Waker;
use parking_lot::Mutex;

/// What the bytes of a connection that is handed over are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// MQTT.
    Bytes,
    /// WebSocket frames with MQTT in them; the upgrade is done.
    WebSocket,
}

/// A connection on its way.
#[derive(Debug)]
pub(crate) struct Handed {
    pub(crate) socket: mio::net::UnixStream,
    pub(crate) peer: Peer,
    pub(crate) framing: Framing,
}

/// Where connections wait for one worker; `None` once it takes no more.
#[derive(Debug)]
pub(crate) struct Tray(Mutex<Option<Vec<Handed>>>);

impl Tray {
    pub(crate) fn new() -> Tray {
        Tray(Mutex::new(Some(Vec::new())))
    }

    /// What has come since.
    pub(crate) fn take(&self) -> Vec<Handed> {
        self.0.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Takes no more, and closes what has come since.
    pub(crate) fn close(&self) {
        *self.0.lock() = None;
    }
}

/// The way into a running [`crate::Server`] for connections accepted elsewhere.
#[derive(Clone, Debug)]
pub struct Inlet {
    seats: Arc<[(Arc<Tray>, Arc<Waker>)]>,
    next: Arc<AtomicUsize>,
}

impl Inlet {
    /// To workers with these trays.
    pub(crate) fn new(seats: impl Iterator<Item = (Arc<Tray>, Arc<Waker>)>) -> Inlet {
        Inlet { seats: seats.collect(), next: Arc::default() }
    }

    /// Hands a connection of `peer` to one of the workers in turn; returns the end at which its
    /// bytes go in and out, non-blocking. A connection the broker refuses is closed at once.
    ///
    /// # Errors
    /// There are no file descriptors left, or the server is draining ([`io::ErrorKind::NotConnected`]).
    pub fn open(&self, peer: Peer, framing: Framing) -> io::Result<UnixStream> {
        let (outer, inner) = UnixStream::pair()?;
        outer.set_nonblocking(true)?;
        inner.set_nonblocking(true)?;
        let at = self.next.fetch_add(1, Ordering::Relaxed) % self.seats.len();
        let (tray, waker) = &self.seats[at];
        let socket = mio::net::UnixStream::from_std(inner);
        match &mut *tray.0.lock() {
            Some(waiting) => waiting.push(Handed { socket, peer, framing }),
            None => return Err(io::ErrorKind::NotConnected.into()),
        }
        waker.wake()?;
        Ok(outer)
    }
}
