//! TLS and WebSocket listeners against independent clients: rustls' buffered client and
//! tungstenite's own, neither of which the server uses.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use common::{Client, PINGREQ, PINGRESP, TestServer, eventually, publish};
use fulmar_broker::User;
use fulmar_transport::{Carrier, SharedTls, TlsSettings, TransportLimits};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned};
use tungstenite::client::IntoClientRequest;
use tungstenite::{Message, WebSocket};

struct Identity {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    fn new() -> Identity {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        Identity { certificate: made.cert.der().clone(), key }
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        Arc::new(roots)
    }

    fn server(&self) -> Arc<ServerConfig> {
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.clone()], self.key.clone_key())
            .unwrap();
        Arc::new(config)
    }

    fn carrier(&self, websocket: bool) -> Carrier {
        carrier(self.server(), websocket)
    }
}

fn carrier(config: Arc<ServerConfig>, websocket: bool) -> Carrier {
    let config = Arc::new(SharedTls::new(config));
    Carrier {
        tls: Some(TlsSettings { config, identify: |_| User::named("known").ok().map(Into::into) }),
        websocket,
    }
}

type Tls = StreamOwned<ClientConnection, TcpStream>;

fn tls(config: ClientConfig, stream: TcpStream) -> Tls {
    let name = ServerName::try_from("localhost").unwrap();
    StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), stream)
}

fn trusting(server: &Identity) -> ClientConfig {
    ClientConfig::builder().with_root_certificates(server.roots()).with_no_client_auth()
}

/// A WebSocket as a stream of bytes, each write a frame.
struct Web<S> {
    socket: WebSocket<S>,
    read: Vec<u8>,
}

impl<S: Read + Write> Web<S> {
    fn open(stream: S) -> Web<S> {
        let mut request = "ws://localhost/mqtt".into_client_request().unwrap();
        let protocol = tungstenite::http::HeaderValue::from_static("mqtt");
        request.headers_mut().insert("Sec-WebSocket-Protocol", protocol);
        let (socket, response) = tungstenite::client(request, stream).map_err(drop).unwrap();
        assert_eq!(response.headers()["Sec-WebSocket-Protocol"], "mqtt");
        Web { socket, read: Vec::new() }
    }
}

impl<S: Read + Write> Read for Web<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.read.is_empty() {
            match self.socket.read().map_err(io::Error::other)? {
                Message::Binary(bytes) => self.read.extend_from_slice(&bytes),
                Message::Close(_) => return Ok(0),
                other => panic!("{other:?}"),
            }
        }
        let n = buffer.len().min(self.read.len());
        buffer[..n].copy_from_slice(&self.read[..n]);
        self.read.drain(..n);
        Ok(n)
    }
}

impl<S: Read + Write> Write for Web<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.send(Message::binary(bytes.to_vec())).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Everything a carrier has to carry: small, large, both directions, an orderly end.
fn converse(server: &TestServer, stream: impl Read + Write) {
    let mut client = Client(stream);
    client.connect("layered");
    client.subscribe("t");
    for size in [0, 1, 100, 5_000, 70_000, 900_000] {
        let payload: Vec<u8> = (0..size).map(|i: usize| (i * 31) as u8).collect();
        for part in publish("t", &payload).chunks(50_000) {
            client.send(part);
        }
        assert!(client.receive("t") == payload, "{size} bytes");
    }
    let burst: Vec<u8> = (0..500).flat_map(|_| PINGREQ).collect();
    client.send(&burst);
    for _ in 0..500 {
        assert_eq!(client.next(), (PINGRESP, vec![]));
    }
    assert_eq!(server.connections(), 1);
    client.send(&[0xe0, 0]);
    client.expect_end();
    eventually("the connection to be forgotten", || server.connections() == 0);
}

#[test]
fn websocket_carries_mqtt() {
    let server = TestServer::start(1, vec![Carrier::WS]);
    converse(&server, Web::open(server.dial(0)));
}

