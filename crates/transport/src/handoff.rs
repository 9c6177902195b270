//! Handing a connection over to a worker: MQTT that another part of the program has accepted, inside HTTP (as
//! WebSocket or WebTransport) or from the program itself.
//!
//! The other part keeps one end of a local socket pair and copies bytes; the worker treats the other
//! end like any connection, so that bounds, access rules, deadlines and draining are in one
//! place. The pair's buffers, which the kernel bounds, carry back-pressure. The price is two system
//! calls and a copy per direction and batch. This module does not speak HTTP itself. On the same way, workers are asked
//! whether they still work.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use fulmar_broker::Peer;
use mio::Waker;
use parking_lot::Mutex;

/// Time between two looks at the answers of workers.
const LOOK: Duration = Duration::from_millis(5);

/// Framing of a connection that is handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// MQTT.
    Bytes,
    /// WebSocket frames with MQTT in them; the upgrade is done.
    WebSocket,
}

/// A connection handed to a worker.
#[derive(Debug)]
pub(crate) struct Handed {
    pub(crate) socket: mio::net::UnixStream,
    pub(crate) peer: Peer,
    pub(crate) framing: Framing,
    /// Where to store how long the client may be silent.
    pub(crate) silence: Option<Arc<AllowedSilence>>,
}

/// Time for which a client that was handed over may be silent by the Keep Alive the broker accepted, in milliseconds; 0
/// while it has none. One and a half times 65,535 s fits.
#[derive(Debug, Default)]
pub struct AllowedSilence(AtomicU32);

impl AllowedSilence {
    /// The silence; `None` before CONNECT, without a Keep Alive, and when MQTT is over.
    pub fn get(&self) -> Option<Duration> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            ms => Some(Duration::from_millis(ms.into())),
        }
    }

    pub(crate) fn set(&self, silence: Option<Duration>) {
        let ms = silence.map_or(0, |silence| silence.as_millis());
        self.0.store(u32::try_from(ms).unwrap_or(u32::MAX), Ordering::Relaxed);
    }
}

/// Everything that waits for one worker.
#[derive(Debug)]
pub(crate) struct HandoffQueue {
    /// Connections; `None` once the worker takes no more.
    connections: Mutex<Option<Vec<Handed>>>,
    /// Questions whether it still works, and how many of them it has answered.
    asked: AtomicU64,
    answered: AtomicU64,
}

impl HandoffQueue {
    pub(crate) fn new() -> HandoffQueue {
        let connections = Mutex::new(Some(Vec::new()));
        HandoffQueue { connections, asked: AtomicU64::new(0), answered: AtomicU64::new(0) }
    }

    /// Answers the questions so far, or all when the worker has ended.
    pub(crate) fn answer(&self, has_ended: bool) {
        let asked = if has_ended { u64::MAX } else { self.asked.load(Ordering::Acquire) };
        self.answered.store(asked, Ordering::Release);
    }

    /// Takes all waiting connections.
    pub(crate) fn drain(&self) -> Vec<Handed> {
        self.connections.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Accepts no more, and closes the waiting connections.
    pub(crate) fn close(&self) {
        *self.connections.lock() = None;
    }
}

/// Hands connections accepted elsewhere over to a running [`crate::Server`].
#[derive(Clone, Debug)]
pub struct Handoff {
    workers: Arc<[(Arc<HandoffQueue>, Arc<Waker>)]>,
    next: Arc<AtomicUsize>,
}

impl Handoff {
    /// A handoff to the workers with these queues and wakers.
    pub(crate) fn new(workers: impl Iterator<Item = (Arc<HandoffQueue>, Arc<Waker>)>) -> Handoff {
        Handoff { workers: workers.collect(), next: Arc::default() }
    }

    /// Hands a connection of `peer` to one of the workers in turn; returns the end at which its
    /// bytes go in and out, non-blocking. A connection the broker refuses is closed at once.
    ///
    /// # Errors
    /// There are no file descriptors left, or the server is draining ([`io::ErrorKind::NotConnected`]).
    pub fn open(&self, peer: Peer, framing: Framing) -> io::Result<UnixStream> {
        self.hand(peer, framing, None)
    }

    /// Like [`Handoff::open`]; also returns how long the client may be silent, for a carrier that closes
    /// silent connections itself.
    ///
    /// # Errors
    /// As for [`Handoff::open`].
    pub fn open_watched(
        &self,
        peer: Peer,
        framing: Framing,
    ) -> io::Result<(UnixStream, Arc<AllowedSilence>)> {
        let silence = Arc::new(AllowedSilence::default());
        let stream = self.hand(peer, framing, Some(Arc::clone(&silence)))?;
        Ok((stream, silence))
    }

    /// Waits for every worker to end a turn, for about `patience`; returns the first that does not. It counts looks
    /// instead of time, which also passes while the whole process is paused.
    pub fn silent_worker(&self, patience: Duration) -> Option<usize> {
        let ask = |(queue, waker): &(Arc<HandoffQueue>, Arc<Waker>)| {
            let asked = queue.asked.fetch_add(1, Ordering::AcqRel) + 1;
            // A waker that fails is a worker that does not answer.
            let _ = waker.wake();
            asked
        };
        let asked: Vec<u64> = self.workers.iter().map(ask).collect();
        let silent = || {
            let mut workers = self.workers.iter().zip(&asked);
            workers.position(|((queue, _), asked)| queue.answered.load(Ordering::Acquire) < *asked)
        };
        for _ in 0..patience.as_millis() / LOOK.as_millis() {
            silent()?;
            std::thread::sleep(LOOK);
        }
        silent()
    }

    fn hand(
        &self,
        peer: Peer,
        framing: Framing,
        silence: Option<Arc<AllowedSilence>>,
    ) -> io::Result<UnixStream> {
        let (outer, inner) = UnixStream::pair()?;
        outer.set_nonblocking(true)?;
        inner.set_nonblocking(true)?;
        let at = self.next.fetch_add(1, Ordering::Relaxed) % self.workers.len();
        let (queue, waker) = &self.workers[at];
        let socket = mio::net::UnixStream::from_std(inner);
        match &mut *queue.connections.lock() {
            Some(waiting) => waiting.push(Handed { socket, peer, framing, silence }),
            None => return Err(io::ErrorKind::NotConnected.into()),
        }
        waker.wake()?;
        Ok(outer)
    }
}
