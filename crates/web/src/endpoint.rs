//! Starting, running and stopping the endpoint: binds every address, then one thread serves them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use fulmar_broker::ListenerPolicy;
use fulmar_transport::Inlet;
use http::HeaderValue;
use quinn::crypto::rustls::{NoInitialCipherSuite, QuicServerConfig};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::answer::Site;
use crate::bind::bind;
use crate::config::WebConfig;
use crate::metrics::Metrics;
use crate::{h3, tcp};

/// Protocols offered over TCP, the preferred one first.
const TCP_ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// How long clients remember that there is HTTP/3, in seconds.
const ALT_SVC_MAX_AGE_S: u32 = 86_400;

/// How often open connections are counted while draining.
const DRAIN_STEP: Duration = Duration::from_millis(20);

/// Why an endpoint cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be bound.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// Which.
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
    bound: Vec<SocketAddr>,
    metrics: Arc<Metrics>,
    stopping: watch::Sender<bool>,
    ending: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

/// One address, bound.
struct Place {
    tcp: TcpListener,
    quic: quinn::Endpoint,
    policy: Arc<ListenerPolicy>,
}

impl Endpoint {
    /// Binds all addresses and serves `router` there; MQTT goes to `inlet`. With no addresses nothing
    /// runs.
    ///
    /// # Errors
    /// Names the address that cannot be bound, or says what else is missing. Nothing is left running.
    pub fn start(
        config: WebConfig,
        router: axum::Router,
        inlet: Inlet,
    ) -> Result<Endpoint, StartError> {
        let (stopping, stopped) = watch::channel(false);
        let (ending, ended) = watch::channel(false);
        let metrics = Arc::new(Metrics::default());
        let (mut bound, thread) = (Vec::new(), None);
        let mut endpoint =
            Endpoint { bound: Vec::new(), metrics: Arc::clone(&metrics), stopping, ending, thread };
        if config.addresses.is_empty() {
            return Ok(endpoint);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (acceptor, quic) = settings(&config)?;
        let mut sites = Vec::new();
        for wanted in &config.addresses {
            let bind_error = |source| StartError::Bind { address: wanted.address, source };
            let place = place(&runtime, wanted, &quic).map_err(bind_error)?;
            let address = place.tcp.local_addr()?;
            bound.push(address);
            let alt_svc = format!("h3=\":{}\"; ma={ALT_SVC_MAX_AGE_S}", address.port());
            let site = Site {
                router: router.clone(),
                inlet: inlet.clone(),
                limits: config.limits.clone(),
                metrics: Arc::clone(&metrics),
                policy: Arc::clone(&place.policy),
                alt_svc: HeaderValue::from_str(&alt_svc).map_err(io::Error::other)?,
            };
            sites.push((Arc::new(site), place));
        }
        endpoint.bound = bound;
        let serving = serve(sites, acceptor, stopped, ended);
        let thread = std::thread::Builder::new().name("fulmar-web".into());
        endpoint.thread = Some(thread.spawn(move || runtime.block_on(serving))?);
        Ok(endpoint)
    }

    /// Where it is bound, TCP and UDP, in the order of the configuration.
    #[must_use]
    pub fn bound(&self) -> &[SocketAddr] {
        &self.bound
    }

    /// What it counts.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Accepts no more connections and, on those there are, no more requests; what is under way goes on.
    pub fn stop_accepting(&self) {
        self.stopping.send_replace(true);
    }

    /// Waits for what is under way, at most `timeout`, and ends.
    pub fn drain(self, timeout: Duration) {
        self.stop_accepting();
        let until = std::time::Instant::now() + timeout;
        while self.is_busy() && std::time::Instant::now() < until {
            std::thread::sleep(DRAIN_STEP);
        }
    }

    fn is_busy(&self) -> bool {
        let counts = self.metrics.counts();
        counts.connections_tcp + counts.connections_quic > 0
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

/// TLS over TCP, and QUIC.
fn settings(config: &WebConfig) -> Result<(TlsAcceptor, quinn::ServerConfig), StartError> {
    let mut tcp = (*config.tls.tcp).clone();
    tcp.alpn_protocols = TCP_ALPN.map(<[u8]>::to_vec).to_vec();
    let mut tls = (*config.tls.quic).clone();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    if !config.early_data {
        tls.max_early_data_size = 0;
    }
    let crypto = QuicServerConfig::try_from(tls)?;
    let mut quic = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    quic.transport_config(Arc::new(h3::transport(&config.limits)));
    Ok((TlsAcceptor::from(Arc::new(tcp)), quic))
}

fn place(
    runtime: &Runtime,
    wanted: &crate::Address,
    quic: &quinn::ServerConfig,
) -> io::Result<Place> {
    let (tcp, udp) = bind(wanted.address)?;
    let _entered = runtime.enter();
    let quic = quinn::Endpoint::new(
        quinn::EndpointConfig::default(),
        Some(quic.clone()),
        udp,
        Arc::new(quinn::TokioRuntime),
    )?;
    Ok(Place { tcp: TcpListener::from_std(tcp)?, quic, policy: Arc::clone(&wanted.policy) })
}

/// Waits until `signal` says so, or its sender is gone.
pub(crate) async fn stopped(signal: &mut watch::Receiver<bool>) {
    // The result would hold a lock across what is awaited next.
    drop(signal.wait_for(|stop| *stop).await);
}

async fn serve(
    sites: Vec<(Arc<Site>, Place)>,
    acceptor: TlsAcceptor,
    stopping: watch::Receiver<bool>,
    mut ended: watch::Receiver<bool>,
) {
    let mut listening = JoinSet::new();
    let mut quic = Vec::new();
    for (site, place) in sites {
        quic.push(place.quic.clone());
        listening.spawn(tcp::serve(
            Arc::clone(&site),
            place.tcp,
            acceptor.clone(),
            stopping.clone(),
        ));
        listening.spawn(h3::serve(site, place.quic, stopping.clone()));
    }
    // Whatever runs then ends with the runtime.
    stopped(&mut ended).await;
    for endpoint in quic {
        endpoint.close(0x100_u32.into(), b"");
    }
}
