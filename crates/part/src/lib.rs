//! What a part of a server is. The core (storage, broker, listeners for MQTT and HTTP) opens the parts of `parts`, starts
//! them in that order, and ends them in the reverse order. Parts do not know each other: what one has for others, or for
//! the core, it offers ([`Offers`]).

pub mod certificates;
pub mod cluster_status;
pub mod consumer;
pub mod disk;
pub mod http_client;
pub mod internal_sessions;
pub mod local_client;
pub mod machine;
pub mod psk;
pub mod shared_rows;
pub mod thread;
pub mod timed_connector;
pub mod webtransport_certificate;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, OnceLock};

use axum::Router;
use fulmar_broker::auth::{ExternalUsers, LoginHook, Logins};
use fulmar_broker::storage::Restored;
use fulmar_broker::{Broker, PublishHook, Tracer};
use fulmar_gateway::outbox::Stored;
use fulmar_http::{AnswerSpace, Knows};
use fulmar_identity::{ChangeLog, Identities};
use fulmar_store::SqliteStorage;
use fulmar_text::metrics::Metrics;
use fulmar_transport::{Clock, Handoff};

use crate::certificates::Certificates;
use crate::cluster_status::ClusterStatus;
use crate::disk::{AccountUse, DiskUse};
use crate::internal_sessions::InternalSessions;
use crate::shared_rows::SharedRows;
use fulmar_config::Config;

/// A part of a server, which a function `open` has made from the configuration, without an effect on others. Dropping it
/// ends it, after clients have been disconnected; what it was given by then, it has processed or stored.
pub trait Part: Send {
    /// Adds the sessions in the broker that it needs, before the first client can connect.
    fn add_internal_sessions(&self, _sessions: &mut InternalSessions<'_>) {}

    /// Begins its work. The broker and its listeners run.
    ///
    /// # Errors
    /// An address cannot be bound, or a thread cannot be started.
    fn go_live(&mut self, _core: &Core) -> anyhow::Result<()> {
        Ok(())
    }

    /// Returns the part's routes at the `https` listeners.
    fn routes(&self, _core: &Core) -> Router {
        Router::new()
    }

    /// Returns the part's listeners, by their names in `[listeners]`.
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

/// Every listener with its address, once they are bound.
pub type Listeners = Arc<OnceLock<Vec<(&'static str, SocketAddr)>>>;

/// The setting of an address that cannot be bound, as file key and environment variable.
pub fn where_to_change(key: &str) -> String {
    format!("[listeners] {key} (or FULMAR_LISTENERS__{})", key.to_uppercase())
}

/// Makes spans of messages with a recorded trace.
pub trait Spans: Tracer {
    /// The upstream broker at `url` has acknowledged messages of the outbox of the gateway with this name.
    fn forwarded(&self, messages: &[Stored], gateway: &str, url: &str);
}

/// The state of the upstream brokers.
pub trait Upstreams: Send + Sync {
    /// True if they accept all messages, and text for the operator. A refusal requires the operator; a link that is down
    /// does not.
    fn health(&self) -> (bool, String);

    /// Each of them, for the administration API.
    #[cfg(feature = "admin")]
    fn list(&self) -> Vec<fulmar_admin::Upstream>;
}

/// True if nothing requires the operator, and text for the operator.
pub type Health = Arc<dyn Fn() -> (bool, String) + Send + Sync>;

/// Reports metrics, in any thread.
pub type Source = Arc<dyn Fn(&mut Metrics) + Send + Sync>;

/// All sources of metrics, once everything runs.
#[derive(Clone, Default)]
pub struct Sources(Arc<OnceLock<Vec<Source>>>);

impl Sources {
    /// Sets them, once per server.
    pub fn set(&self, sources: Vec<Source>) {
        // Once per server.
        drop(self.0.set(sources));
    }

    /// All metrics now.
    pub fn collect(&self) -> Metrics {
        let mut metrics = Metrics::default();
        for report in self.0.get().into_iter().flatten() {
            report(&mut metrics);
        }
        metrics
    }
}

/// Context in which parts are opened.
pub struct Opening<'a> {
    /// The configuration of the server.
    pub config: &'a Config,
    /// The data folder, which is locked.
    pub data: &'a Path,
    /// TLS of the listeners.
    pub certificates: &'a Certificates,
    /// The broker's state as it was stored.
    pub restored: &'a Restored,
    /// Rows that the nodes of a cluster share besides the broker's state.
    pub shared: Option<&'a mut SharedRows>,
    /// The store of people and devices.
    pub identities: &'a Arc<Identities>,
    /// Logins by password.
    pub logins: &'a Arc<Logins>,
    /// Memory for answers that clients have not taken yet.
    pub answers: &'a AnswerSpace,
    /// The file of the administrator that this start has created.
    pub first_administrator: Option<PathBuf>,
    /// Offers of the parts that are open.
    pub offers: Offers,
}

/// Services that parts have for each other and for the core.
#[derive(Default)]
pub struct Offers {
    /// The log of changes; `None` where none is kept.
    pub log: Option<Arc<dyn ChangeLog>>,
    /// Where the log of changes is stored.
    #[cfg(feature = "admin")]
    pub administration_log: Option<fulmar_admin::Store>,
    /// Asked in this order where clients' publications enter the broker.
    pub hooks: Vec<Box<dyn PublishHook>>,
    /// Users that the broker asks another part about.
    pub external_users: Option<Arc<dyn ExternalUsers>>,
    /// Decides about logins that the broker does not know.
    pub login_hook: Option<Arc<dyn LoginHook>>,
    /// Recognises requests with a token.
    pub knows: Option<Knows>,
    /// Makes spans of messages with a recorded trace.
    pub spans: Option<Arc<dyn Spans>>,
    /// State of the sinks; `None` where there are none.
    pub sinks: Option<Health>,
    /// `None` where there is no `[upstream]`.
    pub gateway: Option<Arc<dyn Upstreams>>,
    /// True if the platform, where there is one, has users.
    pub has_users: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
    /// Accounts of `[limits] disk` inside files that others count.
    pub disk: Option<Arc<dyn Fn() -> AccountUse + Send + Sync>>,
    /// Answers a CA that checks who has a name; present where certificates are ordered.
    pub challenges: Option<Arc<rustls::ServerConfig>>,
    /// Routes of the administration socket.
    pub local_routes: Router,
}

/// The running core, for the parts.
pub struct Core {
    /// The configuration of the server.
    pub config: Config,
    /// The data folder.
    pub data: PathBuf,
    /// The broker's time.
    pub clock: Clock,
    /// The broker.
    pub broker: Arc<Broker>,
    /// The way to its workers, for clients inside the process.
    pub handoff: Handoff,
    /// `None` when storage is off. The core closes it.
    pub store: Option<Arc<SqliteStorage>>,
    /// TLS of the listeners.
    pub certificates: Certificates,
    /// The store of people and devices.
    pub identities: Arc<Identities>,
    /// Memory for answers that clients have not taken yet.
    pub answers: AnswerSpace,
    /// Use of the data folder.
    pub disk: DiskUse,
    /// When the first list of revoked certificates expires, in seconds since the Unix epoch; 0 without any.
    pub crl_next_update: Arc<AtomicI64>,
    /// `None` where there is no `[cluster]`.
    pub cluster: Option<Arc<ClusterStatus>>,
    /// All listeners, once they are bound.
    pub listeners: Listeners,
    /// Sources of metrics, once everything runs.
    pub sources: Sources,
    /// Offers of the parts.
    pub offers: Offers,
}
