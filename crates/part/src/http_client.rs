//! Requests to a web service of the operator's: the connections, with trusted CAs and limits of time.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use fulmar_certs::trust;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::crypto::ring::default_provider;
use rustls::{ClientConfig, RootCertStore};

use crate::timed_connector::TimedConnector;

/// Largest answer of which something is shown: a service's has a few words.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// Connections that are used again.
pub type Pool = Client<TimedConnector<HttpsConnector<HttpConnector>>, Full<Bytes>>;

/// Makes connections to `url` with the CAs of this PEM file or else the system's, each within `limit`.
///
/// # Errors
/// The CAs cannot be read.
pub fn pool(url: &str, ca_file: Option<&Path>, limit: Duration) -> anyhow::Result<Pool> {
    let is_secure = url.starts_with("https:") || ca_file.is_some();
    let roots = if is_secure { trust::roots(ca_file, false)? } else { RootCertStore::empty() };
    let tls = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector =
        HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().build();
    Ok(Client::builder(TokioExecutor::new()).build(TimedConnector::new(connector, limit)))
}

/// Sends a request, and returns the answer's status and body; the whole of it takes `limit` at most.
///
/// # Errors
/// There is no answer in time, or the connection fails.
pub async fn exchange(
    pool: &Pool,
    request: Request<Full<Bytes>>,
    limit: Duration,
) -> anyhow::Result<(StatusCode, Bytes)> {
    let exchange = async {
        let answer = pool.request(request).await.map_err(|error| advised(error.into()))?;
        let status = answer.status();
        // Read, so that the connection can be used again.
        let text = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await;
        anyhow::Ok((status, text.map(|body| body.to_bytes()).unwrap_or_default()))
    };
    let done = tokio::time::timeout(limit, exchange).await;
    done.with_context(|| format!("no answer in {limit:?}"))?
}

/// The error, and what the operator can do about it.
pub fn advised(error: anyhow::Error) -> anyhow::Error {
    if format!("{error:#}").contains("invalid peer certificate") {
        return error.context(
            "its certificate is not trusted: set ca_file to the certificate of the CA that signed it",
        );
    }
    error
}
