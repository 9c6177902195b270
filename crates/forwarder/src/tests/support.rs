//! What tests of both connections use.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fulmar_gateway::identity::Stamper;
use fulmar_gateway::outbox::Outbox;

use super::dead_letters::DeadLetters;
use super::metrics::GatewayMetrics;
use super::outbox_thread::OutboxThread;
use super::shared::Shared;
use fulmar_config::Upstream;

/// The longest wait for what happens at once.
pub(super) const LONG: Duration = Duration::from_secs(20);

/// A gateway of this configuration.
pub(super) fn shared(config: &str) -> Shared {
    let config: Upstream = toml::from_str(config).unwrap();
    Shared {
        up: config.mapping("up").unwrap(),
        down: config.mapping("down").unwrap(),
        stamper: Arc::new(Stamper::new("gw", 1)),
        config,
        congestion: fulmar_congestion::Congestion::default(),
        copies: false,
        max_packet_bytes: 2 << 20,
        metrics: Arc::new(GatewayMetrics::new(None)),
        name: "gw".to_owned(),
        client_id: "gateway-1".to_owned(),
        spans: OnceLock::new(),
    }
}

/// Outbox, in the folder of `file`, which is for dead letters and must not exist yet.
pub(super) fn outbox(shared: &Shared, file: &Path) -> OutboxThread {
    let path = file.with_file_name("outbox.db");
    let outbox = Outbox::open(&path, shared.config.bounds()).unwrap();
    let letters = DeadLetters::open(file, 64 << 20).unwrap();
    OutboxThread::start(outbox, Some(letters), Arc::clone(&shared.metrics)).unwrap()
}
