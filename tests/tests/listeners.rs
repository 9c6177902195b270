//! Listeners at the edges: IPv6, several addresses, no file descriptors left; and that no test has a default port.
#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use fulmar_tests::{
    PATIENCE, TestBroker, default_listeners, eventually, fulmar, http_get, names_a_default_port,
    run,
};

const MQTT: [&str; 6] = ["mqtt", "mqtts", "ws", "wss", "quic", "https"];

/// CONNECT of MQTT 5.0 with clean start and a chosen identifier.
const CONNECT: &[u8] = b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00";

/// Publishes at QoS 1 and says whether it was acknowledged.
fn publishes(broker: &TestBroker, listener: &str, address: SocketAddr) -> bool {
    // At the HTTP endpoint MQTT is in WebSocket frames.
    let scheme = if listener == "https" { "wss" } else { listener };
    let url = format!("{scheme}://{address}");
    let mut command = fulmar();
    command.args(["pub", &url, "-t", "a", "-m", "b", "-q", "1", "--cafile"]);
    run(command.arg(broker.ca_file())).status.success()
}

fn has_ipv6() -> bool {
    let here = TcpListener::bind("[::1]:0").is_ok();
    if !here {
        eprintln!("not checked: this machine has no IPv6");
    }
    here
}

#[test]
fn every_transport_listens_on_both_families() {
    if !has_ipv6() {
        return;
    }
    let both = ["127.0.0.1:0", "[::1]:0"];
    let all = [&MQTT[..], &["http"]].concat();
    let builder = all.iter().fold(TestBroker::builder(), |b, name| b.listen(name, &both));
    let mut broker = builder.start();
    for name in all {
        let bound = broker.bound().iter().filter(|(bound, _)| bound == name);
        let addresses: Vec<SocketAddr> = bound.map(|(_, address)| *address).collect();
        assert!(addresses[0].is_ipv4() && addresses[1].is_ipv6(), "{name}: {addresses:?}");
        for address in addresses {
            match name {
                "http" => assert_eq!(http_get(address, "/health/ready").0, 200, "{address}"),
                _ => assert!(publishes(&broker, name, address), "{name} {address}"),
            }
        }
    }
    assert_eq!(broker.terminate().code(), Some(0), "{}", broker.log());
}

#[test]
fn both_families_share_a_port_number() {
    if !has_ipv6() {
        return;
    }
    // Both wildcard addresses at one port: the IPv6 listener must not take IPv4's clients.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (four, six) = (format!("0.0.0.0:{free}"), format!("[::]:{free}"));
    let mut builder = TestBroker::builder().env("FULMAR_AUTH__ALLOW_ANONYMOUS", "always");
    for listener in ["mqtt", "quic"] {
        builder = builder.listen(listener, &[&four, &six]);
    }
    let broker = builder.start();
    for listener in ["mqtt", "quic"] {
        for host in ["127.0.0.1", "[::1]"] {
            let address = format!("{host}:{free}").parse().unwrap();
            assert!(publishes(&broker, listener, address), "{listener} {address}");
        }
    }
}

/// Clients that have sent CONNECT, and whether they were answered.
struct Clients(Vec<(TcpStream, bool)>);

impl Clients {
    /// The kernel completes connections that the broker has not accepted.
    fn dial(address: SocketAddr, count: usize) -> Clients {
        let dial = |_| {
            let mut client = TcpStream::connect(address).unwrap();
            client.write_all(CONNECT).unwrap();
            client.set_nonblocking(true).unwrap();
            (client, false)
        };
        Clients((0..count).map(dial).collect())
    }

    /// How many were answered by now.
    fn inside(&mut self) -> usize {
        for (client, inside) in &mut self.0 {
            *inside |= match client.read(&mut [0; 256]) {
                Ok(len) => len > 0,
                Err(error) if error.kind() == ErrorKind::WouldBlock => false,
                Err(error) => panic!("{error}"),
            };
        }
        self.0.iter().filter(|(_, inside)| *inside).count()
    }
}

/// A client that was let in is served.
fn ping(client: &mut TcpStream) {
    client.set_nonblocking(false).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"\xc0\x00").unwrap();
    let mut pong = [0; 2];
    client.read_exact(&mut pong).unwrap();
    assert_eq!(pong, [0xd0, 0]);
}

#[test]
fn without_file_descriptors_it_serves_who_is_there_and_waits() {
    let builder = TestBroker::builder().env("FULMAR_SERVER__WORKERS", "1");
    let others = ["mqtts", "ws", "wss", "quic", "https", "http"];
    let broker = others.iter().fold(builder, |builder, name| builder.listen(name, &[])).start();
    let pid = broker.pid().to_string();
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let limit = format!("--nofile={0}:{0}", open + 10);
    if Command::new("prlimit").args(["--pid", &pid, &limit]).status().is_err() {
        eprintln!("not checked: prlimit is not installed");
        return;
    }
    let mut clients = Clients::dial(broker.address("mqtt"), 20);
    broker.wait_for_log("cannot accept connections");
    eventually("those who fit", || clients.inside() >= 8);
    let (mut inside, waiting): (Vec<_>, Vec<_>) =
        clients.0.into_iter().partition(|(_, inside)| *inside);
    assert!(waiting.len() >= 8, "the limit was never reached");
    // `limits.rs` has how often it tries and says so.
    ping(&mut inside[0].0);
    // Room is used as soon as there is some.
    drop(inside);
    let mut waiting = Clients(waiting);
    eventually("those who waited", || waiting.inside() >= 8);
}

