//! Compresses answers with gzip (RFC 9110 section 8.4) for clients that accept it, and decompresses the bodies of requests.
//!
//! What is compressed is JSON and CSV in answer to GET, where a router has the middleware and the answer does not forbid it
//! (`Cache-Control: no-transform`): the length of a body that has a secret beside text that somebody else chose
//! reveals the secret (BREACH). So answers to POST, which show new tokens, are never compressed, nor the addresses of webhooks,
//! nor what devices publish.
//!
//! Each part of a body is compressed by itself and the parts are joined, so that a client which takes none of its answer
//! holds no compressor's memory (some 300 kB).

use std::io::Read as _;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use flate2::read::MultiGzDecoder;
use flate2::{Compress, Compression, Crc, FlushCompress, Status};
use futures_util::{StreamExt as _, stream};
use http::{HeaderMap, HeaderValue, Method, header};
use http_body::Body as _;

/// Shorter bodies fit in a packet as they are.
const SHORT_BYTES: u64 = 1024;
/// Longer parts are compressed on a thread of their own, so that the endpoint's thread answers others.
const LONG_BYTES: usize = 16 * 1024;
/// Compression level, 0 to 9. A list of 785 kB becomes 57 kB; with level 4 61 kB, with 9 54 kB in four times the time.
const LEVEL: Compression = Compression::new(6);
/// The start of a file of RFC 1952: no name, no time, any system.
const GZIP_HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
/// An empty last block (RFC 1951 section 3.2.6).
const LAST_BLOCK: [u8; 2] = [3, 0];

/// A middleware that compresses the answers to GET whose client accepts gzip.
pub async fn compress(request: Request, next: Next) -> Response {
    let wanted = request.method() == Method::GET && accepts("gzip", request.headers());
    let mut response = next.run(request).await;
    if !is_compressible(response.headers()) {
        return response;
    }
    response.headers_mut().append(header::VARY, HeaderValue::from_static("accept-encoding"));
    let size = response.body().size_hint().exact();
    if !wanted || size.is_some_and(|bytes| bytes < SHORT_BYTES) {
        return response;
    }
    let (mut head, body) = response.into_parts();
    head.headers.remove(header::CONTENT_LENGTH);
    head.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    Response::from_parts(head, if size.is_some() { whole(body).await } else { in_parts(body) })
}

/// A body that is there already; its size is known, and counted until it is taken ([`crate::AnswerSpace`]).
async fn whole(body: Body) -> Body {
    let mut gzip = Gzip::default();
    let mut packed = Vec::new();
    let mut parts = body.into_data_stream();
    while let Some(part) = parts.next().await {
        match part {
            Ok(part) => {
                let bytes;
                (gzip, bytes) = gzip.compressed(part).await;
                packed.extend_from_slice(&bytes);
            }
            Err(error) => return Body::from_stream(stream::iter([Err::<Bytes, _>(error)])),
        }
    }
    packed.extend_from_slice(&gzip.end());
    packed.into()
}

fn in_parts(body: Body) -> Body {
    let parts = (body.into_data_stream(), Some(Gzip::default()));
    Body::from_stream(stream::unfold(parts, |(mut parts, gzip)| async {
        let gzip = gzip?;
        match parts.next().await {
            Some(Ok(part)) => {
                let (gzip, bytes) = gzip.compressed(part).await;
                Some((Ok(Bytes::from(bytes)), (parts, Some(gzip))))
            }
            // Without its end, the client sees that something is missing.
            Some(Err(error)) => Some((Err(error), (parts, None))),
            None => Some((Ok(gzip.end().into()), (parts, None))),
        }
    }))
}

fn is_compressible(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next());
    let cache = headers.get(header::CACHE_CONTROL).and_then(|cache| cache.to_str().ok());
    matches!(kind, Some("application/json" | "text/csv"))
        && !cache.is_some_and(|cache| cache.contains("no-transform"))
        && !headers.contains_key(header::CONTENT_ENCODING)
}

/// Whether a coding is in Accept-Encoding (RFC 9110 section 12.5.3) and its weight is not 0; `*` does not count.
pub fn accepts(coding: &str, headers: &HeaderMap) -> bool {
    let lists =
        headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|list| list.to_str().ok());
    lists.flat_map(|list| list.split(',')).any(|one| {
        let (name, weight) = one.split_once(';').unwrap_or((one, "q=1"));
        let weight = weight.trim().trim_start_matches("q=").parse();
        name.trim().eq_ignore_ascii_case(coding) && weight.is_ok_and(|weight: f32| weight > 0.0)
    })
}

/// A request's body cannot be decompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodingError {
    /// The Content-Encoding is not gzip: 415 (RFC 9110 section 15.5.16).
    #[error("the only content-encoding of requests is gzip")]
    Unsupported,
    /// It is longer than is accepted, decompressed: 413.
    #[error("the body is too large, decompressed")]
    TooLarge,
    /// It is damaged or incomplete: 400.
    #[error("the body is not gzip, or is incomplete")]
    Malformed,
}

/// The body of a request with these headers, of at most `max_bytes`; nothing beyond them is decompressed.
///
/// # Errors
/// As [`CodingError`] says.
pub fn decompress(
    headers: &HeaderMap,
    body: Bytes,
    max_bytes: usize,
) -> Result<Bytes, CodingError> {
    let Some(coding) = headers.get(header::CONTENT_ENCODING) else { return Ok(body) };
    match coding.as_bytes() {
        b"identity" => return Ok(body),
        coding if coding.eq_ignore_ascii_case(b"gzip") => {}
        _ => return Err(CodingError::Unsupported),
    }
    let mut bytes = Vec::new();
    let most = u64::try_from(max_bytes).unwrap_or(u64::MAX).saturating_add(1);
    let read = MultiGzDecoder::new(&body[..]).take(most).read_to_end(&mut bytes);
    read.map_err(|_| CodingError::Malformed)?;
    if bytes.len() > max_bytes { Err(CodingError::TooLarge) } else { Ok(bytes.into()) }
}

