//! `/connections`: every connected client as JSON, with path statistics of QUIC clients.
//!
//! A page has at most [`PAGE`] clients; the next page is `/connections?after=NEXT` with the value of `next`.
//! `/connections/CLIENT` shows one client, with its identifier percent-encoded as in any URL.

use axum::extract::{Path, RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use fulmar_broker::ClientConnection;
use serde::Serialize;

use super::Operated;

/// Maximum number of clients on a page.
const PAGE: usize = 1000;

#[derive(Serialize)]
pub(super) struct Page {
    connections: Vec<ClientConnection>,
    /// Where the next page begins; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<u64>,
}

pub(super) async fn list(State(state): State<Operated>, RawQuery(query): RawQuery) -> Response {
    let after = match query.as_deref() {
        None | Some("") => 0,
        Some(query) => {
            let number = query.strip_prefix("after=").and_then(|number| number.parse().ok());
            let Some(number) = number else {
                let why = "the only parameter is after=NUMBER\n";
                return (StatusCode::BAD_REQUEST, why).into_response();
            };
            number
        }
    };
    json(&page(state.broker.connections(after, PAGE + 1)))
}

/// A page of `found`, which has one more client than fits if there is another page.
fn page(mut found: Vec<ClientConnection>) -> Page {
    let more = found.len() > PAGE;
    found.truncate(PAGE);
    let next = found.last().filter(|_| more).map(|last| last.place);
    Page { connections: found, next }
}

pub(super) async fn one(State(state): State<Operated>, Path(client): Path<String>) -> Response {
    match state.broker.connection_of(&client) {
        Some(found) => json(&found),
        None => (StatusCode::NOT_FOUND, "no such client is connected\n").into_response(),
    }
}

fn json(value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_page_says_where_the_next_begins() {
        let clients = |n: usize| {
            let client = |place| ClientConnection {
                place,
                client: "c".into(),
                user: None,
                address: ([127, 0, 0, 1], 1).into(),
                transport: "tcp",
                since_ms: 0,
                subscriptions: 0,
                queued_messages: 0,
                queued_bytes: 0,
                stats: None,
            };
            (1..=n as u64).map(client).collect()
        };
        assert_eq!(page(clients(PAGE)).next, None);
        let full = page(clients(PAGE + 1));
        assert_eq!((full.connections.len(), full.next), (PAGE, Some(PAGE as u64)));
    }
}
