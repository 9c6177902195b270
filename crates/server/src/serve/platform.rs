//! The platform inside the broker's process: opened with the data folder if there is an HTTPS listener,
//! closed when all requests have been answered. Its users are the broker's external users.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use fulmar_broker::Broker;
use fulmar_broker::auth::ExternalUsers;
use fulmar_http::Knows;
use fulmar_platform::Announcement;
pub(super) use fulmar_platform::{Platform, PlatformCounts};
use fulmar_transport::Handoff;
use http::header;
use tokio::sync::mpsc;

use super::internal_sessions::InternalSessions;
use super::platform_client::{self, PlatformClient};
use super::users::Users;
use crate::config::Config;

/// The platform, if it is enabled. Dropping this finishes requests and writes, and closes the database.
pub(super) struct Running {
    platform: Option<Platform>,
    /// Changes that are still to be published.
    announcements: Option<mpsc::Receiver<Announcement>>,
    client: Option<PlatformClient>,
}

impl Running {
    /// Opens the platform.
    ///
    /// # Errors
    /// Its database or secret cannot be opened, or nobody could log in at a listener.
    pub(super) fn open(config: &Config, data: &Path) -> anyhow::Result<Running> {
        if !config.has_platform() {
            return Ok(Running { platform: None, announcements: None, client: None });
        }
        let settings = fulmar_platform::Settings {
            disk: config.platform_part(),
            ..config.platform.settings()?
        };
        let opened = Platform::open(data, settings);
        let (platform, announcements) = opened.context("platform")?;
        if platform.has_no_users() {
            config.check_ways_in()?;
            tracing::info!(
                "the platform has no users yet; create one with `fulmar user add NAME --admin \
                 --data {}`",
                data.display()
            );
        }
        Ok(Running { platform: Some(platform), announcements: Some(announcements), client: None })
    }

    /// The platform's users, for the broker's access control.
    ///
    /// # Errors
    /// The thread that checks passwords cannot be started.
    pub(super) fn external_users(&self) -> anyhow::Result<Option<Arc<dyn ExternalUsers>>> {
        let Some(platform) = self.platform.clone() else { return Ok(None) };
        Ok(Some(Arc::new(Users::new(platform)?)))
    }

    /// The platform, if it is enabled.
    pub(super) fn get(&self) -> Option<&Platform> {
        self.platform.as_ref()
    }

    /// Recognises requests with a token of its users.
    pub(super) fn knows(&self) -> Option<Knows> {
        let platform = self.platform.clone()?;
        Some(Knows::new(move |headers| {
            let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
            let token = shown.and_then(|shown| shown.split_once(' '));
            token.is_some_and(|(_, token)| platform.admit(token.trim(), None).is_some())
        }))
    }

    /// Adds the session of its MQTT client, before other clients can connect.
    pub(super) fn add_internal_sessions(&self, sessions: &mut InternalSessions<'_>) {
        if let Some(platform) = &self.platform {
            platform_client::add_internal_sessions(platform, sessions);
        }
    }

    /// Connects its MQTT client, which publishes changes, and receives what receivers and sensors publish.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn go_live(&mut self, handoff: Handoff) -> anyhow::Result<()> {
        if let (Some(platform), Some(announcements)) = (&self.platform, self.announcements.take()) {
            self.client = Some(platform_client::start(platform.clone(), announcements, handoff)?);
        }
        Ok(())
    }

    /// Lets the broker close connections whose token was revoked, and those whose user has fewer rights than before.
    pub(super) fn watch(&self, broker: &Arc<Broker>) {
        let Some(platform) = &self.platform else { return };
        // A weak reference: the broker has a reference to the platform, and would never be dropped.
        let broker = Arc::downgrade(broker);
        platform.on_loss(move || {
            if let Some(broker) = broker.upgrade() {
                broker.recheck_external_users();
            }
        });
    }

    /// The routes of its API.
    pub(super) fn router(&self) -> axum::Router {
        self.platform.as_ref().map(Platform::router).unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // First, because it would try again for ever to store what it has received.
        drop(self.client.take());
        if let Some(platform) = &self.platform {
            platform.close();
        }
    }
}
