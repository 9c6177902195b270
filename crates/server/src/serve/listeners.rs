//! Starts the listeners at the configured addresses, and prints the addresses at which they listen.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fulmar_broker::Broker;
use fulmar_http::{Address, BodyBudget, Bound, Endpoint, EndpointConfig};
use fulmar_transport::Origins;
use fulmar_transport::proxy_protocol::Proxies;
use fulmar_transport::{
    Carrier, Clock, ListenerConfig, QuicKeys, QuicListener, QuicSettings, Server, ServerConfig,
    StartError,
};
use serde_json::Value;

use super::http_publish::HttpPublisher;
use super::landing_page::LandingPage;
use super::page_config::PageConfig;
use super::{pages, status};
use fulmar_config::Config;
use fulmar_part::certificates::Certificates;
use fulmar_part::{Core, Part};

/// The running listeners for MQTT clients.
pub(super) struct Running {
    pub(super) server: Server,
    names: Vec<&'static str>,
    /// Pages that may open MQTT connections, the same at all listeners.
    pub(super) origins: Arc<Origins>,
    /// The proxies in front of listeners, the same for all.
    pub(super) proxies: Arc<Proxies>,
}

/// Binds all listeners and starts the workers.
///
/// # Errors
/// An address cannot be bound; the error names its key.
pub(super) fn start(
    broker: &Arc<Broker>,
    workers: usize,
    config: &Config,
    certificates: &Certificates,
    quic: &QuicSettings,
    clock: Clock,
) -> anyhow::Result<Running> {
    let proxies = Arc::new(config.proxy_protocol.proxies()?);
    let (names, listeners) = stream_listeners(config, certificates, &proxies).into_iter().unzip();
    let quic_listener = |&address: &SocketAddr| QuicListener {
        address,
        policy: config.policy("quic", address),
        tls: certificates.tls.clone(),
        settings: quic.clone(),
    };
    let origins = Arc::new(Origins::new(&config.http.allowed_origins));
    let server_config = ServerConfig {
        workers,
        coalesce: Duration::from_micros(config.server.coalesce_us.into()),
        listeners,
        quic: config.listeners.quic.iter().map(quic_listener).collect(),
        origins: Arc::clone(&origins),
        limits: config.limits.transport(config.memory(), workers),
    };
    let server = Server::start(broker, server_config, clock).map_err(|error| {
        let key = key_of(config, &error);
        let error = anyhow::Error::from(error);
        match key {
            Some(key) => error.context(where_to_change(key)),
            None => error,
        }
    })?;
    Ok(Running { server, names, origins, proxies })
}

fn stream_listeners(
    config: &Config,
    certificates: &Certificates,
    proxies: &Arc<Proxies>,
) -> Vec<(&'static str, ListenerConfig)> {
    let tls = certificates.stream_settings();
    let listeners = &config.listeners;
    let kinds = [
        ("mqtt", &listeners.mqtt, Carrier::TCP),
        ("mqtts", &listeners.mqtts, Carrier { tls: Some(tls.clone()), websocket: false }),
        ("ws", &listeners.ws, Carrier::WS),
        ("wss", &listeners.wss, Carrier { tls: Some(tls), websocket: true }),
    ];
    let mut all = Vec::new();
    for (name, addresses, carrier) in kinds {
        all.extend(addresses.iter().map(|&address| {
            let policy = config.policy(name, address);
            let proxies = behind(config, name, address, proxies);
            (name, ListenerConfig { address, carrier: carrier.clone(), policy, proxies })
        }));
    }
    all
}

/// The proxies of a listener that is behind them.
fn behind(
    config: &Config,
    name: &str,
    address: SocketAddr,
    proxies: &Arc<Proxies>,
) -> Option<Arc<Proxies>> {
    config.proxy_protocol.covers(name, address).then(|| Arc::clone(proxies))
}

/// The key of the address that an error concerns.
fn key_of(config: &Config, error: &StartError) -> Option<&'static str> {
    let StartError::Bind { address, .. } = error else { return None };
    let mut listeners = config.listeners.mqtt_listeners().into_iter();
    listeners.find(|(_, addresses)| addresses.contains(address)).map(|(name, _)| name)
}

