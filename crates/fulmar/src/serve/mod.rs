//! `fulmar serve`: puts configuration, certificates, storage, broker and listeners together, runs
//! until told to stop.

mod http;
mod secrets;

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use anyhow::Context;
use fulmar_broker::storage::{NoStorage, Restored, Storage};
use fulmar_broker::{Broker, BrokerConfig, ListenerPolicy};
use fulmar_certs::authority::Authority;
use fulmar_certs::files;
use fulmar_store::{Options, SqliteStorage};
use fulmar_transport::tls::{self, Identity, ServerTls};
use fulmar_transport::{
    Carrier, Clock, ListenerConfig, QuicListener, QuicSettings, RetryPolicy, Server, ServerConfig,
    SharedTls, TlsSettings, TransportLimits,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::config::{Anonymous, ClientAuth, Config, Retry};
use crate::logging::{self, LogArgs};

/// Time clients have to take their last messages when the broker stops.
const DRAIN: Duration = Duration::from_secs(5);

const EXAMPLES: &str = "\
Examples:
  fulmar serve                             on loopback, with a development CA of its own
  fulmar serve --data /var/lib/fulmar      state and certificates in this folder
  fulmar serve --config fulmar.toml        as the file says; every key: fulmar.example.toml
  FULMAR_LISTENERS__MQTT='[\"127.0.0.1:0\"]' fulmar serve
                                           one key from the environment";

/// Run the broker
///
/// Without a configuration file it listens on loopback only, lets anonymous clients in there, and
/// makes a development certificate in its data folder, which `fulmar pub` and `fulmar sub` on this
/// machine find by themselves.
///
/// One line `ready mqtt=ADDRESS …` on standard output says that every listener is bound; the log
/// goes to standard error. SIGTERM and SIGINT drain and exit 0; SIGHUP reads certificates,
/// passwords and access rules again.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Configuration file (TOML)
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Folder for sessions, messages and certificates
    #[arg(long, value_name = "DIR", env = "FULMAR_DATA")]
    data: Option<PathBuf>,
}

/// Runs the broker until SIGTERM or SIGINT.
pub(crate) fn run(args: &Args, log: &LogArgs) -> anyhow::Result<()> {
    logging::start(log, "info")?;
    let config = Config::load(args.config.as_deref())?;
    let data = data_dir(args, &config)?;
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("cannot take signals")?;
    let certificates = Certificates::open(&config, &data)?;
    let clock = Clock::start();
    let workers = match config.server.workers {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        workers => workers,
    };
    let broker_config = BrokerConfig {
        workers,
        limits: config.limits.limits(),
        gate: config.gate()?,
        sys_interval_s: config.sys.interval_s,
    };
    let (store, storage, restored, wake) = open_storage(&config, &data)?;
    let broker = Broker::new(broker_config, storage, restored, clock.now());
    if wake.set(Arc::downgrade(&broker)).is_err() {
        anyhow::bail!("storage was given two brokers");
    }
    let (listeners, names) = listeners(&config, &certificates);
    let server_config = ServerConfig {
        workers,
        listeners,
        quic: quic_listeners(&config, &certificates, &data)?,
        limits: TransportLimits::default(),
    };
    let server = Server::start(&broker, server_config, clock)?;
    let http = http::Http::start(&config.listeners.http, Arc::clone(&broker))?;
    announce(&server, &names, http.bound())?;
    wait(signals, args, &broker, &certificates);
    tracing::info!("stopping");
    http.stop();
    server.drain(DRAIN);
    if let Some(store) = store {
        store.close().context("storage")?;
    }
    Ok(())
}

fn data_dir(args: &Args, config: &Config) -> anyhow::Result<PathBuf> {
    let configured = &config.server.data_dir;
    let data = match (&args.data, configured.as_os_str().is_empty()) {
        (Some(data), _) => data.clone(),
        (None, false) => configured.clone(),
        (None, true) => fulmar_certs::default_data_dir(),
    };
    files::make_private_dir(&data)?;
    Ok(data)
}

/// TLS for the listeners, and where it came from.
struct Certificates {
    identity: Arc<Identity>,
    tls: ServerTls,
    chain: PathBuf,
    key: PathBuf,
}

impl Certificates {
    fn open(config: &Config, data: &Path) -> anyhow::Result<Certificates> {
        let (chain, key) = if config.tls.cert.as_os_str().is_empty() {
            let authority = Authority::open(&data.join("ca"))?;
            let mut names: Vec<String> =
                ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
            names.extend(config.tls.names.iter().cloned());
            authority.server_files(&names)?
        } else {
            (config.tls.cert.clone(), config.tls.key.clone())
        };
        let identity = Identity::new(files::read_chain(&chain)?, files::read_key(&key)?)?;
        let mut roots = rustls_roots();
        if !config.tls.client_ca.as_os_str().is_empty() {
            for certificate in files::read_chain(&config.tls.client_ca)? {
                roots
                    .add(certificate)
                    .with_context(|| config.tls.client_ca.display().to_string())?;
            }
        }
        let client_auth = match config.tls.client_auth {
            ClientAuth::Off => tls::ClientAuth::Off,
            ClientAuth::Optional => tls::ClientAuth::Optional,
            ClientAuth::Required => tls::ClientAuth::Required,
        };
        let tls = ServerTls::new(&identity, client_auth, roots)?;
        Ok(Certificates { identity, tls, chain, key })
    }

