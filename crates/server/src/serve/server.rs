//! A running server: connects configuration, certificates, storage, broker and listeners, and ends them in order.
//!
//! First, everything that can be wrong is read and checked, as far as that has no effect on others; then the data
//! folder is locked; then the listeners are bound. Only then is the server ready. Stopping has the reverse order. This
//! module contains no logic but this order; `parts` has what a server has besides.
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
use fulmar_transport::{Clock, Handoff, QuicKeys};

use super::revocation::Revocation;
use super::stored::{Stored, TakenOver, cluster_status};
use super::{check, http, identities, listeners, parts, replaced_hashes, secrets};
use crate::exit::Usage;
use fulmar_config::{Config, set};
use fulmar_part::certificates::Certificates;
use fulmar_part::cluster_status::ClusterStatus;
use fulmar_part::consumer::{self, Consumer};
use fulmar_part::disk::DiskUse;
use fulmar_part::shared_rows::Database;
use fulmar_part::{Core, Listeners, Offers, Opening, Part, Sources};

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
    running: Option<Running>,
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
        Server::start_with(config, Vec::new())
    }

    /// The same with consumers of messages. One that is not there at a later start has its session, and what waits in it,
    /// until an administrator deletes the session.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_with(config: Config, consumers: Vec<Box<dyn Consumer>>) -> anyhow::Result<Server> {
        if config.cluster.is_on() {
            let text = "[cluster]: a node of a cluster stands by most of the time; run it with `fulmar serve`";
            return Err(Usage(text.to_owned()).into());
        }
        Server::start_as(config, None, consumers)
    }

    /// Starts the server of a node that has taken over.
    #[cfg(feature = "cluster")]
    pub(super) fn start_in_cluster(
        config: Config,
        taken_over: TakenOver,
    ) -> anyhow::Result<Server> {
        Server::start_as(config, Some(taken_over), Vec::new())
    }

    fn start_as(
        config: Config,
        taken_over: Option<TakenOver>,
        consumers: Vec<Box<dyn Consumer>>,
    ) -> anyhow::Result<Server> {
        let config = config.complete()?;
        let mut opened = Opened::open(&config, taken_over)?;
        opened.parts.extend(consumers.into_iter().map(consumer::open));
        let first_administrator = opened.first_administrator.clone();
        let (running, bound) = Running::start(&config, opened)?;
        Ok(Server { started: config, bound, first_administrator, running: Some(running) })
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
        let running = self.running()?;
        let mut access_control = config.access_control()?;
        let data = data_dir(&self.started)?;
        replaced_hashes::install(&access_control, &data)?;
        let Core { certificates, broker, .. } = &running.core;
        running.revocation.replace(&config.tls, || certificates.reload(&config))?;
        running.identities.add_to(&mut access_control, &config.auth, &data)?;
        broker.set_access_control(access_control);
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
    pub(super) fn stop_within(mut self, limit: Duration) -> anyhow::Result<()> {
        let drain = Duration::from_secs(u64::from(self.started.server.drain_timeout_s));
        self.running.take().map_or(Ok(()), |running| running.end(drain.min(limit)))
    }

    /// Tries again at once what has failed and would be tried later, such as the order of a certificate.
    pub(crate) fn retry(&self) {
        let parts = self.running.as_ref().map(|running| &running.parts);
        parts.into_iter().flatten().for_each(|part| part.retry());
    }

    /// The broker, for what belongs to the process.
    ///
    /// # Errors
    /// The server has ended.
    pub(super) fn broker(&self) -> anyhow::Result<&Arc<Broker>> {
        Ok(&self.running()?.core.broker)
    }

    /// The workers, to be asked whether they work.
    pub(super) fn workers(&self) -> Option<Handoff> {
        self.running.as_ref().map(|running| running.core.handoff.clone())
    }

    fn running(&self) -> anyhow::Result<&Running> {
        self.running.as_ref().context("the server has stopped")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(running) = self.running.take()
            && let Err(error) = running.end(Duration::ZERO)
        {
            tracing::error!("{error:#}");
        }
    }
}

/// A server that runs.
struct Running {
    parts: Vec<Box<dyn Part>>,
    /// The `http` listener.
    operator: Plain,
    /// The `https` and `webtransport` listeners.
    web: Endpoint,
    /// The listeners for MQTT clients, and the workers.
    mqtt: listeners::Running,
    identities: identities::Running,
    revocation: Revocation,
    core: Core,
}

