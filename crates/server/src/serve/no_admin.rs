//! Replaces `admin` in builds without that feature: there is no administration API.

use std::path::Path;
use std::sync::Arc;

use fulmar_broker::{Broker, Timestamp};
use fulmar_http::AnswerSpace;
use fulmar_identity::control::{self, ControlChange};
use fulmar_identity::{Asker, Identities};
use fulmar_mirror::Shared;
use fulmar_store::SqliteStorage;
use fulmar_transport::Handoff;

use super::platform::Platform;
use super::watched::Watched;
use crate::config::Config;

/// None.
#[derive(Clone, Debug)]
pub(super) struct ChangeLog;

impl ChangeLog {
    pub(super) fn open(_: &Path, _: Option<Shared>) -> anyhow::Result<ChangeLog> {
        Ok(ChangeLog)
    }

    pub(super) fn apply_bans(&self, _: &Broker, _: Timestamp) -> anyhow::Result<()> {
        Ok(())
    }

    pub(super) fn watch_platform(&self, _: Option<&Platform>) {}

    pub(super) fn user_added<T>(
        &self,
        _: &str,
        add: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        add()
    }
}

impl control::ChangeLog for ChangeLog {
    fn begin(&self, asker: &Asker, changes: Vec<ControlChange>) -> Result<Vec<i64>, String> {
        ().begin(asker, changes)
    }

    fn end(&self, _: &[(i64, &str)]) {}
}

/// None.
pub(super) struct Running;

impl Running {
    pub(super) fn start(
        _: &Arc<Broker>,
        _: (&Path, &Arc<Identities>, ChangeLog),
        _: Option<&Platform>,
        _: (Handoff, &Config, Option<&Arc<SqliteStorage>>),
        _: &AnswerSpace,
        _: Watched,
    ) -> anyhow::Result<Running> {
        Ok(Running)
    }

    pub(super) fn show_page(&self, _: Option<std::net::SocketAddr>, _: &Path) {}

    pub(super) fn router(&self) -> axum::Router {
        axum::Router::new()
    }
}

/// None.
#[cfg(feature = "cluster")]
pub(super) struct StandBySocket;

#[cfg(feature = "cluster")]
impl StandBySocket {
    pub(super) fn start(_: &Path, _: &Arc<parking_lot::Mutex<String>>) -> Option<StandBySocket> {
        None
    }
}
