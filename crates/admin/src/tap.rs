//! A tap: what is published to a topic filter, live, as lines of JSON.
//!
//! It is a subscription at QoS 0 with a bounded buffer: a reader that is too slow loses messages, and learns how many. It
//! ends when its caller is no operator any more.

use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use fulmar_http::while_allowed;
use fulmar_mqtt::topic::check_filter;
use futures_util::stream;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;

use crate::app::MAX_TAPS;
use crate::caller::Role;
use crate::prelude::*;
use crate::retained::text_or_base64;
use crate::server::Tapped;

const MAX_PAYLOAD_BYTES: usize = Tapped::MAX_PAYLOAD_BYTES;

/// Messages that wait for a reader.
const BUFFER: usize = 1000;
/// Longest time, in seconds.
const MAX_FOR_S: u64 = 3600;

/// Topics to tap, and limits.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TapQuery {
    /// Topic filter.
    filter: String,
    /// For how many seconds.
    #[param(minimum = 1, maximum = 3600, default = 3600)]
    for_s: Option<u64>,
}

/// A message: a line of the response.
#[derive(Serialize, ToSchema)]
pub(crate) struct Line {
    /// When it came, in milliseconds since the Unix epoch.
    at_ms: i64,
    /// The topic.
    topic: String,
    /// QoS of the publication.
    qos: u8,
    /// Whether it was retained before the tap began.
    retain: bool,
    /// Bytes of the payload, of which the first 65,536 are shown.
    payload_bytes: usize,
    /// The payload, if it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<String>,
    /// The payload in base64, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    /// Messages dropped before this one, because the reader was too slow.
    #[serde(skip_serializing_if = "is_zero")]
    dropped: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Line {
    fn from_tapped(message: &Tapped, at_ms: i64) -> Line {
        let mut end = message.payload.len().min(MAX_PAYLOAD_BYTES);
        let cut = end < message.payload_bytes;
        // Text stays text: not within a character.
        while cut
            && end > MAX_PAYLOAD_BYTES - 4
            && message.payload.get(end).is_some_and(|byte| byte & 0xC0 == 0x80)
        {
            end -= 1;
        }
        let (payload, payload_base64) = text_or_base64(&message.payload[..end]);
        Line {
            at_ms,
            topic: message.topic.clone(),
            qos: message.qos as u8,
            retain: message.retain,
            payload_bytes: message.payload_bytes,
            payload,
            payload_base64,
            dropped: message.dropped,
        }
    }
}

struct Tap {
    app: App,
    messages: mpsc::Receiver<Tapped>,
    until: Instant,
    _permit: OwnedSemaphorePermit,
}

/// What is published to a topic filter, live
///
/// Lines of JSON (`application/x-ndjson`) until the client closes the connection or `for_s` is over: first retained
/// messages, then what is published. It also ends when the caller's token or session does, or the caller's role no longer
/// allows it.
#[utoipa::path(get, path = "/tap", params(TapQuery), responses((status = 200, body = Line, content_type = "application/x-ndjson")))]
pub(crate) async fn tap(
    Operator(app, caller): Operator,
    Query(wanted): Query<TapQuery>,
) -> Result<Response> {
    check_filter(&wanted.filter).map_err(|error| Problem::invalid("filter", error.to_string()))?;
    if wanted.filter.starts_with("$share/") {
        return Err(Problem::invalid("filter", "a tap may not take part in a shared subscription"));
    }
    let for_s = wanted.for_s.unwrap_or(MAX_FOR_S);
    if !(1..=MAX_FOR_S).contains(&for_s) {
        return Err(Problem::invalid("for_s", format!("expected 1 to {MAX_FOR_S} seconds")));
    }
    let permit = std::sync::Arc::clone(&app.taps).try_acquire_owned().map_err(|_| {
        Problem::too_often(format!("there are {MAX_TAPS} taps already, the maximum: end one"), 10)
    })?;
    let change = Change {
        caller: caller.clone(),
        action: "tap",
        object: wanted.filter.clone(),
        detail: json!({ "for_s": for_s }),
    };
    let work = async { app.server.tap(&wanted.filter, BUFFER).map_err(Problem::unavailable) };
    let messages = app.change(change, work).await?;
    let until = Instant::now() + Duration::from_secs(for_s);
    let tap = Tap { app, messages, until, _permit: permit };
    let lines = stream::unfold(tap, |mut tap| async {
        let message = tokio::time::timeout_at(tap.until, tap.messages.recv()).await.ok()??;
        // Strings and numbers: it has a JSON form.
        let mut line =
            serde_json::to_vec(&Line::from_tapped(&message, tap.app.now_ms())).unwrap_or_default();
        line.push(b'\n');
        Some((Ok::<_, io::Error>(Bytes::from(line)), tap))
    });
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    let name = caller.name.clone();
    let lines = while_allowed(&name, Box::pin(lines), move || caller.still_may(Role::Operator));
    Ok((kind, Body::from_stream(lines)).into_response())
}
