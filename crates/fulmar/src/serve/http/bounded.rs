//! A listener whose connections are bounded in number and time.
//!
//! hyper gives a slow client all the time in the world; here nobody needs more than a moment, so a
//! connection as a whole has a deadline, and above the limit further ones wait in the kernel.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

/// Connections at once to one address.
const CONNECTIONS: usize = 64;

/// Life of a connection, kept-alive scrapes included; Prometheus connects again.
const LIFE: Duration = Duration::from_secs(60);

/// Rest after an accept that failed, for want of file descriptors as a rule.
const PAUSE: Duration = Duration::from_millis(200);

/// See the module's words.
pub(super) struct Bounded {
    listener: TcpListener,
    free: Arc<Semaphore>,
    life: Duration,
}

impl Bounded {
    pub(super) fn new(listener: TcpListener) -> Bounded {
        Bounded { listener, free: Arc::new(Semaphore::new(CONNECTIONS)), life: LIFE }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            let permit = Arc::clone(&self.free).acquire_owned().await.ok();
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    let deadline = Box::pin(tokio::time::sleep(self.life));
                    return (Connection { stream, deadline, _permit: permit }, address);
                }
                Err(error) => {
                    tracing::warn!(%error, "HTTP port: cannot accept");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection with a deadline; it fails once that has passed.
pub(super) struct Connection {
    stream: TcpStream,
    deadline: Pin<Box<Sleep>>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Connection {
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.deadline.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    #[test]
    fn a_silent_connection_ends_and_makes_room() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut bounded = Bounded { life: Duration::from_millis(1), ..Bounded::new(listener) };
            let address = bounded.local_addr().unwrap();
            let _silent = TcpStream::connect(address).await.unwrap();
            let (mut connection, _) = bounded.accept().await;
            assert_eq!(bounded.free.available_permits(), CONNECTIONS - 1);
            let error = connection.read(&mut [0]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            drop(connection);
            assert_eq!(bounded.free.available_permits(), CONNECTIONS);
        });
    }
}