#[test]
fn tls_carries_mqtt_in_both_versions() {
    let identity = Identity::new();
    let server = TestServer::start(1, vec![identity.carrier(false)]);
    for version in [&TLS12, &TLS13] {
        let config = ClientConfig::builder_with_protocol_versions(&[version])
            .with_root_certificates(identity.roots())
            .with_no_client_auth();
        converse(&server, tls(config, server.dial(0)));
    }
}

#[test]
fn websocket_over_tls_carries_mqtt() {
    let identity = Identity::new();
    let server = TestServer::start(1, vec![identity.carrier(true)]);
    converse(&server, Web::open(tls(trusting(&identity), server.dial(0))));
}

#[test]
fn a_ping_is_answered_and_a_close_too() {
    let server = TestServer::start(1, vec![Carrier::WS]);
    let mut web = Web::open(server.dial(0));
    web.socket.send(Message::Ping(vec![1, 2, 3].into())).unwrap();
    assert_eq!(web.socket.read().unwrap(), Message::Pong(vec![1, 2, 3].into()));
    web.socket.close(None).unwrap();
    assert!(matches!(web.socket.read().unwrap(), Message::Close(Some(_))));
    eventually("the connection to be forgotten", || server.connections() == 0);
}

#[test]
fn pings_of_a_peer_that_reads_nothing_do_not_pile_up_as_pongs() {
    let server = TestServer::start(1, vec![Carrier::WS]);
    let mut client = Client(Web::open(server.dial(0)));
    client.connect("silent");
    // A ping of 125 bytes that a mask of zeros leaves as it is; in all, more than the kernel keeps.
    let ping = [&[0x89, 0x80 | 125, 0, 0, 0, 0][..], &[b'x'; 125]].concat();
    let (many, times) = (ping.repeat(1000), 400);
    for _ in 0..times {
        client.0.socket.get_mut().write_all(&many).unwrap();
    }
    // It has not been ended for it, and what it reads in the end is what the kernel has kept.
    client.send(&PINGREQ);
    let mut pongs = 0;
    while let Message::Pong(bytes) = client.0.socket.read().unwrap() {
        assert_eq!(bytes[..], [b'x'; 125]);
        pongs += 1;
    }
    assert!((1..1000 * times).contains(&pongs), "{pongs} pongs");
    assert_eq!(server.connections(), 1);
}

#[test]
fn http_is_answered_in_words() {
    let server = TestServer::start(1, vec![Carrier::WS]);
    let mut client = server.dial(0);
    client.write_all(b"GET /mqtt HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 426 "), "{answer}");
    assert!(answer.ends_with("MQTT over WebSocket, version 13\n"), "{answer}");
}

#[test]
fn a_stranger_to_tls_gets_an_alert() {
    let identity = Identity::new();
    let server = TestServer::start(1, vec![identity.carrier(false)]);
    let mut client = server.dial(0);
    client.write_all(&common::connect("plain")).unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    assert_eq!(answer.first(), Some(&21), "an alert record: {answer:?}");
}

/// Two handshake messages in one record: rustls still has the second when it refuses the first.
#[test]
fn a_refused_message_that_another_follows_harms_only_its_sender() {
    let identity = Identity::new();
    let server = TestServer::start(1, vec![identity.carrier(false)]);
    // A ClientHello and a Finished, both empty.
    let mut stranger = server.dial(0);
    stranger.write_all(b"\x16\x03\x01\x00\x08\x01\x00\x00\x00\x14\x00\x00\x00").unwrap();
    let mut answer = Vec::new();
    stranger.read_to_end(&mut answer).unwrap();
    assert_eq!(answer.first(), Some(&21), "an alert record: {answer:?}");
    converse(&server, tls(trusting(&identity), server.dial(0)));
}

