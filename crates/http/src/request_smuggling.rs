//! Prevents request smuggling over HTTP/1.1: breaks requests with bare line feeds, or with both `Content-Length` and
//! `Transfer-Encoding`, before hyper reads them.
//!
//! hyper accepts a line feed without carriage return in headers, as RFC 9112 section 2.2 allows. A proxy in front may
//! not, and would then see other requests than this server. Here such a line feed becomes a zero byte, to which hyper
//! responds with 400 and the end of the connection; likewise the end of the header with both lengths (section 6.1), and of
//! a line that is too long to know the length in it. `request_scanner` finds them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::idle::Tunnels;
use crate::request_scanner::{Position, Scanner};

/// The end of a request's head.
const HEAD_END: &[u8] = b"\r\n\r\n";

/// A stream whose input is checked.
#[derive(Debug)]
pub(crate) struct SmugglingFilter<S> {
    inner: S,
    scanner: Scanner,
    /// Once the connection carries a WebSocket, it carries no more requests.
    tunnels: Tunnels,
}

impl<S> SmugglingFilter<S> {
    /// Checks the bytes read from `inner` if `has_lines`, that is, unless they are HTTP/2.
    pub(crate) fn new(inner: S, tunnels: Tunnels, has_lines: bool) -> SmugglingFilter<S> {
        let position = if has_lines { Position::Head } else { Position::Unchecked };
        SmugglingFilter { inner, scanner: Scanner::at(position), tunnels }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for SmugglingFilter<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.scanner.position == Position::Broken && buffer.remaining() >= HEAD_END.len() {
            // hyper parses a head only when it is complete, and this one may not get another end.
            self.scanner.position = Position::Unchecked;
            buffer.put_slice(HEAD_END);
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
        if self.tunnels.is_open() {
            self.scanner.position = Position::Unchecked;
        }
        self.scanner.scan(&mut buffer.filled_mut()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for SmugglingFilter<S> {
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
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use axum::body::{Body, to_bytes};
    use http::{Request, Response};
    use hyper::body::Incoming;
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    /// The requests that hyper reads behind the filter: path, and the body if it is complete.
    async fn requests(text: &str) -> Vec<(String, Option<String>)> {
        let (mut client, server) = tokio::io::duplex(4096);
        client.write_all(text.as_bytes()).await.unwrap();
        client.shutdown().await.unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let service = service_fn(|request: Request<Incoming>| {
            let seen = Arc::clone(&seen);
            async move {
                let path = request.uri().path().to_owned();
                let body = to_bytes(Body::new(request.into_body()), 4096).await.ok();
                let body = body.map(|body| String::from_utf8_lossy(&body).into_owned());
                seen.lock().unwrap().push((path, body));
                Ok::<_, Infallible>(Response::new(Body::empty()))
            }
        });
        let filter = SmugglingFilter::new(server, Tunnels::default(), true);
        let _ = http1::Builder::new()
            .half_close(true)
            .serve_connection(TokioIo::new(filter), service)
            .await;
        let seen = seen.lock().unwrap();
        seen.clone()
    }

    #[tokio::test]
    async fn nothing_is_read_behind_a_bare_line_feed_in_a_chunks_extension() {
        let chunked = "POST /a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
        let next = "GET /b HTTP/1.1\r\nhost: a\r\n\r\n";
        let both = requests(&format!("{chunked}2;x\r\nab\r\n0\r\n\r\n{next}")).await;
        assert_eq!(both, [("/a".into(), Some("ab".into())), ("/b".into(), Some(String::new()))]);
        // Another server may see the chunk begin before "xx".
        let text = format!("{chunked}2;x\nxx\r\nab\r\n0\r\n\r\n{next}");
        assert_eq!(requests(&text).await, [("/a".into(), None)]);
    }

    #[tokio::test]
    async fn nothing_is_read_behind_a_length_that_the_filter_does_not_see() {
        let blanks = " ".repeat(200);
        let hidden = "x\r\ncontent-length: 30\r\n\r\n";
        let head =
            format!("POST /a HTTP/1.1\r\nhost: a\r\ncontent-length:{blanks}{}", hidden.len());
        let text = format!("{head}\r\n\r\n{hidden}GET /b HTTP/1.1\nhost: a\r\n\r\n");
        assert_eq!(requests(&text).await, []);
    }
}
