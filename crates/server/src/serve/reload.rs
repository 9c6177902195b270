//! SIGHUP: reads certificate, client CAs, passwords, token keys and access rules again, and retries a failed order of a
//! certificate (ACME).
//!
//! All or nothing: after an error everything stays unchanged, and the log shows what to correct. Clients stay
//! connected; the new rules apply to them. Other keys require a restart; the log names those that have changed.

use std::path::Path;

use fulmar_broker::Broker;

use super::acme;
use super::certificates::Certificates;
use crate::config::Config;
use crate::exit;

/// The files that are read again, and the parts of the broker that use them.
pub(super) struct Reloader<'a> {
    /// The configuration file.
    pub(super) file: Option<&'a Path>,
    /// The configuration with which the broker was started.
    pub(super) started: &'a Config,
    pub(super) broker: &'a Broker,
    pub(super) certificates: &'a Certificates,
    pub(super) acme: Option<&'a acme::Running>,
}

impl Reloader<'_> {
    /// Reloads, and logs the result.
    pub(super) fn run(&self) {
        if let Some(acme) = self.acme {
            acme.again();
        }
        match self.reload() {
            Ok(config) => {
                tracing::info!("certificates, client CAs, passwords and access rules reloaded");
                let waiting = config.changes_requiring_restart(self.started);
                if !waiting.is_empty() {
                    tracing::warn!("changed, takes effect after a restart: {}", waiting.join(", "));
                }
            }
            Err(error) => tracing::error!(
                "reload failed, nothing changed; fix this and send SIGHUP again: {}",
                exit::explain(&error)
            ),
        }
    }

    fn reload(&self) -> anyhow::Result<Config> {
        let config = Config::load(self.file)?;
        let access_control = config.access_control()?;
        self.certificates.reload(&config)?;
        self.broker.set_access_control(access_control);
        Ok(config)
    }
}