#[test]
fn clients_without_the_certificate_demanded_harm_only_themselves() {
    let (server, client) = (Identity::new(), Identity::new());
    let verifier = WebPkiClientVerifier::builder(client.roots()).build().unwrap();
    let config = ServerConfig::builder()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![server.certificate.clone()], server.key.clone_key())
        .unwrap();
    let running = TestServer::start(1, vec![carrier(Arc::new(config), false)]);
    for version in [&TLS12, &TLS13] {
        let versions = ClientConfig::builder_with_protocol_versions(&[version]);
        let config = versions.with_root_certificates(server.roots()).with_no_client_auth();
        let mut stream = tls(config, running.dial(0));
        // In TLS 1.3 the client learns of its refusal when it reads.
        let mut answer = Vec::new();
        let refused = stream.write_all(&PINGREQ).and_then(|()| stream.read_to_end(&mut answer));
        assert!(refused.unwrap_err().to_string().contains("CertificateRequired"));
    }
    let known = ClientConfig::builder().with_root_certificates(server.roots());
    let known = known.with_client_auth_cert(vec![client.certificate], client.key).unwrap();
    converse(&running, tls(known, running.dial(0)));
}

#[test]
fn a_certificate_names_its_client() {
    let (server_id, client_id) = (Identity::new(), Identity::new());
    let verifier =
        WebPkiClientVerifier::builder(client_id.roots()).allow_unauthenticated().build().unwrap();
    let config = ServerConfig::builder()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![server_id.certificate.clone()], server_id.key.clone_key())
        .unwrap();
    let carriers = vec![carrier(Arc::new(config), false)];
    let server = TestServer::with_limits(1, carriers, TransportLimits::default(), false);

    let mut anonymous = Client(tls(trusting(&server_id), server.dial(0)));
    assert!(anonymous.try_connect("anonymous") >= 0x80);

    let config = ClientConfig::builder()
        .with_root_certificates(server_id.roots())
        .with_client_auth_cert(vec![client_id.certificate.clone()], client_id.key.clone_key())
        .unwrap();
    let mut known = Client(tls(config, server.dial(0)));
    known.connect("known");
}

#[test]
fn a_new_certificate_is_used_without_restart() {
    let (old, new) = (Identity::new(), Identity::new());
    let carrier = old.carrier(false);
    let shared = carrier.tls.as_ref().unwrap().config.clone();
    let server = TestServer::start(1, vec![carrier]);
    let mut before = Client(tls(trusting(&old), server.dial(0)));
    before.connect("before");
    shared.replace(new.server());
    let mut after = Client(tls(trusting(&new), server.dial(0)));
    after.connect("after");
    before.send(&PINGREQ);
    assert_eq!(before.next().0, PINGRESP);
}

/// The status line a page of this origin gets when it asks for a WebSocket; without one, as other programs ask.
fn status_for(mut stream: impl Read + Write, origin: Option<&str>) -> String {
    let origin = origin.map(|origin| format!("Origin: {origin}\r\n")).unwrap_or_default();
    let request = format!(
        "GET /mqtt HTTP/1.1\r\nHost: localhost:8083\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Protocol: mqtt\r\n{origin}\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

const FOREIGN: [&str; 4] =
    ["https://evil.example", "https://localhost:3000", "http://localhost:3000", "null"];

#[test]
fn pages_of_other_origins_get_no_websocket() {
    let server = TestServer::start(1, vec![Carrier::WS]);
    for origin in FOREIGN {
        assert_eq!(status_for(server.dial(0), Some(origin)), "HTTP/1.1 403", "{origin}");
    }
    for origin in [None, Some("http://localhost:8083"), Some("https://localhost:8083")] {
        assert_eq!(status_for(server.dial(0), origin), "HTTP/1.1 101", "{origin:?}");
    }
}

#[test]
fn pages_of_other_origins_get_no_websocket_over_tls_either() {
    let identity = Identity::new();
    let server = TestServer::start(1, vec![identity.carrier(true)]);
    let status = |origin| status_for(tls(trusting(&identity), server.dial(0)), origin);
    // A page loaded without TLS counts as foreign, whatever its origin: anyone on the path may have changed it.
    for origin in FOREIGN.into_iter().chain(["http://localhost:8083"]) {
        assert_eq!(status(Some(origin)), "HTTP/1.1 403", "{origin}");
    }
    for origin in [None, Some("https://localhost:8083")] {
        assert_eq!(status(origin), "HTTP/1.1 101", "{origin:?}");
    }
}
