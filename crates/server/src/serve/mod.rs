//! `fulmar serve`: connects configuration, certificates, storage, broker and listeners, and runs until a signal stops
//! it.
//!
//! First, everything that can be wrong is read and checked, as far as that has no effect on others; then the data
//! folder is locked; then the listeners are bound. Only then is the broker ready. Stopping has the reverse order. This
//! module contains no logic but this order.

#[cfg_attr(not(feature = "acme"), path = "no_acme.rs")]
mod acme;
mod back_pressure;
mod certificates;
mod coap;
mod gateway;
mod http;
mod http_publish;
mod internal_sessions;
mod landing_page;
mod listeners;
mod local_client;
mod memory;
mod mqttsn;
mod notify;
mod page_config;
mod pages;
#[cfg_attr(not(feature = "platform"), path = "no_platform.rs")]
mod platform;
#[cfg(feature = "platform")]
mod platform_client;
mod psk;
mod reload;
mod secrets;
mod status;
mod udp;
#[cfg(feature = "platform")]
mod users;
#[cfg(feature = "platform")]
mod webhooks;
mod webtransport_certificate;

pub use pages::has_web_app;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use anyhow::Context;
use fulmar_broker::auth::AccessControl;
use fulmar_broker::storage::{NoStorage, Restored, Storage};
use fulmar_broker::{Broker, BrokerConfig, Limits};
use fulmar_certs::files;
use fulmar_store::SqliteStorage;
use fulmar_transport::Clock;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use self::back_pressure::{BackPressure, IncomingHook, Watched};
use self::certificates::Certificates;
use self::gateway::Gateway;
use self::internal_sessions::InternalSessions;
use self::reload::Reloader;
use crate::config::{Config, set};
use crate::logging::{self, LogArgs};

const EXAMPLES: &str = "\
Examples:
  fulmar serve                             on loopback, with a development CA of its own
  fulmar serve --data /var/lib/fulmar      state and certificates in this folder
  fulmar serve --config fulmar.toml        settings from the file; every key: fulmar.example.toml
  FULMAR_LISTENERS__MQTT='[\"127.0.0.1:0\"]' fulmar serve
                                           one key from the environment";

/// Run the broker
///
/// Without a configuration file it listens on loopback only, lets anonymous clients in there, and
/// makes a development certificate in its data folder, which `fulmar pub` and `fulmar sub` on this
/// machine find by themselves.
/// The line `ready mqtt=ADDRESS …` on standard output reports that every listener is bound; the log goes to standard
/// error. SIGTERM and SIGINT drain and exit 0; SIGHUP reloads certificates, client CAs, passwords and access rules.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Configuration file (TOML). Without one, defaults apply and only this machine can connect
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Folder for sessions, messages and certificates [default: [server] data_dir of the
    /// configuration, else ~/.local/share/fulmar]
    #[arg(long, value_name = "DIR", env = "FULMAR_DATA")]
    data: Option<PathBuf>,
}

