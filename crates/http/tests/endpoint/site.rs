//! The server of these tests, and clients of HTTP/1.1, HTTP/2, HTTP/3 and WebTransport.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use bytes::{Buf as _, Bytes};
use fulmar_broker::auth::AccessControl;
use fulmar_broker::storage::{NoStorage, Restored};
use fulmar_broker::{
    Broker, BrokerConfig, ClientStatistics, Limits as BrokerLimits, ListenerPolicy, MemoryGauge,
};
use fulmar_congestion::Congestion;
use fulmar_http::{Address, BodyBudget, Endpoint, EndpointConfig, Limits};
use fulmar_text::metrics::Metrics;
use fulmar_transport::Origins;
use fulmar_transport::tls::{ClientAuth, Identity, RootCertStore, ServerTls};
use fulmar_transport::{Clock, QuicKeys, Server, ServerConfig, TransportLimits};
use h3::ext::Protocol;
use http::{Method, Request, StatusCode};
use quinn::crypto::rustls::QuicClientConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const MAX_BODY_BYTES: usize = 1000;

pub(crate) const BUDGET_BYTES: usize = 64 * 1024;

pub(crate) struct Site {
    pub endpoint: Endpoint,
    pub server: Server,
    pub roots: RootCertStore,
    /// The certificate of the `webtransport` address.
    pub short_lived: Arc<Identity>,
    pub memory: Arc<MemoryGauge>,
}

pub(crate) fn identity() -> (Arc<Identity>, CertificateDer<'static>) {
    let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(issued.signing_key.serialize_der()).unwrap();
    let certificate = issued.cert.der().clone();
    (Identity::new(vec![certificate.clone()], key).unwrap(), certificate)
}

pub(crate) fn start() -> Site {
    start_at("127.0.0.1:0".parse().unwrap())
}

pub(crate) fn limits() -> Limits {
    Limits { max_body_bytes: MAX_BODY_BYTES, request_timeout: PATIENCE, ..Limits::default() }
}

/// A site whose requests and unread responses end after this time.
pub(crate) fn start_impatient(request_timeout: Duration) -> Site {
    let limits = Limits { request_timeout, ..limits() };
    start_with("127.0.0.1:0".parse().unwrap(), limits, BodyBudget::new(BUDGET_BYTES))
}

pub(crate) fn start_at(address: SocketAddr) -> Site {
    start_with(address, limits(), BodyBudget::new(BUDGET_BYTES))
}

pub(crate) fn start_with(address: SocketAddr, limits: Limits, bodies: BodyBudget) -> Site {
    let (long_lived, certificate) = identity();
    let (short_lived, other) = identity();
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    roots.add(other).unwrap();
    let tls = ServerTls::new(&long_lived, ClientAuth::Off, RootCertStore::empty()).unwrap();
    let clock = Clock::start();
    let config = BrokerConfig {
        workers: 1,
        limits: BrokerLimits::default(),
        access_control: AccessControl::default(),
        sys_interval_s: 0,
        client_statistics: ClientStatistics::Rules,
        internal_sessions: Vec::new(),
    };
    let broker = Broker::new(config, Arc::new(NoStorage), Restored::default(), clock.now());
    let config = ServerConfig {
        workers: 1,
        coalesce: Duration::ZERO,
        listeners: Vec::new(),
        quic: Vec::new(),
        origins: Arc::default(),
        limits: TransportLimits::default(),
    };
    let server = Server::start(&broker, config, clock).unwrap();
    let policy = Arc::new(ListenerPolicy { name: "web".into(), allow_anonymous: true });
    let any = "127.0.0.1:0".parse().unwrap();
    let web = EndpointConfig {
        addresses: vec![Address { address, policy: Arc::clone(&policy), proxies: None }],
        webtransport_tls: tls.showing(&short_lived),
        webtransport: vec![Address { address: any, policy, proxies: None }],
        tls,
        challenges: None,
        keys: QuicKeys([7; 64]),
        server_id: None,
        origins: Arc::new(Origins::new(&["https://dashboard.example".to_owned()])),
        early_data: true,
        is_repeatable: |path| path == "/once",
        congestion: Congestion::default(),
        mtu_discovery: false,
        limits,
        bodies,
        knows: None,
        memory: Arc::clone(broker.memory_gauge()),
    };
    let endpoint = Endpoint::start(web, |_| router(), server.handoff()).unwrap();
    let memory = Arc::clone(broker.memory_gauge());
    Site { endpoint, server, roots, short_lived, memory }
}

