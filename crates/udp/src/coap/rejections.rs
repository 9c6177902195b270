//! Counts the datagrams that the CoAP server rejects, and logs them at intervals.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fulmar_broker::LogLimiter;
use fulmar_coap::Rejected;
use fulmar_text::metrics::Metrics;
use fulmar_transport::Clock;

use super::Address;

/// Counters for `/metrics`.
#[derive(Debug, Default)]
pub(super) struct Statistics {
    malformed: AtomicU64,
    peers_refused: AtomicU64,
}

impl Statistics {
    pub(super) fn report(&self, to: &mut Metrics) {
        let malformed = self.malformed.load(Ordering::Relaxed);
        to.counter("coap_malformed_total", "Datagrams that were not CoAP", malformed);
        to.counter(
            "coap_peers_refused_total",
            "Datagrams of new CoAP peers, ignored because max_peers was reached",
            self.peers_refused.load(Ordering::Relaxed),
        );
    }
}

/// Counts and logs.
pub(super) struct Rejections {
    clock: Clock,
    statistics: Arc<Statistics>,
    malformed_log: LogLimiter,
    refused_log: LogLimiter,
}

impl Rejections {
    pub(super) fn new(clock: Clock, statistics: Arc<Statistics>) -> Rejections {
        let (malformed_log, refused_log) = (LogLimiter::default(), LogLimiter::default());
        Rejections { clock, statistics, malformed_log, refused_log }
    }

    /// Counts a datagram.
    pub(super) fn add(&mut self, peer: Address, bytes: usize, why: Rejected) {
        let now = self.clock.now();
        match why {
            Rejected::Malformed => {
                self.statistics.malformed.fetch_add(1, Ordering::Relaxed);
                if let Some(times) = self.malformed_log.occurred(now) {
                    tracing::debug!(%peer, bytes, times, "a datagram that is not CoAP");
                }
            }
            Rejected::NoRoom => {
                self.statistics.peers_refused.fetch_add(1, Ordering::Relaxed);
                if let Some(times) = self.refused_log.occurred(now) {
                    tracing::warn!(
                        %peer, times,
                        "CoAP: a new peer was ignored: [coap] max_peers is reached, and all peers observe or wait for \
                         a response"
                    );
                }
            }
        }
    }
}
