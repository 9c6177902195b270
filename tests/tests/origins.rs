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
