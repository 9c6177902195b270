//! What a CA may answer, whatever it is, without ending the server or its orders; and a certificate of an earlier order
//! that cannot be used. Orders that succeed are in tests/interop/test_acme.py.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fulmar_tests::{TestBroker, Wire, eventually};
use rcgen::CertificateSigningRequestParams;
use rustls::pki_types::PrivateKeyDer;
use tempfile::TempDir;

const NAME: &str = "broker.fulmar.test";

/// The answer to a request, by its path and body: status line, further headers, body.
type Answers = Box<dyn Fn(&str, &str) -> (&'static str, String, String) + Send + Sync>;

/// An ACME server over TLS.
struct Authority {
    address: SocketAddr,
    folder: TempDir,
    paths: Arc<Mutex<Vec<String>>>,
}

impl Authority {
    /// `answers` gets the address, too, for its URLs.
    fn start(answers: impl FnOnce(SocketAddr) -> Answers) -> Authority {
        let issued = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), issued.cert.pem()).unwrap();
        let key = PrivateKeyDer::try_from(issued.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![issued.cert.der().clone()], key)
            .unwrap();
        let (config, listener) = (Arc::new(config), TcpListener::bind("127.0.0.1:0").unwrap());
        let address = listener.local_addr().unwrap();
        let (answers, paths) = (Arc::new(answers(address)), Arc::<Mutex<Vec<String>>>::default());
        let seen = Arc::clone(&paths);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let connection = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
                let mut stream = rustls::StreamOwned::new(connection, stream.unwrap());
                let Some((method, path, asked)) = request(&mut stream) else { continue };
                seen.lock().unwrap().push(path.clone());
                let (status, headers, body) = answers(&path, &asked);
                let length = body.len();
                let body = if method == "HEAD" { String::new() } else { body };
                let answer = format!(
                    "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\
                     replay-nonce: bm9uY2U\r\n{headers}\r\n{body}"
                );
                let _ = stream.write_all(answer.as_bytes());
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        });
        Authority { address, folder, paths }
    }

    fn broker(&self) -> TestBroker {
        let config = config(self.address, Some(&self.folder.path().join("ca.pem")));
        TestBroker::builder().config(&config).start()
    }

    fn asked(&self, path: &str) -> usize {
        self.paths.lock().unwrap().iter().filter(|asked| asked.starts_with(path)).count()
    }
}

fn config(authority: SocketAddr, ca: Option<&Path>) -> String {
    let ca = ca.map_or_else(String::new, |ca| format!("ca_file = {ca:?}\n"));
    format!(
        "[acme]\ndirectory = \"https://{authority}/dir\"\n{ca}agree_to_terms = true\n\
         domains = [\"{NAME}\"]\n"
    )
}

/// Method, path and body of a request that has been read to its end.
fn request(stream: &mut impl Read) -> Option<(String, String, String)> {
    let (mut text, mut room) = (String::new(), [0; 4096]);
    loop {
        let read = stream.read(&mut room).ok().filter(|read| *read > 0)?;
        text.push_str(std::str::from_utf8(&room[..read]).ok()?);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length =
            |line: &str| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok();
        if body.len() < head.lines().find_map(length).unwrap_or(0) {
            continue;
        }
        let mut words = head.split(' ').map(str::to_owned);
        return Some((words.next()?, words.next()?, body.to_owned()));
    }
}

fn directory(address: SocketAddr, nonce: &str) -> String {
    format!(
        r#"{{"newNonce": "{nonce}", "newAccount": "https://{address}/account",
            "newOrder": "https://{address}/order"}}"#
    )
}

/// What every CA here answers before an order.
fn before_an_order(address: SocketAddr, path: &str) -> Option<(&'static str, String, String)> {
    Some(match path {
        "/dir" => {
            ("200 OK", String::new(), directory(address, &format!("https://{address}/nonce")))
        }
        "/nonce" => ("200 OK", String::new(), String::new()),
        "/account" => (
            "201 Created",
            format!("location: https://{address}/account/1\r\n"),
            r#"{"status": "valid"}"#.to_owned(),
        ),
        _ => return None,
    })
}