/// Publishes to the operator's port from `source` and gives the status line.
fn post_from(source: [u8; 4], to: SocketAddr, path: &str) -> String {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((source, 0)).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = "Host: localhost\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx";
    write!(stream, "POST {path} HTTP/1.1\r\n{head}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn who_publishes_over_http_is_known_by_their_own_address() {
    let broker = TestBroker::start();
    let status = post_from([127, 0, 0, 7], broker.address("http"), "/publish/a");
    assert_eq!(status, "HTTP/1.1 404 Not Found", "nobody takes it");
    let line = broker.wait_for_log("connected");
    assert!(line.contains("peer=127.0.0.7:"), "{line}");
}

/// Lines of tests that name a default port and open none: names that nothing connects to, a network of the test's own,
/// a number that is no port.
const NAMED: [(&str, usize); 11] = [
    ("crates/coap/tests/endpoint.rs", 1),
    ("crates/transport/tests/layers.rs", 5),
    ("tests/dist/test_image.py", 6),
    ("tests/dist/test_packages.py", 3),
    ("tests/dist/test_systemd.py", 2),
    ("tests/interop/test_cluster.py", 3),
    ("tests/interop/test_migration.py", 2),
    ("tests/interop/test_schema.py", 1),
    ("tests/tests/cert.rs", 1),
    ("tests/tests/doctor.rs", 2),
    ("tests/tests/proxy_protocol.rs", 1),
];

/// These type what pages say, in whose place they put ports of their own.
const TYPISTS: [&str; 16] = [
    "tests/interop/client_tutorial.py",
    "tests/interop/pages.py",
    "tests/interop/pods.py",
    "tests/interop/test_page_commands.py",
    "tests/interop/test_clients_go.py",
    "tests/interop/test_clients_java.py",
    "tests/interop/test_clients_web.py",
    "tests/interop/test_helm.py",
    "tests/interop/test_libfulmar.py",
    "tests/interop/test_mqttsn.py",
    "tests/interop/test_outbox.py",
    "tests/interop/test_pages.py",
    "tests/interop/test_recipes.py",
    "tests/tests/gateway_setup.rs",
    "tests/tests/operator.rs",
    "tests/tests/pages.rs",
];

/// Sources of tests below this folder.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name());
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or("");
        if entry.file_type().unwrap().is_dir() {
            if name != "node_modules" && name != "target" {
                sources(&path, found);
            }
        } else if ["rs", "py", "mjs", "ts", "go", "toml"].contains(&extension) {
            found.push(path);
        }
    }
}

/// `make run` beside the tests has them. Every program that a test starts says where it listens, and the helpers
/// that start it refuse a default; this finds what they do not see.
#[test]
fn no_test_has_a_default_port() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let defaults = default_listeners();
    // Those that start the program set each listener that has a port by default.
    for (file, begins) in [
        ("tests/src/broker.rs", "const LISTENERS: "),
        ("tests/interop/broker.py", "    KINDS = "),
        ("tests/browser/fulmar.mjs", "const LISTENERS = "),
        ("tests/attack/run.py", "KINDS = "),
    ] {
        let text = std::fs::read_to_string(root.join(file)).unwrap();
        let (_, set) = text.split_once(begins).unwrap_or_else(|| panic!("{begins:?} in {file}"));
        let set = set.split("\n\n").next().unwrap();
        for (name, _) in defaults.iter().filter(|(_, ports)| !ports.is_empty()) {
            assert!(set.contains(&format!("\"{name}\"")), "{file} leaves {name} at its default");
        }
    }

    let mut files = Vec::new();
    for folder in ["tests", "web/tests", "firmware/tests"] {
        sources(&root.join(folder), &mut files);
    }
    for each in std::fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path()) {
        if each.join("tests").is_dir() {
            sources(&each.join("tests"), &mut files);
        }
    }
    assert!(files.len() > 150, "{} files", files.len());
    for path in files {
        let file = path.strip_prefix(&root).unwrap().to_str().unwrap();
        if TYPISTS.contains(&file) {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().filter(|line| names_a_default_port(line)).collect();
        let most = NAMED.iter().find(|(named, _)| *named == file).map_or(0, |(_, count)| *count);
        assert!(
            lines.len() <= most,
            "{file} names default ports, {most} times allowed: {lines:#?}"
        );
    }
}
