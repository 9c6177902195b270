//! Retained messages: a list by filter, one, and deleting it.

use std::sync::Arc;

use axum::http::{HeaderName, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fulmar_broker::message::Message;
use fulmar_mqtt::topic::{check_filter, matches};

use crate::page::{self, Slice};
use crate::prelude::*;
use crate::topic_cursor;

/// Filter of messages.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct RetainedQuery {
    /// Only topics that match this filter.
    filter: Option<String>,
}

/// A page of retained messages, by topic.
#[derive(Serialize, ToSchema)]
pub(crate) struct Page {
    messages: Vec<Summary>,
    /// The next page's `cursor`; absent on the last page. A page may have fewer messages than `limit` and a next one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// A retained message without its payload.
#[derive(Serialize, ToSchema)]
pub(crate) struct Summary {
    /// The topic.
    topic: String,
    /// The publisher's QoS.
    qos: u8,
    /// Bytes of the payload.
    payload_bytes: usize,
    /// When it expires, in milliseconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_ms: Option<u64>,
}

/// A retained message.
#[derive(Serialize, ToSchema)]
pub(crate) struct Retained {
    #[serde(flatten)]
    summary: Summary,
    /// The payload, if it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<String>,
    /// The payload in base64, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

impl From<&Message> for Summary {
    fn from(message: &Message) -> Summary {
        Summary {
            topic: message.topic().to_owned(),
            qos: message.qos() as u8,
            payload_bytes: message.payload().len(),
            expires_ms: message.expires_at().map(|at| at.0),
        }
    }
}

/// A payload as text, or else in base64.
pub(crate) fn text_or_base64(payload: &[u8]) -> (Option<String>, Option<String>) {
    match std::str::from_utf8(payload) {
        Ok(text) => (Some(text.to_owned()), None),
        Err(_) => (None, Some(STANDARD.encode(payload))),
    }
}

/// Retained messages
#[utoipa::path(get, path = "/retained", params(PageQuery, RetainedQuery), responses((status = 200, body = Page)))]
pub(crate) async fn list(
    Viewer(app, _): Viewer,
    Paged { page, wanted }: Paged<RetainedQuery>,
) -> Result<Json<Page>> {
    let most = page.limit()?;
    let filter = wanted.filter.as_deref().unwrap_or("#");
    check_filter(filter).map_err(|error| Problem::invalid("filter", error.to_string()))?;
    // Topics of other prefixes need not be looked at.
    let literal = &filter[..filter.find(['+', '#']).unwrap_or(filter.len())];
    let prefix = literal.strip_suffix('/').unwrap_or(literal);
    let now = app.now();
    let from: String = page.cursor()?.unwrap_or_default();
    let from = topic_cursor::last_topic(&app.broker, &from).map_or(from, String::from);
    // The list begins behind the prefix, which may be a topic itself.
    let mut first = match from.is_empty() {
        true => app.broker.retained_message(prefix, now),
        false => None,
    };
    let slice = |after: &String| {
        let after = if **after < *prefix { prefix } else { after };
        let (behind, next) = app.broker.retained_list(after, SLICE, now);
        let read = first.iter().len() + behind.len();
        let all = first.take().into_iter().chain(behind);
        let items: Vec<_> = all.take_while(|one| one.topic().starts_with(prefix)).collect();
        let next = next.filter(|_| items.len() == read).map(String::from);
        Slice { items, next }
    };
    let show =
        |message: Arc<Message>| matches(filter, message.topic()).then(|| Summary::from(&*message));
    let cursor = |message: &Arc<Message>| message.topic().to_owned();
    let (messages, next) = page::fill(most, from, slice, cursor, show).await;
    let next = next.map(|last| topic_cursor::behind(&app.broker, last));
    Ok(Json(Page { messages, next }))
}

fn unknown(topic: &str) -> Problem {
    Problem::not_found(format!(
        "topic {topic:?} has no retained message; GET /retained lists those that have"
    ))
}

/// A retained message with its payload
#[utoipa::path(get, path = "/retained/{topic}", params(("topic" = String, Path, description = "Topic, percent-encoded")), responses((status = 200, body = Retained)))]
pub(crate) async fn show(
    Operator(app, _): Operator,
    Name(topic): Name,
) -> Result<([(HeaderName, &'static str); 1], Json<Retained>)> {
    let found = app.broker.retained_message(&topic, app.now()).ok_or_else(|| unknown(&topic))?;
    let (payload, payload_base64) = text_or_base64(found.payload());
    let retained = Retained { summary: Summary::from(&*found), payload, payload_base64 };
    // Not compressed: its length would reveal a payload's secret.
    Ok(([(header::CACHE_CONTROL, "no-store, no-transform")], Json(retained)))
}

/// Delete a retained message
///
/// Subscribers of the topic get an empty message, as when a client deletes it.
#[utoipa::path(delete, path = "/retained/{topic}", params(("topic" = String, Path, description = "Topic, percent-encoded")), responses((status = 204, description = "It is deleted")))]
pub(crate) async fn delete(
    Operator(app, caller): Operator,
    Name(topic): Name,
) -> Result<StatusCode> {
    let found = app.broker.retained_message(&topic, app.now()).ok_or_else(|| unknown(&topic))?;
    if topic.starts_with('$') {
        return Err(Problem::conflict("topics that begin with $ are the broker's own"));
    }
    let detail = json!({ "payload_bytes": found.payload().len(), "qos": found.qos() as u8 });
    let change = Change { caller, action: "retained.delete", object: topic.clone(), detail };
    let work = async { app.server.clear_retained(&topic).await.map_err(Problem::unavailable) };
    app.change(change, work).await?;
    Ok(StatusCode::NO_CONTENT)
}
