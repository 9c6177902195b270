//! Sends spans and metrics to a collector by OTLP over HTTP, in JSON: in batches, with repetitions that become rarer,
//! and within limits of time and memory. Nothing waits for it: what does not fit is dropped and counted.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::Full;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::counts::Counts;
use super::metrics;
use super::span::{self, Span, now_ns};
use fulmar_part::Sources;
use fulmar_part::http_client::{self, Pool};

/// Spans of one request.
const BATCH: usize = 512;
/// Time for which a batch is collected after its first span.
const LINGER: Duration = Duration::from_millis(500);
/// Longest time of a request, from opening the connection to the answer's last byte.
const TIMEOUT: Duration = Duration::from_secs(10);
/// First and longest pause before a request is repeated.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LAST_PAUSE: Duration = Duration::from_secs(30);
/// Time for which spans are kept that the collector does not accept.
const KEEP: Duration = Duration::from_secs(300);
/// Longest wait for the last spans at the end of the program.
const LAST: Duration = Duration::from_secs(2);
/// A connection to the collector.
pub(super) struct Exporter {
    client: Pool,
    endpoint: String,
    headers: HeaderMap,
    resource: Value,
    counts: Arc<Counts>,
    /// Set by the thread.
    pub(super) stopped: watch::Receiver<bool>,
}

/// Why a request was not accepted.
struct Failure {
    error: anyhow::Error,
    may_pass: bool,
}

impl Exporter {
    /// # Errors
    /// TLS cannot be set up.
    pub(super) fn new(
        endpoint: &str,
        headers: HeaderMap,
        resource: Value,
        counts: Arc<Counts>,
    ) -> anyhow::Result<Exporter> {
        let client = http_client::pool(endpoint, None, TIMEOUT)?;
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let (_, stopped) = watch::channel(false);
        Ok(Exporter { client, endpoint, headers, resource, counts, stopped })
    }

    /// Sends spans until the program ends, and then, for a limited time, those that are left.
    pub(super) async fn send_spans(&self, mut spans: mpsc::Receiver<Span>) {
        let mut stopped = self.stopped.clone();
        let end = async {
            let _stop = stopped.wait_for(|stop| *stop).await;
            tokio::time::sleep(LAST).await;
        };
        let mut batch = Vec::with_capacity(BATCH);
        tokio::select! {
            () = self.send_batches(&mut spans, &mut batch) => {}
            () = end => {
                self.counts.dropped(batch.len());
                tracing::warn!("OTLP: {} spans dropped: the collector does not answer", batch.len());
            }
        }
    }

    /// Sends spans until the program ends and none is left.
    async fn send_batches(&self, spans: &mut mpsc::Receiver<Span>, batch: &mut Vec<Span>) {
        let mut stopped = self.stopped.clone();
        loop {
            tokio::select! {
                biased;
                received = spans.recv_many(batch, BATCH) => if received == 0 { return },
                _ = stopped.wait_for(|stop| *stop) => return,
            }
            tokio::select! {
                () = collect(spans, batch) => {}
                _ = stopped.wait_for(|stop| *stop) => {}
            }
            self.send_batch(batch).await;
            batch.clear();
        }
    }

    /// Sends a batch, again and again within limits.
    async fn send_batch(&self, batch: &[Span]) {
        let body = Bytes::from(span::request(&self.resource, batch).to_string());
        let (mut pause, until) = (FIRST_PAUSE, Instant::now() + KEEP);
        let mut stopped = self.stopped.clone();
        let mut was_reported = false;
        loop {
            let Failure { error, may_pass } = match self.post("/v1/traces", body.clone()).await {
                Ok(()) => {
                    self.counts.sent(batch.len());
                    if was_reported {
                        tracing::info!("OTLP: the collector accepts spans again");
                    }
                    return;
                }
                Err(failure) => failure,
            };
            self.counts.failed();
            if !may_pass || *stopped.borrow() || Instant::now() + pause > until {
                self.counts.dropped(batch.len());
                tracing::warn!("OTLP: {} spans dropped: {error:#}", batch.len());
                return;
            }
            if !was_reported {
                tracing::warn!(
                    "OTLP: spans wait: {error:#}; [otlp] endpoint has the collector's address"
                );
                was_reported = true;
            }
            // Not all gateways at once when their collector returns.
            let jittered = pause.mul_f64(0.5 + fastrand::f64() / 2.0);
            tokio::select! {
                () = tokio::time::sleep(jittered) => {}
                _ = stopped.wait_for(|stop| *stop) => {}
            }
            pause = (2 * pause).min(LAST_PAUSE);
        }
    }

    /// Sends metrics in this interval. Those of one time are not repeated: the next ones contain them.
    pub(super) async fn send_metrics(&self, every: Duration, sources: &Sources) {
        let started_ns = now_ns();
        let mut stopped = self.stopped.clone();
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut failing = false;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                _ = stopped.wait_for(|stop| *stop) => return,
            }
            let body = metrics::request(&self.resource, &sources.collect(), started_ns, now_ns());
            let outcome = tokio::select! {
                outcome = self.post("/v1/metrics", body.to_string().into()) => outcome,
                _ = stopped.wait_for(|stop| *stop) => return,
            };
            if let Err(Failure { error, .. }) = &outcome {
                self.counts.failed();
                if !failing {
                    tracing::warn!("OTLP: metrics not sent: {error:#}");
                }
            } else if failing {
                tracing::info!("OTLP: the collector accepts metrics again");
            }
            failing = outcome.is_err();
        }
    }

    async fn post(&self, path: &str, body: Bytes) -> Result<(), Failure> {
        let passing = |error| Failure { error, may_pass: true };
        let request =
            self.request(path, body).map_err(|error| Failure { error, may_pass: false })?;
        let done = http_client::exchange(&self.client, request, TIMEOUT).await;
        let (status, text) = done.with_context(|| self.endpoint.clone()).map_err(passing)?;
        if status.is_success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&text[..text.len().min(200)]).into_owned();
        let error = anyhow::anyhow!("{}{path} answered {status}: {text:?}", self.endpoint);
        Err(Failure { error, may_pass: may_pass(status) })
    }

    fn request(&self, path: &str, body: Bytes) -> anyhow::Result<Request<Full<Bytes>>> {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(format!("{}{path}", self.endpoint))
            .body(Full::new(body))
            .context("[otlp] endpoint")?;
        let headers = request.headers_mut();
        headers.extend(self.headers.clone());
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let agent = concat!("fulmar/", env!("CARGO_PKG_VERSION"));
        headers.insert(header::USER_AGENT, HeaderValue::from_static(agent));
        Ok(request)
    }
}

/// Collects spans for a moment, up to the number that fits a request.
async fn collect(spans: &mut mpsc::Receiver<Span>, batch: &mut Vec<Span>) {
    let until = Instant::now() + LINGER;
    while batch.len() < BATCH {
        let room = BATCH - batch.len();
        let received = tokio::time::timeout_at(until, spans.recv_many(batch, room)).await;
        if !received.is_ok_and(|received| received > 0) {
            return;
        }
    }
}

/// Whether the same request may be accepted later (OTLP specification, "Retryable Response Codes").
fn may_pass(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 502 | 503 | 504)
}