pub(crate) fn router() -> Router {
    Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/once", post(|body: Bytes| async { body }))
        .route("/echo", post(|body: Bytes| async { body }))
        .route("/never", get(std::future::pending::<()>))
        .route("/api/never", get(std::future::pending::<()>))
        .route("/large", get(|| async { Bytes::from_owner(Large::new()) }))
}

/// How many responses of `/large` there are.
pub(crate) static LARGE: AtomicUsize = AtomicUsize::new(0);

pub(crate) struct Large(Vec<u8>);

impl Large {
    pub(crate) fn new() -> Large {
        LARGE.fetch_add(1, Ordering::Relaxed);
        Large(vec![1; 1024 * 1024])
    }
}

impl AsRef<[u8]> for Large {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        LARGE.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(crate) type Sender = h3::client::SendRequest<h3_quinn::OpenStreams, Bytes>;

pub(crate) type Session = h3::client::RequestStream<h3_quinn::BidiStream<Bytes>, Bytes>;

impl Site {
    pub(crate) fn metrics(&self) -> Metrics {
        let mut metrics = Metrics::default();
        self.endpoint.metrics().report(&mut metrics);
        metrics
    }

    /// A count of the metrics, by its name behind `fulmar_http_`.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.metrics().sum(&format!("http_{name}")) as u64
    }

    pub(crate) async fn dial(&self) -> (quinn::Connection, Sender) {
        self.dial_at(self.endpoint.bound().https[0]).await
    }

    /// Connects by TCP and TLS, with ALPN protocol `alpn`.
    pub(crate) async fn dial_tcp(&self, alpn: &[u8]) -> TlsStream<TcpStream> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.roots.clone())
            .with_no_client_auth();
        tls.alpn_protocols = vec![alpn.to_vec()];
        let socket = TcpStream::connect(self.endpoint.bound().https[0]).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(tls)).connect(name, socket).await.unwrap()
    }

    pub(crate) fn client(&self) -> quinn::Endpoint {
        self.client_for(b"h3")
    }

    /// A client with ALPN protocol `alpn`.
    pub(crate) fn client_for(&self, alpn: &[u8]) -> quinn::Endpoint {
        self.client_with(alpn, quinn::TransportConfig::default())
    }

    pub(crate) fn client_with(
        &self,
        alpn: &[u8],
        transport: quinn::TransportConfig,
    ) -> quinn::Endpoint {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(self.roots.clone())
            .with_no_client_auth();
        tls.alpn_protocols = vec![alpn.to_vec()];
        tls.enable_early_data = true;
        let config = QuicClientConfig::try_from(tls).unwrap();
        let mut client = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut config = quinn::ClientConfig::new(Arc::new(config));
        // Without a token, its address is not validated.
        config.token_store(Arc::new(quinn::NoneTokenStore));
        config.transport_config(Arc::new(transport));
        client.set_default_client_config(config);
        client
    }

    pub(crate) async fn dial_at(&self, address: SocketAddr) -> (quinn::Connection, Sender) {
        self.dial_with(self.client(), address).await
    }

    /// Connects with a client whose idle timeout is `idle`; `None` for none.
    pub(crate) async fn dial_patient(&self, idle: Option<Duration>) -> (quinn::Connection, Sender) {
        let mut transport = quinn::TransportConfig::default();
        transport.max_idle_timeout(idle.map(|idle| idle.try_into().unwrap()));
        self.dial_with(self.client_with(b"h3", transport), self.endpoint.bound().https[0]).await
    }

    pub(crate) async fn dial_with(
        &self,
        client: quinn::Endpoint,
        address: SocketAddr,
    ) -> (quinn::Connection, Sender) {
        let connection = client.connect(address, "localhost").unwrap().await.unwrap();
        let sender = over(&connection).await;
        (connection, sender)
    }
}

