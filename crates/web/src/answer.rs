//! What every request goes through, whatever version carries it: early data, bounds, the router, the
//! headers every answer has, counting and the access log.
//!
//! Requests for MQTT over WebSocket leave here for `websocket`; those for WebTransport are HTTP/3's own.

use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::response::IntoResponse as _;
use fulmar_broker::{ListenerPolicy, Recurring};
use fulmar_transport::{Clock, Inlet};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Limited;
use tower_service::Service as _;

use crate::config::Limits;
use crate::idle::Tunnels;
use crate::metrics::Metrics;
use crate::origin::Origins;
use crate::rest::Drained;
use crate::websocket;

/// What the connections of one address share.
pub(crate) struct Site {
    pub(crate) router: axum::Router,
    pub(crate) inlet: Inlet,
    pub(crate) limits: Limits,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) policy: Arc<ListenerPolicy>,
    /// Tells clients of HTTP/3; `None` where there are no pages.
    pub(crate) alt_svc: Option<HeaderValue>,
    pub(crate) origins: Origins,
    pub(crate) clock: Clock,
    /// Refused origins, for the log.
    pub(crate) strangers: Mutex<Recurring>,
}

/// Who asks.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    /// Name from a verified client certificate.
    pub(crate) identity: Option<Box<str>>,
    /// MQTT connections inside this one.
    pub(crate) tunnels: Tunnels,
}

impl Site {
    /// Answers a request. `early`: it came before the handshake was complete and could be a replay.
    pub(crate) async fn answer<B>(
        &self,
        request: Request<B>,
        client: &Client,
        early: bool,
    ) -> Response<Body>
    where
        B: http_body::Body<Data = bytes::Bytes> + Unpin + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        let started = Instant::now();
        let (method, version) = (request.method().clone(), request.version());
        let path = request.uri().path().to_owned();
        let mut response = self.respond(request, client, early).await;
        if let Some(alt_svc) = &self.alt_svc {
            response.headers_mut().insert(header::ALT_SVC, alt_svc.clone());
        }
        let status = response.status();
        self.metrics.answered(version, status);
        tracing::debug!(
            peer = %client.address, %method, path, ?version, status = status.as_u16(), early,
            us = started.elapsed().as_micros() as u64, "answered"
        );
        response
    }

    async fn respond<B>(&self, request: Request<B>, client: &Client, early: bool) -> Response<Body>
    where
        B: http_body::Body<Data = bytes::Bytes> + Unpin + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        if early && !is_safe(request.method()) {
            self.metrics.early_refused.fetch_add(1, Relaxed);
            return plain(StatusCode::TOO_EARLY, "send this again after the handshake");
        }
        if websocket::is_wanted(&request) {
            return websocket::begin(self, request, client);
        }
        let request = Drained::within(request);
        let max = self.limits.max_body_bytes;
        if announced_bytes(&request).is_some_and(|bytes| bytes > max as u64) {
            return plain(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large");
        }
        let mut request = request.map(|body| Body::new(Limited::new(body, max)));
        request.extensions_mut().insert(ConnectInfo(client.address));
        let answer = self.router.clone().call(request);
        match tokio::time::timeout(self.limits.request_timeout, answer).await {
            Ok(Ok(response)) => response,
            Err(_) => plain(StatusCode::SERVICE_UNAVAILABLE, "this took too long"),
        }
    }
}

impl Site {
    /// Whether the page that wants an MQTT connection may have it; who may not is counted and logged.
    pub(crate) fn admits<B>(&self, request: &Request<B>, client: &Client) -> bool {
        let Some(origin) = self.origins.refused(request) else { return true };
        self.metrics.origins_refused.fetch_add(1, Relaxed);
        let mut strangers = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(times) = strangers.again(self.clock.now()) {
            tracing::warn!(
                peer = %client.address, origin, times,
                "MQTT refused to a page of another origin; [http] allowed_origins would let it in"
            );
        }
        false
    }
}

/// How long a request says its body is.
fn announced_bytes<B>(request: &Request<B>) -> Option<u64> {
    request.headers().get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Methods whose replay changes nothing (RFC 9110 section 9.2.1, RFC 8470 section 4).
fn is_safe(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

/// An answer in one line of text.
pub(crate) fn plain(status: StatusCode, text: &str) -> Response<Body> {
    (status, format!("{text}\n")).into_response()
}
