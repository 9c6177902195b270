//! SIGHUP: reads certificate, client authorities, passwords, token keys and access rules again, and tries
//! an order of a certificate (ACME) again that has failed.
//!
//! All or nothing: where anything is wrong, everything stays as it was and the log says what to
//! mend. Connected clients stay; what they may do follows the new rules. Other keys take a restart,
//! and are named when they have changed.

use std::path::Path;

use fulmar_broker::Broker;

use super::acme;
use super::certificates::Certificates;
use crate::config::Config;
use crate::exit;

/// What a running broker is reloaded from, and where to.
pub(super) struct Reloader<'a> {
    /// The configuration file.
    pub(super) file: Option<&'a Path>,
    /// The configuration the broker was started with.
    pub(super) started: &'a Config,
    pub(super) broker: &'a Broker,
    pub(super) certificates: &'a Certificates,
    pub(super) acme: Option<&'a acme::Running>,
}

impl Reloader<'_> {
    /// Reloads, and tells the log how it went.
    pub(super) fn run(&self) {
        if let Some(acme) = self.acme {
            acme.again();
        }
        match self.reload() {
            Ok(config) => {
                tracing::info!("certificates, client CAs, passwords and access rules reloaded");
                let waiting = config.changed_for_a_restart(self.started);
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
