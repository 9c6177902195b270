//! The platform inside the broker's process: opened with the data folder if there is an HTTPS listener,
//! closed when all requests have been answered.

use std::path::Path;

use anyhow::Context as _;
use fulmar_platform::Platform;

use crate::config::Config;

/// The platform, if it is switched on.
pub(super) struct Running {
    platform: Option<Platform>,
}

impl Running {
    /// Opens it.
    ///
    /// # Errors
    /// Its database or secret cannot be opened.
    pub(super) fn open(config: &Config, data: &Path) -> anyhow::Result<Running> {
        if !config.platform.enabled || config.listeners.https.is_empty() {
            return Ok(Running { platform: None });
        }
        let (platform, _) = Platform::open(data, config.platform.settings()).context("platform")?;
        if platform.has_no_users() {
            tracing::info!(
                "the platform has no users yet: `fulmar user add NAME --admin --data {}` makes one",
                data.display()
            );
        }
        Ok(Running { platform: Some(platform) })
    }

    /// Its addresses.
    pub(super) fn router(&self) -> axum::Router {
        self.platform.as_ref().map(Platform::router).unwrap_or_default()
    }

    /// Finishes what was begun.
    pub(super) fn close(&self) {
        if let Some(platform) = &self.platform {
            platform.close();
        }
    }
}
