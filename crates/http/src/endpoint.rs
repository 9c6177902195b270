//! Starts, runs and stops the endpoint: binds every address, then one thread serves them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use fulmar_broker::{ListenerPolicy, MemoryPressure};
use fulmar_transport::proxy_protocol::Proxies;
use fulmar_transport::tls::ServerTls;
use fulmar_transport::{Clock, ExtendedTls, Handoff, QuicKeys, ServerId};
use http::HeaderValue;
use parking_lot::Mutex;
use quinn::crypto::rustls::{NoInitialCipherSuite, QuicServerConfig};
use ring::{hkdf, hmac};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::bind::{bind, bind_udp};
use crate::config::{Address, EndpointConfig};
use crate::h3::amplification_limit::{AmplificationLimit, Ids};
use crate::handshake::Handshakes;
use crate::limited_router::LimitedRouter;
use crate::metrics::Metrics;
use crate::request_handler::RequestHandler;
use crate::stop_signal::stopped;
use crate::{h3, tcp};

/// Time for which clients remember HTTP/3, in seconds.
const ALT_SVC_MAX_AGE_S: u32 = 86_400;

/// MQTT over QUIC has the same keys: keys derived here must differ from those derived there.
const CONTEXT: &[u8] = b"fulmar http/3";

/// Threads for blocking work of handlers. Handlers limit themselves to fewer; more threads would only use memory.
pub(crate) const MAX_BLOCKING_THREADS: usize = 16;

/// Interval at which open connections are counted while draining.
const DRAIN_STEP: Duration = Duration::from_millis(20);

/// Why an endpoint cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be bound.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// Address concerned.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// QUIC cannot be set up.
    #[error("no cipher suite for QUIC")]
    Quic(#[from] NoInitialCipherSuite),
    /// The thread or its runtime cannot be started.
    #[error("the HTTP endpoint cannot be started: {0}")]
    Thread(#[from] io::Error),
}

/// A running endpoint; dropping it stops it at once.
#[derive(Debug)]
pub struct Endpoint {
    bound: Bound,
    metrics: Arc<Metrics>,
    stopping: watch::Sender<bool>,
    ending: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

/// Where an endpoint is bound, in the order of the configuration.
#[derive(Clone, Debug, Default)]
pub struct Bound {
    /// Pages: TCP and UDP.
    pub https: Vec<SocketAddr>,
    /// WebTransport with a certificate that browsers accept by its hash: UDP.
    pub webtransport: Vec<SocketAddr>,
}

/// The sockets of one address.
struct BoundListener {
    /// `None` where only WebTransport is served.
    tcp: Option<TcpListener>,
    quic: quinn::Endpoint,
    amplification_limit: AmplificationLimit,
    address: SocketAddr,
    policy: Arc<ListenerPolicy>,
    proxies: Option<Arc<Proxies>>,
}

impl Endpoint {
    /// Binds all addresses, and serves the router that `router` returns for the bound addresses; MQTT goes to
    /// `handoff`. Without addresses, nothing runs.
    ///
    /// # Errors
    /// Names the address that cannot be bound, or says what else is missing. Nothing is left running.
    pub fn start(
        config: EndpointConfig,
        router: impl FnOnce(&Bound) -> axum::Router,
        handoff: Handoff,
    ) -> Result<Endpoint, StartError> {
        let (stopping, stopped) = watch::channel(false);
        let (ending, ended) = watch::channel(false);
        let metrics = Arc::new(Metrics::new(&config.origins));
        let bound = Bound::default();
        let mut endpoint =
            Endpoint { bound, metrics: Arc::clone(&metrics), stopping, ending, thread: None };
        if config.addresses.is_empty() && config.webtransport.is_empty() {
            return Ok(endpoint);
        }
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().max_blocking_threads(MAX_BLOCKING_THREADS).build()?;
        let (bound_listeners, bound) = bind_all(&runtime, &config)?;
        config.origins.set_own_ports(bound.https.iter().map(SocketAddr::port).collect());
        let (router, clock) = (router(&bound), Clock::start());
        let (connections, pressure) = watch::channel(MemoryPressure::None);
        let mut handlers = Vec::new();
        for listener in bound_listeners {
            let limited = LimitedRouter {
                router: router.clone(),
                limits: config.limits.clone(),
                bodies: config.bodies.clone(),
                knows: config.knows.clone(),
                metrics: Arc::clone(&metrics),
                clock,
                refusals: Mutex::default(),
            };
            let alt_svc = listener.alt_svc()?;
            let handler = RequestHandler {
                router: limited,
                handoff: handoff.clone(),
                policy: Arc::clone(&listener.policy),
                is_repeatable: config.is_repeatable,
                strict_transport: alt_svc.is_some() && config.challenges.is_some(),
                alt_svc,
                origins: Arc::clone(&config.origins),
                pressure: pressure.clone(),
            };
            handlers.push((Arc::new(handler), listener));
        }
        endpoint.bound = bound;
        let looking = h3::pieces::watch(Arc::clone(&config.memory), connections);
        let serving = serve(handlers, Handshakes::new(&config), looking, stopped, ended);
        let thread = std::thread::Builder::new().name("fulmar-http".into());
        endpoint.thread = Some(thread.spawn(move || runtime.block_on(serving))?);
        Ok(endpoint)
    }

    /// Where it is bound.
    pub fn bound(&self) -> &Bound {
        &self.bound
    }

    /// Metrics of the endpoint.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Accepts no more connections, and no more requests on existing ones; requests in progress continue.
    pub fn stop_accepting(&self) {
        self.stopping.send_replace(true);
    }

    /// Waits for requests in progress, at most `timeout`, and ends.
    pub fn drain(self, timeout: Duration) {
        self.stop_accepting();
        let until = std::time::Instant::now() + timeout;
        while self.is_busy() && std::time::Instant::now() < until {
            std::thread::sleep(DRAIN_STEP);
        }
    }

    fn is_busy(&self) -> bool {
        self.metrics.open_connections() > 0
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.stopping.send_replace(true);
        self.ending.send_replace(true);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the HTTP endpoint's thread panicked");
        }
    }
}

/// QUIC's configuration with this certificate.
fn quic(config: &EndpointConfig, tls: &ServerTls) -> Result<quinn::ServerConfig, StartError> {
    let mut tls = (*tls.quic).clone();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    if !config.early_data {
        tls.max_early_data_size = 0;
    }
    let crypto = Arc::new(ExtendedTls::new(QuicServerConfig::try_from(tls)?));
    let token_key = hkdf::Salt::new(hkdf::HKDF_SHA256, CONTEXT).extract(&config.keys.0[32..]);
    let mut quic = quinn::ServerConfig::new(crypto, Arc::new(token_key));
    quic.transport_config(Arc::new(h3::transport(config)));
    Ok(quic)
}

fn endpoint_config(keys: &QuicKeys, ids: Ids) -> quinn::EndpointConfig {
    let root = hmac::Key::new(hmac::HMAC_SHA256, &keys.0[..32]);
    let key = hmac::sign(&root, CONTEXT);
    let mut config =
        quinn::EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, key.as_ref())));
    config.cid_generator(move || Box::new(ids.generator()));
    config
}

