//! Responses to requests, at either end.

use bytes::Bytes;

use crate::message::Code;

/// A response or notification; the server cuts it into blocks.
#[derive(Clone, Debug, Default)]
pub struct Response {
    /// The response code.
    pub code: Code,
    /// The body; for an error, a diagnostic message (RFC 7252 section 5.5.2).
    pub payload: Bytes,
    /// The payload's Content-Format.
    pub content_format: Option<u16>,
    /// Max-Age: seconds for which the response is fresh; 60 by default.
    pub max_age_s: Option<u32>,
}

impl Response {
    /// A response without a body.
    #[must_use]
    pub fn new(code: Code) -> Response {
        Response { code, ..Response::default() }
    }

    /// An error with a diagnostic message.
    #[must_use]
    pub fn error(code: Code, why: &str) -> Response {
        Response { code, payload: Bytes::copy_from_slice(why.as_bytes()), ..Response::default() }
    }
}
