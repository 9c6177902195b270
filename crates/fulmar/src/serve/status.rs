//! What the HTTP endpoint shows by itself: a small page at `/` and the same as JSON at `/api/v1/status`.
//!
//! Nothing secret: name, version, how long it has been running, and the version of HTTP that brought the
//! request, which is how one sees that HTTP/3 works.

use std::time::Instant;

use axum::Router;
use axum::extract::State;
use axum::http::{Version, header};
use axum::response::{Html, IntoResponse};
use axum::routing::get;
use serde::Serialize;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The answers.
pub(super) fn router() -> Router {
    Router::new()
        .route("/", get(page))
        .route("/api/v1/status", get(status))
        .with_state(Instant::now())
}

#[derive(Serialize)]
struct Status {
    name: &'static str,
    version: &'static str,
    protocol: &'static str,
    uptime_s: u64,
}

async fn page(version: Version) -> Html<String> {
    let protocol = name(version);
    Html(format!(
        "<!doctype html>\n<html lang=en><meta charset=utf-8><title>Fulmar</title>\n\
         <meta name=viewport content=\"width=device-width\">\n\
         <h1>Fulmar {VERSION}</h1>\n<p>This page came over <strong>{protocol}</strong>. \
         MQTT over WebSocket and WebTransport is at <code>/mqtt</code>, \
         and <a href=/api/v1/status>the same as JSON</a>.\n"
    ))
}

async fn status(State(started): State<Instant>, version: Version) -> impl IntoResponse {
    let uptime_s = started.elapsed().as_secs();
    let status = Status { name: "fulmar", version: VERSION, protocol: name(version), uptime_s };
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    // A struct of strings and a number always has a JSON form.
    (headers, serde_json::to_string(&status).unwrap_or_default())
}

/// As browsers and RFCs write it.
fn name(version: Version) -> &'static str {
    match version {
        Version::HTTP_3 => "HTTP/3",
        Version::HTTP_2 => "HTTP/2",
        Version::HTTP_11 => "HTTP/1.1",
        _ => "HTTP/1.0",
    }
}
