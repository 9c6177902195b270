//! Sends alerts to webhooks: gets due messages from the platform, posts them, and reports the results to it.
//!
//! The platform decides what is due, in which order and how often it is tried; this module does HTTP only. Bodies of
//! responses are not read, and redirections not followed.

use std::net::ToSocketAddrs as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use bytes::Bytes;
use fulmar_certs::trust;
use fulmar_platform::{Delivery, Platform, WebhookAllowlist};
use http::uri::Scheme;
use http::{Method, Request, Uri, header};
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls::crypto::ring::default_provider;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tower_service::Service;

/// Longest time from opening the connection to the response's head.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two searches for attempts to be repeated.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longest pause while results cannot be stored.
const LAST_PAUSE: Duration = Duration::from_secs(300);

/// Host names resolved at the same time.
const LOOKUPS: usize = 8;

type Pool = Client<HttpsConnector<Connector>, Full<Bytes>>;

/// Sends messages to webhooks as long as it is polled.
pub(super) async fn run(platform: &Platform) {
    let (mut pool, mut pause) = (None, LOOK_EVERY);
    loop {
        let due = platform.due_deliveries().await.unwrap_or_else(|error| {
            tracing::warn!("webhooks wait: {error}");
            Vec::new()
        });
        if due.is_empty() {
            let woken = tokio::time::timeout(LOOK_EVERY, platform.deliveries()).await;
            // Usually there is nothing to send, and it checks again later.
            drop(woken);
            continue;
        }
        match pool.get_or_insert_with(|| self::pool(platform.webhook_allowlist())) {
            Ok(pool) if deliver(platform, pool, due).await => pause = LOOK_EVERY,
            // What has been sent is still due, and would be sent again at once.
            Ok(_) => {
                tokio::time::sleep(pause).await;
                pause = (2 * pause).min(LAST_PAUSE);
            }
            Err(error) => {
                tracing::warn!("webhooks: {error:#}");
                pool = None;
                tokio::time::sleep(TIMEOUT).await;
            }
        }
    }
}

fn pool(allowlist: &WebhookAllowlist) -> anyhow::Result<Pool> {
    let tls = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(trust::roots(None, false)?)
        .with_no_client_auth();
    let builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
    // Without a connection kept for the next delivery: one to each host that ever was a webhook's would stay.
    Ok(Client::builder(TokioExecutor::new())
        .pool_max_idle_per_host(0)
        .build(builder.wrap_connector(Connector::new(allowlist))))
}

/// Connects to those of a host's addresses that the allowlist permits. A name is resolved once: the checked address is
/// the one to which it connects.
#[derive(Clone)]
struct Connector {
    allowlist: WebhookAllowlist,
    /// Limits concurrent lookups. A lookup cannot be cancelled, so it keeps its permit until it ends.
    lookups: Arc<Semaphore>,
}

impl Connector {
    fn new(allowlist: &WebhookAllowlist) -> Connector {
        Connector { allowlist: allowlist.clone(), lookups: Arc::new(Semaphore::new(LOOKUPS)) }
    }

    async fn connect(self, uri: Uri) -> anyhow::Result<TokioIo<TcpStream>> {
        let host = uri.host().context("no host")?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let usual = if uri.scheme() == Some(&Scheme::HTTP) { 80 } else { 443 };
        let port = uri.port_u16().unwrap_or(usual);
        let turn = Arc::clone(&self.lookups).acquire_owned().await?;
        let name = host.clone();
        let found = tokio::task::spawn_blocking(move || {
            let found = (&*name, port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
            drop(turn);
            found
        });
        let found = found.await?.context("its host name cannot be resolved")?;
        let mut failure = anyhow::anyhow!(
            "its host is not public, and [platform] webhook_allow does not list it"
        );
        for address in found.into_iter().filter(|address| self.allowlist.allows(&host, *address)) {
            match TcpStream::connect(address).await {
                Ok(stream) => return Ok(TokioIo::new(stream)),
                Err(error) => failure = error.into(),
            }
        }
        Err(failure)
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { Ok(connector.connect(uri).await?) })
    }
}

/// Tries all at the same time; each is for a different webhook. Returns whether all results are stored.
async fn deliver(platform: &Platform, pool: &Pool, due: Vec<Delivery>) -> bool {
    let (mut attempts, mut stored) = (JoinSet::new(), true);
    for delivery in due {
        let pool = pool.clone();
        attempts.spawn(async move {
            let sent = tokio::time::timeout(TIMEOUT, send(&pool, &delivery)).await;
            let sent = sent.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer in {TIMEOUT:?}")));
            if let Err(error) = &sent {
                // The URL may contain a secret: its owner knows the webhook by its number.
                tracing::info!(delivery = delivery.id, "webhook not delivered: {error:#}");
            }
            (delivery, sent.is_ok())
        });
    }
    while let Some(attempt) = attempts.join_next().await {
        let Ok((delivery, taken)) = attempt else { continue };
        if let Err(error) = platform.delivered(&delivery, taken).await {
            stored = false;
            tracing::warn!(
                delivery = delivery.id,
                "webhooks: the result of a delivery cannot be stored; it will be sent again: {error}"
            );
        }
    }
    stored
}

async fn send(pool: &Pool, delivery: &Delivery) -> anyhow::Result<()> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let request = Request::builder()
        .method(Method::POST)
        .uri(&delivery.url)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::USER_AGENT, concat!("fulmar/", env!("CARGO_PKG_VERSION")))
        .header("x-fulmar-delivery", &delivery.id)
        .header("x-fulmar-signature", &delivery.signature)
        .header("webhook-id", &delivery.id)
        .header("webhook-timestamp", since)
        .header("webhook-signature", delivery.signature_at(since))
        .body(Full::from(delivery.body.clone()))
        .context("its URL cannot be requested")?;
    let status = pool.request(request).await?.status();
    anyhow::ensure!(status.is_success(), "answered {status}");
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    async fn post(allowlist: &WebhookAllowlist, url: &str) -> Result<u16, String> {
        let request = Request::post(url).body(Full::default()).unwrap();
        let answer = pool(allowlist).unwrap().request(request).await;
        answer.map(|answer| answer.status().as_u16()).map_err(|error| {
            let error = anyhow::Error::from(error);
            format!("{error:#}")
        })
    }

    #[tokio::test]
    async fn only_what_may_be_reached_is_connected_to() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let none = WebhookAllowlist::default();
        for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0", "127.1"] {
            let refused = post(&none, &format!("http://{host}:{port}/")).await.unwrap_err();
            assert!(refused.contains("webhook_allow"), "{host}: {refused}");
        }
        let asked =
            std::future::poll_fn(|cx| Poll::Ready(listener.poll_accept(cx).is_ready())).await;
        assert!(!asked, "nobody has connected");
        // The response is a redirection, which is not followed.
        let redirect = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.read_buf(&mut Vec::with_capacity(1024)).await.unwrap();
            let answer = "HTTP/1.1 307 x\r\nlocation: /again\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(answer.as_bytes()).await.unwrap();
            listener
        });
        let own = WebhookAllowlist::new(&[format!("127.0.0.1:{port}")]).unwrap();
        assert_eq!(post(&own, &format!("http://127.0.0.1:{port}/")).await, Ok(307));
        let listener = redirect.await.unwrap();
        let again =
            std::future::poll_fn(|cx| Poll::Ready(listener.poll_accept(cx).is_ready())).await;
        assert!(!again, "it is asked once");
    }
}
