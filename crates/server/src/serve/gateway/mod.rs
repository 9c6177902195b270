//! The gateway: forwards messages between the broker in this process and upstream brokers.
//!
//! The path of a message to upstream: its publication is stamped where it enters the broker (`stamps`). A durable
//! session inside the process (`local`) receives it, and acknowledges it when the outbox has it on disk
//! (`outbox_thread`). From there it is sent to upstream (`remote`), and removed when the upstream broker has
//! acknowledged it. Commands from upstream take the opposite path (`arriving`) and are published by the local session
//! (`downlink_scheduler`). What no broker can ever accept becomes a dead letter (`dead_letters`). All this exists once per upstream broker (`forwarder`), with two threads: the outbox's, which
//! waits for the disk, and one for both connections.
//!
//! `fulmar_gateway` decides which messages are forwarded, in which order and in which form; this module connects its
//! parts.

mod arriving;
mod current_refusals;
mod dead_letters;
mod downlink_scheduler;
mod drop_log;
mod forwarder;
mod local;
mod metrics;
mod outbox_thread;
mod remote;
mod shared;
mod stamps;
mod status;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
#[path = "tests/support.rs"]
mod test_support;
mod wall_clock;

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use fulmar_broker::storage::Restored;
use fulmar_transport::Handoff;

use self::forwarder::Forwarder;
pub(super) use self::stamps::Stamps;
pub(super) use self::status::GatewayStatus;
use super::internal_sessions::InternalSessions;
use super::otlp::SpanMaker;
use super::shared_rows::SharedRows;
use crate::config::{Config, Upstream};

/// The gateway: opened, and connected by [`Gateway::go_live`]. Dropping it ends all connections.
pub(super) struct Gateway(Vec<Forwarder>);

impl Gateway {
    /// Opens the outboxes in the data folder, if there is an upstream broker; at a node of a cluster with what is shared.
    ///
    /// # Errors
    /// An outbox cannot be opened, or a rule or a file of the configuration is wrong.
    pub(super) fn open(
        config: &Config,
        data: &Path,
        (restored, shared): (&Restored, Option<&SharedRows>),
    ) -> anyhow::Result<Option<Gateway>> {
        let on = config.upstreams().filter(|upstream| upstream.is_on());
        report_unused(data, &on.clone().map(Upstream::outbox_file).collect::<Vec<String>>());
        let open = |upstream: &Upstream| {
            let forwarder = Forwarder::open(config, upstream, data, (restored, shared));
            forwarder.with_context(|| format!("[{}]", upstream.section()))
        };
        let forwarders = on.map(open).collect::<anyhow::Result<Vec<Forwarder>>>()?;
        Ok((!forwarders.is_empty()).then_some(Gateway(forwarders)))
    }

    /// Adds the sessions by which it receives publications.
    pub(super) fn add_internal_sessions(&self, sessions: &mut InternalSessions<'_>) {
        self.0.iter().for_each(|forwarder| forwarder.add_internal_sessions(sessions));
    }

    /// Stamps publications where they enter the broker.
    pub(super) fn stamps(&self) -> Stamps {
        Stamps(self.0.iter().map(|forwarder| Arc::clone(forwarder.shared())).collect())
    }

    /// Connects to the local broker and to those upstream. Reports messages with a recorded trace to `spans`.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(super) fn go_live(
        &mut self,
        handoff: &Handoff,
        spans: Option<&Arc<SpanMaker>>,
    ) -> anyhow::Result<()> {
        let mut forwarders = self.0.iter_mut();
        forwarders.try_for_each(|forwarder| forwarder.go_live(handoff.clone(), spans.cloned()))
    }

    /// Its metrics and health.
    pub(super) fn status(&self) -> GatewayStatus {
        let metrics = |forwarder: &Forwarder| Arc::clone(&forwarder.shared().metrics);
        GatewayStatus::new(self.0.iter().map(metrics).collect())
    }
}

/// Logs each outbox whose upstream broker is not in the configuration.
fn report_unused(data: &Path, used: &[String]) {
    let files = std::fs::read_dir(data).into_iter().flatten().flatten();
    let names = files.filter_map(|file| file.file_name().into_string().ok());
    for file in names.filter(|name| forwarder::is_outbox(name) && !used.contains(name)) {
        tracing::warn!(
            file,
            "the configuration has no section for this outbox: its messages are not forwarded; restore \
             the section with its name, or remove the file"
        );
    }
}
