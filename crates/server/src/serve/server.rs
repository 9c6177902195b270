//! A running server: connects configuration, certificates, storage, broker and listeners, and ends them in order.
//!
//! First, everything that can be wrong is read and checked, as far as that has no effect on others; then the data
//! folder is locked; then the listeners are bound. Only then is the server ready. Stopping has the reverse order. This
//! module contains no logic but this order.
//!
//! Nothing here concerns the process: signals, log and standard output are the caller's, so that a program can run
//! several servers.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use fulmar_broker::auth::AccessControl;
use fulmar_broker::{Broker, BrokerConfig, Tracer};
use fulmar_certs::files;
use fulmar_http::{AnswerSpace, BodyBudget, Endpoint, Plain};
use fulmar_store::SqliteStorage;
use fulmar_transport::{Clock, Handoff, QuicKeys};

use super::auth_http::AuthHook;
use super::certificates::Certificates;
use super::cluster_status::ClusterStatus;
use super::coap::{self, Coap};
use super::gateway::Gateway;
use super::identities;
use super::landing_page;
use super::mqttsn::MqttSn;
use super::otlp::Telemetry;
use super::publish_hook::IncomingHook;
use super::revocation::Revocation;
use super::shared_rows::Database;
use super::stored::{Stored, TakenOver, cluster_status};
use super::watched::Watched;
use super::{
    acme, admin, check, first_administrator, http, http_publish, listeners, platform,
    replaced_hashes, secrets,
};
use crate::config::{Config, set};
use crate::exit::Usage;

/// A server: broker, listeners, and the gateway and the platform where they are configured.
///
/// It runs on threads of its own. Several servers can run in one process, each with a data folder of its own. They share
/// nothing, and change nothing of the process: they set up no log (their events go to the program's `tracing`
/// subscriber), handle no signals, read no environment except for the default data folder, and do not write to standard
/// output.
///
/// [`Server::stop`] ends it in order. Dropping it ends it at once: clients are disconnected without waiting for what
/// they have not received, everything that was acknowledged is stored, and an error of storage is only logged. Both
/// return when all threads of the server have ended, except those that check a password or look up a name at that
/// moment.
///
/// The functions wait for disk and threads: in async code, call them where blocking is allowed, such as tokio's
/// `spawn_blocking`.
pub struct Server {
    /// The configuration with which it was started.
    started: Config,
    bound: Addresses,
    first_administrator: Option<PathBuf>,
    /// `None` once it has ended.
    parts: Option<Parts>,
}

fulmar_text::opaque_debug!(Server { bound });

impl Server {
    /// Starts a server, and returns when every listener is bound.
    ///
    /// # Errors
    /// The configuration is wrong or a file that it names cannot be read ([`Usage`](crate::Usage), which has the key),
    /// the data folder cannot be used or is in use by another server, or an address cannot be bound (the error has key
    /// and address). Nothing is left bound or running.
    pub fn start(config: Config) -> anyhow::Result<Server> {
        if config.cluster.is_on() {
            let text = "[cluster]: a node of a cluster stands by most of the time; run it with `fulmar serve`";
            return Err(Usage(text.to_owned()).into());
        }
        Server::start_with(config, None)
    }

    /// Starts the server of a node that has taken over.
    ///
    /// # Errors
    /// As [`Server::start`].
    #[cfg(feature = "cluster")]
    pub(super) fn start_in_cluster(
        config: Config,
        taken_over: TakenOver,
    ) -> anyhow::Result<Server> {
        Server::start_with(config, Some(taken_over))
    }

    fn start_with(config: Config, taken_over: Option<TakenOver>) -> anyhow::Result<Server> {
        let config = config.complete()?;
        let opened = Opened::open(&config, taken_over)?;
        let first_administrator = opened.first_administrator.clone();
        let (parts, bound) = Parts::start(&config, opened)?;
        Ok(Server { started: config, bound, first_administrator, parts: Some(parts) })
    }