/// Every listener with its actual address.
type Addresses = Vec<(&'static str, SocketAddr)>;

/// State that is opened before the listeners, and has no effect on others.
struct Opened {
    parts: Vec<Box<dyn Part>>,
    offers: Offers,
    data: PathBuf,
    clock: Clock,
    workers: usize,
    certificates: Certificates,
    keys: QuicKeys,
    stored: Stored,
    /// Memory for answers that clients have not taken yet, of both APIs and the `http` port.
    answers: AnswerSpace,
    identities: identities::Running,
    access_control: AccessControl,
    cluster: Option<Arc<ClusterStatus>>,
    first_administrator: Option<PathBuf>,
}

impl Opened {
    /// Reads and checks everything, and locks the data folder.
    fn open(config: &Config, taken_over: Option<TakenOver>) -> anyhow::Result<Opened> {
        config.check_files()?;
        let mut access_control = config.access_control()?;
        let data = data_dir(config)?;
        replaced_hashes::install(&access_control, &data)?;
        let certificates = Certificates::open(config, &data, super::ORDERED)?;
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
        let answers = AnswerSpace::new(config.memory().answers);
        let identities = shared.as_mut().map(|shared| shared.take_rows(Database::Identities));
        let identities = identities::Running::open(&data, identities)?;
        // The data folder is locked.
        let mut opening = Opening {
            config,
            data: &data,
            certificates: &certificates,
            restored: stored.restored(),
            shared: shared.as_mut(),
            identities: identities.get(),
            logins: &access_control.logins,
            answers: &answers,
            first_administrator: None,
            offers: Offers::default(),
        };
        let parts = parts::open(&mut opening)?;
        let Opening { first_administrator, offers, .. } = opening;
        identities.add_to(&mut access_control, &config.auth, &data)?;
        Ok(Opened {
            parts,
            offers,
            data,
            clock,
            workers,
            certificates,
            keys,
            stored,
            answers,
            identities,
            access_control,
            cluster,
            first_administrator,
        })
    }
}

impl Running {
    /// Binds the listeners. After an error, everything ends by being dropped.
    fn start(config: &Config, opened: Opened) -> anyhow::Result<(Running, Addresses)> {
        let Opened { mut parts, mut offers, data, clock, workers, certificates, .. } = opened;
        let mut stored = opened.stored;
        let broker_config = BrokerConfig {
            workers,
            limits: config.limits.broker(&config.storage, config.memory(), workers),
            access_control: AccessControl {
                external_users: offers.external_users.clone(),
                hook: offers.login_hook.clone(),
                ..opened.access_control
            },
            sys_interval_s: config.sys.interval_s,
            client_statistics: config.sys.clients,
            internal_sessions: stored.add_internal_sessions(&parts),
        };
        let (store, broker) = stored.into_broker(broker_config, clock.now())?;
        #[cfg(feature = "admin")]
        if let Some(log) = &offers.administration_log {
            fulmar_admin::apply_bans(log, &broker, Clock::wall().0.cast_signed())?;
        }
        let hooks = std::mem::take(&mut offers.hooks);
        // Each message would ask them.
        if !hooks.is_empty() {
            broker.set_publish_hook(Arc::new(hooks));
        }
        let revocation = Revocation::start(&config.tls, &certificates.tls, &broker)?;
        if let Some(spans) = &offers.spans {
            broker.set_tracer(Arc::clone(spans) as Arc<dyn Tracer>);
        }
        let quic = config.quic_settings(opened.keys.clone());
        let mqtt = listeners::start(&broker, workers, config, &certificates, &quic, clock)?;
        let identities = opened.identities;
        let log = offers.log.clone().unwrap_or_else(|| Arc::new(()));
        identities.go_live(&broker, log);
        let core = Core {
            config: config.clone(),
            disk: DiskUse::new(config, &data, offers.disk.clone()),
            data,
            clock,
            broker,
            handoff: mqtt.server.handoff(),
            store,
            certificates,
            identities: Arc::clone(identities.get()),
            answers: opened.answers,
            crl_next_update: revocation.next_update(),
            cluster: opened.cluster,
            listeners: Listeners::default(),
            sources: Sources::default(),
            offers,
        };
        parts.iter_mut().try_for_each(|part| part.go_live(&core))?;
        let bodies = BodyBudget::new(config.buffered_bodies());
        let routes = parts.iter().map(|part| part.routes(&core));
        let routes = routes.fold(axum::Router::new(), axum::Router::merge);
        let web = listeners::start_web(&core, &mqtt, opened.keys, routes, &bodies)?;
        let sources = [http::core_metrics(&core, web.metrics(), &mqtt.proxies)];
        let sources = sources.into_iter().chain(parts.iter().filter_map(|part| part.metrics()));
        core.sources.set(sources.collect());
        let operator = http::start(&core, &bodies)?;
        let bound = mqtt.addresses(web.bound(), &parts, operator.bound());
        let line = listeners::ready_line(core.listeners.get_or_init(|| bound.clone()));
        let data = core.data.display();
        tracing::info!(version = env!("CARGO_PKG_VERSION"), %data, workers, "{line}");
        parts.iter_mut().try_for_each(|part| part.ready(&core))?;
        Ok((Running { parts, operator, web, mqtt, identities, revocation, core }, bound))
    }

    /// Ends everything, in the reverse order of the start.
    fn end(mut self, drain: Duration) -> anyhow::Result<()> {
        if let Some(store) = &self.core.store {
            store.abandon_shares();
        }
        drop(self.revocation);
        tracing::info!(limit_s = drain.as_secs(), "draining");
        self.operator.stop_accepting();
        self.web.stop_accepting();
        self.parts.iter_mut().rev().for_each(|part| part.stop_accepting());
        let begun = Instant::now();
        self.mqtt.server.drain(drain);
        // MQTT clients over HTTP have been disconnected; requests have the rest of the time.
        self.web.drain(drain.saturating_sub(begun.elapsed()));
        drop(self.operator);
        // After the clients: the outbox or the session has their last publications.
        while let Some(part) = self.parts.pop() {
            drop(part);
        }
        if let Err(error) = self.core.certificates.tickets.close() {
            // Clients reconnect with a full handshake then; that is no failure of the broker.
            tracing::warn!("cannot store TLS tickets: {error}");
        }
        if let Some(store) = &self.core.store {
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
