//! One upstream broker: its outbox, and the connections to it and to the local broker.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use anyhow::Context as _;
use fulmar_broker::storage::Restored;
use fulmar_certs::random_number;
use fulmar_gateway::identity::Stamper;
use fulmar_gateway::outbox::Outbox;
use fulmar_mirror::{Clocks, Reading};
use fulmar_transport::Handoff;
use tokio::sync::{mpsc, watch};
use tracing::Instrument as _;

use super::dead_letters::DeadLetters;
use super::metrics::GatewayMetrics;
use super::outbox_thread::OutboxThread;
use super::shared::Shared;
use super::wall_clock::now_ms;
use super::{local, remote};
use fulmar_config::{Config, Upstream};
use fulmar_part::Spans;
use fulmar_part::internal_sessions::{self, InternalSessions};
use fulmar_part::shared_rows::SharedRows;
use fulmar_part::thread::{Thread, runtime};

/// Messages from upstream that the downlink scheduler has not accepted yet. Few, because their bytes are not counted: they
/// are exchanged within one thread.
const MAX_COMING_DOWN: usize = 4;

/// Forwards messages to and from one upstream broker: opened, and connected by [`Forwarder::go_live`]. Dropping it ends
/// both connections, and then writes pending changes of the outbox.
pub(super) struct Forwarder {
    // First, because it uses the outbox.
    thread: Option<Thread>,
    shared: Arc<Shared>,
    outbox_thread: OutboxThread,
}

impl Forwarder {
    /// Opens the outbox in the data folder. A new outbox belongs to the session that the broker has of an earlier one,
    /// for example one that was damaged: its messages are acknowledged.
    pub(super) fn open(
        config: &Config,
        upstream: &Upstream,
        data: &Path,
        restored: &Restored,
        shared: Option<&SharedRows>,
    ) -> anyhow::Result<Forwarder> {
        let (congestion, copies) = (config.quic.congestion, config.quic.copies);
        let max_packet_bytes = upstream.max_packet_bytes(config.limits.max_packet_bytes);
        let config = upstream;
        let random = [random_number()?, random_number()?, random_number()?];
        let (file, bounds) = (data.join(config.outbox_file()), config.bounds());
        let mut outbox = match shared {
            Some(shared) => {
                Outbox::open_shared(&file, bounds, shared.outbox(&config.outbox_file()))?
            }
            None => Outbox::open(&file, bounds)?,
        };
        if shared.is_none()
            && let Some(by) = outbox.keep_clock(&Clocks::new(|| Reading::now(now_ms())))?
        {
            let seconds = by / 1000;
            tracing::warn!(
                seconds,
                "the system's clock was set: the outbox's messages keep the time that was left to them"
            );
        }
        let made = || format!("gw-{:08x}", random[0] >> 32);
        let name = match config.name.as_str() {
            "" => outbox.meta("name", made)?,
            name => name.to_owned(),
        };
        // Random, so that no other client can guess it and take the session over.
        let prefix = client_id_prefix(config);
        let earlier = internal_sessions::client_id_of(restored, &prefix);
        let client_id = outbox
            .meta("client", || earlier.unwrap_or_else(|| format!("{prefix}{:016x}", random[1])))?;
        // A file that cannot be read is an error to be reported at start.
        config.options(&name)?;
        let metrics = Arc::new(GatewayMetrics::new(config.label.clone()));
        let shared = Shared {
            up: config.mapping("up")?,
            down: config.mapping("down")?,
            stamper: Arc::new(Stamper::new(&name, random[2])),
            config: config.clone(),
            congestion,
            copies,
            max_packet_bytes,
            metrics: Arc::clone(&metrics),
            name,
            client_id,
            spans: OnceLock::new(),
        };
        let dead_letters = config.dead_letters().map(|(path, max_bytes)| {
            let opened = DeadLetters::open(path, max_bytes);
            opened.with_context(|| {
                format!("[{}.outbox] dead_letter_file {}", config.section(), path.display())
            })
        });
        let outbox_thread = OutboxThread::start(outbox, dead_letters.transpose()?, metrics)?;
        Ok(Forwarder { thread: None, shared: Arc::new(shared), outbox_thread })
    }

    /// Adds the session by which it receives publications.
    pub(super) fn add_internal_sessions(&self, sessions: &mut InternalSessions<'_>) {
        sessions.add(&self.shared.client_id, &self.shared.filters(), local::OPTIONS);
    }

    /// State that the forwarder's connections share.
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Connects to both brokers.
    pub(super) fn go_live(
        &mut self,
        handoff: Handoff,
        spans: Option<Arc<dyn Spans>>,
    ) -> anyhow::Result<()> {
        if let Some(spans) = spans {
            drop(self.shared.spans.set(spans));
        }
        let (shared, outbox) = (Arc::clone(&self.shared), self.outbox_thread.handle());
        let (down, coming_down) = mpsc::channel(MAX_COMING_DOWN);
        let run = move |stopped: watch::Receiver<bool>| {
            let span = shared.metrics.span();
            let both = async move {
                let local = local::run(&shared, &outbox, coming_down, &handoff, stopped.clone());
                let remote = remote::run(&shared, &outbox, down, stopped);
                tokio::join!(local, remote)
            };
            both.instrument(span)
        };
        let thread = Thread::until_done("fulmar-gateway", runtime()?, run);
        self.thread = Some(thread.context("gateway")?);
        Ok(())
    }
}

/// Whether the name is that of an outbox.
pub(super) fn is_outbox(name: &str) -> bool {
    name == "outbox.db" || name.starts_with("outbox-") && name.ends_with(".db")
}

/// Beginning of the local session's client identifier. Labels contain no slash, so that none is the beginning of
/// another.
fn client_id_prefix(upstream: &Upstream) -> String {
    match &upstream.label {
        None => "gateway-".to_owned(),
        Some(label) => format!("upstream/{label}/"),
    }
}
