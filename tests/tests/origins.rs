//! Whose pages may use the broker: one rule at every listener that browsers reach with TLS.
#![allow(clippy::unwrap_used)]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use fulmar_tests::{PATIENCE, TestBroker};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// The status of the answer to a request for a WebSocket, sent for a page of `origin` or for no page.
fn status(broker: &TestBroker, listener: &str, origin: Option<&str>) -> String {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(broker.ca_file()).unwrap()).unwrap();
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let socket = TcpStream::connect(broker.address(listener)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = StreamOwned::new(connection, socket);
    let port = broker.address(listener).port();
    let origin = origin.map(|origin| format!("Origin: {origin}\r\n")).unwrap_or_default();
    let request = format!(
        "GET /mqtt HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Protocol: mqtt\r\n{origin}\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    String::from_utf8_lossy(&answer[9..]).into_owned()
}

#[test]
fn pages_of_strangers_have_no_websocket_at_wss_as_at_https() {
    let settings = "[http]\nallowed_origins = [\"https://dashboard.example\"]\n";
    let broker = TestBroker::builder().config(settings).start();
    // The pages of the program itself are at `https`, and may use both.
    let own = format!("https://localhost:{}", broker.address("https").port());
    let other_port = format!("https://localhost:{}", broker.address("mqtts").port());
    for listener in ["wss", "https"] {
        for (origin, expected) in [
            (None, "101"),
            (Some(&*own), "101"),
            (Some("https://dashboard.example"), "101"),
            (Some("https://evil.example"), "403"),
            (Some(&*other_port), "403"),
            (Some("http://localhost"), "403"),
            (Some("null"), "403"),
        ] {
            assert_eq!(status(&broker, listener, origin), expected, "{origin:?} at {listener}");
        }
    }
    assert_eq!(broker.metric("http_origins_refused_total"), 8.0);
}

/// Status and body of the answer to a request that names this host, if any.
fn asked(broker: &TestBroker, request: &str, host: Option<&str>) -> String {
    let mut stream = TcpStream::connect(broker.address("http")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (version, host) = match host {
        Some(host) => ("1.1", format!("Host: {host}\r\n")),
        None => ("1.0", String::new()),
    };
    write!(stream, "{request} HTTP/{version}\r\n{host}Connection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text[9..].to_owned()
}

/// A page of `evil.example`, whose name the attacker has pointed at this machine, asks for its own host.
#[test]
fn a_name_that_is_not_this_machines_reads_nothing_at_the_operators_port() {
    let settings = "[tls]\nnames = [\"broker.example\"]\n[http]\nallowed_hosts = [\"fulmar\"]\n";
    let broker = TestBroker::builder().config(settings).start();
    for request in ["GET /connections", "GET /metrics", "GET /none", "POST /publish/t"] {
        for host in
            ["evil.example", "evil.example:9", "localhost.evil.example", "127.0.0.1.evil.example"]
        {
            let answer = asked(&broker, request, Some(host));
            assert!(answer.starts_with("421"), "{request} {host}: {answer}");
            assert!(answer.contains("[http] allowed_hosts"), "{answer}");
        }
        let answer =
            asked(&broker, &request.replace("/", "http://evil.example/"), Some("localhost"));
        assert!(answer.starts_with("421") || answer.starts_with("400"), "{answer}");
    }
    let line = broker.wait_for_log("a request names an unknown host");
    assert!(line.contains("evil.example"), "{line}");
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    for host in [
        "localhost",
        "127.0.0.1:9",
        "[::1]",
        "192.0.2.1",
        "broker.example",
        "fulmar:9",
        host.trim(),
    ] {
        assert!(asked(&broker, "GET /metrics", Some(host)).starts_with("200"), "{host}");
    }
    assert!(asked(&broker, "GET /health/live", None).starts_with("200"));
}
