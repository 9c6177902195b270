//! Closes a connection that was idle for some time: a client that sends a request byte by byte, or does not read its
//! response, holds its slot no longer than that.
//!
//! A connection that carries MQTT is exempt, because MQTT has its own keep alive.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// The number of MQTT connections in an HTTP connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tunnels(Arc<AtomicUsize>);

impl Tunnels {
    /// Whether there are any.
    pub(crate) fn is_open(&self) -> bool {
        self.0.load(Relaxed) > 0
    }

    /// Adds one, for as long as the result lives.
    pub(crate) fn open(&self) -> Tunnel {
        self.0.fetch_add(1, Relaxed);
        Tunnel(self.clone())
    }
}

/// See [`Tunnels::open`].
#[derive(Debug)]
pub(crate) struct Tunnel(Tunnels);

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Relaxed);
    }
}

/// A stream with an idle timeout.
#[derive(Debug)]
pub(crate) struct Idle<S> {
    inner: S,
    timeout: Duration,
    deadline: Pin<Box<Sleep>>,
    /// Until when the client must take something of what is being sent, if it takes nothing now. What it sends meanwhile,
    /// such as PINGs, does not put that off.
    taken_by: Option<Pin<Box<Sleep>>>,
    tunnels: Tunnels,
}

impl<S> Idle<S> {
    pub(crate) fn new(inner: S, timeout: Duration, tunnels: Tunnels) -> Idle<S> {
        let deadline = Box::pin(tokio::time::sleep(timeout));
        Idle { inner, timeout, deadline, taken_by: None, tunnels }
    }

    /// Data was transferred.
    fn moved(&mut self) {
        self.deadline.as_mut().reset(Instant::now() + self.timeout);
    }

    /// The client takes nothing now.
    fn untaken<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let timeout = self.timeout;
        let new = || Box::pin(tokio::time::sleep(timeout));
        if self.taken_by.get_or_insert_with(new).as_mut().poll(cx).is_ready() {
            self.taken_by = None;
            if !self.tunnels.is_open() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        self.stalled(cx)
    }

    /// A direction cannot continue now.
    fn stalled<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        loop {
            ready!(self.deadline.as_mut().poll(cx));
            if !self.tunnels.is_open() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            self.moved();
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Idle<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.inner).poll_read(cx, buffer) {
            Poll::Pending => self.stalled(cx),
            Poll::Ready(result) => {
                self.moved();
                Poll::Ready(result)
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Idle<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.inner).poll_write(cx, bytes) {
            Poll::Pending => self.untaken(cx),
            Poll::Ready(result) => {
                self.taken_by = None;
                self.moved();
                Poll::Ready(result)
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.inner).poll_flush(cx) {
            Poll::Pending => self.untaken(cx),
            ready => {
                self.taken_by = None;
                ready
            }
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.inner).poll_shutdown(cx) {
            Poll::Pending => self.stalled(cx),
            ready => ready,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn silence_ends_it_and_bytes_put_that_off() {
        let (mut peer, own) = tokio::io::duplex(64);
        let begun = Instant::now();
        let mut idle = Idle::new(own, TIMEOUT, Tunnels::default());
        let feed = async {
            tokio::time::sleep(TIMEOUT / 2).await;
            peer.write_all(b"x").await
        };
        let read = async {
            let first = idle.read_u8().await;
            (first, idle.read_u8().await)
        };
        let (fed, (first, second)) = tokio::join!(feed, read);
        assert!(fed.is_ok() && first.is_ok());
        assert_eq!(second.map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
        assert_eq!(begun.elapsed().as_secs(), (TIMEOUT / 2 + TIMEOUT).as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_client_sends_does_not_keep_what_it_does_not_take() {
        let (mut peer, own) = tokio::io::duplex(64);
        let begun = Instant::now();
        let idle = Idle::new(own, TIMEOUT, Tunnels::default());
        let (mut reads, mut writes) = tokio::io::split(idle);
        let pings = async {
            while peer.write_all(b"x").await.is_ok() && reads.read_u8().await.is_ok() {
                tokio::time::sleep(TIMEOUT / 3).await;
            }
        };
        let written = tokio::select! {
            written = writes.write_all(&[0; 100]) => written,
            () = pings => Ok(()),
            () = tokio::time::sleep(TIMEOUT * 10) => Ok(()),
        };
        assert_eq!(written.map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
        assert_eq!(begun.elapsed().as_secs(), TIMEOUT.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn mqtt_may_be_silent() {
        let (_peer, own) = tokio::io::duplex(64);
        let tunnels = Tunnels::default();
        let tunnel = tunnels.open();
        let mut idle = Idle::new(own, TIMEOUT, tunnels);
        assert!(tokio::time::timeout(TIMEOUT * 10, idle.read_u8()).await.is_err(), "still open");
        drop(tunnel);
        assert!(idle.read_u8().await.is_err());
    }
}
