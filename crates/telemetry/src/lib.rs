//! OTLP: traces of publications whose publishers record a trace, and metrics, sent to an OpenTelemetry collector.
//!
//! Workers and gateway make spans (`tracer`) of publications with a trace context (`context`) and put them into a
//! bounded queue. A separate thread sends them (`exporter`), and metrics, which are those of `/metrics` (`metrics`).
//!
//! OTLP's JSON encoding is small and stable, and requires no crate beyond those that webhooks and ACME use.

mod context;
mod counts;
mod exporter;
mod metrics;
mod span;
mod tracer;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use fulmar_certs::files;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use self::counts::Counts;
use self::exporter::Exporter;
use self::span::{Attribute, Span, pair};
pub(crate) use self::tracer::SpanMaker;
use fulmar_config::{Otlp, set};
use fulmar_part::thread::{Thread, runtime};
use fulmar_part::{Core, Opening, Part, Source};
use fulmar_text::Usage;

/// Spans that wait to be sent.
const QUEUE: usize = 4096;
/// Longest file of headers.
const MAX_HEADERS_BYTES: usize = 64 * 1024;

/// Sends once everything runs. Dropping it sends the last spans, for a limited time.
pub struct Telemetry {
    settings: Otlp,
    headers: HeaderMap,
    counts: Arc<Counts>,
    /// `None` if traces are off.
    maker: Option<Arc<SpanMaker>>,
    spans: Option<mpsc::Receiver<Span>>,
    _thread: Option<Thread>,
}

/// Telemetry, if there is an endpoint.
///
/// # Errors
/// The file of headers cannot be used.
pub fn open(opening: &mut Opening<'_>) -> anyhow::Result<Option<Box<dyn Part>>> {
    let Some(telemetry) = Telemetry::open(&opening.config.otlp)? else { return Ok(None) };
    opening.offers.spans = telemetry.maker.clone().map(|maker| maker as _);
    Ok(Some(Box::new(telemetry)))
}

impl Telemetry {
    /// `None` without an endpoint.
    ///
    /// # Errors
    /// The file of headers cannot be used.
    pub fn open(settings: &Otlp) -> anyhow::Result<Option<Telemetry>> {
        if settings.endpoint.is_empty() {
            return Ok(None);
        }
        let headers = match set(&settings.headers_file) {
            None => HeaderMap::new(),
            Some(path) => {
                let found = read(path).and_then(|text| headers(&text));
                let key = format!("[otlp] headers_file {}", path.display());
                found.map_err(|error| Usage(format!("{key}: {error:#}")))?
            }
        };
        let counts = Arc::<Counts>::default();
        let (maker, spans) = mpsc::channel(QUEUE);
        let maker = settings.traces.then(|| Arc::new(SpanMaker::new(maker, Arc::clone(&counts))));
        Ok(Some(Telemetry {
            settings: settings.clone(),
            headers,
            counts,
            spans: maker.is_some().then_some(spans),
            maker,
            _thread: None,
        }))
    }
}

impl Part for Telemetry {
    fn metrics(&self) -> Option<Source> {
        let counts = Arc::clone(&self.counts);
        Some(Arc::new(move |to| counts.report(to)))
    }

    /// Sends from now on.
    fn ready(&mut self, core: &Core) -> anyhow::Result<()> {
        let mut exporter = Exporter::new(
            &self.settings.endpoint,
            self.headers.clone(),
            resource(&self.settings.service_name),
            Arc::clone(&self.counts),
        )?;
        let spans = self.spans.take();
        let every = Duration::from_secs(self.settings.metrics_interval_s.into());
        let sources = core.sources.clone();
        let run = move |stopped| async move {
            exporter.stopped = stopped;
            let traces = async {
                if let Some(spans) = spans {
                    exporter.send_spans(spans).await;
                }
            };
            let metrics = async {
                if !every.is_zero() {
                    exporter.send_metrics(every, &sources).await;
                }
            };
            tokio::join!(traces, metrics)
        };
        let thread = Thread::until_done("fulmar-otlp", runtime()?, run).context("OTLP")?;
        self._thread = Some(thread);
        Ok(())
    }
}

/// Resource of all spans and metrics: this program on this machine.
fn resource(service_name: &str) -> Value {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let text = |key: &str, text: &str| pair(key, &Attribute::Text(text.to_owned()));
    json!({ "attributes": [
        text("service.name", service_name),
        text("service.version", env!("CARGO_PKG_VERSION")),
        text("host.name", host.trim()),
    ] })
}

fn read(path: &std::path::Path) -> anyhow::Result<String> {
    let text = String::from_utf8(files::read_secret(path)?)?;
    let bytes = text.len();
    anyhow::ensure!(bytes <= MAX_HEADERS_BYTES, "has {bytes} bytes; at most {MAX_HEADERS_BYTES}");
    Ok(text)
}

/// Headers as in HTTP, one `NAME: VALUE` per line; lines that begin with # are comments. Errors do not show values,
/// which may be secret.
fn headers(text: &str) -> anyhow::Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let header = line.split_once(':').and_then(|(name, value)| {
            let mut value = HeaderValue::from_str(value.trim()).ok()?;
            value.set_sensitive(true);
            Some((HeaderName::try_from(name.trim()).ok()?, value))
        });
        let (name, value) =
            header.with_context(|| format!("line {number} is not a header; write NAME: VALUE"))?;
        headers.append(name, value);
    }
    Ok(headers)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_lines_and_errors_keep_their_secrets() {
        let found = headers("# token\n\nAuthorization: Bearer a:b\nx-scope: 7\n").unwrap();
        assert_eq!(found["authorization"], "Bearer a:b");
        assert_eq!(found.len(), 2);
        for wrong in ["Authorization Bearer-secret", "a b: secret", "x: sec\u{7f}ret"] {
            let error = headers(wrong).unwrap_err().to_string();
            assert!(error.contains("line 1") && !error.contains("secret"), "{error}");
        }
    }
}
