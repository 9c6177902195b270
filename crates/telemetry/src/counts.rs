//! What the exporter has sent and lost, for `/metrics`.

use std::sync::atomic::{AtomicU64, Ordering};

use fulmar_text::metrics::{Kind, Metrics};

/// Counters of the exporter.
#[derive(Debug, Default)]
pub(super) struct Counts {
    spans_sent: AtomicU64,
    spans_dropped: AtomicU64,
    requests_failed: AtomicU64,
}

impl Counts {
    pub(super) fn sent(&self, spans: usize) {
        self.spans_sent.fetch_add(spans as u64, Ordering::Relaxed);
    }

    pub(super) fn dropped(&self, spans: usize) {
        self.spans_dropped.fetch_add(spans as u64, Ordering::Relaxed);
    }

    pub(super) fn failed(&self) {
        self.requests_failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Spans that were dropped.
    #[cfg(test)]
    pub(super) fn spans_dropped(&self) -> u64 {
        self.spans_dropped.load(Ordering::Relaxed)
    }

    pub(super) fn report(&self, to: &mut Metrics) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let help = "Spans that the collector accepted, or that were dropped";
        let family = to.family(Kind::Counter, "otlp_spans_total", help);
        family.add(&[("outcome", "sent")], read(&self.spans_sent));
        family.add(&[("outcome", "dropped")], read(&self.spans_dropped));
        let help = "Requests that the collector did not accept";
        to.counter("otlp_requests_failed_total", help, read(&self.requests_failed));
    }
}
