//! Tells webhooks of alerts: takes from the platform what is due, posts it, and says what became of it.
//!
//! What is due, in which order and how often it is tried is the platform's; here is only HTTP. Answers
//! are not read and redirections not followed.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use fulmar_platform::{Delivery, Platform};
use http::{Method, Request, header};
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::crypto::ring::default_provider;
use rustls::{ClientConfig, RootCertStore};
use tokio::task::JoinSet;

/// From the connection's begin to the answer's head.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How often it is looked for attempts to be repeated.
const LOOK_EVERY: Duration = Duration::from_secs(1);

type Pool = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// Tells webhooks for as long as it is polled.
pub(super) async fn run(platform: &Platform) {
    let mut pool = None;
    loop {
        let due = platform.due_deliveries().await.unwrap_or_else(|error| {
            tracing::warn!("webhooks wait: {error}");
            Vec::new()
        });
        if due.is_empty() {
            let woken = tokio::time::timeout(LOOK_EVERY, platform.deliveries()).await;
            // Most of the time nobody has anything to say, and it is looked again.
            drop(woken);
            continue;
        }
        match pool.get_or_insert_with(connector) {
            Ok(pool) => deliver(platform, pool, due).await,
            Err(error) => {
                tracing::warn!("webhooks: {error:#}");
                pool = None;
                tokio::time::sleep(TIMEOUT).await;
            }
        }
    }
}

fn connector() -> anyhow::Result<Pool> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let tls = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let builder = HttpsConnectorBuilder::new().with_tls_config(tls);
    Ok(Client::builder(TokioExecutor::new()).build(builder.https_or_http().enable_http1().build()))
}

/// Tries all at once, each of another webhook.
async fn deliver(platform: &Platform, pool: &Pool, due: Vec<Delivery>) {
    let mut attempts = JoinSet::new();
    for delivery in due {
        let pool = pool.clone();
        attempts.spawn(async move {
            let sent = tokio::time::timeout(TIMEOUT, send(&pool, &delivery)).await;
            let sent = sent.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer in {TIMEOUT:?}")));
            if let Err(error) = &sent {
                // The address may hold a secret: its owner knows it by the number.
                tracing::info!(delivery = delivery.id, "webhook not told: {error:#}");
            }
            (delivery, sent.is_ok())
        });
    }
    while let Some(attempt) = attempts.join_next().await {
        let Ok((delivery, taken)) = attempt else { continue };
        if let Err(error) = platform.delivered(&delivery, taken).await {
            tracing::warn!("webhooks: {error}");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

async fn send(pool: &Pool, delivery: &Delivery) -> anyhow::Result<()> {
    let request = Request::builder()
        .method(Method::POST)
        .uri(&delivery.url)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::USER_AGENT, concat!("fulmar/", env!("CARGO_PKG_VERSION")))
        .header("x-fulmar-delivery", &delivery.id)
        .header("x-fulmar-signature", &delivery.signature)
        .body(Full::from(delivery.body.clone()))
        .context("its address cannot be asked")?;
    let status = pool.request(request).await?.status();
    anyhow::ensure!(status.is_success(), "answered {status}");
    Ok(())
}
