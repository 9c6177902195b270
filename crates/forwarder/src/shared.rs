//! What both connections, to the local broker and to upstream, share.

use std::sync::{Arc, OnceLock};

use fulmar_congestion::Congestion;
use fulmar_gateway::identity::Stamper;
use fulmar_gateway::mapping::Mapping;

use super::metrics::GatewayMetrics;
use fulmar_config::Upstream;
use fulmar_part::Spans;

/// State that both connections share.
pub(super) struct Shared {
    pub(super) config: Upstream,
    pub(super) congestion: Congestion,
    /// Small datagrams are sent again where packets are lost.
    pub(super) copies: bool,
    /// The largest packet to receive from upstream.
    pub(super) max_packet_bytes: u32,
    /// The gateway's name.
    pub(super) name: String,
    /// The client identifier of the session inside the process.
    pub(super) client_id: String,
    pub(super) up: Mapping,
    pub(super) down: Mapping,
    pub(super) stamper: Arc<Stamper>,
    pub(super) metrics: Arc<GatewayMetrics>,
    /// Makes spans of messages with a recorded trace; empty without `[otlp]`.
    pub(super) spans: OnceLock<Arc<dyn Spans>>,
}

impl Shared {
    /// Filters of the topics that are forwarded to upstream.
    pub(super) fn filters(&self) -> Vec<&str> {
        self.up.rules().iter().map(|rule| rule.filter.as_str()).collect()
    }
}