/// A CA that works, up to these authorizations, each of which is for this name.
fn with_authorizations(number: usize, name: &'static str, retry_after: &'static str) -> Authority {
    Authority::start(|address| {
        let order = move || {
            let url = |number| format!("\"https://{address}/authorization/{number}\"");
            let urls: Vec<_> = (0..number).map(url).collect();
            format!(
                r#"{{"status": "pending", "authorizations": [{}],
                    "finalize": "https://{address}/finalize"}}"#,
                urls.join(",")
            )
        };
        Box::new(move |path, _| match path {
            "/order" => {
                ("201 Created", format!("location: https://{address}/order/1\r\n"), order())
            }
            "/order/1" => ("200 OK", format!("retry-after: {retry_after}\r\n"), order()),
            path if path.starts_with("/authorization/") => {
                let text = format!(
                    r#"{{"status": "valid", "challenges": [],
                        "identifier": {{"type": "dns", "value": "{name}"}}}}"#
                );
                ("200 OK", String::new(), text)
            }
            _ => before_an_order(address, path).unwrap_or((
                "404 Not Found",
                String::new(),
                String::new(),
            )),
        })
    })
}

/// A CA that works, and whose certificates `issue` makes of a request and the number of those before.
fn with_certificates(
    issue: impl Fn(CertificateSigningRequestParams, usize) -> String + Send + Sync + 'static,
) -> Authority {
    Authority::start(|address| {
        let certificates = Mutex::new(Vec::new());
        // An order is ready, because it has no authorizations, until it has its certificate.
        let order = move |number: usize, done: bool| {
            let (status, end) = match done {
                true => ("valid", format!(r#", "certificate": "https://{address}/pem/{number}""#)),
                false => ("ready", String::new()),
            };
            format!(
                r#"{{"status": "{status}", "authorizations": [],
                    "finalize": "https://{address}/finalize/{number}"{end}}}"#
            )
        };
        Box::new(move |path, body| {
            let mut certificates = certificates.lock().unwrap();
            if path == "/order" {
                let number = certificates.len();
                let location = format!("location: https://{address}/order/{number}\r\n");
                return ("201 Created", location, order(number, false));
            }
            if let Some(answer) = before_an_order(address, path) {
                return answer;
            }
            let (what, number) = path.rsplit_once('/').unwrap();
            let number = number.parse().unwrap();
            if what == "/finalize" {
                certificates.push(issue(request_in(body), number));
            }
            let text = match what {
                "/pem" => certificates[number].clone(),
                _ => order(number, certificates.len() > number),
            };
            ("200 OK", String::new(), text)
        })
    })
}

/// The request for a certificate in a signed request (RFC 8555 section 7.4).
fn request_in(body: &str) -> CertificateSigningRequestParams {
    let json = |text: &[u8]| serde_json::from_slice::<serde_json::Value>(text).unwrap();
    let decoded =
        |value: &serde_json::Value| URL_SAFE_NO_PAD.decode(value.as_str().unwrap()).unwrap();
    let payload = json(&decoded(&json(body.as_bytes())["payload"]));
    CertificateSigningRequestParams::from_der(&decoded(&payload["csr"]).into()).unwrap()
}

/// An extension that nobody knows and that has to be known.
fn unknown_extension() -> rcgen::CustomExtension {
    let mut unknown =
        rcgen::CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 99999, 1], vec![5, 0]);
    unknown.set_criticality(true);
    unknown
}

/// The thread that orders has not ended: a failed order is tried again on SIGHUP.
fn orders_again(broker: &TestBroker, authority: &Authority) {
    let before = authority.asked("/dir");
    eventually("another order", || {
        // Again and again, because it does not count before the server waits.
        broker.hang_up();
        authority.asked("/dir") > before
    });
}

#[test]
fn a_directory_without_usable_addresses_is_an_error() {
    for nonce in ["", "a b", "/nonce", "http://127.0.0.1/nonce"] {
        let authority = Authority::start(|address| {
            Box::new(move |_, _| ("200 OK", String::new(), directory(address, nonce)))
        });
        let broker = authority.broker();
        let line = broker.wait_for_log("Next attempt");
        assert!(line.contains("newNonce"), "{nonce:?}: {line}");
        orders_again(&broker, &authority);
    }
}

#[test]
fn a_wait_of_any_length_is_harmless() {
    let authority = with_authorizations(1, NAME, "18446744073709551615");
    let broker = authority.broker();
    // Ignored, it is asked again before the order's time is over.
    eventually("the order", || authority.asked("/order/1") > 1);
    drop(broker);
}

#[test]
fn an_order_has_no_more_authorizations_than_names() {
    let authority = with_authorizations(500, NAME, "1");
    let broker = authority.broker();
    let line = broker.wait_for_log("Next attempt");
    assert!(line.contains("500 authorizations"), "{line}");
    assert_eq!(authority.asked("/authorization/"), 0);
    orders_again(&broker, &authority);
}

