//! The endpoint over HTTP/3 with h3's own client: responses, limits, MQTT over WebTransport, certificates that
//! change, draining. HTTP/1.1 and HTTP/2 share the code after their handshakes, so only differences are tested here;
//! third-party clients are in tests/interop and tests/browser.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::{get, post};
use bytes::{Buf as _, Bytes};
use fulmar_broker::auth::AccessControl;
use fulmar_broker::storage::{NoStorage, Restored};
use fulmar_broker::{
    Broker, BrokerConfig, ClientStatistics, Limits as BrokerLimits, ListenerPolicy, MemoryGauge,
    MemoryPressure,
};
use fulmar_congestion::Congestion;
use fulmar_http::{Address, BodyBudget, Endpoint, EndpointConfig, Limits, Plain};
use fulmar_transport::Origins;
use fulmar_transport::tls::{ClientAuth, Identity, RootCertStore, ServerTls};
use fulmar_transport::{Clock, QuicKeys, Server, ServerConfig, TransportLimits};
use h3::ext::Protocol;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use quinn::crypto::rustls::QuicClientConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const PATIENCE: Duration = Duration::from_secs(60);
const MAX_BODY_BYTES: usize = 1000;
const BUDGET_BYTES: usize = 64 * 1024;

struct Site {
    endpoint: Endpoint,
    server: Server,
    roots: RootCertStore,
    /// The certificate of the `webtransport` address.
    short_lived: Arc<Identity>,
    memory: Arc<MemoryGauge>,
}

fn identity() -> (Arc<Identity>, CertificateDer<'static>) {
    let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(issued.signing_key.serialize_der()).unwrap();
    let certificate = issued.cert.der().clone();
    (Identity::new(vec![certificate.clone()], key).unwrap(), certificate)
}

fn start() -> Site {
    start_at("127.0.0.1:0".parse().unwrap())
}

fn limits() -> Limits {
    Limits { max_body_bytes: MAX_BODY_BYTES, request_timeout: PATIENCE, ..Limits::default() }
}

/// A site whose requests and unread responses end after this time.
fn start_impatient(request_timeout: Duration) -> Site {
    let limits = Limits { request_timeout, ..limits() };
    start_with("127.0.0.1:0".parse().unwrap(), limits, BodyBudget::new(BUDGET_BYTES))
}

fn start_at(address: SocketAddr) -> Site {
    start_with(address, limits(), BodyBudget::new(BUDGET_BYTES))
}