/// Runs the broker until SIGTERM or SIGINT.
pub fn run(args: &Args, log: &LogArgs) -> anyhow::Result<()> {
    let config = Config::load(args.config.as_deref())?;
    if config.upstream.is_on() {
        memory::keep_large_off_the_heap();
    }
    logging::start(log, &config.log.level, Some(config.log.format))?;
    for (file, key) in args.config.iter().flat_map(|file| {
        let keys = Config::world_readable_secrets(file).into_iter();
        keys.map(move |key| (file.display(), key))
    }) {
        tracing::warn!(%file,
            "every user of this machine can read {key} in this file: run chmod 640 on it");
    }
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("cannot handle signals")?;
    config.check_files()?;
    let access_control = config.access_control()?;
    let data = data_dir(args, &config)?;
    let certificates = Certificates::open(&config, &data)?;
    let keys = secrets::quic_keys(&data)?;
    let quic = config.quic.settings(keys.clone(), &config.limits);
    if let Some(folder) = &quic.qlog_dir {
        files::make_private_dir(folder)?;
    }
    let clock = Clock::start();
    let workers = match config.server.workers {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        workers => workers,
    };
    let mut stored = Stored::open(&config, &data)?;
    let mut gateway = Gateway::open(&config, &data).context("gateway")?;
    let mut platform = platform::Running::open(&config, &data)?;
    let back_pressure = Arc::<BackPressure>::default();
    stored.add_internal_sessions(
        gateway.as_ref(),
        &platform,
        &config.limits.broker(&config.storage),
        &back_pressure,
    );
    let broker_config = BrokerConfig {
        workers,
        limits: config.limits.broker(&config.storage),
        access_control: AccessControl {
            external_users: platform.external_users()?,
            ..access_control
        },
        sys_interval_s: config.sys.interval_s,
        client_statistics: config.sys.clients,
    };
    let broker = Broker::new(broker_config, stored.storage, stored.restored, clock.now());
    stored.wake.set(Arc::downgrade(&broker)).ok().context("storage was given two brokers")?;
    let stamps = gateway.as_ref().map(Gateway::stamps);
    broker.set_publish_hook(Arc::new(IncomingHook {
        stamps,
        back_pressure,
        platform: platform.get().cloned(),
    }));
    let running = listeners::start(&broker, workers, &config, &certificates, &quic, clock)?;
    platform.watch(&broker);
    platform.go_live(running.server.handoff())?;
    if let Some(gateway) = &mut gateway {
        gateway.go_live(running.server.handoff())?;
    }
    let orders = certificates.orders();
    let challenges = orders.as_ref().map(acme::Orders::tls).transpose()?;
    let server = &running.server;
    let bodies = fulmar_http::BodyBudget::new(config.http.max_buffered_body_bytes);
    let tls = (&certificates, challenges, keys);
    let shared = (server, Arc::clone(&running.origins));
    let bound = landing_page::Listeners::default();
    let web = listeners::start_web(&config, tls, shared, &platform, &bodies, &bound)?;
    let wiring = coap::Wiring {
        broker: &broker,
        handoff: server.handoff(),
        clock,
        certificates: &certificates,
        data: &data,
    };
    let coap = coap::Coap::start(&config, wiring)?;
    let mqtt_sn = mqttsn::MqttSn::start(&config, server.handoff())?;
    let state = http::Operated {
        broker: Arc::clone(&broker),
        store: stored.store.clone(),
        tickets: Arc::clone(&certificates.tickets),
        web: Arc::clone(web.metrics()),
        gateway: gateway.as_ref().map(Gateway::metrics),
        coap: coap.statistics(),
        mqtt_sn: mqtt_sn.statistics(),
        publisher: http_publish::HttpPublisher::new(
            server.handoff(),
            &config,
            "http",
            &config.listeners.http,
        ),
        platform: platform.get().cloned(),
    };
    let http = http::start(&config, &bodies, state)?;
    let memory = memory::Memory::start(&broker)?;
    let all = running.all(web.bound(), coap.bound(), mqtt_sn.bound(), http.bound());
    let line = listeners::ready_line(bound.get_or_init(|| all));
    tracing::info!(version = env!("CARGO_PKG_VERSION"), data = %data.display(), workers, "{line}");
    announce(&line)?;
    notify::ready();
    {
        // Ends with this block: no certificate is ordered while the broker drains.
        let acme = orders.map(acme::Orders::start).transpose()?;
        let reloader = Reloader {
            file: args.config.as_deref(),
            started: &config,
            broker: &broker,
            certificates: &certificates,
            acme: acme.as_ref(),
        };
        wait(signals, &reloader);
    }
    let drain = Duration::from_secs(u64::from(config.server.drain_timeout_s));
    tracing::info!(limit_s = drain.as_secs(), "draining");
    notify::stopping();
    http.stop();
    drop(memory);
    web.stop_accepting();
    coap.stop();
    mqtt_sn.stop();
    let begun = Instant::now();
    running.server.drain(drain);
    // MQTT clients over HTTP have been disconnected; requests have the rest of the time.
    web.drain(drain.saturating_sub(begun.elapsed()));
    platform.close();
    // After the clients: the outbox or the session has their last publications.
    if let Some(gateway) = gateway {
        gateway.close();
    }
    if let Err(error) = certificates.tickets.close() {
        // Clients reconnect with a full handshake then; that is no failure of the broker.
        tracing::warn!("cannot store TLS tickets: {error}");
    }
    if let Some(store) = stored.store {
        store.close().context("storage")?;
    }
    tracing::info!("stopped");
    Ok(())
}

fn data_dir(args: &Args, config: &Config) -> anyhow::Result<PathBuf> {
    let chosen = args.data.as_deref().or(set(&config.server.data_dir));
    let data = chosen.map_or_else(fulmar_certs::default_data_dir, Path::to_owned);
    files::make_private_dir(&data).context("data folder (choose another one with --data)")?;
    Ok(data)
}

/// The restored state, the storage, and what wakes the broker after commits.
struct Stored {
    store: Option<Arc<SqliteStorage>>,
    storage: Arc<dyn Storage>,
    restored: Restored,
    /// Set once there is a broker; before that nothing is committed.
    wake: Arc<OnceLock<Weak<Broker>>>,
}

impl Stored {
    fn open(config: &Config, data: &Path) -> anyhow::Result<Stored> {
        let wake = Arc::new(OnceLock::<Weak<Broker>>::new());
        if !config.storage.enabled {
            let (storage, restored) = (Arc::new(NoStorage), Restored::default());
            return Ok(Stored { store: None, storage, restored, wake });
        }
        let for_store = Arc::clone(&wake);
        let committed = move || {
            if let Some(broker) = for_store.get().and_then(Weak::upgrade) {
                broker.storage_committed();
            }
        };
        let path = data.join("broker.db");
        let (store, restored) =
            SqliteStorage::open(&path, &config.storage.options(), Box::new(committed))?;
        let store = Arc::new(store);
        Ok(Stored { store: Some(Arc::clone(&store)), storage: store, restored, wake })
    }

    /// Adds the internal sessions, and counts from now on what is queued for them.
    fn add_internal_sessions(
        &mut self,
        gateway: Option<&Gateway>,
        platform: &platform::Running,
        limits: &Limits,
        back_pressure: &Arc<BackPressure>,
    ) {
        let (storage, restored) = (&*self.storage, &mut self.restored);
        let mut sessions = InternalSessions { storage, restored, limits, back_pressure };
        if let Some(gateway) = gateway {
            gateway.add_internal_sessions(&mut sessions);
        }
        platform.add_internal_sessions(&mut sessions);
        let (inner, back_pressure) = (Arc::clone(&self.storage), Arc::clone(back_pressure));
        self.storage = Arc::new(Watched { inner, back_pressure });
    }
}

/// The one line on standard output, for scripts that wait for it.
fn announce(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("standard output")
}

/// Returns when the program is to stop.
fn wait(mut signals: Signals, reloader: &Reloader<'_>) {
    for signal in signals.forever() {
        if signal != SIGHUP {
            return;
        }
        reloader.run();
    }
}