#[test]
fn an_order_has_no_names_that_were_not_ordered() {
    for (name, expected) in [("other.fulmar.test", false), ("Broker.Fulmar.Test", true)] {
        let authority = with_authorizations(1, name, "1");
        let broker = authority.broker();
        if expected {
            eventually("the order to go on", || authority.asked("/order/1") > 0);
        } else {
            let line = broker.wait_for_log("Next attempt");
            assert!(line.contains(name) && line.contains("not ordered"), "{line}");
        }
    }
}

/// The only folder in this one.
fn folder_in(folder: &Path) -> PathBuf {
    std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path()
}

#[test]
fn a_certificate_that_tls_refuses_does_not_prevent_the_start() {
    // Nobody listens there.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let nobody = socket.local_addr().unwrap().as_socket().unwrap();
    let mut broker = TestBroker::builder().config(&config(nobody, None)).start();
    broker.wait_for_log("Next attempt");
    broker.terminate();

    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new([NAME.to_owned()]).unwrap();
    params.custom_extensions = vec![unknown_extension()];
    let certificate = params.self_signed(&key).unwrap();
    let path = folder_in(&broker.data().join("acme")).join("certificate.pem");
    std::fs::write(&path, certificate.pem() + &key.serialize_pem()).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();

    broker.restart();
    let line = broker.wait_for_log("ordering another certificate");
    assert!(line.contains(path.to_str().unwrap()), "{line}");
    broker.wait_for_log("Next attempt");
    broker.hang_up();
    broker.wait_for_log("access rules reloaded");
    drop(Wire::connect(broker.address("mqtt"), "client"));
}

#[test]
fn a_certificate_that_tls_refuses_does_not_replace_the_one_in_use() {
    let issuer = rcgen::KeyPair::generate().unwrap();
    let issuer = rcgen::Issuer::new(rcgen::CertificateParams::default(), issuer);
    let day = Duration::from_secs(24 * 3600);
    let authority = with_certificates(move |mut request, number| {
        // The first one is to be renewed at the next start.
        request.params.not_before = (SystemTime::now() - 60 * day).into();
        request.params.not_after = (SystemTime::now() + 20 * day).into();
        if number > 0 {
            request.params.custom_extensions = vec![unknown_extension()];
            request.params.not_after = (SystemTime::now() + 90 * day).into();
        }
        request.signed_by(&issuer).unwrap().pem()
    });
    let mut broker = authority.broker();
    broker.wait_for_log("in use from now on");
    let path = folder_in(&broker.data().join("acme")).join("certificate.pem");
    let written = std::fs::read(&path).unwrap();
    let expires =
        |broker: &TestBroker| broker.metric("certificate_expires_seconds{certificate=\"server\"}");
    let end = expires(&broker);
    broker.terminate();

    broker.restart();
    let line = broker.wait_for_log("Next attempt");
    assert!(line.contains("the CA's certificate cannot be used"), "{line}");
    assert_eq!(authority.asked("/pem/1"), 1);
    assert!(std::fs::read(&path).unwrap() == written, "the file is as it was");
    // Read again, it is still the one that listeners present.
    broker.hang_up();
    broker.wait_for_log("access rules reloaded");
    assert_eq!(expires(&broker), end);
    assert!(!broker.log().contains("ordering another certificate"), "{}", broker.log());
}

/// HSTS of an answer, by curl.
fn strict_transport(broker: &TestBroker, version: &str, path: &str) -> Option<String> {
    let url = format!("https://localhost:{}{path}", broker.address("https").port());
    let mut curl = Command::new("curl");
    let output = curl.args(["-ksi", "--max-time", "30", version, &url]).output().unwrap();
    let answer = String::from_utf8_lossy(&output.stdout).to_lowercase();
    assert!(answer.starts_with("http/"), "{output:?}");
    let line = answer.lines().find(|line| line.starts_with("strict-transport-security:"));
    line.map(str::to_owned)
}

#[test]
fn every_answer_under_a_public_certificate_tells_browsers_to_use_tls_only() {
    let authority = with_authorizations(1, NAME, "1");
    let public = authority.broker();
    let development = TestBroker::start();
    for version in ["--http1.1", "--http2"] {
        for path in ["/", "/api/v1/status", "/none", "/api/v1/north/meter", "/api/admin/v1/clients"]
        {
            let expected = "strict-transport-security: max-age=31536000";
            assert_eq!(
                strict_transport(&public, version, path).as_deref(),
                Some(expected),
                "{path}"
            );
            assert_eq!(strict_transport(&development, version, path), None, "{path}");
        }
    }
}
