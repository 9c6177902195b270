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
mod shared;
mod stamps;
mod wall_clock;

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::Context as _;
use fulmar_broker::storage::Restored;
use fulmar_gateway::identity::Stamper;
use fulmar_gateway::outbox::Outbox;
use fulmar_transport::Handoff;
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::sync::{mpsc, watch};

use self::dead_letters::DeadLetters;
pub(super) use self::metrics::GatewayMetrics;
use self::outbox_thread::OutboxThread;
use self::shared::Shared;
pub(super) use self::stamps::Stamps;
use super::internal_sessions::{self, InternalSessions};
use crate::config::Config;

/// What the local session's client identifier begins with.
const CLIENT_ID_PREFIX: &str = "gateway-";

/// Messages from upstream that the local broker has not accepted yet.
const MAX_COMING_DOWN: usize = 64;

/// The gateway: opened, and connected by [`Gateway::go_live`]. Dropping it ends both connections, and then writes pending
/// changes of the outbox.
pub(super) struct Gateway {
    // First, because it uses the outbox.
    running: Option<Running>,
    shared: Arc<Shared>,
    outbox_thread: OutboxThread,
}

/// The thread of both connections; dropping this ends it.
struct Running {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the gateway's thread panicked");
        }
    }
}

impl Gateway {
    /// Opens the outbox in the data folder, if there is an upstream. A new outbox belongs to the session that the broker
    /// has of an earlier one, for example one that was damaged: its messages are acknowledged.
    ///
    /// # Errors
    /// The outbox cannot be opened, or a rule or a file of the configuration is wrong.
    pub(super) fn open(
        config: &Config,
        data: &Path,
        restored: &Restored,
    ) -> anyhow::Result<Option<Gateway>> {
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
        let earlier = internal_sessions::client_id_of(restored, CLIENT_ID_PREFIX);
        let client_id = outbox.meta("client", || {
            earlier.unwrap_or(format!("{CLIENT_ID_PREFIX}{:016x}", random[1]))
        })?;
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
        Ok(Some(Gateway { running: None, shared: Arc::new(shared), outbox_thread }))
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
        self.running = Some(Running { stop, thread: Some(thread) });
        Ok(())
    }

    /// The gateway's metrics.
    pub(super) fn metrics(&self) -> Arc<GatewayMetrics> {
        Arc::clone(&self.shared.metrics)
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
