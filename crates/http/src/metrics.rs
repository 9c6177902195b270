//! Counters of the endpoint: requests by version and class of status, connections, refusals.
//!
//! Origins are counted at the MQTT listeners for WebSocket, too.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use fulmar_text::metrics::{Kind, Metrics as Families};
use fulmar_transport::Origins;
use http::{StatusCode, Version};

/// Names of the versions, in the order of [`Metrics::requests`].
pub(crate) const VERSIONS: [&str; 3] = ["1.1", "2", "3"];

/// Counters of an endpoint since it started, except for those that say otherwise.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Responses by version (1.0 and 1.1, 2, 3) and by the first digit of the status minus one.
    requests: [[AtomicU64; 5]; 3],
    pub(crate) early_refused: AtomicU64,
    pub(crate) connections_tcp: AtomicU64,
    pub(crate) connections_quic: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) shed: AtomicU64,
    pub(crate) bodies_refused: AtomicU64,
    pub(crate) origins: Arc<Origins>,
    pub(crate) failed_handshakes: AtomicU64,
}

impl Metrics {
    pub(crate) fn new(origins: &Arc<Origins>) -> Metrics {
        Metrics { origins: Arc::clone(origins), ..Metrics::default() }
    }

    /// Connections open now.
    pub(crate) fn open_connections(&self) -> u64 {
        self.connections_tcp.load(Relaxed) + self.connections_quic.load(Relaxed)
    }

    /// Reports everything.
    pub fn report(&self, to: &mut Families) {
        let name = "http_requests_total";
        let family = to.family(Kind::Counter, name, "Responses of the HTTP endpoint");
        for (version, classes) in VERSIONS.iter().zip(&self.requests) {
            for (class, count) in ["1xx", "2xx", "3xx", "4xx", "5xx"].iter().zip(classes) {
                family.add(&[("version", version), ("status", class)], count.load(Relaxed));
            }
        }
        let family =
            to.family(Kind::Gauge, "http_connections", "Connections to the HTTP endpoint open now");
        family.add(&[("transport", "tcp")], self.connections_tcp.load(Relaxed));
        family.add(&[("transport", "quic")], self.connections_quic.load(Relaxed));
        for (name, help, count) in [
            ("early_refused", "Requests answered 425 Too Early", &self.early_refused),
            ("connections_refused", "Connections above the limit", &self.refused),
            ("connections_shed", "Connections closed to make room for others", &self.shed),
            (
                "bodies_refused",
                "Requests refused because too much was being sent at once",
                &self.bodies_refused,
            ),
            ("handshakes_failed", "Handshakes that failed", &self.failed_handshakes),
        ] {
            to.counter(&format!("http_{name}_total"), help, count.load(Relaxed));
        }
        let help = "MQTT connections refused to pages of other origins";
        to.counter("http_origins_refused_total", help, self.origins.refused_total());
    }

    /// Counts an answer.
    pub(crate) fn answered(&self, version: Version, status: StatusCode) {
        let row = match version {
            Version::HTTP_3 => 2,
            Version::HTTP_2 => 1,
            _ => 0,
        };
        let class = usize::from(status.as_u16() / 100).clamp(1, 5) - 1;
        self.requests[row][class].fetch_add(1, Relaxed);
    }
}

/// Counts a connection for as long as this lives.
pub(crate) struct Open<'a>(&'a AtomicU64);

impl<'a> Open<'a> {
    pub(crate) fn new(count: &'a AtomicU64) -> Open<'a> {
        count.fetch_add(1, Relaxed);
        Open(count)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
