//! [`RequestHandler`] handles every request to the endpoint: it refuses unsafe requests in early data, adds Alt-Svc,
//! counts, and writes the access log. Requests go to `limited_router`, those for MQTT over WebSocket to `websocket`.
//! `h3::session` handles WebTransport.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use axum::body::Body;
use fulmar_broker::{ListenerPolicy, MemoryPressure, PeerIdentity};
use fulmar_transport::Handoff;
use fulmar_transport::Origins;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use tokio::sync::watch;

use crate::connection_slots::{Activity, ConnectionSlots};
use crate::host_header;
use crate::limited_router::{Errors, LimitedRouter};
use crate::websocket;

/// State that the connections of one address share: the router, and the destination of MQTT.
pub(crate) struct RequestHandler {
    pub(crate) router: LimitedRouter,
    pub(crate) handoff: Handoff,
    pub(crate) policy: Arc<ListenerPolicy>,
    /// Same as [`crate::EndpointConfig::is_repeatable`].
    pub(crate) is_repeatable: fn(&str) -> bool,
    /// Alt-Svc announces HTTP/3; `None` where there are no pages.
    pub(crate) alt_svc: Option<HeaderValue>,
    /// Adds Strict-Transport-Security (RFC 6797): where a public CA certifies the pages.
    pub(crate) strict_transport: bool,
    pub(crate) origins: Arc<Origins>,
    /// Changes each time that the process was seen to have too much memory.
    pub(crate) pressure: watch::Receiver<MemoryPressure>,
}

/// The client that sent a request.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    /// Name from a verified client certificate.
    pub(crate) identity: Option<PeerIdentity>,
    /// The activity of its connection.
    pub(crate) activity: Activity,
}

impl RequestHandler {
    /// Handles a request. `early`: it arrived before the handshake was complete and could be a replay.
    pub(crate) async fn handle<B>(
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
        // Boxed, because it has 3 KB and the connection keeps its place until the client has taken the response.
        let mut response = Box::pin(self.respond(request, client, early)).await;
        if let Some(alt_svc) = &self.alt_svc {
            response.headers_mut().insert(header::ALT_SVC, alt_svc.clone());
        }
        if self.strict_transport {
            let year = HeaderValue::from_static("max-age=31536000");
            response.headers_mut().insert(header::STRICT_TRANSPORT_SECURITY, year);
        }
        let status = response.status();
        self.router.metrics.answered(version, status);
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
        let is_repeatable = match *request.method() {
            // They change nothing (RFC 9110 section 9.2.1).
            Method::GET | Method::HEAD => true,
            Method::POST => (self.is_repeatable)(request.uri().path()),
            _ => false,
        };
        if early && !is_repeatable {
            self.router.metrics.early_refused.fetch_add(1, Relaxed);
            let text = "send this again after the handshake";
            return Errors::for_path(request.uri().path()).response(StatusCode::TOO_EARLY, text);
        }
        if let Some(refusal) = host_header::refuse_ambiguous(&request) {
            return refusal;
        }
        if websocket::is_wanted(&request) {
            return websocket::begin(self, request, client);
        }
        self.router.call(request, client.address, &client.activity).await
    }

    /// Closes idle connections if memory is short.
    pub(crate) fn shed_for_memory(
        &self,
        slots: &ConnectionSlots,
        pressure: &mut watch::Receiver<MemoryPressure>,
    ) {
        let closed = slots.shed_for_memory(*pressure.borrow_and_update());
        if closed > 0 {
            self.router.metrics.shed.fetch_add(closed as u64, Relaxed);
            tracing::info!(closed, "HTTP: memory is short, and idle connections were closed");
        }
    }

    /// Whether a page of this origin may open an MQTT connection. Refusals are counted and logged.
    pub(crate) fn allows_origin<B>(&self, request: &Request<B>, client: &Client) -> bool {
        self.origins.admits(request, client.address)
    }
}
