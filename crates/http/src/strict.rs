//! HTTP/1.1's line ends, checked before hyper sees them: a line feed without its carriage return is not one.
//!
//! hyper takes it for one in headers, as RFC 9112 section 2.2 allows. Others in the way may not, and then see
//! requests where this server sees none (request smuggling). Here it becomes a zero byte, which hyper answers
//! with 400 and the end of the connection. The same goes for a request with both `Content-Length` and
//! `Transfer-Encoding` (section 6.1). Only as much of a message is understood as tells where the next begins.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::idle::Tunnels;

/// Bytes of a line that are looked at: enough for any name and value that matters here.
const LINE_BYTES: usize = 128;

/// The first line of HTTP/2's preface (RFC 9113 section 3.4), behind which lines mean nothing.
const HTTP2: &[u8] = b"PRI * HTTP/2.0";

/// The end of a request's head.
const HEAD_END: &[u8] = b"\r\n\r\n";

/// What a bad line feed becomes.
const BROKEN: u8 = 0;

/// See the module's words.
#[derive(Debug)]
pub(crate) struct Strict<S> {
    inner: S,
    scanner: Scanner,
    /// With a WebSocket in it, the connection carries no more requests.
    tunnels: Tunnels,
}

impl<S> Strict<S> {
    /// Checks what is read from `inner`, if that has lines at all.
    pub(crate) fn new(inner: S, tunnels: Tunnels, has_lines: bool) -> Strict<S> {
        let place = if has_lines { Place::Head } else { Place::Open };
        Strict { inner, scanner: Scanner { place, ..Scanner::default() }, tunnels }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// In the lines of a request's head, or before it.
    #[default]
    Head,
    /// So many bytes of a body.
    Body(u64),
    /// In the line that says how long a chunk is.
    ChunkSize,
    /// So many bytes of a chunk and its line end.
    Chunk(u64),
    /// In the lines behind the last chunk.
    Trailers,
    /// Behind a line feed that did not pass.
    Broken,
    /// Nothing is looked at any more.
    Open,
}

#[derive(Debug, Default)]
struct Scanner {
    place: Place,
    /// The beginning of the current line.
    line: Vec<u8>,
    /// The byte before.
    last: u8,
    /// Lines of this head so far.
    lines: usize,
    requests: usize,
    length: Option<u64>,
    is_chunked: bool,
}

impl Scanner {
    /// Looks at bytes as they come, and breaks those that must not pass.
    fn scan(&mut self, bytes: &mut [u8]) {
        let mut at = 0;
        while at < bytes.len() {
            match self.place {
                Place::Broken | Place::Open => return,
                Place::Body(left) => {
                    at += self.skip(left, bytes.len() - at, Place::Head, Place::Body)
                }
                Place::Chunk(left) => {
                    at += self.skip(left, bytes.len() - at, Place::ChunkSize, Place::Chunk);
                }
                Place::Head | Place::ChunkSize | Place::Trailers => {
                    if bytes[at] == b'\n' && !self.line_end() {
                        bytes[at] = BROKEN;
                        self.place = Place::Broken;
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

    /// Passes bytes of a body; how many.
    fn skip(&mut self, left: u64, there: usize, after: Place, still: fn(u64) -> Place) -> usize {
        let taken = usize::try_from(left).unwrap_or(usize::MAX).min(there);
        let left = left - taken as u64;
        self.place = if left == 0 { after } else { still(left) };
        taken
    }

    /// A line feed; whether it may pass.
    fn line_end(&mut self) -> bool {
        let line = std::mem::take(&mut self.line);
        if self.last != b'\r' {
            return false;
        }
        match self.place {
            Place::Head => return self.head_line(&line),
            Place::ChunkSize => match chunk_size(&line) {
                Some(0) => self.place = Place::Trailers,
                Some(bytes) => self.place = Place::Chunk(bytes.saturating_add(2)),
                // hyper says what is wrong with it.
                None => self.place = Place::Open,
            },
            Place::Trailers if line.is_empty() => self.place = Place::Head,
            _ => {}
        }
        true
    }

    fn head_line(&mut self, line: &[u8]) -> bool {
        if self.lines == 0 {
            if line.is_empty() {
                // Some clients send one behind a body (section 2.2).
                return true;
            }
            self.lines = 1;
            self.requests += 1;
            if self.requests == 1 && line == HTTP2 {
                self.place = Place::Open;
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
        self.place = match (length, is_chunked) {
            (Some(_), true) => return false,
            (Some(length), false) if length > 0 => Place::Body(length),
            (_, true) => Place::ChunkSize,
            _ => Place::Head,
        };
        true
    }

    fn header(&mut self, line: &[u8]) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.is_chunked = true;
        } else if name.eq_ignore_ascii_case(b"content-length") {
            // What is no number, hyper refuses.
            let value = std::str::from_utf8(value).ok().and_then(|value| value.parse().ok());
            self.length = value.or(Some(0));
        }
    }
}

fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    u64::from_str_radix(std::str::from_utf8(&line[..digits]).ok()?, 16).ok()
}

impl<S: AsyncRead + Unpin> AsyncRead for Strict<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.scanner.place == Place::Broken && buffer.remaining() >= HEAD_END.len() {
            // hyper does not look at a head before it is there whole, and this one may get no other end.
            self.scanner.place = Place::Open;
            buffer.put_slice(HEAD_END);
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
        if self.tunnels.any() {
            self.scanner.place = Place::Open;
        }
        self.scanner.scan(&mut buffer.filled_mut()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Strict<S> {
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

    /// What passes, by parts of any size the same.
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
    fn what_is_well_formed_passes() {
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
    fn two_ways_to_say_how_long_a_body_is_do_not_pass() {
        let both = "POST / HTTP/1.1\r\nContent-Length : 5\r\ncontent-length:5\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert!(passed(both).ends_with("chunked\r\n\r\0"));
    }
}
