//! Counters of the endpoint: requests by version and class of status, connections, refusals.
//!
//! Only numbers: metric names and formats are elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use fulmar_transport::Origins;
use http::{StatusCode, Version};

/// Names of the versions, in the order of [`Counts::requests`].
pub(crate) const VERSIONS: [&str; 3] = ["1.1", "2", "3"];

/// Counters of an endpoint since it started, except for those that say otherwise.
#[derive(Debug, Default)]
pub struct Metrics {
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

/// A snapshot of [`Metrics`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Responses by version (1.0 and 1.1, 2, 3) and by the first digit of the status minus one.
    pub requests: [[u64; 5]; 3],
    /// Requests answered with 425 because they arrived as early data and are not safe.
    pub early_refused: u64,
    /// TCP connections open now.
    pub connections_tcp: u64,
    /// QUIC connections open now.
    pub connections_quic: u64,
    /// Connections closed because there were too many.
    pub refused: u64,
    /// Connections closed to make room for others.
    pub shed: u64,
    /// Requests answered with 503 because there was no memory for their bodies.
    pub bodies_refused: u64,
    /// MQTT connections refused because of their page's origin, including those to WebSocket listeners.
    pub origins_refused: u64,
    /// TLS and QUIC handshakes that failed.
    pub failed_handshakes: u64,
}

impl Counts {
    /// The version of each row of [`Counts::requests`].
    pub const VERSIONS: [&str; 3] = VERSIONS;
}

impl Metrics {
    pub(crate) fn new(origins: &Arc<Origins>) -> Metrics {
        Metrics { origins: Arc::clone(origins), ..Metrics::default() }
    }

    /// The counters now.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            requests: [0, 1, 2].map(|version| {
                [0, 1, 2, 3, 4].map(|class| self.requests[version][class].load(Relaxed))
            }),
            early_refused: self.early_refused.load(Relaxed),
            connections_tcp: self.connections_tcp.load(Relaxed),
            connections_quic: self.connections_quic.load(Relaxed),
            refused: self.refused.load(Relaxed),
            shed: self.shed.load(Relaxed),
            bodies_refused: self.bodies_refused.load(Relaxed),
            origins_refused: self.origins.refused_total(),
            failed_handshakes: self.failed_handshakes.load(Relaxed),
        }
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