    fn reload(&self) -> anyhow::Result<()> {
        self.identity.replace(files::read_chain(&self.chain)?, files::read_key(&self.key)?)?;
        Ok(())
    }
}

fn rustls_roots() -> tls::RootCertStore {
    tls::RootCertStore::empty()
}

type Wake = Arc<OnceLock<Weak<Broker>>>;
type OpenStorage = (Option<Arc<SqliteStorage>>, Arc<dyn Storage>, Restored, Wake);

fn open_storage(config: &Config, data: &Path) -> anyhow::Result<OpenStorage> {
    let wake = Wake::default();
    if !config.storage.enabled {
        return Ok((None, Arc::new(NoStorage), Restored::default(), wake));
    }
    let options = Options {
        commit_interval: Duration::from_millis(u64::from(config.storage.commit_interval_ms)),
        ..Options::default()
    };
    let for_wake = Arc::clone(&wake);
    let committed = move || {
        if let Some(broker) = for_wake.get().and_then(Weak::upgrade) {
            broker.storage_committed();
        }
    };
    let path = data.join("broker.db");
    let (store, restored) = SqliteStorage::open(&path, &options, Box::new(committed))?;
    let store = Arc::new(store);
    Ok((Some(Arc::clone(&store)), store, restored, wake))
}

fn policy(config: &Config, name: &str, address: SocketAddr) -> Arc<ListenerPolicy> {
    let allow_anonymous = match config.auth.allow_anonymous {
        Anonymous::Always => true,
        Anonymous::Loopback => address.ip().is_loopback(),
        Anonymous::Never => false,
    };
    Arc::new(ListenerPolicy { name: name.into(), allow_anonymous })
}

fn listeners(
    config: &Config,
    certificates: &Certificates,
) -> (Vec<ListenerConfig>, Vec<&'static str>) {
    let tls = TlsSettings {
        config: Arc::new(SharedTls::new(Arc::clone(&certificates.tls.tcp))),
        identify: tls::client_name,
    };
    let kinds = [
        ("mqtt", &config.listeners.mqtt, Carrier::TCP),
        ("mqtts", &config.listeners.mqtts, Carrier { tls: Some(tls.clone()), websocket: false }),
        ("ws", &config.listeners.ws, Carrier::WS),
        ("wss", &config.listeners.wss, Carrier { tls: Some(tls), websocket: true }),
    ];
    let (mut listeners, mut names) = (Vec::new(), Vec::new());
    for (name, addresses, carrier) in kinds {
        for &address in addresses {
            let policy = policy(config, name, address);
            listeners.push(ListenerConfig { address, carrier: carrier.clone(), policy });
            names.push(name);
        }
    }
    (listeners, names)
}

fn quic_listeners(
    config: &Config,
    certificates: &Certificates,
    data: &Path,
) -> anyhow::Result<Vec<QuicListener>> {
    let mut settings = QuicSettings::new(secrets::quic_keys(data)?);
    settings.idle_timeout = Duration::from_secs(u64::from(config.quic.idle_timeout_s.max(1)));
    settings.max_streams = config.quic.max_streams;
    settings.early_data = config.quic.early_data;
    settings.bbr = config.quic.bbr;
    settings.retry = match config.quic.retry {
        Retry::Auto => RetryPolicy::Auto,
        Retry::Always => RetryPolicy::Always,
        Retry::Never => RetryPolicy::Never,
    };
    if !config.quic.qlog_dir.as_os_str().is_empty() {
        files::make_private_dir(&config.quic.qlog_dir)?;
        settings.qlog_dir = Some(config.quic.qlog_dir.clone());
    }
    let listener = |&address: &SocketAddr| QuicListener {
        address,
        policy: policy(config, "quic", address),
        tls: certificates.tls.clone(),
        settings: settings.clone(),
    };
    Ok(config.listeners.quic.iter().map(listener).collect())
}

/// The one line on standard output, for scripts that wait for it.
fn announce(server: &Server, names: &[&str], http: &[SocketAddr]) -> anyhow::Result<()> {
    let mut line = "ready".to_owned();
    let streams = names.iter().copied().zip(server.bound());
    let quic = server.bound_quic().iter().map(|address| ("quic", address));
    let http = http.iter().map(|address| ("http", address));
    for (name, address) in streams.chain(quic).chain(http) {
        write!(line, " {name}={address}")?;
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("standard output")
}

fn wait(mut signals: Signals, args: &Args, broker: &Broker, certificates: &Certificates) {
    for signal in signals.forever() {
        if signal != SIGHUP {
            return;
        }
        let reload = || -> anyhow::Result<()> {
            let config = Config::load(args.config.as_deref())?;
            broker.set_gate(config.gate()?);
            certificates.reload()
        };
        match reload() {
            Ok(()) => tracing::info!("certificates, passwords and access rules read again"),
            Err(error) => tracing::error!("nothing changed: {error:#}"),
        }
    }
}
