//! The contract of `fulmar serve`: what it prints, how it ends, how it refuses to start.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Output, Stdio};

use fulmar_tests::{PATIENCE, TestBroker, default_listeners, eventually, fulmar, http_get, run};

/// Runs `fulmar serve` with a configuration that must not work, until it has given up.
fn refused(config: &str) -> (i32, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fulmar.toml");
    std::fs::write(&file, config).unwrap();
    let mut command = fulmar();
    command.arg("serve").arg("--data").arg(folder.path().join("data"));
    ended(&run(command.arg("--config").arg(&file)))
}

fn ended(output: &Output) -> (i32, String) {
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// All listeners but `mqtt` off, and that one on `address`.
fn only_mqtt(address: &str) -> String {
    let others = default_listeners().into_iter().filter(|(name, _)| *name != "mqtt");
    let off: String = others.map(|(name, _)| format!("{name} = []\n")).collect();
    format!("[listeners]\nmqtt = [\"{address}\"]\n{off}")
}

/// Reason code of CONNACK for a client with this name and password (MQTT 5.0 section 3.2.2.2).
fn log_in(address: SocketAddr, user: &str, password: &str) -> u8 {
    let field = |text: &str| {
        let mut bytes = u16::try_from(text.len()).unwrap().to_be_bytes().to_vec();
        bytes.extend(text.as_bytes());
        bytes
    };
    // Clean start, user name and password; keep alive 60 s; no properties; an empty identifier.
    let head = [&field("MQTT")[..], &[5, 0xc2, 0, 60, 0], &field("")].concat();
    let body = [head, field(user), field(password)].concat();
    let mut client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(&[&[0x10, u8::try_from(body.len()).unwrap()], &body[..]].concat()).unwrap();
    let mut answer = [0; 4];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(answer[0], 0x20, "CONNACK");
    answer[3]
}

/// Adds a user to a password file with `fulmar passwd`.
fn passwd(file: &Path, user: &str, password: &str) {
    let secret = file.with_extension("secret");
    std::fs::write(&secret, password).unwrap();
    let mut command = fulmar();
    command.args(["passwd", user, "--file"]).arg(file).stdin(File::open(&secret).unwrap());
    let output = run(&mut command);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_ready_line_is_the_only_output_and_names_every_listener() {
    let mut broker = TestBroker::start();
    let names: Vec<&str> = broker.bound().iter().map(|(name, _)| name.as_str()).collect();
    let udp = ["quic", "https", "webtransport", "coap", "coaps"];
    assert_eq!(names, [&["mqtt", "mqtts", "ws", "wss"][..], &udp, &["http"]].concat());
    assert!(broker.bound().iter().all(|(_, address)| address.port() != 0));
    for name in ["mqtt", "mqtts", "ws", "wss", "https", "http"] {
        TcpStream::connect(broker.address(name)).unwrap();
    }
    assert_eq!(broker.terminate().code(), Some(0), "{}", broker.log());
    assert_eq!(broker.output().lines().count(), 1, "{}", broker.output());
}

#[test]
fn listeners_that_are_off_are_not_in_the_ready_line() {
    let off = ["mqtts", "ws", "wss", "quic", "https", "coap", "coaps", "http"];
    let builder = off.iter().fold(TestBroker::builder(), |builder, name| builder.listen(name, &[]));
    let broker = builder.start();
    assert_eq!(broker.bound().len(), 1);
    assert_eq!(broker.bound()[0].0, "mqtt");
}

#[test]
fn sigterm_ends_it_although_a_client_is_connected() {
    let mut broker = TestBroker::start();
    let mut client = TcpStream::connect(broker.address("mqtt")).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00").unwrap();
    let mut first = [0];
    client.read_exact(&mut first).unwrap();
    assert_eq!(first[0], 0x20, "CONNACK");
    assert_eq!(broker.terminate().code(), Some(0), "{}", broker.log());
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    // DISCONNECT with 0x8B, Server shutting down (MQTT 5.0 section 3.14.2.1).
    assert!(rest.windows(3).any(|bytes| bytes[0] == 0xe0 && bytes[2] == 0x8b), "{rest:x?}");
}

#[test]
fn killed_it_starts_again_on_the_same_ports_and_data() {
    let mut broker = TestBroker::start();
    let (ports, ca) = (broker.bound().to_vec(), std::fs::read(broker.ca_file()).unwrap());
    broker.kill();
    broker.restart();
    assert_eq!(broker.bound(), ports);
    assert_eq!(std::fs::read(broker.ca_file()).unwrap(), ca);
}

#[test]
fn health_and_metrics_answer() {
    let broker = TestBroker::start();
    let http = broker.address("http");
    assert_eq!(http_get(http, "/health/live").0, 200);
    assert_eq!(http_get(http, "/health/ready").0, 200);
    assert_eq!(http_get(http, "/nothing").0, 404);
    let (status, metrics) = http_get(http, "/metrics");
    assert_eq!(status, 200);
    let _client = TcpStream::connect(broker.address("mqtt")).unwrap();
    assert!(metrics.contains("# TYPE fulmar_connections gauge"), "{metrics}");
    assert!(metrics.contains("\nfulmar_tls_tickets 0\n"), "{metrics}");
    eventually("the connection to be counted", || {
        http_get(http, "/metrics").1.contains("fulmar_connections{transport=\"tcp\"} 1")
    });
}

#[test]
fn a_quic_clients_path_is_told_over_http_and_in_sys() {
    let config = "[sys]\ninterval_s = 1\nclients = \"everyone\"\n";
    let broker = TestBroker::builder().config(config).start();
    let (http, mqtt) = (broker.address("http"), broker.address("mqtt"));
    assert_eq!(http_get(http, "/connections"), (200, r#"{"connections":[]}"#.to_owned()));
    let url = format!("quic://localhost:{}", broker.address("quic").port());
    let mut client = fulmar();
    client.args(["sub", &url, "-t", "t", "-i", "a meter", "--cafile"]).arg(broker.ca_file());
    let mut client = client.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // With its path, of which the list learns a moment after the client.
    eventually("the client's path to be listed", || {
        let (status, page) = http_get(http, "/connections/a%20meter");
        status == 200 && page.contains("\"rtt_us\":")
    });
    let page: serde_json::Value = serde_json::from_str(&http_get(http, "/connections").1).unwrap();
    assert_eq!(page["connections"][0]["client"], "a meter", "{page}");
    assert!(page["connections"][0]["rtt_us"].as_u64() > Some(0), "{page}");
    let place = &page["connections"][0]["place"];
    assert_eq!(http_get(http, &format!("/connections?after={place}")).1, r#"{"connections":[]}"#);
    assert_eq!(http_get(http, "/connections?before=1").0, 400);
    assert_eq!(http_get(http, "/connections/nobody").0, 404);
    assert!(http_get(http, "/metrics").1.contains("fulmar_quic_rtt_seconds_bucket{le=\"+Inf\"}"));

    let mut watcher = fulmar();
    let filter = "$SYS/broker/connections/+/transport";
    watcher.args(["sub", &format!("mqtt://{mqtt}"), "-t", filter, "-v", "-C", "1"]);
    let told = String::from_utf8(run(&mut watcher).stdout).unwrap();
    client.kill().unwrap();
    client.wait().unwrap();
    let (topic, figures) = told.trim().split_once(" {").unwrap();
    assert_eq!(topic, "$SYS/broker/connections/a meter/transport");
    assert!(figures.contains("\"rtt_us\":"), "{figures}");
}

#[test]
fn the_data_folder_is_its_owners_only() {
    let broker = TestBroker::start();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&broker.data()), 0o700);
    let (mut folders, mut files) = (vec![broker.data()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    for secret in ["ca.key", "server.key", "quic.key", "broker.db", "broker.db-wal", "tickets.db"] {
        assert!(files.iter().any(|path| name(path) == secret), "no {secret} in {files:?}");
    }
    for path in files {
        // Certificates are to be handed out; those for WebTransport lie in one file with their keys.
        let with_key = path.parent().is_some_and(|folder| folder.ends_with("webtransport"));
        let certificate = path.extension().is_some_and(|end| end == "pem") && !with_key;
        let wanted = if certificate { 0o644 } else { 0o600 };
        assert_eq!(mode(&path), wanted, "{path:?}");
    }
}

#[test]
fn users_are_added_while_it_runs() {
    let folder = tempfile::tempdir().unwrap();
    let passwords = folder.path().join("passwords");
    passwd(&passwords, "ann", "first");
    let config = format!("[auth]\nallow_anonymous = \"never\"\npassword_file = {passwords:?}\n");
    let broker = TestBroker::builder().config(&config).start();
    let mqtt = broker.address("mqtt");
    assert_eq!(log_in(mqtt, "ann", "first"), 0);
    assert_eq!(log_in(mqtt, "ann", "wrong"), 0x86);
    assert_eq!(log_in(mqtt, "bob", "second"), 0x86);
    passwd(&passwords, "bob", "second");
    passwd(&passwords, "ann", "third");
    broker.hang_up();
    broker.wait_for_log("access rules reloaded");
    assert_eq!(log_in(mqtt, "bob", "second"), 0);
    assert_eq!(log_in(mqtt, "ann", "first"), 0x86);
    assert_eq!(log_in(mqtt, "ann", "third"), 0);
}

#[test]
fn a_bad_reload_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let passwords = folder.path().join("passwords");
    passwd(&passwords, "ann", "first");
    let config = format!("[auth]\nallow_anonymous = \"never\"\npassword_file = {passwords:?}\n");
    let broker = TestBroker::builder().config(&config).start();
    std::fs::write(&passwords, "ann:plaintext\n").unwrap();
    broker.hang_up();
    let line = broker.wait_for_log("nothing changed");
    assert!(line.contains("passwords:1"), "{line}");
    assert!(!line.contains("plaintext"), "a secret is in the log: {line}");
    assert_eq!(log_in(broker.address("mqtt"), "ann", "first"), 0);
}

#[test]
fn the_service_manager_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut broker = TestBroker::builder().env("NOTIFY_SOCKET", path.to_str().unwrap()).start();
    let next = || {
        let mut buffer = [0; 64];
        let len = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..len].to_vec()).unwrap()
    };
    assert_eq!(next(), "READY=1");
    broker.terminate();
    assert_eq!(next(), "STOPPING=1");
}

#[test]
fn an_unknown_key_names_file_line_and_the_nearest_key() {
    let (code, error) = refused("[limits]\n\nmax_paket_bytes = 1000\n");
    assert_eq!(code, 2, "{error}");
    for part in ["fulmar.toml:3:", "max_paket_bytes", "did you mean `max_packet_bytes`?"] {
        assert!(error.contains(part), "{part:?} is not in {error}");
    }
}

#[test]
fn a_wrong_value_names_the_environment_variable() {
    let mut command = fulmar();
    command.arg("serve").env("FULMAR_QUIC__RETRY", "sometimes");
    let (code, error) = ended(&run(&mut command));
    assert_eq!(code, 2, "{error}");
    for part in ["FULMAR_QUIC__RETRY", "sometimes", "auto", "always", "never"] {
        assert!(error.contains(part), "{part:?} is not in {error}");
    }
}

#[test]
fn a_port_in_use_is_named_with_the_key_to_change() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    let (code, error) = refused(&only_mqtt(&address));
    assert_eq!(code, 1, "{error}");
    for part in [&address, "listeners", "mqtt"] {
        assert!(error.contains(part), "{part:?} is not in {error}");
    }
}

#[test]
fn a_listener_nobody_could_use_is_refused() {
    // Where other machines could reach it, the first start creates an administrator.
    let nobody = format!("{}\n[auth]\nallow_anonymous = \"never\"\n", only_mqtt("127.0.0.1:0"));
    let (code, error) = refused(&nobody);
    assert_eq!(code, 2, "{error}");
    for part in ["127.0.0.1:0", "password_file", "allow_anonymous"] {
        assert!(error.contains(part), "{part:?} is not in {error}");
    }
}

#[test]
fn wrong_usage_is_2_and_help_and_version_are_0() {
    for wrong in [&["serve", "--nonsense"][..], &["fly"], &[], &["serve", "--config", "/none"]] {
        let output = run(fulmar().args(wrong));
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert!(output.stdout.is_empty(), "{wrong:?}");
    }
    for right in [&["--help"][..], &["--version"], &["serve", "--help"]] {
        let output = run(fulmar().args(right));
        assert_eq!(output.status.code(), Some(0), "{right:?}");
        assert!(!output.stdout.is_empty(), "{right:?}");
    }
}
