//! What every request goes through, at every address and whatever version carries it: the host it is for,
//! bounds, the budget of bodies, the router.

use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::response::IntoResponse as _;
use fulmar_broker::LogLimiter;
use fulmar_transport::Clock;
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version, header};
use http_body_util::Limited;
use tower_service::Service as _;

use crate::bodies::BodyBudget;
use crate::config::{Knows, Limits};
use crate::connection_slots::Activity;
use crate::metrics::Metrics;
use crate::rest::Drained;

/// Seconds after which a request may be sent again that there was no room for.
const RETRY_AFTER_S: u64 = 2;

/// See the module's words.
pub(crate) struct Front {
    pub(crate) router: axum::Router,
    pub(crate) limits: Limits,
    pub(crate) bodies: BodyBudget,
    pub(crate) knows: Option<Knows>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: Clock,
    /// Limits the log lines about requests refused for lack of room.
    pub(crate) crowded: Mutex<LogLimiter>,
}

impl Front {
    /// Answers a request from there.
    pub(crate) async fn answer<B>(
        &self,
        request: Request<B>,
        address: SocketAddr,
        activity: &Activity,
    ) -> Response<Body>
    where
        B: http_body::Body<Data = bytes::Bytes> + Unpin + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        let request = Drained::within(request);
        let max = self.limits.max_body_bytes;
        if announced_bytes(&request).is_some_and(|bytes| bytes > max as u64) {
            return plain(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large");
        }
        let is_known = self.knows.as_ref().is_some_and(|knows| knows.token(request.headers()));
        let share = self.bodies.share(address.ip(), is_known, activity);
        let mut request = request.map(|body| Body::new(share.count(Limited::new(body, max))));
        request.extensions_mut().insert(ConnectInfo(address));
        let answer = self.router.clone().call(request);
        let answer = tokio::time::timeout(self.limits.request_timeout, answer).await;
        if share.is_refused() {
            return self.no_room(address);
        }
        match answer {
            Ok(Ok(response)) => response,
            Err(_) => plain(StatusCode::SERVICE_UNAVAILABLE, "this took too long"),
        }
    }

    fn no_room(&self, address: SocketAddr) -> Response<Body> {
        self.metrics.bodies_refused.fetch_add(1, Relaxed);
        let mut crowded = self.crowded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(times) = crowded.occurred(self.clock.now()) {
            tracing::warn!(
                peer = %address, times,
                "HTTP: a request's body was refused: [http] max_buffered_body_bytes is used up"
            );
        }
        let mut response =
            plain(StatusCode::SERVICE_UNAVAILABLE, "too much is being sent at once; try again");
        response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER_S.into());
        response
    }
}

/// The answer to a request that does not say clearly which host it is for; `None` if it does (RFC 9112
/// section 3.2, RFC 9113 section 8.3.1, RFC 9114 section 4.3.1).
pub(crate) fn misdirected<B>(request: &Request<B>) -> Option<Response<Body>> {
    if names_one_host(request.version(), request.headers(), request.uri().authority()) {
        return None;
    }
    let mut response = plain(StatusCode::BAD_REQUEST, "a request must name exactly one host");
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

/// How long a request says its body is.
fn announced_bytes<B>(request: &Request<B>) -> Option<u64> {
    request.headers().get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// An answer in one line of text.
pub(crate) fn plain(status: StatusCode, text: &str) -> Response<Body> {
    (status, format!("{text}\n")).into_response()
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
