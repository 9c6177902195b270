//! What a request is answered with, at either end.

use bytes::Bytes;

use crate::message::Code;

/// A response or notification; the server cuts it into blocks.
#[derive(Clone, Debug, Default)]
pub struct Response {
    /// What came of it.
    pub code: Code,
    /// The body; of an error, a sentence for people (RFC 7252 section 5.5.2).
    pub payload: Bytes,
    /// What the payload is.
    pub content_format: Option<u16>,
    /// Seconds for which it may be taken for current; 60 if not said.
    pub max_age_s: Option<u32>,
}

impl Response {
    /// Without a body.
    #[must_use]
    pub fn new(code: Code) -> Response {
        Response { code, ..Response::default() }
    }

    /// An error with a sentence for people.
    #[must_use]
    pub fn error(code: Code, why: &str) -> Response {
        Response { code, payload: Bytes::copy_from_slice(why.as_bytes()), ..Response::default() }
    }
}