fn bind_all(
    runtime: &Runtime,
    config: &EndpointConfig,
) -> Result<(Vec<BoundListener>, Bound), StartError> {
    let (mut bound_listeners, mut bound) = (Vec::new(), Bound::default());
    for (wanted, tls, has_pages) in
        config.addresses.iter().map(|address| (address, &config.tls, true)).chain(
            config.webtransport.iter().map(|address| (address, &config.webtransport_tls, false)),
        )
    {
        let quic = quic(config, tls)?;
        let bind_error = |source| StartError::Bind { address: wanted.address, source };
        let listener = bind_one(runtime, wanted, has_pages, quic, &config.keys, config.server_id)
            .map_err(bind_error)?;
        let list = if has_pages { &mut bound.https } else { &mut bound.webtransport };
        list.push(listener.address);
        bound_listeners.push(listener);
    }
    Ok((bound_listeners, bound))
}

fn bind_one(
    runtime: &Runtime,
    wanted: &Address,
    has_pages: bool,
    quic: quinn::ServerConfig,
    keys: &QuicKeys,
    server_id: Option<ServerId>,
) -> io::Result<BoundListener> {
    let (tcp, udp) = if has_pages {
        let (tcp, udp) = bind(wanted.address)?;
        (Some(tcp), udp)
    } else {
        (None, bind_udp(wanted.address)?)
    };
    let _entered = runtime.enter();
    let address = udp.local_addr()?;
    let ids = Ids::new(&hmac::Key::new(hmac::HMAC_SHA256, &keys.0[..32]), server_id);
    let amplification_limit = AmplificationLimit::new(ids);
    let quic = quinn::Endpoint::new(
        endpoint_config(keys, ids),
        Some(quic),
        udp,
        Arc::new(amplification_limit.clone()),
    )?;
    let tcp = tcp.map(TcpListener::from_std).transpose()?;
    Ok(BoundListener {
        tcp,
        quic,
        amplification_limit,
        address,
        policy: Arc::clone(&wanted.policy),
        proxies: wanted.proxies.clone(),
    })
}

impl BoundListener {
    fn alt_svc(&self) -> io::Result<Option<HeaderValue>> {
        let value = format!("h3=\":{}\"; ma={ALT_SVC_MAX_AGE_S}", self.address.port());
        let value = HeaderValue::from_str(&value).map_err(io::Error::other)?;
        Ok(self.tcp.is_some().then_some(value))
    }
}

async fn serve(
    handlers: Vec<(Arc<RequestHandler>, BoundListener)>,
    handshakes: Handshakes,
    looking: impl Future<Output = ()> + Send + 'static,
    stopping: watch::Receiver<bool>,
    mut ended: watch::Receiver<bool>,
) {
    let mut listening = JoinSet::new();
    listening.spawn(looking);
    let mut quic = Vec::new();
    for (handler, listener) in handlers {
        quic.push(listener.quic.clone());
        if let Some(tcp) = listener.tcp {
            let (handler, handshakes) = (Arc::clone(&handler), handshakes.clone());
            let proxies = listener.proxies;
            listening.spawn(tcp::serve(handler, tcp, handshakes, proxies, stopping.clone()));
        }
        listening.spawn(h3::serve(
            handler,
            listener.quic,
            listener.amplification_limit,
            stopping.clone(),
        ));
    }
    // The runtime's end cancels all remaining tasks.
    stopped(&mut ended).await;
    for endpoint in quic {
        endpoint.close(0x100_u32.into(), b"");
    }
}
