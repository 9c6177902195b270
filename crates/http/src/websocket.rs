//! MQTT over WebSocket: the upgrade of HTTP/1.1 (RFC 6455) and the extended CONNECT of HTTP/2 (RFC 8441).
//!
//! Only the handshake: frames go unchanged to the broker's worker, which reads them as on its own WebSocket listener.

use axum::body::Body;
use fulmar_broker::{Peer, TransportKind};
use fulmar_transport::{Framing, ws};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::ext::Protocol;
use hyper_util::rt::TokioIo;

use crate::limited_router::text_response;
use crate::pump::pump;
use crate::request_handler::{Client, RequestHandler};

/// Whether a request asks for MQTT over WebSocket.
pub(crate) fn is_wanted<B>(request: &Request<B>) -> bool {
    let path = request.uri().path();
    // At /mqtt there is only MQTT; at / there are pages too.
    path == ws::PATHS[0]
        || ws::PATHS.contains(&path)
            && (request.headers().contains_key(header::UPGRADE) || is_extended_connect(request))
}

fn is_extended_connect<B>(request: &Request<B>) -> bool {
    request.method() == Method::CONNECT && request.extensions().get::<Protocol>().is_some()
}

/// Responds to the request, and carries the bytes that follow.
pub(crate) fn begin<B>(
    handler: &RequestHandler,
    mut request: Request<B>,
    client: &Client,
) -> Response<Body> {
    if !handler.allows_origin(&request, client) {
        return text_response(StatusCode::FORBIDDEN, ws::NOT_THIS_PAGE);
    }
    let upgrade = hyper::upgrade::on(&mut request);
    let request = request.map(drop);
    let answer =
        if is_extended_connect(&request) { connect(&request) } else { ws::accept(&request) };
    let response = match answer {
        Ok(response) => response.map(|()| Body::empty()),
        Err(refusal) => return refuse(refusal),
    };
    let peer = Peer {
        address: client.address,
        transport: TransportKind::Wss,
        identity: client.identity.clone(),
        listener: handler.policy.clone(),
    };
    let (handoff, linger, tunnel) =
        (handler.handoff.clone(), handler.router.limits.linger, client.activity.tunnels.open());
    tokio::spawn(async move {
        let address = peer.address;
        let carried = async {
            let outer = upgrade.await.map_err(std::io::Error::other)?;
            let inner = handoff.open(peer, Framing::WebSocket)?;
            pump(TokioIo::new(outer), inner, linger).await
        };
        if let Err(error) = carried.await {
            tracing::debug!(peer = %address, %error, "a WebSocket ended");
        }
        drop(tunnel);
    });
    response
}

/// The response of HTTP/2, without key and 101.
fn connect(request: &Request<()>) -> Result<Response<()>, ws::Refusal> {
    if request.extensions().get::<Protocol>().map(Protocol::as_str) != Some("websocket") {
        let reason = "the only :protocol supported in CONNECT is websocket";
        return Err(ws::Refusal { status: "501 Not Implemented", reason });
    }
    let mut response = Response::new(());
    if let Some(protocol) = ws::choose_protocol(request)? {
        let value = HeaderValue::from_static(protocol);
        response.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, value);
    }
    Ok(response)
}

fn refuse(refusal: ws::Refusal) -> Response<Body> {
    let code = refusal.status.get(..3).and_then(|code| code.parse().ok());
    let status = code.unwrap_or(StatusCode::BAD_REQUEST);
    let mut response = text_response(status, refusal.reason);
    if status == StatusCode::UPGRADE_REQUIRED {
        let headers = response.headers_mut();
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
    }
    response
}
