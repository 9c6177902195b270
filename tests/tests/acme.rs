//! What a CA may answer, whatever it is, without ending the server or its orders; and a certificate of an earlier order
//! that cannot be used. Orders that succeed are in tests/interop/test_acme.py.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

use fulmar_tests::{TestBroker, Wire, eventually};
use rustls::pki_types::PrivateKeyDer;
use tempfile::TempDir;

const NAME: &str = "broker.fulmar.test";

/// The answer to a request, by its path: status line, further headers, body.
type Answers = Box<dyn Fn(&str) -> (&'static str, String, String) + Send + Sync>;

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
                let Some((method, path)) = request(&mut stream) else { continue };
                seen.lock().unwrap().push(path.clone());
                let (status, headers, body) = answers(&path);
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

/// Method and path of a request that has been read to its end.
fn request(stream: &mut impl Read) -> Option<(String, String)> {
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
        return Some((words.next()?, words.next()?));
    }
}

fn directory(address: SocketAddr, nonce: &str) -> String {
    format!(
        r#"{{"newNonce": "{nonce}", "newAccount": "https://{address}/account",
            "newOrder": "https://{address}/order"}}"#
    )
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
        Box::new(move |path| match path {
            "/dir" => {
                ("200 OK", String::new(), directory(address, &format!("https://{address}/nonce")))
            }
            "/nonce" => ("200 OK", String::new(), String::new()),
            "/account" => (
                "201 Created",
                format!("location: https://{address}/account/1\r\n"),
                r#"{"status": "valid"}"#.to_owned(),
            ),
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
            _ => ("404 Not Found", String::new(), String::new()),
        })
    })
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
            Box::new(move |_| ("200 OK", String::new(), directory(address, nonce)))
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
    let mut unknown =
        rcgen::CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 99999, 1], vec![5, 0]);
    unknown.set_criticality(true);
    params.custom_extensions = vec![unknown];
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
