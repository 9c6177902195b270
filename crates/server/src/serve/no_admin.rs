//! Replaces `admin` in builds without that feature: there is no administration API.

use std::path::Path;
use std::sync::Arc;

use fulmar_broker::Broker;
use fulmar_http::AnswerSpace;
use fulmar_identity::Identities;
use fulmar_mirror::Shared;
use fulmar_store::SqliteStorage;
use fulmar_transport::Handoff;

use super::platform::Platform;
use super::watched::Watched;
use crate::config::Config;

/// None.
pub(super) struct Running;

impl Running {
    pub(super) fn start(
        _: &Arc<Broker>,
        _: (&Path, &Arc<Identities>, Option<Shared>),
        _: Option<&Platform>,
        _: (Handoff, &Config, Option<&Arc<SqliteStorage>>),
        _: &AnswerSpace,
        _: Watched,
    ) -> anyhow::Result<Running> {
        Ok(Running)
    }

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
