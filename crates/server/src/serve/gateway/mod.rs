//! The gateway: forwards messages between the broker in this process and an upstream broker.
//!
//! The path of a message to upstream: its publication is stamped where it enters the broker (`stamps`). A durable
//! session inside the process (`local`) receives it, and acknowledges it when the outbox has it on disk
//! (`outbox_thread`). From there it is sent to upstream (`remote`), and removed when the upstream broker has
//! acknowledged it. Commands from upstream take the opposite path and are published by the local session
//! (`downlink_scheduler`). There are two threads: the outbox's, which waits for the disk, and one for both connections.
//!
//! `fulmar_gateway` decides which messages are forwarded, in which order and in which form; this module connects its
//! parts.

mod current_refusals;
mod dead_letters;
mod downlink_scheduler;
mod local;
mod metrics;
mod outbox_thread;
mod remote;
mod stamps;

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use fulmar_congestion::Congestion;
use fulmar_gateway::identity::Stamper;
use fulmar_gateway::mapping::Mapping;
use fulmar_gateway::outbox::Outbox;
use fulmar_transport::Handoff;
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::sync::{mpsc, watch};

use self::dead_letters::DeadLetters;
pub(super) use self::metrics::GatewayMetrics;
use self::outbox_thread::OutboxThread;
pub(super) use self::stamps::Stamps;
use super::internal_sessions::InternalSessions;
use crate::config::{Config, Upstream};

/// Messages from upstream that the local broker has not accepted yet.
const MAX_COMING_DOWN: usize = 64;

/// Shared by both connections.
pub(super) struct Shared {
    config: Upstream,
    congestion: Congestion,
    /// Small datagrams are sent again where packets are lost.
    copies: bool,
    /// The gateway's name.
    name: String,
    /// The client identifier of the session inside the process.
    client_id: String,
    up: Mapping,
    down: Mapping,
    stamper: Arc<Stamper>,
    metrics: Arc<GatewayMetrics>,
}

impl Shared {
    /// Filters of the topics that are forwarded to upstream.
    fn filters(&self) -> Vec<&str> {
        self.up.rules().iter().map(|rule| rule.filter.as_str()).collect()
    }
}

/// The gateway: opened, and connected by [`Gateway::go_live`].
pub(super) struct Gateway {
    shared: Arc<Shared>,
    outbox_thread: OutboxThread,
    running: Option<Running>,
}

struct Running {
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

impl Gateway {
    /// Opens the outbox in the data folder, if there is an upstream.
    ///
    /// # Errors
    /// The outbox cannot be opened, or a rule or a file of the configuration is wrong.
    pub(super) fn open(config: &Config, data: &Path) -> anyhow::Result<Option<Gateway>> {
        let (congestion, copies) = (config.quic.congestion(), config.quic.copies);
        let config = &config.upstream;
        if !config.is_on() {
            return Ok(None);
        }
        let random = random()?;
        let mut outbox = Outbox::open(&data.join("outbox.db"), config.bounds())?;
        let made = || format!("gw-{:08x}", random[0] >> 32);
        let name = match config.name.as_str() {
            "" => outbox.meta("name", made)?,
            name => name.to_owned(),
        };
        // Random, so that no other client can guess it and take the session over.
        let client_id = outbox.meta("client", || format!("gateway-{:016x}", random[1]))?;
        // A file that cannot be read is an error to be reported at start.
        config.options(&name)?;
        let metrics = Arc::new(GatewayMetrics::default());
        let shared = Shared {
            up: config.mapping("up")?,
            down: config.mapping("down")?,
            stamper: Arc::new(Stamper::new(&name, random[2])),
            config: config.clone(),
            congestion,
            copies,
            metrics: Arc::clone(&metrics),
            name,
            client_id,
        };
        let dead_letters = config.dead_letters().map(|(path, max_bytes)| {
            let opened = DeadLetters::open(path, max_bytes);
            opened.with_context(|| format!("[upstream.outbox] dead_letter_file {}", path.display()))
        });
        let outbox_thread = OutboxThread::start(outbox, dead_letters.transpose()?, metrics)?;
        Ok(Some(Gateway { shared: Arc::new(shared), outbox_thread, running: None }))
    }

    /// Adds the session by which it receives publications.
    pub(super) fn add_internal_sessions(&self, sessions: &mut InternalSessions<'_>) {
        sessions.add(&self.shared.client_id, &self.shared.filters(), local::OPTIONS);
    }

    /// Stamps publications where they enter the broker.
    pub(super) fn stamps(&self) -> Stamps {
        Stamps(Arc::clone(&self.shared))
    }

    /// Connects to both brokers.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn go_live(&mut self, handoff: Handoff) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = watch::channel(false);
        let (shared, outbox) = (Arc::clone(&self.shared), self.outbox_thread.handle());
        let (down, coming_down) = mpsc::channel(MAX_COMING_DOWN);
        let run = move || {
            let local = local::run(&shared, &outbox, coming_down, &handoff, stopped.clone());
            let remote = remote::run(&shared, &outbox, down, stopped);
            runtime.block_on(async { tokio::join!(local, remote) });
        };
        let thread = std::thread::Builder::new().name("fulmar-gateway".into());
        let thread = thread.spawn(run).context("gateway")?;
        self.running = Some(Running { stop, thread });
        Ok(())
    }

    /// The gateway's metrics.
    pub(super) fn metrics(&self) -> Arc<GatewayMetrics> {
        Arc::clone(&self.shared.metrics)
    }

    /// Ends both connections, and writes pending changes of the outbox.
    pub(super) fn close(self) {
        if let Some(Running { stop, thread }) = self.running {
            stop.send_replace(true);
            if thread.join().is_err() {
                tracing::error!("the gateway's thread panicked");
            }
        }
        self.outbox_thread.close();
    }
}

fn random() -> anyhow::Result<[u64; 3]> {
    let mut bytes = [0; 24];
    SystemRandom::new()
        .fill(&mut bytes)
        .ok()
        .context("the system random number generator failed")?;
    let mut numbers = [0; 3];
    for (number, bytes) in numbers.iter_mut().zip(bytes.as_chunks().0) {
        *number = u64::from_le_bytes(*bytes);
    }
    Ok(numbers)
}

/// Milliseconds since the Unix epoch.
fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
