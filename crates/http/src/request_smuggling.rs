//! Prevents request smuggling over HTTP/1.1: breaks requests with bare line feeds, or with both `Content-Length` and
//! `Transfer-Encoding`, before hyper reads them.
//!
//! hyper accepts a line feed without carriage return in headers, as RFC 9112 section 2.2 allows. A proxy in front may
//! not, and would then see other requests than this server. Here such a line feed becomes a zero byte, to which hyper
//! responds with 400 and the end of the connection; likewise the end of the header with both lengths (section 6.1).
//! Messages are parsed only as far as is needed to find where the next one begins.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::idle::Tunnels;

/// Bytes of a line that are kept: enough for every name and value that matters here.
const LINE_BYTES: usize = 128;

/// The first line of HTTP/2's preface (RFC 9113 section 3.4), after which there are no lines.
const HTTP2: &[u8] = b"PRI * HTTP/2.0";

/// The end of a request's head.
const HEAD_END: &[u8] = b"\r\n\r\n";

/// Replaces a bad line feed.
const BROKEN: u8 = 0;

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
        SmugglingFilter { inner, scanner: Scanner { position, ..Scanner::default() }, tunnels }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Position {
    /// In the lines of a request's head, or before it.
    #[default]
    Head,
    /// In a body, with this many bytes left.
    Body(u64),
    /// In the line with a chunk's size.
    ChunkSize,
    /// In a chunk, with this many bytes left, line end included.
    Chunk(u64),
    /// In the trailer lines after the last chunk.
    Trailers,
    /// After a line feed that was replaced.
    Broken,
    /// Input is no longer checked.
    Unchecked,
}

#[derive(Debug, Default)]
struct Scanner {
    position: Position,
    /// The beginning of the current line.
    line: Vec<u8>,
    /// The previous byte.
    last: u8,
    /// Lines of this head so far.
    lines: usize,
    requests: usize,
    length: Option<u64>,
    is_chunked: bool,
}

impl Scanner {
    /// Checks bytes as they arrive, and replaces those that must not pass.
    fn scan(&mut self, bytes: &mut [u8]) {
        let mut at = 0;
        while at < bytes.len() {
            match self.position {
                Position::Broken | Position::Unchecked => return,
                Position::Body(left) => {
                    at += self.skip(left, bytes.len() - at, Position::Head, Position::Body)
                }
                Position::Chunk(left) => {
                    at += self.skip(left, bytes.len() - at, Position::ChunkSize, Position::Chunk);
                }
                Position::Head | Position::ChunkSize | Position::Trailers => {
                    if bytes[at] == b'\n' && !self.line_end() {
                        bytes[at] = BROKEN;
                        self.position = Position::Broken;
                        return;
                    }
                    self.last = bytes[at];
                    if !matches!(bytes[at], b'\r' | b'\n') && self.line.len() < LINE_BYTES {
                        self.line.push(bytes[at]);
                    }
                    at += 1;
                }
            }
        }
    }

    /// Skips bytes of a body; returns how many.
    fn skip(
        &mut self,
        left: u64,
        there: usize,
        after: Position,
        still: fn(u64) -> Position,
    ) -> usize {
        let taken = usize::try_from(left).unwrap_or(usize::MAX).min(there);
        let left = left - taken as u64;
        self.position = if left == 0 { after } else { still(left) };
        taken
    }

    /// Handles a line feed; returns whether it may pass.
    fn line_end(&mut self) -> bool {
        let line = std::mem::take(&mut self.line);
        if self.last != b'\r' {
            return false;
        }
        match self.position {
            Position::Head => return self.head_line(&line),
            Position::ChunkSize => match chunk_size(&line) {
                Some(0) => self.position = Position::Trailers,
                Some(bytes) => self.position = Position::Chunk(bytes.saturating_add(2)),
                // hyper refuses it.
                None => self.position = Position::Unchecked,
            },
            Position::Trailers if line.is_empty() => self.position = Position::Head,
            _ => {}
        }
        true
    }

    fn head_line(&mut self, line: &[u8]) -> bool {
        if self.lines == 0 {
            if line.is_empty() {
                // Some clients send an empty line after a body (section 2.2).
                return true;
            }
            self.lines = 1;
            self.requests += 1;
            if self.requests == 1 && line == HTTP2 {
                self.position = Position::Unchecked;
            }
            return true;
        }
        if !line.is_empty() {
            self.lines += 1;
            self.header(line);
            return true;
        }
        let (length, is_chunked) = (self.length.take(), std::mem::take(&mut self.is_chunked));
        self.lines = 0;
        self.position = match (length, is_chunked) {
            (Some(_), true) => return false,
            (Some(length), false) if length > 0 => Position::Body(length),
            (_, true) => Position::ChunkSize,
            _ => Position::Head,
        };
        true
    }

    fn header(&mut self, line: &[u8]) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.is_chunked = true;
        } else if name.eq_ignore_ascii_case(b"content-length") {
            // hyper refuses a value that is not a number.
            let value = std::str::from_utf8(value).ok().and_then(|value| value.parse().ok());
            self.length = value.or(Some(0));
        }
    }
}

fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    u64::from_str_radix(std::str::from_utf8(&line[..digits]).ok()?, 16).ok()
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
        if self.tunnels.any() {
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
mod tests {
    use super::*;

    /// The bytes that pass, the same in parts of any size.
    fn passed(text: &str) -> String {
        let whole = {
            let mut bytes = text.as_bytes().to_vec();
            Scanner::default().scan(&mut bytes);
            bytes
        };
        for size in [1, 2, 7] {
            let (mut bytes, mut scanner) = (text.as_bytes().to_vec(), Scanner::default());
            bytes.chunks_mut(size).for_each(|part| scanner.scan(part));
            assert_eq!(bytes, whole, "{text:?} in parts of {size}");
        }
        String::from_utf8_lossy(&whole).into_owned()
    }

    #[test]
    fn well_formed_requests_pass() {
        for text in [
            "GET / HTTP/1.1\r\nhost: a\r\n\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n",
            "\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\n\n\n\nGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n2;x=y\r\n\n\n\r\n0\r\na: b\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\n\n\n",
        ] {
            assert_eq!(passed(text), text);
        }
    }

    #[test]
    fn bare_line_feeds_do_not_pass() {
        for (text, expected) in [
            ("GET / HTTP/1.1\nhost: a\r\n\r\n", "GET / HTTP/1.1\0host: a\r\n\r\n"),
            ("GET / HTTP/1.1\r\nhost: a\n\r\n", "GET / HTTP/1.1\r\nhost: a\0\r\n"),
            ("GET / HTTP/1.1\r\nhost: a\r\n\n", "GET / HTTP/1.1\r\nhost: a\r\n\0"),
            ("\nGET / HTTP/1.1\r\n\r\n", "\0GET / HTTP/1.1\r\n\r\n"),
            // Behind a body, and behind chunks.
            (
                "POST / HTTP/1.1\r\ncontent-length: 1\r\n\r\nxGET / HTTP/1.1\n\r\n",
                "POST / HTTP/1.1\r\ncontent-length: 1\r\n\r\nxGET / HTTP/1.1\0\r\n",
            ),
            (
                "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\na: b\n\r\n",
                "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\na: b\0\r\n",
            ),
        ] {
            assert_eq!(passed(text), expected);
        }
    }

    #[test]
    fn content_length_with_transfer_encoding_does_not_pass() {
        let both = "POST / HTTP/1.1\r\nContent-Length : 5\r\ncontent-length:5\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert!(passed(both).ends_with("chunked\r\n\r\0"));
    }
}
