//! The platform's API, called in this process: what a demonstration shows is what the API stores.

use std::time::SystemTime;

use anyhow::{Context, bail};
use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, StatusCode, header};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tower_service::Service as _;

/// Letters of passwords; none that look alike.
const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
const PASSWORD_LETTERS: usize = 12;

/// Largest answer of the API that is read.
const MAX_ANSWER_BYTES: usize = 16 * 1024 * 1024;

/// A password for somebody of a demonstration.
pub(super) fn password() -> anyhow::Result<String> {
    let bytes: [u8; PASSWORD_LETTERS] = fulmar_certs::random()?;
    let letter = |&byte: &u8| char::from(LETTERS[usize::from(byte) % LETTERS.len()]);
    Ok(bytes.iter().map(letter).collect())
}

/// A time in the form that JSON of the API has.
pub(super) fn rfc3339(time: SystemTime) -> String {
    OffsetDateTime::from(time).format(&Rfc3339).unwrap_or_default()
}

/// The API, with a logged-in user.
pub(super) struct Api {
    router: Router,
    pub(super) token: String,
}

impl Api {
    pub(super) fn new(router: Router) -> Api {
        Api { router, token: String::new() }
    }

    pub(super) async fn log_in(&mut self, user: &str, password: &str) -> anyhow::Result<()> {
        let body = json!({ "user": user, "password": password });
        let session = self.request("POST", "/api/v1/session", &body).await?;
        let token = session["token"].as_str().context("the login returned no token")?;
        token.clone_into(&mut self.token);
        Ok(())
    }

    /// Asks for many things at once; an error if any was not taken.
    pub(super) async fn all_stored(
        &self,
        method: &str,
        path: &str,
        body: &Value,
    ) -> anyhow::Result<()> {
        let answer = self.request(method, path, body).await?;
        let results = answer["results"].as_array().context("the API returned no results")?;
        let bad = results.iter().find(|result| result["status"] == "rejected");
        bad.map_or(Ok(()), |result| bail!("{path}: {result}"))
    }

    pub(super) async fn request(
        &self,
        method: &str,
        path: &str,
        body: &Value,
    ) -> anyhow::Result<Value> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, "application/json")
            .extension(ConnectInfo(std::net::SocketAddr::from(([127, 0, 0, 1], 0))));
        if !self.token.is_empty() {
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", self.token));
        }
        let request = request.body(Body::from(body.to_string()))?;
        let response = self.router.clone().call(request).await?;
        let status = response.status();
        let bytes = axum::body::to_bytes(response.into_body(), MAX_ANSWER_BYTES).await?;
        if !status.is_success() {
            bail!("{method} {path}: {status}: {}", String::from_utf8_lossy(&bytes));
        }
        if status == StatusCode::NO_CONTENT {
            return Ok(Value::Null);
        }
        Ok(serde_json::from_slice(&bytes)?)
    }
}
