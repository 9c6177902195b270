//! Section `[otlp]`: the OpenTelemetry collector that gets traces and metrics.

use std::path::PathBuf;

use super::range::Ranges as _;
use super::section::sections;
use fulmar_text::Usage;

sections! {
    /// Traces and metrics for an OpenTelemetry collector.
    pub struct Otlp {
        /// The collector's address for OTLP over HTTP, without the path; empty for none.
        pub endpoint: String = String::new(),
        /// Headers of its requests, such as a token; empty for none.
        pub headers_file: PathBuf = PathBuf::new(),
        /// The name of the service.
        pub service_name: String = "fulmar".to_owned(),
        /// Whether the publications with a recorded trace are reported.
        pub traces: bool = true,
        /// Seconds between two reports of metrics; 0 for never.
        pub metrics_interval_s: u32 = 60 => 0..=24 * 3600,
    }
}

/// Checks the section.
///
/// # Errors
/// The endpoint is no address of a collector, or the interval is out of its range.
pub(crate) fn check(otlp: &Otlp) -> Result<(), Usage> {
    otlp.check_ranges("otlp")?;
    let endpoint = &otlp.endpoint;
    let uri = endpoint.parse::<http::Uri>().ok();
    let is_url = uri.is_some_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https"))
            && uri.host().is_some_and(|host| !host.is_empty())
            && uri.query().is_none()
    });
    if endpoint.is_empty() || is_url {
        return Ok(());
    }
    let text = "is not an address of a collector; write http://HOST:4318 or https://HOST[:PORT]";
    Err(Usage(format!("[otlp] endpoint = {endpoint:?}: {text}")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_has_a_url() {
        let with = |endpoint: &str| {
            let otlp = Otlp { endpoint: endpoint.to_owned(), ..Otlp::default() };
            check(&otlp).map_err(|error| error.to_string())
        };
        for good in ["", "http://127.0.0.1:4318", "https://otlp.example.org/base/"] {
            with(good).unwrap();
        }
        for wrong in ["127.0.0.1:4318", "localhost", "grpc://a:4317", "http://", "http://a?b=c"] {
            let error = with(wrong).unwrap_err();
            assert!(error.starts_with("[otlp] endpoint") && error.contains("4318"), "{error}");
        }
    }
}
