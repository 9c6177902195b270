//! Listeners behind proxies (PROXY protocol, version 2): whose address the broker sees, and whom it refuses.
#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;

use fulmar_tests::{PATIENCE, TestBroker, Wire, connect, eventually, fulmar, http_get};

const LISTENERS: [&str; 5] = ["mqtt", "mqtts", "ws", "wss", "https"];

/// 203.0.113.7, port 4660, and a TLV.
const PROXIED: &[u8] =
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x12\xcb\x00\x71\x07\x7f\x00\x00\x01\x12\x34\x07\x5b\x04\x00\x03abc";
/// A health check of the proxy itself.
const LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00";

const CONFIG: &str = r#"
[proxy_protocol]
listeners = ["mqtt", "mqtts", "ws", "wss", "https"]
from = ["127.0.0.0/8"]
[auth]
allow_anonymous = "always"
"#;
/// Added where silence is to end.
const IMPATIENT: &str = "[limits]\nhandshake_timeout_s = 2\n";

/// A proxy in front of `broker` that begins each connection with `header`. Its threads end with the connections.
fn proxy(broker: SocketAddr, header: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming().take(16) {
            let (client, mut server) = (client.unwrap(), TcpStream::connect(broker).unwrap());
            // Byte by byte, so that headers arrive in pieces.
            server.set_nodelay(true).unwrap();
            for byte in header {
                server.write_all(&[*byte]).unwrap();
            }
            for (mut from, mut to) in
                [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)]
            {
                thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        }
    });
    address
}

/// A subscriber in a process of its own.
struct Subscriber(Child);

impl Subscriber {
    fn start(broker: &TestBroker, listener: &str, address: SocketAddr) -> Subscriber {
        let scheme = if listener == "https" { "wss" } else { listener };
        let mut command = fulmar();
        command.args(["sub", &format!("{scheme}://{address}"), "-t", "a", "--id", listener]);
        let command: &mut Command = command.arg("--cafile").arg(broker.ca_file());
        Subscriber(command.stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn address_of(broker: &TestBroker, client: &str) -> Option<String> {
    let (status, page) = http_get(broker.address("http"), &format!("/connections/{client}"));
    let page: serde_json::Value = serde_json::from_str(&page).unwrap_or_default();
    (status == 200).then(|| page["address"].as_str().unwrap_or_default().to_owned())
}

/// Sends `bytes` and waits until the broker closes.
fn is_closed_after(broker: &TestBroker, listener: &str, bytes: &[u8]) {
    let mut stream = TcpStream::connect(broker.address(listener)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = stream.write_all(bytes);
    match stream.read(&mut [0; 16]) {
        Ok(0) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        other => panic!("{listener}: {other:?}"),
    }
}

#[test]
fn the_client_has_its_own_address_at_every_listener() {
    let broker = TestBroker::builder().listen("wss", &["127.0.0.1:0"]).config(CONFIG).start();
    let _all = LISTENERS.map(|listener| {
        let through = proxy(broker.address(listener), PROXIED);
        let subscriber = Subscriber::start(&broker, listener, through);
        eventually(listener, || address_of(&broker, listener).is_some());
        assert_eq!(address_of(&broker, listener).unwrap(), "203.0.113.7:4660", "{listener}");
        subscriber
    });
    // The proxy's own connection, as for a health check, has the proxy's.
    let mut own = Wire::connect(proxy(broker.address("mqtt"), LOCAL), "own");
    own.ping();
    assert!(address_of(&broker, "own").unwrap().starts_with("127.0.0.1:"));
    assert!(broker.metric("proxy_headers_refused_total").abs() < 0.5);
}

#[test]
fn everything_else_is_refused_and_named() {
    let config = [CONFIG, IMPATIENT].concat();
    let broker = TestBroker::builder().listen("wss", &["127.0.0.1:0"]).config(&config).start();
    for listener in LISTENERS {
        is_closed_after(&broker, listener, &connect("direct"));
    }
    assert!(broker.wait_for_log("did not begin with a header").contains("send-proxy-v2"));
    // Silence is bounded in time, also in the middle of a header.
    for listener in ["mqtt", "https"] {
        is_closed_after(&broker, listener, &PROXIED[..20]);
    }
    eventually("their count", || broker.metric("proxy_headers_refused_total") > 6.5);
    let broker = TestBroker::builder().config(CONFIG).start();
    is_closed_after(&broker, "mqtt", b"PROXY TCP4 203.0.113.7 127.0.0.1 4660 1883\r\n");
    assert!(broker.wait_for_log("version 1 of the PROXY protocol").contains("send-proxy-v2"));
}

#[test]
fn a_proxy_of_another_network_is_refused() {
    let config = CONFIG.replace("127.0.0.0/8", "10.0.0.0/8");
    for listener in ["mqtts", "https"] {
        let broker = TestBroker::builder().config(&config).start();
        is_closed_after(&broker, listener, PROXIED);
        broker.wait_for_log("not in [proxy_protocol] from");
    }
}

#[test]
fn behind_a_proxy_on_this_machine_anonymous_clients_are_not_local() {
    let config = CONFIG.replace("[auth]\nallow_anonymous = \"always\"", "");
    let broker = TestBroker::builder().config(&config).start();
    let mut wire = Wire::dial(proxy(broker.address("mqtt"), PROXIED));
    wire.send(&connect("somebody"));
    assert_eq!(wire.read().expect("CONNACK").1[1], 0x87, "not authorized");
}
