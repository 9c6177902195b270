//! Problems (RFC 9457) of this API.

pub(crate) use fulmar_http::Problem;

/// Result of what was asked for.
pub(crate) type Result<T, E = Problem> = std::result::Result<T, E>;

/// The caller is unknown. Not Basic: a browser would ask for a password, remember it, and send it with any page's requests.
pub(crate) fn unauthorized(detail: impl Into<String>) -> Problem {
    Problem::unauthorized(detail).challenge("Bearer realm=\"fulmar administration\"")
}
