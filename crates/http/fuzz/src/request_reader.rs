//! Reads the requests of a connection as hyper 1 does (`proto/h1/role.rs` and `decode.rs` of its sources), which accepts line
//! feeds without a carriage return, and both lengths; and says so.

use httparse::{EMPTY_HEADER, Request, Status, parse_headers};

/// The most headers of a request that hyper accepts.
const MAX_HEADERS: usize = 100;

/// What was read.
#[derive(Default)]
pub(crate) struct Read {
    /// Until where requests were accepted and were not ambiguous.
    pub(crate) end: usize,
    /// Whether what follows would be accepted as well, and is ambiguous.
    pub(crate) is_ambiguous: bool,
}

/// The body of a request.
enum Length {
    Bytes(u64),
    Chunked,
}

pub(crate) fn read(wire: &[u8]) -> Read {
    let mut read = Read::default();
    while let Some((head, length)) = head(&wire[read.end..]) {
        if has_bare_line_feed(&wire[read.end..read.end + head]) || length.is_none() {
            read.is_ambiguous = true;
            return read;
        }
        read.end += head;
        match length {
            Some(Length::Bytes(bytes)) if bytes <= (wire.len() - read.end) as u64 => {
                read.end += bytes as usize;
            }
            Some(Length::Chunked) => {
                loop {
                    let Some((bytes, is_last)) = chunk(&wire[read.end..]) else { return read };
                    read.end += bytes;
                    if is_last {
                        break;
                    }
                }
                let Some(trailers) = trailers(&wire[read.end..]) else { return read };
                if has_bare_line_feed(&wire[read.end..read.end + trailers]) {
                    read.is_ambiguous = true;
                    return read;
                }
                read.end += trailers;
            }
            _ => return read,
        }
    }
    read
}

fn has_bare_line_feed(lines: &[u8]) -> bool {
    (0..lines.len()).any(|at| lines[at] == b'\n' && (at == 0 || lines[at - 1] != b'\r'))
}

/// The length of a head that is accepted, and that of the body; no length if there are two.
fn head(wire: &[u8]) -> Option<(usize, Option<Length>)> {
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let mut request = Request::new(&mut headers);
    let Ok(Status::Complete(bytes)) = request.parse(wire) else { return None };
    if request.method == Some("CONNECT") {
        return None;
    }
    let of = |name: &str| {
        let headers = request.headers.iter();
        headers.filter(|header| header.name.eq_ignore_ascii_case(name)).collect::<Vec<_>>()
    };
    let (lengths, encodings) = (of("content-length"), of("transfer-encoding"));
    if let Some(last) = encodings.last() {
        let encoding = last.value.rsplit(|byte| *byte == b',').next().unwrap_or_default();
        let is_chunked = encoding.trim_ascii().eq_ignore_ascii_case(b"chunked");
        let is_accepted = is_chunked && request.version == Some(1);
        return is_accepted.then_some((bytes, lengths.is_empty().then_some(Length::Chunked)));
    }
    let mut length = None;
    for header in lengths {
        let text = std::str::from_utf8(header.value).ok()?;
        let number =
            text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))?;
        if length.is_some_and(|length| length != number) {
            return None;
        }
        length = Some(number);
    }
    Some((bytes, Some(Length::Bytes(length.unwrap_or(0)))))
}

/// The length of a chunk that is accepted, with its line and the end of its data, and whether it is the last.
fn chunk(wire: &[u8]) -> Option<(usize, bool)> {
    let digits = wire.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let size = u64::from_str_radix(std::str::from_utf8(&wire[..digits]).ok()?, 16).ok()?;
    let blanks = wire[digits..].iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    let mut at = digits + blanks;
    if wire.get(at) == Some(&b';') {
        at += wire[at..].iter().position(|byte| matches!(byte, b'\r' | b'\n'))?;
    }
    let at = at + wire.get(at..at + 2).filter(|end| *end == b"\r\n")?.len();
    if size == 0 {
        return Some((at, true));
    }
    let end = at.checked_add(usize::try_from(size).ok()?)?;
    let end = end + wire.get(end..end.checked_add(2)?).filter(|end| *end == b"\r\n")?.len();
    Some((end, false))
}

/// The length of the trailers that are accepted, with the empty line behind them.
fn trailers(wire: &[u8]) -> Option<usize> {
    let (mut at, mut lines) = (0, 0);
    while wire.get(at)? != &b'\r' {
        at += wire[at..].iter().position(|byte| *byte == b'\r')?;
        if wire.get(at + 1)? != &b'\n' {
            return None;
        }
        (at, lines) = (at + 2, lines + 1);
    }
    if wire.get(at + 1)? != &b'\n' || lines > MAX_HEADERS {
        return None;
    }
    let mut headers = vec![EMPTY_HEADER; lines];
    let end = at + 2;
    matches!(parse_headers(&wire[..end], &mut headers), Ok(Status::Complete(_))).then_some(end)
}