/// Starts the HTTP endpoint, whose MQTT clients go to the workers, with these routes of parts.
///
/// # Errors
/// An address cannot be bound; the error names its key.
pub(super) fn start_web(
    core: &Core,
    mqtt: &Running,
    keys: QuicKeys,
    routes: axum::Router,
    bodies: &BodyBudget,
) -> anyhow::Result<Endpoint> {
    let (config, certificates) = (&core.config, &core.certificates);
    let addresses = |name: &'static str, addresses: &[SocketAddr]| {
        let address = |&address| Address {
            address,
            policy: config.policy(name, address),
            proxies: behind(config, name, address, &mqtt.proxies),
        };
        addresses.iter().map(address).collect()
    };
    let web = EndpointConfig {
        addresses: addresses("https", &config.listeners.https),
        tls: certificates.tls.clone(),
        challenges: core.offers.challenges.clone(),
        webtransport: addresses("webtransport", config.listeners.webtransport()),
        webtransport_tls: certificates.tls.showing(&certificates.webtransport_certificate.identity),
        keys,
        server_id: config.cluster.server_id,
        origins: Arc::clone(&mqtt.origins),
        early_data: config.quic.early_data,
        is_repeatable,
        congestion: config.quic.congestion,
        mtu_discovery: config.quic.mtu_discovery,
        limits: config.http.limits(&config.limits, config.memory()),
        bodies: bodies.clone(),
        knows: core.offers.knows.clone(),
        memory: Arc::clone(core.broker.memory_gauge()),
    };
    let router = |bound: &Bound| {
        let hashes = certificates.webtransport_certificate.hashes.clone();
        let has_platform = core.offers.has_users.is_some();
        let addresses = &config.listeners.https;
        let publisher = HttpPublisher::new(core.handoff.clone(), config, "https", addresses);
        let router = status::router().merge(routes).merge(publisher.router());
        let router =
            router.merge(PageConfig::new(bound, hashes, Value::Null, has_platform).router());
        let router =
            if config.lab.objects { router.merge(fulmar_http::objects::router()) } else { router };
        let landing = LandingPage::new(core);
        router.fallback(move |request| pages::answer(landing.clone(), request))
    };
    Endpoint::start(web, router, core.handoff.clone()).map_err(|error| {
        let of = |address: &SocketAddr| config.listeners.webtransport().contains(address);
        let key = match &error {
            fulmar_http::StartError::Bind { address, .. } if of(address) => "webtransport",
            _ => "https",
        };
        anyhow::Error::from(error).context(where_to_change(key))
    })
}

/// Readings are stored once by their `id`, and the lab's objects not at all.
fn is_repeatable(path: &str) -> bool {
    let parts: Vec<_> = path.split('/').skip(1).collect();
    matches!(parts[..], ["api", "v1", _, "reading"] | ["lab", "objects"])
}

/// The setting of an address that cannot be bound, as file key and environment variable.
pub(super) fn where_to_change(key: &str) -> String {
    format!("[listeners] {key} (or FULMAR_LISTENERS__{})", key.to_uppercase())
}

impl Running {
    /// Every listener with its actual address.
    pub(super) fn addresses(
        &self,
        web: &Bound,
        parts: &[Box<dyn Part>],
        http: &[SocketAddr],
    ) -> Vec<(&'static str, SocketAddr)> {
        let named = |name, addresses: &[SocketAddr]| {
            addresses.iter().map(|&address| (name, address)).collect::<Vec<_>>()
        };
        let mut all = self.mqtt();
        all.extend(named("https", &web.https));
        all.extend(named("webtransport", &web.webtransport));
        all.extend(parts.iter().flat_map(|part| part.bound()));
        all.extend(named("http", http));
        all
    }

    /// The listeners of [`start`] with their actual addresses.
    pub(super) fn mqtt(&self) -> Vec<(&'static str, SocketAddr)> {
        let streams = self.names.iter().copied().zip(self.server.bound().iter().copied());
        streams.chain(self.server.bound_quic().iter().map(|&address| ("quic", address))).collect()
    }
}

/// The one line on standard output: `ready` and every listener.
pub(super) fn ready_line(listeners: &[(&'static str, SocketAddr)]) -> String {
    let words = listeners.iter().map(|(name, address)| format!(" {name}={address}"));
    std::iter::once("ready".to_owned()).chain(words).collect()
}
