//! [`LimitedRouter`]: the axum router with limits on the size of a body, the memory for all bodies, and the time for
//! a response and for taking it. Every request passes through it, at every address and in every version of HTTP.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::response::IntoResponse as _;
use fulmar_broker::LogLimiter;
use fulmar_transport::Clock;
use http::{Request, Response, StatusCode, header};
use http_body::Body as _;
use http_body_util::Limited;
use parking_lot::Mutex;
use tower_service::Service as _;

use crate::bodies::BodyBudget;
use crate::config::{Knows, Limits};
use crate::connection_slots::Activity;
use crate::metrics::Metrics;
use crate::problem::Problem;
use crate::rest::Drained;
use crate::unread_response::watched;

/// Retry-After of a response to a request that was refused for lack of memory.
const RETRY_AFTER_S: u64 = 2;

/// A router and the limits of its requests.
pub(crate) struct LimitedRouter {
    pub(crate) router: axum::Router,
    pub(crate) limits: Limits,
    pub(crate) bodies: BodyBudget,
    pub(crate) knows: Option<Knows>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: Clock,
    /// Limits how often a request that was refused for lack of memory is logged.
    pub(crate) refusals: Mutex<LogLimiter>,
}

impl LimitedRouter {
    /// Responds to a request from `address`.
    pub(crate) async fn call<B>(
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
        let errors = Errors::for_path(request.uri().path());
        let max = self.limits.max_body_bytes;
        if content_length(&request).is_some_and(|bytes| bytes > max as u64) {
            return errors.response(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large");
        }
        let account = self.knows.as_ref().and_then(|knows| knows.account(request.headers()));
        let share = self.bodies.share(address.ip(), account, activity);
        if !request.body().is_end_stream() && share.charge_headers(request.headers()).is_err() {
            return self.no_room(address, errors);
        }
        let mut request = request.map(|body| Body::new(share.count(Limited::new(body, max))));
        request.extensions_mut().insert(ConnectInfo(address));
        let answer = self.router.clone().call(request);
        let answer = tokio::time::timeout(self.limits.request_timeout, answer).await;
        if share.is_refused() {
            return self.no_room(address, errors);
        }
        match answer {
            Ok(Ok(response)) => {
                response.map(|body| watched(body, self.limits.request_timeout, activity))
            }
            Err(_) => errors.response(StatusCode::SERVICE_UNAVAILABLE, "this took too long"),
        }
    }

    /// Counts and logs a request that is refused because the memory for those that are not complete is used up.
    pub(crate) fn count_refusal(&self, address: SocketAddr) {
        self.metrics.bodies_refused.fetch_add(1, Relaxed);
        let mut refusals = self.refusals.lock();
        if let Some(times) = refusals.occurred(self.clock.now()) {
            tracing::warn!(
                peer = %address, times,
                "HTTP: a request's body was refused: [http] max_buffered_body_bytes is used up"
            );
        }
    }

    fn no_room(&self, address: SocketAddr, errors: Errors) -> Response<Body> {
        self.count_refusal(address);
        let text = "too much is being sent at once; try again";
        let mut response = errors.response(StatusCode::SERVICE_UNAVAILABLE, text);
        response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER_S.into());
        response
    }
}

/// The form of errors at a path.
#[derive(Clone, Copy)]
pub(crate) enum Errors {
    /// A line of text.
    Text,
    /// A problem (RFC 9457), as all errors of APIs.
    Problem,
}

impl Errors {
    pub(crate) fn for_path(path: &str) -> Errors {
        if path.starts_with("/api/") { Errors::Problem } else { Errors::Text }
    }

    /// An error response.
    pub(crate) fn response(self, status: StatusCode, text: &'static str) -> Response<Body> {
        let Errors::Problem = self else { return text_response(status, text) };
        Problem::new(status, text).into_response()
    }
}

fn content_length<B>(request: &Request<B>) -> Option<u64> {
    request.headers().get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// A response of one line of text.
pub(crate) fn text_response(status: StatusCode, text: &str) -> Response<Body> {
    (status, format!("{text}\n")).into_response()
}
