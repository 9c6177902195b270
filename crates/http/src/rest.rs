//! Reads and discards the rest of a request that was answered before all of it had arrived, up to a limit.
//!
//! A client that is still sending may not have read the response yet. If the server closed the connection now, the
//! client's system would discard the response (RFC 9112 section 9.6). So [`Drained`] reads what a handler left of a
//! body, in all versions of HTTP, and [`Lingering`] reads what arrives after a TCP connection is closed. Data beyond
//! the limits is not read.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Sleep;

/// The most bytes read of an unwanted body, and after the end of a connection.
const REST_BYTES: usize = 32 * 1024 * 1024;

/// The time for the rest of a body to arrive.
const REST_TIME: Duration = Duration::from_secs(10);

/// Bytes that [`Lingering`] reads at once.
const CHUNK_BYTES: usize = 4 * 1024;

/// A body that, if dropped early, is read to its end.
pub(crate) struct Drained<B: Body<Data = Bytes> + Unpin + Send + 'static> {
    /// `None` if there is nothing to read.
    body: Option<B>,
    /// The client waits for 100 Continue: it is not sending, and reading would cause the server to send that.
    waits: bool,
}

impl<B: Body<Data = Bytes> + Unpin + Send + 'static> Drained<B> {
    /// Wraps a request's body.
    pub(crate) fn within(request: Request<B>) -> Request<Drained<B>> {
        let waits = request.headers().contains_key(header::EXPECT);
        request.map(|body| Drained { body: Some(body), waits })
    }
}

impl<B: Body<Data = Bytes> + Unpin + Send + 'static> Body for Drained<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        self.waits = false;
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(body).poll_frame(cx));
        if !matches!(frame, Some(Ok(_))) {
            self.body = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}

impl<B: Body<Data = Bytes> + Unpin + Send + 'static> Drop for Drained<B> {
    fn drop(&mut self) {
        if self.waits || self.is_end_stream() {
            return;
        }
        // Without a runtime, the server is ending, and every connection with it.
        if let (Some(body), Ok(runtime)) = (self.body.take(), Handle::try_current()) {
            runtime.spawn(tokio::time::timeout(REST_TIME, read_on(body)));
        }
    }
}

async fn read_on<B: Body<Data = Bytes> + Unpin>(mut body: B) {
    let mut left = REST_BYTES;
    while let Some(Ok(frame)) = body.frame().await {
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        let Some(fewer) = left.checked_sub(bytes) else { return };
        left = fewer;
    }
}

/// A connection that, after the server has closed its direction, waits briefly for the client to do the same.
#[derive(Debug)]
pub(crate) struct Lingering<S> {
    inner: S,
    patience: Duration,
    /// Set when the server's direction is closed.
    deadline: Option<Pin<Box<Sleep>>>,
    left: usize,
    /// A server that is stopping does not wait.
    stopping: watch::Receiver<bool>,
}

impl<S> Lingering<S> {
    pub(crate) fn new(
        inner: S,
        patience: Duration,
        stopping: watch::Receiver<bool>,
    ) -> Lingering<S> {
        Lingering { inner, patience, deadline: None, left: REST_BYTES, stopping }
    }
}

impl<S: AsyncRead + Unpin> Lingering<S> {
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut chunk = [0; CHUNK_BYTES];
        let Some(deadline) = &mut self.deadline else { return Poll::Ready(()) };
        loop {
            if self.left == 0 || *self.stopping.borrow() || deadline.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            let mut buffer = ReadBuf::new(&mut chunk);
            let read = ready!(Pin::new(&mut self.inner).poll_read(cx, &mut buffer));
            let bytes = buffer.filled().len();
            if read.is_err() || bytes == 0 {
                return Poll::Ready(());
            }
            self.left = self.left.saturating_sub(bytes);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Lingering<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Lingering<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.deadline.is_none() {
            ready!(Pin::new(&mut self.inner).poll_shutdown(cx))?;
            self.deadline = Some(Box::pin(tokio::time::sleep(self.patience)));
        }
        ready!(self.poll_rest(cx));
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::convert::Infallible;

    use super::*;
    use http_body_util::Limited;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::mpsc;
    use tokio::time::Instant;

    const PATIENCE: Duration = Duration::from_secs(2);
    const MIB: usize = 1024 * 1024;

    /// A body of this many chunks of a MiB, which reports each that is read.
    struct Chunks(usize, mpsc::UnboundedSender<usize>);

    impl Body for Chunks {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let Some(left) = self.0.checked_sub(1) else { return Poll::Ready(None) };
            self.0 = left;
            self.1.send(MIB).ok();
            Poll::Ready(Some(Ok(Frame::data(vec![0; MIB].into()))))
        }
    }

    /// The number of chunks that are read after a handler has dropped the body.
    async fn read_of(chunks: usize, expects: bool) -> usize {
        let (told, mut heard) = mpsc::unbounded_channel();
        let mut request = Request::new(Chunks(chunks, told));
        if expects {
            request.headers_mut().insert(header::EXPECT, "100-continue".parse().unwrap());
        }
        drop(Drained::within(request).map(|body| Limited::new(body, 1)));
        let mut read = 0;
        while heard.recv().await.is_some() {
            read += 1;
        }
        read
    }

    #[tokio::test]
    async fn what_a_handler_leaves_is_read_within_bounds() {
        assert_eq!(read_of(5, false).await, 5);
        assert_eq!(read_of(1000, false).await, REST_BYTES / MIB + 1);
        assert_eq!(read_of(5, true).await, 0, "that client has not begun to send");
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_connection_waits_for_the_client_but_not_for_ever() {
        for (ends, stops, expected) in
            [(true, false, Duration::ZERO), (false, true, Duration::ZERO), (false, false, PATIENCE)]
        {
            let (mut client, own) = tokio::io::duplex(1024);
            let (stopping, stopped) = watch::channel(stops);
            let mut server = Lingering::new(own, PATIENCE, stopped);
            let begun = Instant::now();
            let sending = async {
                if !stops {
                    client.write_all(&[7; 100_000]).await.unwrap();
                }
                if ends {
                    client.shutdown().await.unwrap();
                }
                let mut answer = Vec::new();
                client.read_to_end(&mut answer).await.unwrap();
                answer
            };
            let closing = async {
                server.write_all(b"413").await.unwrap();
                server.shutdown().await.unwrap();
                begun.elapsed()
            };
            let (answer, took) = tokio::join!(sending, closing);
            assert_eq!((answer.as_slice(), took), (&b"413"[..], expected));
            drop(stopping);
        }
    }
}