pub(crate) async fn over(connection: &quinn::Connection) -> Sender {
    let mut builder = h3::client::builder();
    builder.enable_extended_connect(true).enable_datagram(true);
    let quic = h3_quinn::Connection::new(connection.clone());
    let (mut driver, sender) = builder.build(quic).await.unwrap();
    tokio::spawn(async move { std::future::poll_fn(|cx| driver.poll_close(cx)).await });
    sender
}

pub(crate) async fn ask(
    sender: &mut Sender,
    method: Method,
    path: &str,
    body: &[u8],
) -> (StatusCode, Vec<u8>) {
    let request = Request::builder().method(method).uri(format!("https://localhost{path}"));
    let mut stream = sender.send_request(request.body(()).unwrap()).await.unwrap();
    if !body.is_empty() {
        // The server may have refused it by then.
        stream.send_data(Bytes::copy_from_slice(body)).await.ok();
    }
    stream.finish().await.ok();
    let response = stream.recv_response().await.unwrap();
    let mut answer = Vec::new();
    while let Some(data) = stream.recv_data().await.unwrap() {
        answer.extend_from_slice(data.chunk());
    }
    (response.status(), answer)
}

/// Requests a session for a page of `origin`; returns the status.
pub(crate) async fn session(sender: &mut Sender, origin: Option<&str>) -> (Session, StatusCode) {
    let mut request = Request::builder().method(Method::CONNECT).uri("https://localhost/mqtt");
    if let Some(origin) = origin {
        request = request.header("origin", origin);
    }
    request.extensions_mut().unwrap().insert(Protocol::WEB_TRANSPORT);
    let mut session = sender.send_request(request.body(()).unwrap()).await.unwrap();
    let status = session.recv_response().await.unwrap().status();
    (session, status)
}

/// Opens a stream of the session that began on stream `id` (section 4.2 of the draft), with MQTT in it.
pub(crate) async fn mqtt(
    connection: &quinn::Connection,
    id: u8,
) -> (quinn::SendStream, quinn::RecvStream) {
    mqtt_by(connection, id, CONNECT).await
}

pub(crate) async fn mqtt_by(
    connection: &quinn::Connection,
    id: u8,
    connect: &[u8],
) -> (quinn::SendStream, quinn::RecvStream) {
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    send.write_all(&[0x40, 0x41, id]).await.unwrap();
    send.write_all(connect).await.unwrap();
    let mut first = [0];
    receive.read_exact(&mut first).await.unwrap();
    assert_eq!(first, [0x20], "CONNACK");
    (send, receive)
}

/// The responses to these bytes, until the server closes.
pub(crate) async fn answered<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    bytes: &str,
) -> String {
    stream.write_all(bytes.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    let mut answers = Vec::new();
    // A reset because of unread data also counts as closed.
    stream.read_to_end(&mut answers).await.ok();
    String::from_utf8_lossy(&answers).into_owned()
}

/// CONNECT of MQTT 5.0, clean start, an empty identifier; and the first byte of the response.
pub(crate) const CONNECT: &[u8] = b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00";

pub(crate) const PINGREQ: &[u8] = &[0xC0, 0];

pub(crate) const PINGRESP: &[u8] = &[0xD0, 0];

/// Whether the broker responds on a session's stream, after any earlier packets.
pub(crate) async fn is_alive((send, receive): &mut (quinn::SendStream, quinn::RecvStream)) -> bool {
    if send.write_all(PINGREQ).await.is_err() {
        return false;
    }
    let mut said = Vec::new();
    while !said.ends_with(PINGRESP) {
        match receive.read_chunk(64, true).await {
            Ok(Some(chunk)) => said.extend_from_slice(&chunk.bytes),
            _ => return false,
        }
    }
    true
}

pub(crate) async fn is_given_up(connection: &quinn::Connection) {
    tokio::time::timeout(PATIENCE, connection.closed()).await.expect("nobody closes it");
}
