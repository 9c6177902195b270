//! What the exporter has sent and lost, for `/metrics`.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of the exporter.
#[derive(Debug, Default)]
pub(in crate::serve) struct Counts {
    spans_sent: AtomicU64,
    spans_dropped: AtomicU64,
    requests_failed: AtomicU64,
}

/// Their values.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::serve) struct Totals {
    pub(in crate::serve) spans_sent: u64,
    pub(in crate::serve) spans_dropped: u64,
    pub(in crate::serve) requests_failed: u64,
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

    pub(in crate::serve) fn totals(&self) -> Totals {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Totals {
            spans_sent: read(&self.spans_sent),
            spans_dropped: read(&self.spans_dropped),
            requests_failed: read(&self.requests_failed),
        }
    }
}
