//! Follows the bytes of HTTP/1.1 requests (RFC 9112), and replaces the line feeds that other servers may see differently:
//! those without a carriage return, the end of a head with two lengths, and of a line with a length that is not near its
//! beginning. Messages are parsed only as far as is needed to find where the next one begins.

/// Bytes of a line that are kept: enough for every name and value that matters here.
const LINE_BYTES: usize = 128;

/// The first line of HTTP/2's preface (RFC 9113 section 3.4), after which there are no lines.
const HTTP2: &[u8] = b"PRI * HTTP/2.0";

/// Replaces a bad line feed.
const BROKEN: u8 = 0;

/// Where in the requests of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Position {
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

/// Follows the requests of a connection.
#[derive(Debug, Default)]
pub(crate) struct Scanner {
    pub(crate) position: Position,
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
    /// One that begins here.
    pub(crate) fn at(position: Position) -> Scanner {
        Scanner { position, ..Scanner::default() }
    }

    /// Checks bytes as they arrive, and replaces those that must not pass.
    pub(crate) fn scan(&mut self, bytes: &mut [u8]) {
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
                        // In a chunk's extension, hyper would accept a zero, but it accepts no bare line feed.
                        if self.last == b'\r' || self.position != Position::ChunkSize {
                            bytes[at] = BROKEN;
                        }
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
            Position::ChunkSize if digits(&line) == LINE_BYTES => return false,
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
            return self.header(line);
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

    /// Handles a line of a head; returns whether it may pass.
    fn header(&mut self, line: &[u8]) -> bool {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return true };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.is_chunked = true;
        } else if name.eq_ignore_ascii_case(b"content-length") {
            if line.len() == LINE_BYTES {
                // The number may be behind what was kept: hyper would read it.
                return false;
            }
            // hyper refuses a value that is not a number.
            let value = std::str::from_utf8(value).ok().and_then(|value| value.parse().ok());
            self.length = value.or(Some(0));
        }
        true
    }
}

/// With how many digits of a chunk's size a line begins.
fn digits(line: &[u8]) -> usize {
    line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count()
}

fn chunk_size(line: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(&line[..digits(line)]).ok()?, 16).ok()
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

    #[test]
    fn a_length_behind_very_many_blanks_or_zeros_does_not_pass() {
        let long =
            |blanks| format!("POST / HTTP/1.1\r\nContent-Length:{}5\r\n", " ".repeat(blanks));
        assert!(passed(&long(20)).ends_with("5\r\n"));
        assert!(passed(&long(LINE_BYTES)).ends_with("5\r\0"));
        let chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
        let long = |zeros| format!("{chunked}{}5\r\n", "0".repeat(zeros));
        assert!(passed(&long(20)).ends_with("5\r\n"));
        assert!(passed(&long(LINE_BYTES)).ends_with("5\r\0"));
    }

    #[test]
    fn a_bare_line_feed_in_a_chunks_line_stays_for_hyper_to_refuse() {
        let chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
        for line in ["5;a\n", "5\n"] {
            let text = format!("{chunked}{line}hello\r\n0\r\n\r\nGET / HTTP/1.1\n\r\n");
            assert_eq!(passed(&text), text);
        }
    }
}
