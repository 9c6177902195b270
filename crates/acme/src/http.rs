//! HTTPS requests to an ACME server (RFC 8555 section 6.1), bounded in time and size; and what instant-acme would panic at
//! is taken from the responses, because a release build ends with any panic.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use fulmar_certs::trust;
use http::{HeaderValue, Method, Request, Response, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use rustls::ClientConfig;
use rustls::crypto::ring::default_provider;
use serde::Deserialize;

use fulmar_config::is_https_url;
use fulmar_part::timed_connector::TimedConnector;

/// Longest time from opening the connection to the response's last byte.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Largest response: directories and chains have a few kilobytes.
const MAX_BODY_BYTES: usize = 128 * 1024;

/// Longest wait that a CA may ask for; longer than any order.
const MAX_RETRY_AFTER_S: u64 = 24 * 3600;

type Pool = Client<TimedConnector<HttpsConnector<HttpConnector>>, BodyWrapper<Bytes>>;

/// A client that trusts the system's CAs, or those of a file.
pub(super) struct Https(Pool);

impl Https {
    pub(super) fn new(ca_file: Option<&Path>) -> anyhow::Result<Https> {
        let tls = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(trust::roots(ca_file, false).context("[acme] ca_file")?)
            .with_no_client_auth();
        let builder = HttpsConnectorBuilder::new().with_tls_config(tls);
        let connector = builder.https_only().enable_http1().build();
        let connector = TimedConnector::new(connector, TIMEOUT);
        Ok(Https(Client::builder(TokioExecutor::new()).build(connector)))
    }
}

impl HttpClient for Https {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let what = format!("{} {}", request.method(), request.uri());
        // Only the directory is read without a signature.
        let directory = request.method() == Method::GET;
        let answer = answer(self.0.clone(), request, directory);
        Box::pin(async move {
            let timed = tokio::time::timeout(TIMEOUT, answer).await;
            let answer = timed.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer in {TIMEOUT:?}")));
            let answer = answer.with_context(|| what);
            answer.map(BytesResponse::from).map_err(|error| Error::Other(error.into()))
        })
    }
}

async fn answer(
    pool: Pool,
    request: Request<BodyWrapper<Bytes>>,
    directory: bool,
) -> anyhow::Result<Response<Full<Bytes>>> {
    let (mut head, body) = pool.request(request).await?.into_parts();
    if directory && !head.status.is_success() {
        anyhow::bail!("answered {}: not an ACME directory", head.status);
    }
    let body =
        Limited::new(body, MAX_BODY_BYTES).collect().await.map_err(anyhow::Error::from_boxed)?;
    let body = body.to_bytes();
    if directory {
        check_directory(&body)?;
    }
    if !head.headers.get_all(header::RETRY_AFTER).iter().all(can_be_waited_for) {
        head.headers.remove(header::RETRY_AFTER);
    }
    Ok(Response::from_parts(head, Full::new(body)))
}

/// The URLs of a directory that orders use (RFC 8555 section 7.1.1).
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Directory {
    new_nonce: String,
    new_account: String,
    new_order: String,
}

/// Whether requests can be made to its URLs; instant-acme panics at a `newNonce` that is none.
fn check_directory(body: &[u8]) -> anyhow::Result<()> {
    let directory: Directory = serde_json::from_slice(body).context("not an ACME directory")?;
    let Directory { new_nonce, new_account, new_order } = &directory;
    for (key, url) in
        [("newNonce", new_nonce), ("newAccount", new_account), ("newOrder", new_order)]
    {
        ensure!(is_https_url(url), "not an ACME directory: {key} is {url:?}, no https:// URL");
    }
    Ok(())
}

/// Whether it is a number of seconds that can be added to the time, or a date; instant-acme panics at the overflow.
fn can_be_waited_for(retry_after: &HeaderValue) -> bool {
    let text = retry_after.to_str().unwrap_or_default().trim();
    let is_date = text.starts_with(|c: char| c.is_ascii_alphabetic());
    is_date || text.parse().is_ok_and(|seconds: u64| seconds <= MAX_RETRY_AFTER_S)
}
