//! `/connections`: every connected client as JSON, with path statistics of QUIC clients.
//!
//! A page has at most [`PAGE`] clients; the next page is `/connections?after=NEXT` with the value of `next`.
//! A page counts for the client's address until it is taken, because anybody who reaches the port may ask for it.
//! `/connections/CLIENT` shows one client, with its identifier percent-encoded as in any URL.

use std::net::{IpAddr, SocketAddr};

use axum::extract::{ConnectInfo, Path, RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use fulmar_broker::ClientConnection;
use fulmar_http::AnswerSpace;
use fulmar_text::network::site;
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

pub(super) async fn list(
    State(state): State<Operated>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    RawQuery(query): RawQuery,
) -> Response {
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
    let answer = json(&page(state.broker.connections(after, PAGE + 1)));
    counted(&state.answers, peer.ip(), answer)
}

/// Counts an answer until it is taken, for the client's network.
fn counted(answers: &AnswerSpace, peer: IpAddr, answer: Response) -> Response {
    // No account of the APIs has such a name.
    let counted = answers.count(&format!("http:{}", site(peer)), answer);
    counted.unwrap_or_else(|refused| {
        let retry = [(header::RETRY_AFTER, "1")];
        (StatusCode::SERVICE_UNAVAILABLE, retry, format!("{refused}\n")).into_response()
    })
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
    fn pages_that_an_address_does_not_take_leave_room_for_others() {
        let answers = AnswerSpace::new(1_000_000);
        let ask = |last| counted(&answers, [192, 0, 2, last].into(), json(&"x".repeat(100_000)));
        let taken = std::iter::repeat_with(|| ask(1)).take_while(|answer| answer.status() == 200);
        let unread: Vec<Response> = taken.take(100).collect();
        assert_eq!((unread.len(), ask(1).status().as_u16()), (5, 503));
        assert_eq!(ask(2).status(), 200);
        drop(unread);
        assert_eq!(ask(1).status(), 200);
        assert_eq!(answers.totals().used, 0);
    }

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
                waiting: None,
                stats: None,
            };
            (1..=n as u64).map(client).collect()
        };
        assert_eq!(page(clients(PAGE)).next, None);
        let full = page(clients(PAGE + 1));
        assert_eq!((full.connections.len(), full.next), (PAGE, Some(PAGE as u64)));
    }
}