fn start_with(address: SocketAddr, limits: Limits, bodies: BodyBudget) -> Site {
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

fn router() -> Router {
    Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/echo", post(|body: Bytes| async { body }))
        .route("/never", get(std::future::pending::<()>))
        .route("/api/never", get(std::future::pending::<()>))
        .route("/large", get(|| async { Bytes::from_owner(Large::new()) }))
}

/// How many responses of `/large` there are.
static LARGE: AtomicUsize = AtomicUsize::new(0);

struct Large(Vec<u8>);

impl Large {
    fn new() -> Large {
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

type Sender = h3::client::SendRequest<h3_quinn::OpenStreams, Bytes>;
type Session = h3::client::RequestStream<h3_quinn::BidiStream<Bytes>, Bytes>;

impl Site {
    async fn dial(&self) -> (quinn::Connection, Sender) {
        self.dial_at(self.endpoint.bound().https[0]).await
    }

    /// Connects by TCP and TLS, with ALPN protocol `alpn`.
    async fn dial_tcp(&self, alpn: &[u8]) -> TlsStream<TcpStream> {
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

    fn client(&self) -> quinn::Endpoint {
        self.client_for(b"h3")
    }

    /// A client with ALPN protocol `alpn`.
    fn client_for(&self, alpn: &[u8]) -> quinn::Endpoint {
        self.client_with(alpn, quinn::TransportConfig::default())
    }

    fn client_with(&self, alpn: &[u8], transport: quinn::TransportConfig) -> quinn::Endpoint {
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

    async fn dial_at(&self, address: SocketAddr) -> (quinn::Connection, Sender) {
        self.dial_with(self.client(), address).await
    }

    /// Connects with a client whose idle timeout is `idle`; `None` for none.
    async fn dial_patient(&self, idle: Option<Duration>) -> (quinn::Connection, Sender) {
        let mut transport = quinn::TransportConfig::default();
        transport.max_idle_timeout(idle.map(|idle| idle.try_into().unwrap()));
        self.dial_with(self.client_with(b"h3", transport), self.endpoint.bound().https[0]).await
    }

    async fn dial_with(
        &self,
        client: quinn::Endpoint,
        address: SocketAddr,
    ) -> (quinn::Connection, Sender) {
        let connection = client.connect(address, "localhost").unwrap().await.unwrap();
        let sender = over(&connection).await;
        (connection, sender)
    }
}

async fn over(connection: &quinn::Connection) -> Sender {
    let mut builder = h3::client::builder();
    builder.enable_extended_connect(true).enable_datagram(true);
    let quic = h3_quinn::Connection::new(connection.clone());
    let (mut driver, sender) = builder.build(quic).await.unwrap();
    tokio::spawn(async move { std::future::poll_fn(|cx| driver.poll_close(cx)).await });
    sender
}

async fn ask(
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
async fn session(sender: &mut Sender, origin: Option<&str>) -> (Session, StatusCode) {
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
async fn mqtt(connection: &quinn::Connection, id: u8) -> (quinn::SendStream, quinn::RecvStream) {
    mqtt_by(connection, id, CONNECT).await
}

async fn mqtt_by(
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

#[tokio::test]
async fn requests_are_answered_and_bounded() {
    let site = start_impatient(Duration::from_secs(3));
    let (_connection, mut sender) = site.dial().await;
    assert_eq!(ask(&mut sender, Method::GET, "/", b"").await, (StatusCode::OK, b"hello".to_vec()));
    let body = vec![7; MAX_BODY_BYTES];
    assert_eq!(ask(&mut sender, Method::POST, "/echo", &body).await, (StatusCode::OK, body));
    // Without Content-Length, so that the size is only detected while reading.
    let (status, _) = ask(&mut sender, Method::POST, "/echo", &vec![7; MAX_BODY_BYTES + 1]).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    let (status, _) = ask(&mut sender, Method::GET, "/never", b"").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    let counts = site.endpoint.metrics().counts();
    assert_eq!(counts.requests, [[0; 5], [0; 5], [0, 2, 0, 1, 1]]);
    assert_eq!((counts.connections_quic, counts.early_refused), (1, 0));
}

/// More than sockets' buffers hold, so that the client notices if the server stops reading.
const OVERSIZED_BYTES: usize = 12 * 1024 * 1024;

/// The responses to a client that reads only after it has sent everything, the next request included.
async fn oversized(site: &Site, path: &str, framing: &str, body: &[u8]) -> String {
    let mut stream = site.dial_tcp(b"http/1.1").await;
    let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\n{framing}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body).await.unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    // TLS buffers what the socket did not accept at once, and reading does not flush that.
    stream.flush().await.unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).await.unwrap();
    answers
}

#[tokio::test]
async fn http1_clients_that_send_too_much_can_read_why() {
    let site = start();
    let (length, encoded) =
        (format!("content-length: {OVERSIZED_BYTES}"), "transfer-encoding: chunked");
    let whole = vec![b'x'; OVERSIZED_BYTES];
    let chunk = [format!("{OVERSIZED_BYTES:x}\r\n").as_bytes(), &whole, b"\r\n0\r\n\r\n"].concat();
    for (path, framing, body) in [
        ("/echo", length.as_str(), &whole),
        ("/echo", encoded, &chunk),
        // These are refused before their bodies are read.
        ("/nothing", encoded, &chunk),
        ("/", encoded, &chunk),
    ] {
        let refusal = match path {
            "/echo" => "HTTP/1.1 413 ",
            "/" => "HTTP/1.1 405 ",
            _ => "HTTP/1.1 404 ",
        };
        // The connection still works.
        let answers = oversized(&site, path, framing, body).await;
        assert!(answers.starts_with(refusal) && answers.ends_with("hello"), "{path}: {answers}");
    }
    // Headers without end: later bytes cannot be parsed, and the connection closes.
    let mut stream = site.dial_tcp(b"http/1.1").await;
    stream.write_all(b"GET / HTTP/1.1\r\nendless: ").await.unwrap();
    stream.write_all(&whole[..1024 * 1024]).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
}

#[tokio::test]
async fn http2_clients_that_send_too_much_can_read_why() {
    let site = start();
    let stream = TokioIo::new(site.dial_tcp(b"h2").await);
    let (mut sender, driver) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(driver);
    let body = Full::new(Bytes::from(vec![0; OVERSIZED_BYTES]));
    let request = Request::post("https://localhost/echo").body(body).unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert!(!response.into_body().collect().await.unwrap().to_bytes().is_empty());
    let request = Request::get("https://localhost/").body(Full::default()).unwrap();
    assert_eq!(sender.send_request(request).await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn responses_that_are_not_taken_are_given_up() {
    let site = start_impatient(Duration::from_secs(1));
    // One whose client takes nothing, and one whose client takes a little of each.
    for window in [0, 1000] {
        let stream = TokioIo::new(site.dial_tcp(b"h2").await);
        let mut client = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        client.initial_stream_window_size(window);
        let (mut sender, driver) = client.handshake(stream).await.unwrap();
        tokio::spawn(driver);
        let request = || Request::get("https://localhost/large").body(Full::<Bytes>::default());
        let mut unread = Vec::new();
        for _ in 0..8 {
            unread.push(sender.send_request(request().unwrap()).await.unwrap());
        }
        tokio::time::timeout(PATIENCE, async {
            while LARGE.load(Ordering::Relaxed) > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .expect("they are not kept");
        // The connection goes on.
        let answer = sender.send_request(request().unwrap()).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        drop(unread);
    }
}

/// The responses to these bytes, until the server closes.
async fn answered<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, bytes: &str) -> String {
    stream.write_all(bytes.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    let mut answers = Vec::new();
    // A reset because of unread data also counts as closed.
    stream.read_to_end(&mut answers).await.ok();
    String::from_utf8_lossy(&answers).into_owned()
}

#[tokio::test]
async fn apis_get_problems_and_other_paths_a_line_of_text() {
    let site = start_impatient(Duration::from_secs(1));
    let large = format!("content-length: {}\r\n", MAX_BODY_BYTES + 1);
    for (request, status, length) in
        [("POST /api/any", 413, &*large), ("GET /api/never", 503, ""), ("POST /echo", 413, &large)]
    {
        let head = format!("{request} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{length}\r\n");
        let answer = answered(site.dial_tcp(b"http/1.1").await, &head).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        let is_problem = answer.contains("content-type: application/problem+json\r\n")
            && answer.contains(&format!("\"status\":{status},\"detail\":\""));
        assert_eq!(is_problem, request.contains("/api/"), "{answer}");
    }
}

#[tokio::test]
async fn ambiguous_requests_are_refused() {
    let site = start();
    let plain = Plain::start(
        &["127.0.0.1:0".parse().unwrap()],
        &limits(),
        &BodyBudget::new(BUDGET_BYTES),
        router(),
    )
    .unwrap();
    let end = "host: localhost\r\nconnection: close\r\n\r\n";
    for (head, status) in [
        ("GET / HTTP/1.1\r\n", 200),
        ("GET / HTTP/1.1\r\nhost: localhost\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: evil.example\r\n", 400),
        ("GET / HTTP/1.1\n", 400),
        ("GET / HTTP/1.1\r\na: b\n", 400),
        ("POST /echo HTTP/1.1\r\ncontent-length: 1\r\n\r\nxGET / HTTP/1.1\n", 400),
        ("POST /echo HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n", 400),
    ] {
        let request = format!("{head}{end}");
        let expected = format!("HTTP/1.1 {status} ");
        let over_tls = answered(site.dial_tcp(b"http/1.1").await, &request).await;
        assert!(over_tls.starts_with(&expected), "{head:?}: {over_tls}");
        let socket = TcpStream::connect(plain.bound()[0]).await.unwrap();
        let in_clear = answered(socket, &request).await;
        assert!(in_clear.starts_with(&expected), "{head:?}: {in_clear}");
    }
    // No bytes follow.
    let short = "GET / HTTP/1.1\r\nhost: a\r\n\n";
    let unended = answered(site.dial_tcp(b"http/1.1").await, short).await;
    assert!(unended.starts_with("HTTP/1.1 400 "), "{unended}");
    let no_host =
        answered(site.dial_tcp(b"http/1.1").await, "GET / HTTP/1.1\r\nconnection: close\r\n\r\n");
    assert!(no_host.await.starts_with("HTTP/1.1 400 "));
}

#[tokio::test]
async fn a_request_is_answered_before_its_body_has_come() {
    let any = "127.0.0.1:0".parse().unwrap();
    let site = start_with(any, limits(), BodyBudget::new(BUDGET_BYTES));
    let plain = Plain::start(&[any], &limits(), &BodyBudget::new(BUDGET_BYTES), router()).unwrap();
    // Nothing has this name, as for an unknown client: no handler reads the body.
    let head = "POST /nothing HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n";
    async fn begun<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, head: &str) -> String {
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        let mut answer = vec![0; "HTTP/1.1 404 ".len()];
        stream.read_exact(&mut answer).await.unwrap();
        String::from_utf8(answer).unwrap()
    }
    assert_eq!(begun(site.dial_tcp(b"http/1.1").await, head).await, "HTTP/1.1 404 ");
    let socket = TcpStream::connect(plain.bound()[0]).await.unwrap();
    assert_eq!(begun(socket, head).await, "HTTP/1.1 404 ");
    let (_connection, mut sender) = site.dial().await;
    let request = Request::post("https://localhost/nothing").body(()).unwrap();
    let mut stream = sender.send_request(request).await.unwrap();
    assert_eq!(stream.recv_response().await.unwrap().status(), StatusCode::NOT_FOUND);
}

/// The limit of connections in the tests below.
const FEW: usize = 8;

#[tokio::test]
async fn half_requests_make_room_for_whole_ones() {
    let few = Limits { max_connections: FEW, ..limits() };
    let any = "127.0.0.1:0".parse().unwrap();
    let site = start_with(any, few.clone(), BodyBudget::new(BUDGET_BYTES));
    let plain = Plain::start(&[any], &few, &BodyBudget::new(BUDGET_BYTES), router()).unwrap();
    for half in ["", "GET / HTT", "POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nhalf"]
    {
        let mut silent = Vec::new();
        for _ in 0..FEW {
            // Before and after a handshake.
            silent.push(TcpStream::connect(site.endpoint.bound().https[0]).await.unwrap());
            let mut socket = TcpStream::connect(plain.bound()[0]).await.unwrap();
            socket.write_all(half.as_bytes()).await.unwrap();
            silent.push(socket);
        }
        let mut talking = Vec::new();
        for _ in 0..FEW {
            let mut stream = site.dial_tcp(b"http/1.1").await;
            stream.write_all(half.as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
            talking.push(stream);
        }
        let request = "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        let answer = answered(site.dial_tcp(b"http/1.1").await, request).await;
        assert!(answer.ends_with("hello"), "{half:?}: {answer}");
        let socket = TcpStream::connect(plain.bound()[0]).await.unwrap();
        let answer = answered(socket, request).await;
        assert!(answer.ends_with("hello"), "{half:?}: {answer}");
    }
    assert!(site.endpoint.metrics().counts().shed > 0);
}

#[tokio::test]
async fn half_bodies_make_room_for_whole_ones() {
    // Clients without a token have a quarter: four bodies of this size.
    let any = "127.0.0.1:0".parse().unwrap();
    // With their headers, of 0.4 KB each, and 4 KB for what handles them.
    let site = start_with(any, limits(), BodyBudget::new(4 * 4 * (MAX_BODY_BYTES + 4_600)));
    let head = |length: usize| {
        format!(
            "POST /echo HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
        )
    };
    let half = "x".repeat(MAX_BODY_BYTES - 100);
    let mut waiting = Vec::new();
    for _ in 0..16 {
        let mut stream = site.dial_tcp(b"http/1.1").await;
        stream.write_all(head(MAX_BODY_BYTES).as_bytes()).await.unwrap();
        stream.write_all(half.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        waiting.push(stream);
    }
    // In whatever order the server reads them, it has room for four.
    let refused = || site.endpoint.metrics().counts().bodies_refused;
    tokio::time::timeout(PATIENCE, async {
        while refused() < 12 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("twelve of sixteen have no room");
    let whole = "y".repeat(MAX_BODY_BYTES);
    let request = head(MAX_BODY_BYTES) + &whole;
    let answer = answered(site.dial_tcp(b"http/1.1").await, &request).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with(&whole), "{answer}");
    let (_connection, mut sender) = site.dial().await;
    let answer = ask(&mut sender, Method::POST, "/echo", whole.as_bytes()).await;
    assert_eq!(answer, (StatusCode::OK, whole.into_bytes()));
    // Each that is refused gets a response.
    let mut refusals = 0;
    for mut stream in waiting {
        stream.write_all(&[b'x'; 100]).await.ok();
        stream.flush().await.ok();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        if response.starts_with("HTTP/1.1 503 ") {
            assert!(response.contains("retry-after: "), "{response}");
            refusals += 1;
        } else {
            assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
        }
    }
    // The two whole bodies displaced one each, unless the first was answered before the second came.
    assert!((13..=14).contains(&refusals), "{refusals} of 16");
}

#[tokio::test]
async fn half_requests_count_with_their_headers() {
    let any = "127.0.0.1:0".parse().unwrap();
    // Clients without a token have a quarter, which is room for two of these.
    let site = start_with(any, limits(), BodyBudget::new(4 * 22_000));
    let head = format!(
        "POST /echo HTTP/1.1\r\nhost: a\r\nx-long: {}\r\ncontent-length: 9\r\n\r\n",
        "x".repeat(6_000)
    );
    let mut waiting = Vec::new();
    for _ in 0..6 {
        let mut stream = site.dial_tcp(b"http/1.1").await;
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        waiting.push(stream);
    }
    tokio::time::timeout(PATIENCE, async {
        while site.endpoint.metrics().counts().bodies_refused < 4 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("four of six have no room");
}

#[tokio::test]
async fn half_headers_over_http3_make_room_for_whole_requests() {
    let site = start();
    let refused = || site.endpoint.metrics().counts().bodies_refused;
    // Each has a quarter of the quarter that is for clients without a token.
    let half = [b"\x01\x60\x00".as_slice(), &[0; BUDGET_BYTES / 16]].concat();
    let mut waiting = Vec::new();
    for _ in 0..16 {
        let (connection, sender) = site.dial().await;
        let (mut send, receive) = connection.open_bi().await.unwrap();
        send.write_all(&half).await.unwrap();
        waiting.push((connection, sender, send, receive));
    }
    tokio::time::timeout(PATIENCE, async {
        while refused() < 12 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("twelve of sixteen have no room");
    let (_connection, mut sender) = site.dial().await;
    let answer = ask(&mut sender, Method::POST, "/echo", b"whole").await;
    assert_eq!(answer, (StatusCode::OK, b"whole".to_vec()));
}

#[tokio::test]
async fn more_than_a_strangers_window_passes_over_http3() {
    let site = start();
    let (_connection, mut sender) = site.dial().await;
    let body = vec![b'x'; MAX_BODY_BYTES];
    for _ in 0..200 {
        let answer = ask(&mut sender, Method::POST, "/echo", &body).await;
        assert_eq!(answer, (StatusCode::OK, body.clone()), "200 KB through a window of 32 KiB");
    }
}

/// CONNECT of MQTT 5.0, clean start, an empty identifier; and the first byte of the response.
const CONNECT: &[u8] = b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00";

#[tokio::test]
async fn webtransport_carries_mqtt_until_the_server_drains() {
    let site = start();
    let (connection, mut sender) = site.dial().await;
    let (_session, status) = session(&mut sender, None).await;
    assert_eq!(status, StatusCode::OK);
    let (mut send, mut receive) = mqtt(&connection, 0).await;
    let begun = Instant::now();
    let Site { endpoint, server, .. } = site;
    let drained = tokio::task::spawn_blocking(move || {
        endpoint.stop_accepting();
        server.drain(PATIENCE);
        endpoint.drain(PATIENCE);
    });
    let rest = receive.read_to_end(1000).await.unwrap();
    assert!(rest.ends_with(&[0xe0, 1, 0x8b]) || rest.ends_with(&[0xe0, 2, 0x8b, 0]), "{rest:?}");
    send.finish().unwrap();
    drained.await.unwrap();
    assert!(begun.elapsed() < PATIENCE, "nobody had to be waited for");
}

/// The same without a Keep Alive.
const CONNECT_FOR_EVER: &[u8] = b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00";
const PINGREQ: &[u8] = &[0xC0, 0];
const PINGRESP: &[u8] = &[0xD0, 0];

/// Whether the broker responds on a session's stream, after any earlier packets.
async fn is_alive((send, receive): &mut (quinn::SendStream, quinn::RecvStream)) -> bool {
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

async fn is_given_up(connection: &quinn::Connection) {
    tokio::time::timeout(PATIENCE, connection.closed()).await.expect("nobody closes it");
}

#[tokio::test]
async fn connections_with_many_pieces_give_way_while_memory_is_short_and_taken() {
    let site = start();
    let (suspect, mut sender) = site.dial().await;
    let (honest, mut other) = site.dial().await;
    while suspect.stats().frame_tx.stream < 1_200 {
        assert_eq!(ask(&mut sender, Method::GET, "/", b"").await.0, StatusCode::OK);
    }
    let set = async {
        loop {
            site.memory.set(MemoryPressure::Rising);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let error = tokio::select! {
        error = suspect.closed() => error,
        () = set => unreachable!(),
        () = tokio::time::sleep(PATIENCE) => panic!("nobody closes it"),
    };
    assert!(error.to_string().contains("too many pieces"), "{error}");
    assert_eq!(honest.close_reason(), None);
    assert_eq!(ask(&mut other, Method::GET, "/", b"").await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_session_lives_as_long_as_its_keep_alive_and_other_connections_as_the_idle_timeout() {
    let limits = Limits { idle_timeout: Duration::from_secs(3), ..limits() };
    let site = start_with("127.0.0.1:0".parse().unwrap(), limits, BodyBudget::new(BUDGET_BYTES));
    let (kept, mut sender) = site.dial_patient(None).await;
    let (_session, status) = session(&mut sender, None).await;
    assert_eq!(status, StatusCode::OK);
    // A Keep Alive of 60 s; the client sends nothing more.
    let mut stream = mqtt(&kept, 0).await;
    let heard = kept.stats().udp_tx.datagrams;
    // Later connections that are as silent are closed: one without MQTT, and one without a Keep Alive.
    let (idle, mut other) = site.dial_patient(None).await;
    assert_eq!(ask(&mut other, Method::GET, "/", b"").await.0, StatusCode::OK);
    is_given_up(&idle).await;
    let (unkept, mut third) = site.dial_patient(None).await;
    let (_endless, _) = session(&mut third, None).await;
    let _silent = mqtt_by(&unkept, 0, CONNECT_FOR_EVER).await;
    is_given_up(&unkept).await;
    // Except for acknowledgements at the beginning, the server sent nothing to the client.
    assert!(kept.stats().udp_tx.datagrams <= heard + 10, "it was woken");
    assert!(is_alive(&mut stream).await);
    // When MQTT has ended, the idle timeout applies.
    stream.0.write_all(&[0xE0, 0]).await.unwrap();
    is_given_up(&kept).await;
}

#[tokio::test]
async fn a_client_that_would_let_go_before_its_keep_alive_says_is_asked() {
    let site = start();
    let idle = Some(Duration::from_secs(5));
    let (kept, mut sender) = site.dial_patient(idle).await;
    let (_session, _) = session(&mut sender, None).await;
    let mut stream = mqtt(&kept, 0).await;
    for _ in 0..2 {
        let (unasked, mut other) = site.dial_patient(idle).await;
        assert_eq!(ask(&mut other, Method::GET, "/", b"").await.0, StatusCode::OK);
        is_given_up(&unasked).await;
    }
    assert!(is_alive(&mut stream).await);
}

#[tokio::test]
async fn pages_of_other_origins_have_no_session() {
    let site = start();
    let (_connection, mut sender) = site.dial().await;
    let own = format!("https://localhost:{}", site.endpoint.bound().https[0].port());
    for (origin, expected) in [
        ("https://evil.example", StatusCode::FORBIDDEN),
        ("null", StatusCode::FORBIDDEN),
        (own.as_str(), StatusCode::OK),
        ("https://dashboard.example", StatusCode::OK),
    ] {
        assert_eq!(session(&mut sender, Some(origin)).await.1, expected, "{origin}");
    }
    assert_eq!(site.endpoint.metrics().counts().origins_refused, 2);
}

/// The first datagram of a client.
async fn first_datagram(client: &quinn::Endpoint) -> Vec<u8> {
    let here = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let connecting = client.connect(here.local_addr().unwrap(), "localhost").unwrap();
    let mut room = vec![0; 2048];
    let length = tokio::time::timeout(PATIENCE, here.recv(&mut room)).await.unwrap().unwrap();
    drop(connecting);
    room.truncate(length);
    room
}

#[tokio::test]
async fn handshakes_that_fail_make_strangers_prove_their_address_and_others_get_in() {
    let client = start().client_for(b"nonsense");
    let mut nonsense = Vec::new();
    for _ in 0..100 {
        nonsense.push(first_datagram(&client).await);
    }
    // Their authentication fails: they do not become connections.
    let broken = nonsense.iter().map(|first| [&first[..first.len() - 1], &[0]].concat()).collect();
    for flood in [nonsense, broken] {
        let site = start();
        let thief = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        thief.connect(site.endpoint.bound().https[0]).await.unwrap();
        let mut room = [0; 2048];
        let is_retry = async {
            for first in flood.iter().cycle() {
                thief.send(first).await.unwrap();
                let answer = thief.recv(&mut room);
                let answer = tokio::time::timeout(Duration::from_millis(20), answer).await;
                // Type 3 of the packets with long headers (RFC 9000 section 17.2.5), whatever the QUIC bit is.
                if answer.is_ok() && room[0] & 0xB0 == 0xB0 {
                    break;
                }
            }
        };
        tokio::time::timeout(PATIENCE, is_retry).await.expect("failures do not count");
        let flood = tokio::spawn(async move {
            for first in flood.iter().cycle() {
                thief.send(first).await.ok();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        for _ in 0..3 {
            let (_connection, mut sender) = site.dial().await;
            let (status, _) = ask(&mut sender, Method::GET, "/", b"").await;
            assert_eq!(status, StatusCode::OK, "who proves its address is served");
        }
        flood.abort();
    }
}

/// The number of hostile connections, each with its own seed.
const HOSTILE: u64 = 50;

/// The beginning of a stream of HTTP/3 or WebTransport, or of an unknown type, followed by random bytes.
fn hostile(random: &mut fastrand::Rng) -> Vec<u8> {
    // DATA, HEADERS, CANCEL_PUSH, SETTINGS, PUSH_PROMISE, GOAWAY, WebTransport streams, unknown types.
    let kinds: [&[u8]; 9] =
        [&[0], &[1], &[3], &[4], &[5], &[7], &[0x40, 0x41], &[0x40, 0x54], &[0x21]];
    let mut bytes = kinds[random.usize(..kinds.len())].to_vec();
    for _ in 0..random.usize(..6) {
        // A length, which may be false, and some of the bytes.
        let width = random.usize(..4);
        bytes.push((width as u8) << 6 | random.u8(..64));
        bytes.extend((1..1_usize << width).map(|_| random.u8(..)));
        bytes.extend((0..random.usize(..80)).map(|_| random.u8(..)));
    }
    bytes
}

/// A fuzzer on real connections, because h3's streams need one.
#[tokio::test]
async fn hostile_streams_harm_nobody_else() {
    let site = start();
    let (_connection, mut honest) = site.dial().await;
    for seed in 0..HOSTILE {
        let mut random = fastrand::Rng::with_seed(seed);
        let (connection, _sender) = site.dial().await;
        for _ in 0..random.usize(1..6) {
            let mut send = if random.bool() {
                // The server may have closed the connection by now.
                let Ok((send, _)) = connection.open_bi().await else { break };
                send
            } else {
                let Ok(send) = connection.open_uni().await else { break };
                send
            };
            send.write_all(&hostile(&mut random)).await.ok();
            match random.u8(..3) {
                0 => drop(send.finish()),
                1 => drop(send.reset(random.u32(..).into())),
                _ => drop(send.stopped()),
            }
        }
        let answer = ask(&mut honest, Method::GET, "/", b"");
        let answer = tokio::time::timeout(PATIENCE, answer).await;
        assert_eq!(answer.map(|(status, _)| status), Ok(StatusCode::OK), "seed {seed}");
        if random.bool() {
            connection.close(random.u32(..).into(), b"");
        }
    }
}

fn shown(connection: &quinn::Connection) -> CertificateDer<'static> {
    let chain = connection.peer_identity().unwrap();
    chain.downcast::<Vec<CertificateDer<'static>>>().unwrap()[0].clone()
}

#[tokio::test]
async fn a_new_short_lived_certificate_drops_no_connection() {
    let mut site = start();
    let address = site.endpoint.bound().webtransport[0];
    let (before, mut sender) = site.dial_at(address).await;
    let (_session, status) = session(&mut sender, None).await;
    assert_eq!(status, StatusCode::OK);
    let (mut send, mut receive) = mqtt(&before, 0).await;
    let (next, certificate) = identity();
    site.roots.add(certificate.clone()).unwrap();
    site.short_lived.replace(&next);
    let (after, mut other) = site.dial_at(address).await;
    assert_ne!(shown(&before), certificate);
    assert_eq!(shown(&after), certificate);
    assert_eq!(ask(&mut other, Method::GET, "/", b"").await.0, StatusCode::OK);
    // PINGREQ on the old connection; before its response comes the rest of CONNACK.
    send.write_all(&[0xc0, 0]).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(&[0xd0, 0]) {
        let chunk = receive.read_chunk(100, true).await.unwrap();
        answer.extend_from_slice(&chunk.expect("the stream goes on").bytes);
    }
    // The pages have another certificate.
    let (pages, _sender) = site.dial().await;
    assert_ne!(shown(&pages), certificate);
}
