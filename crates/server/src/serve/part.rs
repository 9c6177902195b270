//! What a part of a server is. The core (storage, broker, listeners for MQTT and HTTP) opens the parts of `parts`, starts
//! them in that order, and ends them in the reverse order. Parts do not know each other: what one has for others, or for
//! the core, it offers ([`Offers`]).

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, OnceLock};

use axum::Router;
use fulmar_broker::auth::ExternalUsers;
use fulmar_broker::storage::Restored;
use fulmar_broker::{Broker, PublishHook, Timestamp};
use fulmar_http::{AnswerSpace, Knows};
use fulmar_identity::{Identities, control};
use fulmar_store::SqliteStorage;
use fulmar_text::metrics::Metrics;
use fulmar_transport::{Clock, Handoff};

use super::certificates::Certificates;
use super::cluster_status::ClusterStatus;
use super::gateway::GatewayStatus;
use super::http::{AccountUse, DiskUse};
use super::internal_sessions::InternalSessions;
use super::landing_page::Listeners;
use super::otlp::SpanMaker;
use super::shared_rows::SharedRows;
use fulmar_config::Config;

/// A part of a server, which a function `open` has made from the configuration, without an effect on others. Dropping it
/// ends it, after clients have been disconnected; what it was given by then, it has processed or stored.
pub(super) trait Part: Send {
    /// Adds the sessions in the broker that it needs, before the first client can connect.
    fn add_internal_sessions(&self, _sessions: &mut InternalSessions<'_>) {}

    /// Begins its work. The broker and its listeners run.
    ///
    /// # Errors
    /// An address cannot be bound, or a thread cannot be started.
    fn go_live(&mut self, _core: &Core) -> anyhow::Result<()> {
        Ok(())
    }

    /// Its routes at the `https` listeners.
    fn routes(&self, _core: &Core) -> Router {
        Router::new()
    }

    /// Its listeners, by their names in `[listeners]`.
    fn bound(&self) -> Vec<(&'static str, SocketAddr)> {
        Vec::new()
    }

    /// Reports its metrics.
    fn metrics(&self) -> Option<Source> {
        None
    }

    /// Does what needs all listeners and metrics.
    ///
    /// # Errors
    /// A thread cannot be started.
    fn ready(&mut self, _core: &Core) -> anyhow::Result<()> {
        Ok(())
    }

    /// Does at once what it would try again later (SIGHUP).
    fn retry(&self) {}

    /// Accepts no more work. Clients are disconnected afterwards.
    fn stop_accepting(&mut self) {}
}

/// Reports metrics, in any thread.
pub(super) type Source = Arc<dyn Fn(&mut Metrics) + Send + Sync>;

/// All sources of metrics, once everything runs.
#[derive(Clone, Default)]
pub(super) struct Sources(Arc<OnceLock<Vec<Source>>>);

impl Sources {
    pub(super) fn set(&self, sources: Vec<Source>) {
        // Once per server.
        drop(self.0.set(sources));
    }

    /// All metrics now.
    pub(super) fn collect(&self) -> Metrics {
        let mut metrics = Metrics::default();
        for report in self.0.get().into_iter().flatten() {
            report(&mut metrics);
        }
        metrics
    }
}

/// What parts are opened with.
pub(super) struct Opening<'a> {
    pub(super) config: &'a Config,
    /// The data folder, which is locked.
    pub(super) data: &'a Path,
    pub(super) certificates: &'a Certificates,
    pub(super) restored: &'a Restored,
    /// What the nodes of a cluster share besides the broker's state.
    pub(super) shared: Option<&'a mut SharedRows>,
    pub(super) answers: &'a AnswerSpace,
    pub(super) first_administrator: Option<PathBuf>,
    pub(super) offers: Offers,
}

/// What parts have for each other and for the core.
pub(super) struct Offers {
    /// The log of changes.
    pub(super) log: Arc<dyn ChangeLog>,
    #[cfg(feature = "admin")]
    pub(super) administration_log: Option<super::admin::ChangeLog>,
    /// Asked in this order where clients' publications enter the broker.
    pub(super) hooks: Vec<Box<dyn PublishHook>>,
    pub(super) external_users: Option<Arc<dyn ExternalUsers>>,
    /// Recognises requests with a token.
    pub(super) knows: Option<Knows>,
    /// Makes spans of messages with a recorded trace.
    pub(super) spans: Option<Arc<SpanMaker>>,
    /// `None` where there is no `[upstream]`.
    pub(super) gateway: Option<GatewayStatus>,
    /// True if the platform, where there is one, has users.
    pub(super) has_users: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
    /// Accounts of `[limits] disk` inside files that others count.
    pub(super) disk: Option<Arc<dyn Fn() -> AccountUse + Send + Sync>>,
    /// Answers a CA that checks who has a name; present where certificates are ordered.
    pub(super) challenges: Option<Arc<rustls::ServerConfig>>,
    #[cfg(feature = "admin")]
    pub(super) administrators: Option<Arc<dyn super::admin::MoreAdministrators>>,
    /// Routes of the administration socket.
    pub(super) local_routes: Router,
}

impl Default for Offers {
    fn default() -> Offers {
        Offers {
            log: Arc::new(()),
            #[cfg(feature = "admin")]
            administration_log: None,
            hooks: Vec::new(),
            external_users: None,
            knows: None,
            spans: None,
            gateway: None,
            has_users: None,
            disk: None,
            challenges: None,
            #[cfg(feature = "admin")]
            administrators: None,
            local_routes: Router::new(),
        }
    }
}

/// The running core, for the parts.
pub(super) struct Core {
    pub(super) config: Config,
    pub(super) data: PathBuf,
    pub(super) clock: Clock,
    pub(super) broker: Arc<Broker>,
    pub(super) handoff: Handoff,
    /// `None` when storage is off. The core closes it.
    pub(super) store: Option<Arc<SqliteStorage>>,
    pub(super) certificates: Certificates,
    pub(super) identities: Arc<Identities>,
    pub(super) answers: AnswerSpace,
    pub(super) disk: DiskUse,
    /// When the first list of revoked certificates expires, in seconds since the Unix epoch; 0 without any.
    pub(super) crl_next_update: Arc<AtomicI64>,
    pub(super) cluster: Option<Arc<ClusterStatus>>,
    /// All listeners, once they are bound.
    pub(super) listeners: Listeners,
    pub(super) sources: Sources,
    pub(super) offers: Offers,
}

/// A log of what administrators change, and the bans in it. `()` keeps none.
pub(super) trait ChangeLog: control::ChangeLog {
    /// Sets the stored bans.
    ///
    /// # Errors
    /// They cannot be read.
    fn apply_bans(&self, _broker: &Broker, _now: Timestamp) -> anyhow::Result<()> {
        Ok(())
    }

    /// Logs that the server itself adds a user, and adds it.
    ///
    /// # Errors
    /// Those of `add`, and of the log.
    fn user_added(
        &self,
        _name: &str,
        add: &mut dyn FnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        add()
    }
}

impl ChangeLog for () {}
