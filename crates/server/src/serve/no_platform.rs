//! Replaces `platform` in builds without that feature: there is none.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

use fulmar_broker::Broker;
use fulmar_broker::auth::ExternalUsers;
use fulmar_http::{AnswerSpace, Knows};
use fulmar_store::SqliteStorage;
use fulmar_transport::Handoff;

use super::internal_sessions::InternalSessions;
use super::shared_rows::SharedRows;
use crate::config::Config;

/// Never exists.
#[derive(Clone, Debug)]
pub(super) struct Platform(Infallible);

/// Its counters, which do not exist.
pub(super) struct PlatformCounts {
    pub(super) measurements_stored: u64,
    pub(super) measurements_duplicate: u64,
    pub(super) measurements_rejected: u64,
    pub(super) messages_malformed: u64,
    pub(super) frames_refused: u64,
    pub(super) photo_bytes: u64,
    pub(super) photo_limit_bytes: u64,
    pub(super) photos_refused: u64,
}

impl Platform {
    pub(super) fn vouch(&self, _: &str, _: &str, _: &[u8]) -> Option<String> {
        match self.0 {}
    }

    #[cfg(feature = "admin")]
    pub(super) fn knows(&self, _: &str) -> bool {
        match self.0 {}
    }

    pub(super) fn has_no_users(&self) -> bool {
        match self.0 {}
    }

    /// Like the others, it is never called.
    #[cfg(feature = "admin")]
    pub(super) fn nobody<T>(&self) -> T {
        match self.0 {}
    }

    pub(super) fn counts(&self) -> PlatformCounts {
        match self.0 {}
    }
}

/// None.
pub(super) struct Running;

impl Running {
    pub(super) fn open(
        _: &Config,
        _: &Path,
        _: &AnswerSpace,
        _: Option<&mut SharedRows>,
    ) -> anyhow::Result<Running> {
        Ok(Running)
    }

    pub(super) fn external_users(&self) -> anyhow::Result<Option<Arc<dyn ExternalUsers>>> {
        Ok(None)
    }

    pub(super) fn get(&self) -> Option<&Platform> {
        None
    }

    pub(super) fn knows(&self) -> Option<Knows> {
        None
    }

    pub(super) fn add_internal_sessions(&self, _: &mut InternalSessions<'_>) {}

    pub(super) fn go_live(&mut self, _: Handoff) -> anyhow::Result<()> {
        Ok(())
    }

    pub(super) fn watch(&self, _: &Arc<Broker>) {}

    pub(super) fn router(&self, _: Option<&Arc<SqliteStorage>>) -> axum::Router {
        axum::Router::new()
    }
}