    /// Every bound listener by its name in `[listeners]`, with the port that the system chose where the configuration
    /// has port 0. A listener with several addresses is there several times.
    #[must_use]
    pub fn bound(&self) -> &[(&'static str, SocketAddr)] {
        &self.bound
    }

    /// The file with name and password of the administrator that this start has created, because nobody could log in at a
    /// listener that other machines reach. Show it to the operator, and remove it.
    #[must_use]
    pub fn first_administrator(&self) -> Option<&Path> {
        self.first_administrator.as_deref()
    }

    /// The first address of a listener; `None` if it has none.
    #[must_use]
    pub fn address(&self, listener: &str) -> Option<SocketAddr> {
        self.bound.iter().find(|(name, _)| *name == listener).map(|(_, address)| *address)
    }

    /// Uses another configuration as far as that is possible without a restart, and reads the files that it names again:
    /// certificate, client CAs, revocation lists, passwords, token keys and access rules. Clients stay connected; the new rules apply to
    /// them. Returns the other keys that have changed, as `section.key`, which require a restart.
    ///
    /// # Errors
    /// As for [`Server::start`]; then nothing has changed.
    pub fn reload(&self, config: &Config) -> anyhow::Result<Vec<String>> {
        let config = config.clone().complete()?;
        let parts = self.parts()?;
        let mut access_control = config.access_control()?;
        let data = data_dir(&self.started)?;
        replaced_hashes::keep(&access_control, &data)?;
        parts.revocation.replace(&config.tls, || parts.certificates.reload(&config))?;
        parts.identities.add_to(&mut access_control, (&config.auth, &data))?;
        parts.broker.set_access_control(access_control);
        Ok(config.changes_requiring_restart(&self.started))
    }

    /// Stops accepting clients, gives those that are connected `[server] drain_timeout_s` for what they have not
    /// received yet, disconnects them, and closes storage.
    ///
    /// # Errors
    /// Storage could not write everything that it had accepted.
    pub fn stop(self) -> anyhow::Result<()> {
        self.stop_within(Duration::MAX)
    }

    /// The same, with at most this much time for the clients.
    ///
    /// # Errors
    /// See [`Server::stop`].
    pub(super) fn stop_within(mut self, limit: Duration) -> anyhow::Result<()> {
        let drain = Duration::from_secs(u64::from(self.started.server.drain_timeout_s));
        self.parts.take().map_or(Ok(()), |parts| parts.end(drain.min(limit)))
    }

    /// Tries again at once to get a certificate, if the last order has failed.
    pub(crate) fn retry_certificate_order(&self) {
        if let Some(acme) = self.parts.as_ref().and_then(|parts| parts.acme.as_ref()) {
            acme.again();
        }
    }

    /// The broker, for what belongs to the process.
    ///
    /// # Errors
    /// The server has ended.
    pub(super) fn broker(&self) -> anyhow::Result<&Arc<Broker>> {
        Ok(&self.parts()?.broker)
    }

    /// The workers, to be asked whether they work.
    pub(super) fn workers(&self) -> Option<Handoff> {
        self.parts.as_ref().map(|parts| parts.running.server.handoff())
    }

    fn parts(&self) -> anyhow::Result<&Parts> {
        self.parts.as_ref().context("the server has stopped")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(parts) = self.parts.take()
            && let Err(error) = parts.end(Duration::ZERO)
        {
            tracing::error!("{error:#}");
        }
    }
}

/// What is opened before the listeners, and has no effect on others.
struct Opened {
    data: PathBuf,
    clock: Clock,
    workers: usize,
    certificates: Certificates,
    keys: QuicKeys,
    stored: Stored,
    gateway: Option<Gateway>,
    telemetry: Option<Telemetry>,
    /// Memory for answers that clients have not taken yet, of both APIs and the `http` port.
    answers: AnswerSpace,
    platform: platform::Running,
    identities: identities::Running,
    /// Bans and the log of changes.
    log: admin::ChangeLog,
    access_control: AccessControl,
    auth_hook: Option<Arc<AuthHook>>,
    cluster: Option<Arc<ClusterStatus>>,
    first_administrator: Option<PathBuf>,
    internal_sessions: Vec<Box<str>>,
}

impl Opened {
    /// Reads and checks everything, and locks the data folder.
    fn open(config: &Config, taken_over: Option<TakenOver>) -> anyhow::Result<Opened> {
        config.check_files()?;
        let mut access_control = config.access_control()?;
        let data = data_dir(config)?;
        replaced_hashes::keep(&access_control, &data)?;
        let certificates = Certificates::open(config, &data)?;
        let auth_hook = AuthHook::start(&config.auth.http)?.map(Arc::new);
        for warning in check::exposed::check(config, &data) {
            tracing::warn!(next = warning.next, "{}", warning.text);
        }
        let keys = secrets::quic_keys(&data)?;
        if let Some(folder) = set(&config.quic.qlog_dir) {
            files::make_private_dir(folder)?;
        }
        let workers = match config.server.workers {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            workers => workers,
        };
        let cluster = cluster_status(taken_over.as_ref());
        let clock = Clock::start();
        let mut stored = Stored::open(config, &data, taken_over, clock)?;
        let mut shared = stored.take_shared();
        let gateway = Gateway::open(config, &data, (stored.restored(), shared.as_ref()));
        let gateway = gateway.context("gateway")?;
        let administration = shared.as_mut().map(|shared| shared.take(Database::Administration));
        let log = admin::ChangeLog::open(&data, administration)?;
        // The data folder is locked, and everything else can be used.
        let first_administrator = match &shared {
            // The cluster has users, or needs none: `fulmar cluster init` has checked it.
            Some(_) => None,
            None => first_administrator::create(config, &data, &log)?,
        };
        let telemetry = Telemetry::open(&config.otlp)?;
        let identities = shared.as_mut().map(|shared| shared.take(Database::Identities));
        let identities = identities::Running::open(&data, identities)?;
        identities.add_to(&mut access_control, (&config.auth, &data))?;
        let answers = AnswerSpace::new(config.memory().answers);
        let platform = platform::Running::open(config, &data, &answers, shared.as_mut())?;
        let internal_sessions = stored.add_internal_sessions(gateway.as_ref(), &platform);
        Ok(Opened {
            data,
            clock,
            workers,
            certificates,
            keys,
            stored,
            gateway,
            telemetry,
            answers,
            platform,
            identities,
            log,
            access_control,
            auth_hook,
            cluster,
            first_administrator,
            internal_sessions,
        })
    }
}

/// What runs.
struct Parts {
    acme: Option<acme::Running>,
    /// Its socket.
    admin: admin::Running,
    /// The `http` listener.
    operator: Plain,
    /// After the listeners: what they report is sent.
    telemetry: Option<Telemetry>,
    /// The `https` and `webtransport` listeners.
    web: Endpoint,
    coap: Coap,
    mqtt_sn: MqttSn,
    /// The listeners for MQTT clients, and the workers.
    running: listeners::Running,
    platform: platform::Running,
    gateway: Option<Gateway>,
    identities: identities::Running,
    broker: Arc<Broker>,
    revocation: Revocation,
    certificates: Certificates,
    store: Option<Arc<SqliteStorage>>,
}

/// Every listener with its actual address.
type Addresses = Vec<(&'static str, SocketAddr)>;

impl Parts {
    /// Binds the listeners. After an error, everything ends by being dropped.
    fn start(config: &Config, opened: Opened) -> anyhow::Result<(Parts, Addresses)> {
        let Opened {
            data,
            clock,
            workers,
            certificates,
            keys,
            stored,
            mut gateway,
            answers,
            mut platform,
            identities,
            ..
        } = opened;
        let mut telemetry = opened.telemetry;
        let spans = telemetry.as_ref().and_then(Telemetry::maker);
        let broker_config = BrokerConfig {
            workers,
            limits: config.limits.broker(&config.storage, config.memory(), workers),
            access_control: AccessControl {
                external_users: platform.external_users()?,
                hook: opened.auth_hook.clone().map(|hook| hook as _),
                ..opened.access_control
            },
            sys_interval_s: config.sys.interval_s,
            client_statistics: config.sys.clients,
            internal_sessions: opened.internal_sessions,
        };
        let (store, broker) = stored.into_broker(broker_config, clock.now())?;
        opened.log.apply_bans(&broker, Clock::wall())?;
        if let Some(hook) = &opened.auth_hook {
            hook.watch(&broker);
        }
        let stamps = gateway.as_ref().map(Gateway::stamps);
        if let Some(hook) = IncomingHook::new(stamps, platform.get().cloned()) {
            broker.set_publish_hook(Arc::new(hook));
        }
        let revocation = Revocation::start(&config.tls, &certificates.tls, &broker)?;
        if let Some(spans) = &spans {
            broker.set_tracer(Arc::clone(spans) as Arc<dyn Tracer>);
        }
        let quic = config.quic_settings(keys.clone());
        let running = listeners::start(&broker, workers, config, &certificates, &quic, clock)?;
        identities.go_live(&broker, Arc::new(opened.log.clone()));
        platform.watch(&broker);
        opened.log.watch_platform(platform.get());
        platform.go_live(running.server.handoff())?;
        if let Some(gateway) = &mut gateway {
            gateway.go_live(&running.server.handoff(), spans.as_ref())?;
        }
        let orders = certificates.orders();
        let challenges = orders.as_ref().map(acme::Orders::tls).transpose()?;
        let bodies = BodyBudget::new(config.buffered_bodies());
        let tls = (&certificates, challenges, keys);
        let shown = landing_page::Listeners::default();
        let disk = http::DiskUse::new(config, &data, platform.get());
        let admin = admin::Running::start(
            &broker,
            (&data, identities.get(), opened.log),
            platform.get(),
            (running.server.handoff(), config, store.as_ref()),
            &answers,
            Watched {
                listeners: Arc::clone(&shown),
                gateway: gateway.as_ref().map(Gateway::status),
                cluster: opened.cluster.clone(),
                machine: certificates.machine(&data),
                disk: disk.clone(),
                has_acme: orders.is_some(),
                is_development: set(&config.tls.cert).is_none(),
                webtransport: (!config.listeners.webtransport().is_empty())
                    .then(|| Arc::clone(&certificates.webtransport_certificate.identity)),
                crl_next_update: revocation.next_update(),
            },
        )?;
        let apis = platform.router(store.as_ref()).merge(admin.router());
        let memory = (&bodies, broker.memory_gauge());
        let web = listeners::start_web(config, tls, &running, (&platform, apis), memory, &shown)?;
        let wiring = coap::Wiring {
            broker: &broker,
            handoff: running.server.handoff(),
            clock,
            certificates: &certificates,
        };
        let coap = Coap::start(config, wiring)?;
        let mqtt_sn = MqttSn::start(config, &broker, running.server.handoff(), clock)?;
        let state = http::Operated {
            broker: Arc::clone(&broker),
            store: store.clone(),
            tickets: Arc::clone(&certificates.tickets),
            web: Arc::clone(web.metrics()),
            proxies: Arc::clone(&running.proxies),
            crl_next_update: revocation.next_update(),
            auth_http: opened.auth_hook.as_ref().map(|hook| hook.counts()).unwrap_or_default(),
            gateway: gateway.as_ref().map(Gateway::status),
            coap: coap.statistics(),
            mqtt_sn: mqtt_sn.statistics(),
            publisher: http_publish::HttpPublisher::new(
                running.server.handoff(),
                config,
                "http",
                &config.listeners.http,
            ),
            answers,
            platform: platform.get().cloned(),
            machine: certificates.machine(&data),
            disk,
            otlp: telemetry.as_ref().map(Telemetry::counts),
            cluster: opened.cluster,
            workers: running.server.handoff(),
        };
        if let Some(telemetry) = &mut telemetry {
            telemetry.go_live(state.render())?;
        }
        let operator = http::start(config, &bodies, state)?;
        let bound = running.all(web.bound(), coap.bound(), mqtt_sn.bound(), operator.bound());
        let line = listeners::ready_line(shown.get_or_init(|| bound.clone()));
        tracing::info!(version = env!("CARGO_PKG_VERSION"), data = %data.display(), workers, "{line}");
        admin.show_page(web.bound().https.first().copied(), &data);
        // When the listeners can answer the CA.
        let acme = orders.map(acme::Orders::start).transpose()?;
        let parts = Parts {
            acme,
            admin,
            operator,
            telemetry,
            web,
            coap,
            mqtt_sn,
            running,
            platform,
            gateway,
            identities,
            broker,
            revocation,
            certificates,
            store,
        };
        Ok((parts, bound))
    }

    /// Ends everything, in the reverse order of the start.
    // Parts that are not compiled in have nothing to drop.
    #[cfg_attr(
        not(all(feature = "acme", feature = "admin", feature = "platform")),
        allow(clippy::drop_non_drop)
    )]
    fn end(self, drain: Duration) -> anyhow::Result<()> {
        if let Some(store) = &self.store {
            store.abandon_shares();
        }
        // First: no certificate is ordered while the broker drains.
        drop(self.acme);
        drop(self.revocation);
        drop(self.admin);
        tracing::info!(limit_s = drain.as_secs(), "draining");
        self.operator.stop_accepting();
        self.web.stop_accepting();
        drop(self.coap);
        drop(self.mqtt_sn);
        let begun = Instant::now();
        self.running.server.drain(drain);
        // MQTT clients over HTTP have been disconnected; requests have the rest of the time.
        self.web.drain(drain.saturating_sub(begun.elapsed()));
        drop(self.operator);
        drop(self.platform);
        // After the clients: the outbox or the session has their last publications.
        drop(self.gateway);
        // With the spans of all of these.
        drop(self.telemetry);
        if let Err(error) = self.certificates.tickets.close() {
            // Clients reconnect with a full handshake then; that is no failure of the broker.
            tracing::warn!("cannot store TLS tickets: {error}");
        }
        if let Some(store) = self.store {
            store.close().context("storage")?;
        }
        tracing::info!("stopped");
        Ok(())
    }
}

/// The data folder, which is created if it is missing.
fn data_dir(config: &Config) -> anyhow::Result<PathBuf> {
    let data = config.data_dir();
    files::make_private_dir(&data)
        .context("data folder (choose another one with [server] data_dir or --data)")?;
    Ok(data)
}