/// Checksum at the end of a file of RFC 1952, so far.
#[derive(Default)]
struct Gzip {
    checksum: Crc,
    has_begun: bool,
}

impl Gzip {
    /// The next bytes, compressed; the first time with the header.
    async fn compressed(mut self, part: Bytes) -> (Gzip, Vec<u8>) {
        if part.len() < LONG_BYTES {
            let bytes = self.compress(&part);
            return (self, bytes);
        }
        let work = tokio::task::spawn_blocking(move || {
            let bytes = self.compress(&part);
            (self, bytes)
        });
        // It ends early only if it panics, or with the runtime: then there is no answer.
        work.await.unwrap_or_default()
    }

    fn compress(&mut self, part: &[u8]) -> Vec<u8> {
        let mut packed = Vec::with_capacity(part.len() / 4 + 64);
        if !std::mem::replace(&mut self.has_begun, true) {
            packed.extend_from_slice(&GZIP_HEADER);
        }
        self.checksum.update(part);
        let mut deflate = Compress::new(LEVEL, false);
        let mut done = 0;
        loop {
            packed.reserve(1024);
            let status = deflate.compress_vec(&part[done..], &mut packed, FlushCompress::Sync);
            done = usize::try_from(deflate.total_in()).unwrap_or(usize::MAX).min(part.len());
            let has_room = packed.len() < packed.capacity();
            if done == part.len() && has_room || !matches!(status, Ok(Status::Ok)) {
                return packed;
            }
        }
    }

    fn end(mut self) -> Vec<u8> {
        let mut end = if self.has_begun { Vec::new() } else { GZIP_HEADER.to_vec() };
        self.has_begun = true;
        end.extend_from_slice(&LAST_BLOCK);
        end.extend_from_slice(&self.checksum.sum().to_le_bytes());
        end.extend_from_slice(&self.checksum.amount().to_le_bytes());
        end
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use flate2::read::GzDecoder;
    use http_body_util::BodyExt as _;

    use super::*;

    #[test]
    fn parts_are_one_file() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let random: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(50_000).collect();
        let long = "a meter, ".repeat(40_000).into_bytes();
        for parts in [vec![], vec![vec![]], vec![b"abc".to_vec(), random, vec![], long]] {
            let plain = parts.concat();
            for is_whole in [true, false] {
                let parts = parts.clone().into_iter().map(Ok::<_, axum::BoxError>);
                let body = Body::from_stream(stream::iter(parts));
                let packed = runtime.block_on(async {
                    let body = if is_whole { whole(body).await } else { in_parts(body) };
                    body.collect().await.unwrap().to_bytes()
                });
                let mut unpacked = Vec::new();
                GzDecoder::new(&packed[..]).read_to_end(&mut unpacked).unwrap();
                assert!(unpacked == plain, "{} of {} bytes", unpacked.len(), plain.len());
                assert!(plain.len() < 100_000 || packed.len() < 60_000, "{} bytes", packed.len());
            }
        }
    }

    #[test]
    fn a_request_is_decompressed_up_to_its_bound() {
        let headers = |coding: &'static str| {
            HeaderMap::from_iter([(header::CONTENT_ENCODING, HeaderValue::from_static(coding))])
        };
        let mut gzip = Gzip::default();
        let mut packed = gzip.compress(&[b'7'; 5_000_000]);
        packed.extend(gzip.end());
        assert!(packed.len() < 10_000, "{}", packed.len());
        let packed = Bytes::from(packed);
        let unpacked = |coding, body: &Bytes, max| decompress(&headers(coding), body.clone(), max);
        assert_eq!(unpacked("gzip", &packed, 5_000_000).unwrap().len(), 5_000_000);
        assert_eq!(unpacked("gzip", &packed, 4_999_999), Err(CodingError::TooLarge));
        assert_eq!(unpacked("br", &packed, usize::MAX), Err(CodingError::Unsupported));
        let cut = packed.slice(..packed.len() - 9);
        assert_eq!(unpacked("gzip", &cut, usize::MAX), Err(CodingError::Malformed));
        assert_eq!(unpacked("identity", &packed, 1), Ok(packed.clone()));
    }

    #[test]
    fn a_broken_answer_has_no_end() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let parts = [Ok("a part"), Err("the disk is broken")];
        let body = in_parts(Body::from_stream(stream::iter(parts)));
        assert!(runtime.block_on(body.collect()).is_err());
    }

    #[test]
    fn json_and_csv_are_compressed_unless_that_is_forbidden() {
        for (kind, cache, compressible) in [
            ("application/json", "private, no-cache", true),
            ("text/csv; charset=utf-8; header=present", "no-store", true),
            ("application/json", "private, no-transform", false),
            ("application/problem+json", "no-store", false),
            ("image/jpeg", "private", false),
        ] {
            let headers = HeaderMap::from_iter([
                (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
                (header::CACHE_CONTROL, HeaderValue::from_static(cache)),
            ]);
            assert_eq!(is_compressible(&headers), compressible, "{kind} {cache}");
        }
    }

    #[test]
    fn gzip_is_accepted_where_its_weight_is_not_0() {
        for (list, accepted) in [
            ("gzip, deflate, br", true),
            ("br;q=1.0, GZIP;q=0.5", true),
            ("gzip;q=0", false),
            ("gzip; q=0.0, *", false),
            ("identity", false),
        ] {
            let headers =
                HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static(list))]);
            assert_eq!(accepts("gzip", &headers), accepted, "{list}");
        }
    }
}
