//! Objects of any size for measurements, if `[lab] objects` is set: the response to `GET /lab/objects/BYTES` has that
//! many bytes, and the response to `POST /lab/objects` contains the length of the request's body. With `?delay_ms=65`,
//! it begins that much later, as that of a server that has work to do.
//!
//! Nothing is stored or looked up, because the network is measured. Pages of any origin may send requests, so that a
//! browser can measure too.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query};
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use serde::Deserialize;

/// The largest object.
const MAX_BYTES: u64 = 1 << 30;

/// The longest delay of a response.
const MAX_DELAY: Duration = Duration::from_secs(10);

/// The block from which objects are made.
const PART: &[u8] = &[b'o'; 16 * 1024];

/// Headers of every response: responses are not cached, and browsers may reveal times and sizes to any page.
const OPEN: [(&str, &str); 3] = [
    ("cache-control", "no-store"),
    ("access-control-allow-origin", "*"),
    ("timing-allow-origin", "*"),
];

/// The routes of the objects.
pub fn router() -> Router {
    Router::new().route("/lab/objects/{bytes}", get(object)).route("/lab/objects", post(taken))
}

/// The query of a request.
#[derive(Debug, Deserialize)]
struct ResponseDelay {
    /// Milliseconds by which the response is delayed.
    #[serde(default)]
    delay_ms: u64,
}

impl ResponseDelay {
    async fn elapse(&self) {
        tokio::time::sleep(Duration::from_millis(self.delay_ms).min(MAX_DELAY)).await;
    }
}

async fn object(Path(bytes): Path<u64>, Query(delay): Query<ResponseDelay>) -> Response<Body> {
    if bytes > MAX_BYTES {
        return (StatusCode::NOT_FOUND, OPEN, "no object is so large\n").into_response();
    }
    let kind = (header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    let length = (header::CONTENT_LENGTH, HeaderValue::from(bytes));
    delay.elapse().await;
    (OPEN, [kind, length], Body::new(Object { left: bytes })).into_response()
}

async fn taken(Query(delay): Query<ResponseDelay>, mut body: Body) -> Response<Body> {
    let mut bytes = 0_u64;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return (StatusCode::BAD_REQUEST, OPEN, "the body broke off\n").into_response();
        };
        bytes += frame.data_ref().map_or(0, Bytes::len) as u64;
    }
    delay.elapse().await;
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (OPEN, kind, format!("{{\"bytes\":{bytes}}}")).into_response()
}

/// A body of this many bytes.
struct Object {
    left: u64,
}

impl http_body::Body for Object {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let part = self.left.min(PART.len() as u64);
        self.left -= part;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&PART[..part as usize])))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
