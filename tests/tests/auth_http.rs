//! A web service that decides about logins: what it may answer, and that one which hangs or fails lets nobody in and
//! holds nobody up.
#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use fulmar_tests::{TestBroker, Wire, eventually, field, fulmar, packet};
use rustls::pki_types::PrivateKeyDer;

const CONNACK: u8 = 0x20;
const WRONG: u8 = 0x86;
const DENIED: u8 = 0x87;
const UNAVAILABLE: u8 = 0x88;

/// A service that gives one answer to all requests.
struct Service {
    address: SocketAddr,
    answer: Arc<Mutex<Vec<u8>>>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Service {
    fn start() -> Service {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (answer, requests) =
            (Arc::<Mutex<Vec<u8>>>::default(), Arc::<Mutex<Vec<_>>>::default());
        let (next, seen) = (Arc::clone(&answer), Arc::clone(&requests));
        // As many connections as the tests need; none is used again.
        thread::spawn(move || {
            let mut silent = Vec::new();
            for stream in listener.incoming().take(64) {
                let mut stream = stream.unwrap();
                seen.lock().unwrap().push(request(&mut stream));
                let answer = next.lock().unwrap().clone();
                let _ = stream.write_all(&answer);
                if answer.is_empty() {
                    silent.push(stream);
                }
            }
        });
        Service { address, answer, requests }
    }

    fn answers(&self, status: &str, body: &str) {
        let length = body.len();
        let head =
            format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n");
        let location = "location: /elsewhere\r\n\r\n";
        *self.answer.lock().unwrap() = [&head, location, body].concat().into_bytes();
    }

    fn hangs(&self) {
        self.answer.lock().unwrap().clear();
    }

    fn requests(&self) -> usize {
        self.requests.lock().unwrap().len()
    }

    fn broker(&self, more: &str) -> TestBroker {
        self.broker_with(20_000, more)
    }

    fn broker_with(&self, timeout_ms: u32, more: &str) -> TestBroker {
        let url = format!(
            "[auth.http]\nurl = \"http://{}/mqtt\"\ntimeout_ms = {timeout_ms}\n{more}",
            self.address
        );
        TestBroker::builder().config(&url).start()
    }
}

fn request(stream: &mut TcpStream) -> String {
    let (mut text, mut room) = (String::new(), [0; 4096]);
    while !text.ends_with('}') {
        let read = stream.read(&mut room).unwrap();
        assert!(read > 0, "half a request: {text}");
        text.push_str(std::str::from_utf8(&room[..read]).unwrap());
    }
    text
}

/// A client, and the reason code of its CONNACK.
fn log_in(broker: &TestBroker, user: &str, password: &str, client: &str) -> (Wire, u8) {
    let fields =
        [field("MQTT"), vec![5, 0xC2, 0, 0, 0], field(client), field(user), field(password)];
    let mut wire = Wire::dial(broker.address("mqtt"));
    wire.send(&packet(0x10, &fields.concat()));
    let (first, body) = wire.read().expect("CONNACK");
    assert_eq!(first, CONNACK);
    (wire, body[1])
}

fn code(broker: &TestBroker, user: &str, client: &str) -> u8 {
    log_in(broker, user, "secret words", client).1
}

/// The reason code of the acknowledgement of a publication.
fn publish(wire: &mut Wire, topic: &str) -> u8 {
    wire.send(&packet(0x32, &[field(topic), vec![0, 1, 0]].concat()));
    let (first, body) = wire.read().expect("PUBACK");
    assert_eq!(first, 0x40);
    body.get(2).copied().unwrap_or(0)
}

/// `certificates = true` holds for every door through which a certificate comes.
#[test]
fn the_service_is_asked_about_certificates_over_dtls_as_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let good = |words: &[&str]| {
        let done = fulmar().args(words).output().unwrap();
        assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    };
    good(&["cert", "ca", "--dir", dir]);
    good(&["cert", "issue", "meter-9", "--client", "--dir", dir, "--out", dir]);
    let service = Service::start();
    let tls = "certificates = true\n[tls]\nclient_auth = \"required\"\nclient_ca = ";
    let broker = service.broker(&format!("{tls}{:?}\n", folder.path().join("ca.pem")));
    let (ca, own) = (broker.ca_file(), |end: &str| format!("{dir}/meter-9.{end}"));
    let publish = |scheme: &str| {
        let url = format!("{scheme}://localhost:{}", broker.address(scheme).port());
        let mut command = fulmar();
        command.args(["pub", &url, "-t", "t", "-m", "x", "-q", "1", "--cafile"]).arg(&ca);
        command.args(["--cert", &own("pem"), "--key", &own("key")]).output().unwrap()
    };
    for scheme in ["mqtts", "coaps"] {
        service.answers("403 Forbidden", "");
        let before = service.requests();
        let refused = publish(scheme);
        assert!(!refused.status.success(), "{scheme}");
        let asked = service.requests.lock().unwrap().last().cloned().unwrap_or_default();
        assert_eq!(service.requests(), before + 1, "{scheme}");
        for part in [r#""username":"meter-9""#, r#""certificate":true"#, r#""address":"127.0.0.1""#]
        {
            assert!(asked.contains(part), "{scheme}: {asked}");
        }
        service.answers("200 OK", r#"{"allow": true, "rules": [{"allow": true, "topic": "t"}]}"#);
        let allowed = publish(scheme);
        let said = String::from_utf8_lossy(&allowed.stderr).into_owned();
        assert!(allowed.status.success(), "{scheme}: {said}");
    }
    let server = format!("peer={} ", broker.address("coaps"));
    assert!(!broker.log().contains(&server), "the log has clients' addresses");
}

#[test]
fn the_service_decides_about_login_and_topics() {
    let service = Service::start();
    let broker = service.broker("[acl]\ndefault_allow = false\n");
    service.answers("403 Forbidden", "");
    assert_eq!(code(&broker, "ann", "phone"), WRONG);
    let asked = service.requests.lock().unwrap()[0].clone();
    assert!(
        asked.starts_with("POST /mqtt HTTP/1.1") && asked.contains("application/json"),
        "{asked}"
    );
    let body: serde_json::Value =
        serde_json::from_str(asked.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!(body["username"], "ann");
    assert_eq!(body["password"], "secret words");
    assert_eq!((&body["client_id"], &body["address"]), (&"phone".into(), &"127.0.0.1".into()));

    service.answers("200 OK", r#"{"allow": false}"#);
    assert_eq!(code(&broker, "ann", "phone"), WRONG);
    let rules =
        r#"{"allow": true, "user": "anna", "rules": [{"allow": true, "topic": "plant/%u/#"}]}"#;
    service.answers("200 OK", rules);
    let (mut ann, code) = log_in(&broker, "ann", "secret words", "phone");
    assert_eq!(code, 0);
    assert_eq!(publish(&mut ann, "plant/anna/x"), 0x10, "allowed, and nobody receives it");
    assert_eq!(publish(&mut ann, "plant/ann/x"), DENIED);

    // The same login again is remembered for a while, with its rules; others are not.
    service.answers("403 Forbidden", "");
    let before = service.requests();
    let (mut ann, code) = log_in(&broker, "ann", "secret words", "phone");
    assert_eq!((code, service.requests()), (0, before));
    assert_eq!(publish(&mut ann, "plant/anna/x"), 0x10);
    assert_eq!(log_in(&broker, "ann", "other words", "phone").1, WRONG);

    service.answers("200 OK", r#"{"allow": true, "superuser": true}"#);
    let (mut root, code) = log_in(&broker, "root", "secret words", "desk");
    assert_eq!((code, publish(&mut root, "any/topic")), (0, 0x10));
    service.answers("200 OK", r#"{"allow": true, "ttl_s": 1}"#);
    let (mut root, code) = log_in(&broker, "brief", "secret words", "tablet");
    assert_eq!(code, 0);
    let (first, body) = root.read().expect("DISCONNECT when its time is over");
    assert_eq!((first, body[0]), (0xE0, DENIED));
    assert!(!broker.log().contains("secret words"));
}

#[test]
fn whatever_goes_wrong_lets_nobody_in() {
    let service = Service::start();
    let broker = service.broker("");
    let long = format!(r#"{{"allow": true, "user": "{}"}}"#, "x".repeat(70_000));
    let wrong = [
        ("500 Internal Server Error", r#"{"allow": true}"#, "500"),
        ("307 Temporary Redirect", r#"{"allow": true}"#, "307"),
        // About the proxy before the service, and about how often it is asked; not about the password.
        ("407 Proxy Authentication Required", "", "407"),
        ("429 Too Many Requests", "", "429"),
        ("200 OK", "<html>welcome</html>", "not as documented"),
        ("200 OK", &long, "cannot be read"),
    ];
    for (status, body, _) in wrong {
        service.answers(status, body);
        assert_eq!(code(&broker, "ann", "phone"), UNAVAILABLE, "{status}");
    }
    assert_eq!(service.requests(), wrong.len(), "a redirection is not followed");
    // What depends on the question keeps nobody else out, however often one network causes it.
    for _ in 0..6 {
        service.answers("500 Internal Server Error", "");
        assert_eq!(code(&broker, "odd", "phone"), UNAVAILABLE);
    }
    service.answers("200 OK", r#"{"allow": true}"#);
    assert_eq!(code(&broker, "ann", "phone"), 0);
    broker.wait_for_log("[auth.http] logins refused");
    assert!(broker.metric(r#"auth_http_logins_total{result="failed"}"#) > 4.5);
    assert!(!broker.log().contains("secret words"));
}

#[test]
fn an_answer_about_one_login_keeps_nobody_else_out() {
    let service = Service::start();
    let broker = service.broker("");
    service.answers("422 Unprocessable Content", "");
    // At the same time, because refusals of failed logins are delayed.
    let mut waiting = Vec::new();
    for asked in 1..=20 {
        let mut wire = Wire::dial(broker.address("mqtt"));
        let (flags, name) = (vec![5, 0xC2, 0, 0, 0], field("x"));
        let client = field(format!("x{asked}"));
        let fields = [field("MQTT"), flags, client, name, field("secret words")];
        wire.send(&packet(0x10, &fields.concat()));
        eventually("the question", || service.requests() == asked);
        waiting.push(wire);
    }
    let (first, body) = waiting[0].read().expect("CONNACK");
    assert_eq!((first, body[1]), (CONNACK, WRONG), "a failed login");
    let line = broker.wait_for_log("answered 422");
    assert!(line.contains("403"), "the log says what is expected: {line}");
    service.answers("200 OK", r#"{"allow": true}"#);
    assert_eq!(code(&broker, "ann", "phone"), 0);
}

#[test]
fn a_service_that_cannot_be_reached_is_left_alone_for_a_while() {
    // Bound without listening: connections are refused, and nobody else gets the port.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let config = format!("[auth.http]\nurl = \"http://{address}/mqtt\"\n");
    let broker = TestBroker::builder().config(&config).start();
    for _ in 0..5 {
        assert_eq!(code(&broker, "ann", "phone"), UNAVAILABLE);
    }
    broker.wait_for_log("[auth.http] logins refused");
    socket.listen(8).unwrap();
    socket.set_nonblocking(true).unwrap();
    assert_eq!(code(&broker, "ann", "phone"), UNAVAILABLE);
    assert!(socket.accept().is_err(), "nobody is asked in the pause");
}

#[test]
fn a_service_that_hangs_holds_up_nobody_else() {
    let service = Service::start();
    let broker = service.broker_with(3_000, "max_in_flight = 1\n");
    service.answers("200 OK", r#"{"allow": true}"#);
    let (mut connected, code) = log_in(&broker, "early", "secret words", "early");
    assert_eq!(code, 0);
    service.hangs();
    let mut waiting = Wire::dial(broker.address("mqtt"));
    let fields = [field("MQTT"), vec![5, 0xC2, 0, 0, 0], field("late"), field("late"), field("x")];
    waiting.send(&packet(0x10, &fields.concat()));
    // Those that are connected, those that are remembered, and those that need no service.
    connected.ping();
    assert_eq!(log_in(&broker, "early", "secret words", "early").1, 0);
    drop(Wire::connect(broker.address("mqtt"), "anonymous"));
    let (first, body) = waiting.read().expect("CONNACK");
    assert_eq!((first, body[1]), (CONNACK, UNAVAILABLE));
}

fn server_config(issued: &rcgen::CertifiedKey<rcgen::KeyPair>) -> Arc<rustls::ServerConfig> {
    let key = PrivateKeyDer::try_from(issued.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![issued.cert.der().clone()], key)
        .unwrap();
    Arc::new(config)
}

/// A service over TLS with this certificate, which allows every login.
fn https_service(issued: &rcgen::CertifiedKey<rcgen::KeyPair>) -> SocketAddr {
    let (config, listener) = (server_config(issued), TcpListener::bind("127.0.0.1:0").unwrap());
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().take(8) {
            let connection = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = rustls::StreamOwned::new(connection, stream.unwrap());
            let (mut seen, mut room) = (Vec::new(), [0; 4096]);
            // A client that does not trust the certificate ends the handshake.
            while let Ok(read @ 1..) = stream.read(&mut room) {
                seen.extend_from_slice(&room[..read]);
                if seen.ends_with(b"}") {
                    let body = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 15\r\n\r\n{\"allow\": true}";
                    let _ = stream.write_all(body.as_bytes());
                    break;
                }
            }
        }
    });
    address
}

#[test]
fn over_https_only_a_service_with_a_certificate_of_the_ca_is_asked() {
    let issue = || rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (issued, other) = (issue(), issue());
    let address = https_service(&issued);
    let folder = tempfile::tempdir().unwrap();
    for (ca, expected) in [(Some(&issued), 0), (Some(&other), UNAVAILABLE), (None, UNAVAILABLE)] {
        let file = folder.path().join("ca.pem");
        let line = ca.map_or_else(String::new, |ca| {
            std::fs::write(&file, ca.cert.pem()).unwrap();
            format!("ca_file = {file:?}\n")
        });
        let config = format!("[auth.http]\nurl = \"https://{address}/mqtt\"\n{line}");
        let broker = TestBroker::builder().config(&config).start();
        assert_eq!(code(&broker, "ann", "phone"), expected, "{line}");
        if expected != 0 {
            broker.wait_for_log("set ca_file to the certificate of the CA");
        }
    }
}

/// A service over TLS that serves its first connection and lets all others wait for their handshake.
struct HalfService {
    address: SocketAddr,
    /// Those that wait.
    stalled: Arc<Mutex<Vec<TcpStream>>>,
    asked: Arc<AtomicUsize>,
    /// The answers that it may give.
    answers: mpsc::Sender<()>,
}

impl HalfService {
    fn start(issued: &rcgen::CertifiedKey<rcgen::KeyPair>) -> HalfService {
        let (config, listener) = (server_config(issued), TcpListener::bind("127.0.0.1:0").unwrap());
        let address = listener.local_addr().unwrap();
        let (stalled, asked) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<AtomicUsize>::default());
        let (answers, may_answer) = mpsc::channel();
        let (others, counter) = (Arc::clone(&stalled), Arc::clone(&asked));
        thread::spawn(move || {
            let (first, _) = listener.accept().unwrap();
            thread::spawn(move || {
                let connection = rustls::ServerConnection::new(config).unwrap();
                let mut stream = rustls::StreamOwned::new(connection, first);
                let (mut seen, mut room) = (Vec::new(), [0; 4096]);
                while let Ok(read @ 1..) = stream.read(&mut room) {
                    seen.extend_from_slice(&room[..read]);
                    if seen.ends_with(b"}") {
                        seen.clear();
                        counter.fetch_add(1, Relaxed);
                        let Ok(()) = may_answer.recv() else { return };
                        let answer =
                            "HTTP/1.1 200 OK\r\ncontent-length: 15\r\n\r\n{\"allow\": true}";
                        stream.write_all(answer.as_bytes()).unwrap();
                    }
                }
            });
            for stream in listener.incoming() {
                others.lock().unwrap().push(stream.unwrap());
            }
        });
        HalfService { address, stalled, asked, answers }
    }

    fn asked(&self) -> usize {
        self.asked.load(Relaxed)
    }

    /// Connections that the broker has opened in vain, now or before.
    fn stalled(&self) -> usize {
        self.stalled.lock().unwrap().len()
    }

    /// Those of them that it has not closed.
    fn open(&self) -> usize {
        let mut stalled = self.stalled.lock().unwrap();
        let mut room = [0; 4096];
        let is_open = |stream: &mut TcpStream| {
            stream.set_nonblocking(true).unwrap();
            loop {
                match stream.read(&mut room) {
                    Ok(1..) => {}
                    Ok(0) => return false,
                    Err(error) => return error.kind() == ErrorKind::WouldBlock,
                }
            }
        };
        stalled.iter_mut().map(is_open).filter(|open| *open).count()
    }
}

#[test]
fn connections_that_were_opened_in_vain_are_closed() {
    let issued = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let service = HalfService::start(&issued);
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, issued.cert.pem()).unwrap();
    let config = format!(
        "[auth.http]\nurl = \"https://{}/mqtt\"\nca_file = {ca:?}\nmax_in_flight = 2\ntimeout_ms = 8000\n",
        service.address
    );
    let broker = TestBroker::builder().config(&config).start();
    let send = |name: &str| {
        let mut wire = Wire::dial(broker.address("mqtt"));
        let fields =
            [field("MQTT"), vec![5, 0xC2, 0, 0, 0], field(name), field(name), field("secret")];
        wire.send(&packet(0x10, &fields.concat()));
        wire
    };
    for wave in 0..6 {
        // While the first login has the connection, the second one opens another, and then gets the first.
        let mut wires = vec![send(&format!("a{wave}"))];
        eventually("the first question", || service.asked() == 2 * wave + 1);
        wires.push(send(&format!("b{wave}")));
        eventually("another connection", || service.stalled() == wave + 1);
        for _ in 0..2 {
            service.answers.send(()).unwrap();
        }
        for wire in &mut wires {
            let (first, body) = wire.read().expect("CONNACK");
            assert_eq!((first, body[1]), (CONNACK, 0));
        }
    }
    eventually("at most max_in_flight connections", || service.open() < 2);
}

/// A CA, and a client of its, as files in this folder.
fn client_certificate(folder: &std::path::Path, name: &str) {
    let key = || rcgen::KeyPair::generate().unwrap();
    let (ca_key, client_key) = (key(), key());
    let mut ca = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca_certificate = ca.self_signed(&ca_key).unwrap();
    let mut client = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
    client.distinguished_name.push(rcgen::DnType::CommonName, name);
    client.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let issuer = rcgen::Issuer::from_params(&ca, &ca_key);
    let issued = client.signed_by(&client_key, &issuer).unwrap();
    let write = |file: &str, text: String| std::fs::write(folder.join(file), text).unwrap();
    write("ca.pem", ca_certificate.pem());
    write("client.pem", issued.pem());
    write("client.key", client_key.serialize_pem());
    let owner = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(folder.join("client.key"), owner).unwrap();
}

#[test]
fn the_service_decides_about_certificates_if_it_is_to() {
    let folder = tempfile::tempdir().unwrap();
    client_certificate(folder.path(), "pump-7");
    let ca = folder.path().join("ca.pem");
    let publishes = |broker: &TestBroker, listener: &str, topic: &str| {
        let mut command = fulmar_tests::fulmar();
        let url = format!("{listener}://{}", broker.address(listener));
        command.args(["pub", &url, "-t", topic, "-m", "x", "-q", "1", "-i", "p7", "--cafile"]);
        command.arg(broker.ca_file()).arg("--cert").arg(folder.path().join("client.pem"));
        command.arg("--key").arg(folder.path().join("client.key"));
        fulmar_tests::run(&mut command).status.success()
    };
    let service = Service::start();
    for asked in [false, true] {
        let tls = format!(
            "certificates = {asked}\ncache_s = 0\n[acl]\ndefault_allow = false\n\
             [[acl.rules]]\nallow = true\ntopic = \"common\"\n\
             [tls]\nclient_auth = \"required\"\nclient_ca = {ca:?}\n"
        );
        let broker = service.broker(&tls);
        for listener in ["mqtts", "quic"] {
            service.answers("403 Forbidden", "");
            let before = service.requests();
            assert_eq!(publishes(&broker, listener, "common"), !asked, "{listener}");
            assert_eq!(service.requests() - before, usize::from(asked), "{listener}");
            let rules = r#"{"allow": true, "rules": [{"allow": true, "topic": "pumps/%u/#"}]}"#;
            service.answers("200 OK", rules);
            assert_eq!(publishes(&broker, listener, "pumps/pump-7/x"), asked, "{listener}");
            assert!(!publishes(&broker, listener, "pumps/pump-8/x"), "{listener}");
        }
        if asked {
            let request = service.requests.lock().unwrap().last().unwrap().clone();
            let body: serde_json::Value =
                serde_json::from_str(request.split("\r\n\r\n").nth(1).unwrap()).unwrap();
            let expected = serde_json::json!({"username": "pump-7", "certificate": true,
                "client_id": "p7", "address": "127.0.0.1"});
            assert_eq!(body, expected);
        }
    }
}

#[test]
fn no_client_calls_itself_the_program() {
    let service = Service::start();
    service.answers("200 OK", r#"{"allow": true}"#);
    let broker = service.broker("[acl]\ndefault_allow = false\n");
    let longest = "a".repeat(512);
    for name in ["platform:", "platform:ann", "", "a\u{1}b", &format!("{longest}a")] {
        assert_eq!(code(&broker, name, "liar"), WRONG, "{name:?}");
    }
    assert_eq!(service.requests(), 0, "the service is not asked about such names");
    for (number, name) in ["platform", "Platform:", &longest].into_iter().enumerate() {
        let (mut liar, code) = log_in(&broker, name, "secret words", &format!("liar-{number}"));
        assert_eq!(code, 0, "{name:?}");
        assert_eq!(publish(&mut liar, "fulmar/x"), DENIED, "{name:?}");
    }
    // Nor does the service make it one.
    let user = r#"{"allow": true, "user": "platform:"}"#;
    service.answers("200 OK", user);
    assert_eq!(code(&broker, "other", "other"), UNAVAILABLE);
}

#[test]
fn a_will_that_a_login_allowed_is_published_after_a_crash() {
    let service = Service::start();
    let mut broker = service.broker("[acl]\ndefault_allow = false\n");
    let rules = r#"{"allow": true, "rules": [{"allow": true, "topic": "plant/#"}]}"#;
    service.answers("200 OK", rules);
    // A session of 100 seconds, and a retained will after 3: who watches may come before it or after it.
    let (session, delay) = ([5, 0x11, 0, 0, 0, 100], [5, 0x18, 0, 0, 0, 3]);
    let head = [field("MQTT"), vec![5, 0xE6, 0, 0], session.to_vec(), field("pump")].concat();
    let will = [delay.to_vec(), field("plant/last"), field("gone")].concat();
    let mut pump = Wire::dial(broker.address("mqtt"));
    pump.send(&packet(0x10, &[head, will, field("ann"), field("secret words")].concat()));
    let (_, body) = pump.read().expect("CONNACK");
    assert_eq!(body[1], 0);
    broker.kill();
    broker.restart();
    let (mut watch, code) = log_in(&broker, "ann", "secret words", "watch");
    assert_eq!(code, 0);
    watch.send(&packet(0x82, &[vec![0, 1, 0], field("plant/#"), vec![0]].concat()));
    assert_eq!(watch.read().unwrap().0, 0x90, "SUBACK");
    let (first, body) = watch.read().expect("the will");
    assert_eq!((first & 0xFE, &body[2..12]), (0x30, &b"plant/last"[..]));
}
