//! Answers that go on: they end with their caller's rights, whatever it was that gave these.
#![allow(clippy::unwrap_used)]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Output;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fulmar_tests::{PATIENCE, TestBroker, Wire, eventually, field, fulmar, packet, run};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;

const PASSWORD: &str = "correct horse";

/// A request to the administration API whose answer is read as it comes.
struct Exchange {
    stream: StreamOwned<ClientConnection, TcpStream>,
    read: Vec<u8>,
}

impl Exchange {
    fn begin(broker: &TestBroker, method: &str, path: &str, headers: &str, body: &str) -> Exchange {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(broker.ca_file()).unwrap()).unwrap();
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let connection =
            ClientConnection::new(Arc::new(config), ServerName::try_from("localhost").unwrap());
        let socket = TcpStream::connect(broker.address("https")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut stream = StreamOwned::new(connection.unwrap(), socket);
        let (port, length) = (broker.address("https").port(), body.len());
        let request = format!(
            "{method} /api/admin/v1{path} HTTP/1.1\r\nHost: localhost:{port}\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        Exchange { stream, read: Vec::new() }
    }

    /// Reads more; false at the end, in order or not.
    fn more(&mut self) -> bool {
        let mut part = [0; 16 * 1024];
        match self.stream.read(&mut part) {
            Ok(0) => false,
            Ok(length) => {
                self.read.extend_from_slice(&part[..length]);
                true
            }
            Err(error) => {
                let kind = error.kind();
                let late = [std::io::ErrorKind::WouldBlock, std::io::ErrorKind::TimedOut];
                assert!(!late.contains(&kind), "the answer goes on: {}", self.text());
                false
            }
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.read).into_owned()
    }

    fn wait_for(&mut self, text: &str) {
        while !self.text().contains(text) {
            assert!(self.more(), "ended before {text:?}: {}", self.text());
        }
    }

    /// The status, and what has come to the end.
    fn finish(mut self) -> (String, Vec<u8>) {
        while self.more() {}
        (self.text().get(9..12).unwrap_or_default().to_owned(), self.read)
    }
}

fn command(broker: &TestBroker, words: &[&str]) -> Output {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{PASSWORD}\n")).unwrap();
    let mut command = fulmar();
    command.args(words).arg("--data").arg(broker.data());
    let output = run(command.stdin(file.reopen().unwrap()));
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

fn basic(user: &str) -> String {
    format!("Authorization: Basic {}\r\n", STANDARD.encode(format!("{user}:{PASSWORD}")))
}

/// A token of the API.
fn token(broker: &TestBroker, name: &str, role: &str) -> String {
    let words = ["ctl", "tokens", "add", name, "--role", role, "--for", "1h"];
    let printed = String::from_utf8(command(broker, &words).stdout).unwrap();
    printed.split_whitespace().find(|word| word.starts_with("fulmar")).unwrap().to_owned()
}

fn operator(broker: &TestBroker, name: &str) -> String {
    command(broker, &["ctl", "users", "add", name, "--role", "operator"]);
    basic(name)
}

/// The headers of a browser that has logged in.
fn browser(broker: &TestBroker, user: &str) -> String {
    let login = serde_json::json!({ "user": user, "password": PASSWORD }).to_string();
    let mut answer = Exchange::begin(broker, "POST", "/session", "Connection: close\r\n", &login);
    answer.wait_for("\r\n\r\n");
    let (status, read) = answer.finish();
    assert_eq!(status, "201");
    let text = String::from_utf8(read).unwrap();
    let cookie = text.split("__Host-").nth(1).unwrap().split(';').next().unwrap();
    let begun: Value =
        serde_json::from_str(&text[text.find('{').unwrap()..=text.rfind('}').unwrap()]).unwrap();
    let session = begun["session"].as_str().unwrap();
    format!(
        "Cookie: __Host-{cookie}\r\nx-fulmar-session: {session}\r\nsec-fetch-site: same-origin\r\n"
    )
}

/// Publishes with QoS 1, so that it has happened when this returns.
fn publish(wire: &mut Wire, payload: &str, retain: bool) {
    let first = 0x32 | u8::from(retain);
    wire.send(&packet(first, &[field("t/x"), vec![0, 7, 0], payload.into()].concat()));
    assert_eq!(wire.read().unwrap().0, 0x40, "PUBACK");
}

#[test]
fn a_tap_ends_with_what_its_caller_may() {
    let broker = TestBroker::start();
    command(&broker, &["user", "add", "root", "--admin"]);
    // The last one cannot be removed.
    command(&broker, &["user", "add", "other", "--admin"]);
    let printed = String::from_utf8(command(&broker, &["user", "token", "root"]).stdout).unwrap();
    let root = printed.split_whitespace().find(|word| word.starts_with("fulmar")).unwrap();
    operator(&broker, "ben");
    let browser = browser(&broker, "ben");
    let log_out = || {
        let headers = format!("{browser}Connection: close\r\n");
        let ended = Exchange::begin(&broker, "DELETE", "/session", &headers, "");
        assert_eq!(ended.finish().0, "204");
    };
    type End<'a> = Box<dyn Fn() + 'a>;
    let by =
        |words: &'static [&'static str]| -> End<'_> { Box::new(|| drop(command(&broker, words))) };
    let taps: [(&str, String, End<'_>); 7] = [
        (
            "a token that is revoked",
            bearer(&token(&broker, "t1", "operator")),
            by(&["ctl", "tokens", "remove", "t1"]),
        ),
        (
            "a user that is removed",
            operator(&broker, "ann"),
            by(&["ctl", "users", "remove", "ann"]),
        ),
        (
            "a user that is disabled",
            operator(&broker, "bob"),
            by(&["ctl", "users", "change", "bob", "--disable"]),
        ),
        (
            "a user whose role is taken",
            operator(&broker, "cleo"),
            by(&["ctl", "users", "role", "cleo", "--role", "viewer"]),
        ),
        (
            "a user with another password",
            operator(&broker, "dan"),
            by(&["ctl", "users", "passwd", "dan"]),
        ),
        ("a browser that is logged out", browser.clone(), Box::new(log_out)),
        ("an admin of the platform", bearer(root), by(&["user", "remove", "root"])),
    ];
    let mut publisher = Wire::connect(broker.address("mqtt"), "publisher");
    let cut_off = || broker.log().matches("an answer was cut off").count();
    // A tap shows it when it has subscribed.
    publish(&mut publisher, "before", true);
    for (what, headers, end) in taps {
        let mut tap = Exchange::begin(&broker, "GET", "/tap?filter=t/%23", &headers, "");
        tap.wait_for("before");
        // Another one, to which nothing comes.
        let mut quiet = Exchange::begin(&broker, "GET", "/tap?filter=quiet", &headers, "");
        quiet.wait_for("200 OK");
        end();
        if what == "an admin of the platform" {
            // Another process has changed it; the server looks every half second.
            eventually("the last two taps to end", || cut_off() == 14);
        }
        publish(&mut publisher, "SECRET", false);
        let (_, read) = tap.finish();
        let text = String::from_utf8_lossy(&read);
        assert!(!text.contains("SECRET") && !text.ends_with("0\r\n\r\n"), "{what}: {text}");
        quiet.finish();
        // Of the one with another password, that is the same text again.
        let status = if what == "a user with another password" { "200" } else { "40" };
        let mut again = Exchange::begin(&broker, "GET", "/tap?filter=t/%23", &headers, "");
        again.wait_for(&format!("HTTP/1.1 {status}"));
    }
    assert_eq!(cut_off(), 14, "{}", broker.log());
}

#[test]
fn a_backup_ends_with_its_callers_role() {
    let broker = TestBroker::start();
    // More than sockets hold.
    std::fs::write(broker.data().join("large"), vec![b'x'; 32 << 20]).unwrap();
    let headers = bearer(&token(&broker, "t1", "administrator"));
    let mut backup = Exchange::begin(&broker, "GET", "/backup", &headers, "");
    backup.wait_for("200 OK");
    command(&broker, &["ctl", "tokens", "remove", "t1"]);
    let (_, read) = backup.finish();
    assert!(!read.ends_with(b"0\r\n\r\n"), "all {} bytes came", read.len());
    broker.wait_for_log("an answer was cut off");
}
