//! Checks that a request names exactly one host, in its target or its Host header (RFC 9112 section 3.2, RFC 9113
//! section 8.3.1, RFC 9114 section 4.3.1).

use axum::body::Body;
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version, header};

use crate::limited_router::text_response;

/// The error response to a request that does not name exactly one host; `None` if it does.
pub(crate) fn refuse_ambiguous<B>(request: &Request<B>) -> Option<Response<Body>> {
    if names_one_host(request.version(), request.headers(), request.uri().authority()) {
        return None;
    }
    let mut response =
        text_response(StatusCode::BAD_REQUEST, "a request must name exactly one host");
    if request.version() <= Version::HTTP_11 {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Some(response)
}

fn names_one_host(version: Version, headers: &HeaderMap, authority: Option<&Authority>) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (host, None) => host.map(HeaderValue::as_bytes),
        _ => return false,
    };
    match (version, host, authority) {
        (Version::HTTP_11, None, _) => false,
        (Version::HTTP_2 | Version::HTTP_3, None, None) => false,
        (Version::HTTP_2 | Version::HTTP_3, Some(host), Some(authority)) => {
            host.eq_ignore_ascii_case(authority.as_str().as_bytes())
        }
        (_, Some(host), _) => {
            host.is_empty() || !host.contains(&b'@') && Authority::try_from(host).is_ok()
        }
        _ => true,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_one_host() {
        let named = |version, hosts: &[&str], authority: Option<&str>| {
            let mut headers = HeaderMap::new();
            for host in hosts {
                headers.append(header::HOST, host.parse().unwrap());
            }
            let authority = authority.map(|authority| authority.parse().unwrap());
            names_one_host(version, &headers, authority.as_ref())
        };
        use Version as V;
        for (version, hosts, authority, expected) in [
            (V::HTTP_11, &["a:1"][..], None, true),
            (V::HTTP_11, &["[::1]:8443"], None, true),
            (V::HTTP_11, &[""], None, true),
            (V::HTTP_11, &["a", "a"], None, false),
            (V::HTTP_11, &["a", "b"], None, false),
            (V::HTTP_11, &["a b"], None, false),
            (V::HTTP_11, &["u@a"], None, false),
            (V::HTTP_11, &[], None, false),
            (V::HTTP_10, &[], None, true),
            (V::HTTP_10, &["a", "b"], None, false),
            (V::HTTP_2, &[], Some("a:1"), true),
            (V::HTTP_2, &["A:1"], Some("a:1"), true),
            (V::HTTP_2, &["b"], Some("a"), false),
            (V::HTTP_3, &["a", "a"], Some("a"), false),
            (V::HTTP_3, &["a"], None, true),
            (V::HTTP_2, &[], None, false),
        ] {
            assert_eq!(
                named(version, hosts, authority),
                expected,
                "{version:?} {hosts:?} {authority:?}"
            );
        }
    }
}
