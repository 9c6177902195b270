//! One stream opened by a client: a request and its response, or a stream of a WebTransport session.
//!
//! The first frame decides which. `request_handler` handles requests like those of other versions; this module
//! translates their bodies, and limits every wait for the client.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::{Buf as _, Bytes};
use h3::error::Code;
use h3::ext::Protocol;
use h3::proto::frame::Frame as H3Frame;
use h3::server::{RequestResolver, RequestStream};
use http::{HeaderMap, Method, Response, Version, header};
use http_body::Frame;
use http_body_util::BodyExt as _;
use tracing::debug;

use super::receive_limit::{Connection, LimitedStream, ReceiveLimit};
use super::{Failure, Shared, pseudo_headers, session};

/// Overhead of a body's framing and its trailers, in bytes; a body in tiny frames may be refused.
const FRAMING_BYTES: u64 = 256 * 1024;

pub(super) type Stream = LimitedStream<h3_quinn::BidiStream<Bytes>>;
type Resolver = RequestResolver<Connection, Bytes>;

/// Serves the stream.
pub(super) async fn serve(shared: Arc<Shared>, resolver: Resolver, limit: ReceiveLimit) {
    if let Err(error) = stream(&shared, resolver, &limit).await {
        if limit.is_refused() {
            shared.handler.router.count_refusal(shared.client().address);
        }
        debug!(peer = %shared.client().address, "HTTP/3 stream ended: {error}");
    }
}

async fn stream(
    shared: &Arc<Shared>,
    mut resolver: Resolver,
    limit: &ReceiveLimit,
) -> Result<(), Failure> {
    let limits = &shared.handler.router.limits;
    let first = std::future::poll_fn(|cx| resolver.frame_stream.poll_next(cx));
    let first = tokio::time::timeout(limits.header_timeout, first).await?;
    if let Ok(Some(H3Frame::WebTransportStream(session))) = first {
        // Its bytes are not buffered: flow control limits them.
        limit.set(u64::MAX);
        return session::stream(shared, session, resolver.frame_stream.into_inner()).await;
    }
    let section = if let Ok(Some(H3Frame::Headers(section))) = &first { &section[..] } else { &[] };
    let is_sound = pseudo_headers::check(section).is_some();
    let (mut request, mut stream) = resolver.accept_with_frame(first)?.resolve().await?;
    if !is_sound || is_malformed(request.headers()) {
        stream.stop_sending(Code::H3_MESSAGE_ERROR);
        stream.stop_stream(Code::H3_MESSAGE_ERROR);
        return Err("its header fields are not those of an HTTP/3 request".into());
    }
    limit.set(limits.max_body_bytes as u64 + FRAMING_BYTES);
    *request.version_mut() = Version::HTTP_3;
    if request.extensions().get() == Some(&Protocol::WEB_TRANSPORT) {
        limit.set(FRAMING_BYTES);
        return session::begin(shared, &request, stream).await;
    }
    shared.widen_for(request.headers());
    let early = !*shared.complete.borrow();
    let is_head = request.method() == Method::HEAD;
    let (send, receive) = stream.split();
    let request = request.map(|()| RequestBody { receive, trailing: false });
    let response = shared.handler.handle(request, &shared.client(), early).await;
    answer(send, response, is_head, limits.idle_timeout).await
}

/// True if there are fields that are about a connection, which HTTP/3 does not allow (RFC 9114 section 4.2).
fn is_malformed(headers: &HeaderMap) -> bool {
    let others = ["keep-alive", "proxy-connection"];
    [header::CONNECTION, header::TRANSFER_ENCODING, header::UPGRADE]
        .iter()
        .any(|name| headers.contains_key(name))
        || others.iter().any(|name| headers.contains_key(*name))
        || headers.get_all(header::TE).iter().any(|value| value != "trailers")
}

/// Sends a response. `stall` is the longest that any part of it may wait for the client.
async fn answer<S: h3::quic::SendStream<Bytes>>(
    mut send: RequestStream<S, Bytes>,
    response: Response<Body>,
    is_head: bool,
    stall: Duration,
) -> Result<(), Failure> {
    let (head, mut body) = response.into_parts();
    tokio::time::timeout(stall, send.send_response(Response::from_parts(head, ()))).await??;
    while let Some(frame) = body.frame().await {
        match frame?.into_data() {
            Ok(data) if is_head || data.is_empty() => {}
            Ok(data) => tokio::time::timeout(stall, send.send_data(data)).await??,
            Err(other) => {
                if let Ok(trailers) = other.into_trailers() {
                    tokio::time::timeout(stall, send.send_trailers(trailers)).await??;
                }
            }
        }
    }
    Ok(tokio::time::timeout(stall, send.finish()).await??)
}

/// A request's body as it arrives.
struct RequestBody {
    receive: RequestStream<LimitedStream<h3_quinn::RecvStream>, Bytes>,
    /// The data has ended.
    trailing: bool,
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        if !self.trailing {
            if let Some(mut data) = ready!(self.receive.poll_recv_data(cx))? {
                let bytes = data.copy_to_bytes(data.remaining());
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            self.trailing = true;
        }
        let trailers: Option<HeaderMap> = ready!(self.receive.poll_recv_trailers(cx))?;
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }
}
