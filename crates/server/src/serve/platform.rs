//! The platform inside the broker's process: opened with the data folder if there is an HTTPS listener,
//! closed when all requests have been answered. Its users are the broker's external users.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use fulmar_broker::Broker;
use fulmar_broker::auth::ExternalUsers;
use fulmar_broker::storage::Storage as _;
use fulmar_http::{AnswerSpace, Knows};
use fulmar_platform::{Announcement, Loss, SharedPlatform};
pub(super) use fulmar_platform::{Platform, PlatformCounts};
use fulmar_store::SqliteStorage;
use fulmar_transport::Handoff;
use http::header;
use tokio::sync::mpsc;

use super::internal_sessions::InternalSessions;
use super::lease_gate::closed_unless;
use super::platform_client::{self, PlatformClient};
use super::secrets;
use super::shared_rows::{Database, SharedRows};
use super::users::Users;
use crate::config::Config;

/// The platform, if it is enabled. Dropping this finishes requests and writes, and closes the database.
pub(super) struct Running {
    platform: Option<Platform>,
    /// Changes that are still to be published.
    announcements: Option<mpsc::Receiver<Announcement>>,
    client: Option<PlatformClient>,
    /// Whether it is a cluster's.
    is_shared: bool,
}

impl Running {
    /// Opens the platform, which is the cluster's with `shared`.
    ///
    /// # Errors
    /// Its database or secret cannot be opened, or nobody could log in at a listener.
    pub(super) fn open(
        config: &Config,
        data: &Path,
        answers: &AnswerSpace,
        shared: Option<&mut SharedRows>,
    ) -> anyhow::Result<Running> {
        if !config.has_platform() {
            let (platform, announcements, client) = (None, None, None);
            return Ok(Running { platform, announcements, client, is_shared: false });
        }
        secrets::read(&data.join(secrets::PLATFORM))?;
        let is_shared = shared.is_some();
        let settings = fulmar_platform::Settings {
            disk: config.platform_part(),
            answers: answers.clone(),
            ..config.platform.settings()?
        };
        let opened = match shared {
            None => Platform::open(data, settings),
            Some(shared) => {
                let rows = shared.follow(Database::Platform);
                let shared = SharedPlatform { rows, files: shared.take(Database::Files) };
                Platform::open_shared(data, settings, shared)
            }
        };
        let (platform, announcements) = opened.context("platform")?;
        if platform.has_no_users() {
            config.check_ways_in()?;
            tracing::info!(
                "the platform for meters and homes has no users yet; to use it, create one with \
                 `fulmar user add NAME --admin --data {}`",
                data.display()
            );
        }
        let (platform, announcements) = (Some(platform), Some(announcements));
        Ok(Running { platform, announcements, client: None, is_shared })
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
            let (_, token) = shown?.split_once(' ')?;
            platform.admit(token.trim(), None).map(|admitted| admitted.user.into())
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
        broker.delete_sessions_of_external_users(|user| !platform.knows(user));
        // A weak reference: the broker has a reference to the platform, and would never be dropped.
        let broker = Arc::downgrade(broker);
        platform.on_loss(move |losers| {
            if let Some(broker) = broker.upgrade() {
                broker.recheck_external_users(|user| losers.contains_key(user));
                broker.delete_sessions_of_external_users(|user| {
                    losers.get(user) == Some(&Loss::Removed)
                });
            }
        });
    }

    /// The routes of its API.
    pub(super) fn router(&self, store: Option<&Arc<SqliteStorage>>) -> axum::Router {
        let router = self.platform.as_ref().map(Platform::router).unwrap_or_default();
        let Some(store) = store.filter(|_| self.is_shared) else { return router };
        let store = Arc::downgrade(store);
        let may = move || store.upgrade().is_some_and(|store| store.may_acknowledge());
        closed_unless(may, router)
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
