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

use self::forwarder::Forwarder;
use self::stamps::Stamps;
use self::status::GatewayStatus;
use self::wall_clock::now_ms;
use fulmar_config::Upstream;
use fulmar_part::internal_sessions::InternalSessions;
use fulmar_part::{Core, Opening, Part, Source};

struct Gateway(Vec<Forwarder>);

/// Opens the outboxes in the data folder, if there is an upstream broker.
///
/// # Errors
/// An outbox cannot be opened, or a rule or a file of the configuration is wrong.
pub fn open(opening: &mut Opening<'_>) -> anyhow::Result<Option<Box<dyn Part>>> {
    let (config, data) = (opening.config, opening.data);
    let on = config.upstreams().filter(|upstream| upstream.is_on());
    report_unused(data, &on.clone().map(Upstream::outbox_file).collect::<Vec<String>>());
    let open = |upstream: &Upstream| {
        let (restored, shared) = (opening.restored, opening.shared.as_deref());
        let forwarder = Forwarder::open(config, upstream, data, restored, shared);
        forwarder.with_context(|| format!("gateway: [{}]", upstream.section()))
    };
    let forwarders = on.map(open).collect::<anyhow::Result<Vec<Forwarder>>>()?;
    if forwarders.is_empty() {
        return Ok(None);
    }
    let shared = forwarders.iter().map(|forwarder| Arc::clone(forwarder.shared()));
    opening.offers.hooks.push(Box::new(Stamps(shared.collect())));
    let gateway = Gateway(forwarders);
    opening.offers.gateway = Some(Arc::new(gateway.status()));
    Ok(Some(Box::new(gateway)))
}

impl Gateway {
    fn status(&self) -> GatewayStatus {
        let metrics = |forwarder: &Forwarder| Arc::clone(&forwarder.shared().metrics);
        GatewayStatus::new(self.0.iter().map(metrics).collect())
    }
}

impl Part for Gateway {
    fn add_internal_sessions(&self, sessions: &mut InternalSessions<'_>) {
        self.0.iter().for_each(|forwarder| forwarder.add_internal_sessions(sessions));
    }

    /// Connects to the local broker and to those upstream.
    fn go_live(&mut self, core: &Core) -> anyhow::Result<()> {
        let spans = &core.offers.spans;
        let mut forwarders = self.0.iter_mut();
        forwarders.try_for_each(|forwarder| forwarder.go_live(core.handoff.clone(), spans.clone()))
    }

    fn metrics(&self) -> Option<Source> {
        let status = self.status();
        Some(Arc::new(move |to| status.report(to, now_ms())))
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
