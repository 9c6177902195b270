//! The status of the HTTP endpoint, at `/api/v1/status`.
//!
//! Nothing secret: name, version, uptime, and the version of HTTP of the request, which shows whether HTTP/3 works.

use std::time::Instant;

use axum::Router;
use axum::extract::State;
use axum::http::{Version, header};
use axum::response::IntoResponse;
use axum::routing::get;
use serde::Serialize;

pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The response.
pub(super) fn router() -> Router {
    Router::new().route("/api/v1/status", get(status)).with_state(Instant::now())
}

#[derive(Serialize)]
struct Status {
    name: &'static str,
    version: &'static str,
    protocol: &'static str,
    uptime_s: u64,
}

async fn status(State(started): State<Instant>, version: Version) -> impl IntoResponse {
    let uptime_s = started.elapsed().as_secs();
    let status = Status { name: "fulmar", version: VERSION, protocol: name(version), uptime_s };
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    // A struct of strings and a number always has a JSON form.
    (headers, serde_json::to_string(&status).unwrap_or_default())
}

/// The name that browsers and RFCs use.
pub(super) fn name(version: Version) -> &'static str {
    match version {
        Version::HTTP_3 => "HTTP/3",
        Version::HTTP_2 => "HTTP/2",
        Version::HTTP_11 => "HTTP/1.1",
        _ => "HTTP/1.0",
    }
}
