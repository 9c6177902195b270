//! `fulmar send --via tcp|quic` and `fulmar receive --via …`: the same files over streams.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, ChildStdout, Output, Stdio};

use fulmar_tests::{fulmar, run};
use serde_json::Value;

fn object() -> Vec<u8> {
    (0..100_000u32).flat_map(|number| number.wrapping_mul(0x9E37_79B9).to_be_bytes()).collect()
}

/// A receiver that ends after one file, with a data folder in `home`; and where it listens.
fn receiver(home: &Path, via: &str) -> (Child, BufReader<ChildStdout>, String) {
    let mut command = fulmar();
    command.env("XDG_DATA_HOME", home).args(["receive", "--via", via, "--json", "--count", "1"]);
    command.args(["--from", "127.0.0.1:0", "--dir"]).arg(home.join("into"));
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut ready = String::new();
    output.read_line(&mut ready).unwrap();
    let ready: Value = serde_json::from_str(&ready).unwrap();
    let port = ready["address"].as_str().unwrap().rsplit_once(':').unwrap().1.to_owned();
    (child, output, format!("localhost:{port}"))
}

fn send(home: &Path, via: &str, to: &str, file: &Path) -> Output {
    let mut send = fulmar();
    send.env("XDG_DATA_HOME", home).args(["send", "--json", "--patience", "20", "--via", via]);
    run(send.args(["--to", to]).arg(file))
}

fn last(output: &[u8]) -> Value {
    serde_json::from_str(String::from_utf8_lossy(output).lines().last().unwrap()).unwrap()
}

#[test]
fn a_file_arrives_over_either_with_its_hash() {
    for via in ["tcp", "quic"] {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("file");
        fs::write(&file, object()).unwrap();
        let (mut child, mut output, to) = receiver(home.path(), via);
        let sent = send(home.path(), via, &to, &file);
        assert!(sent.status.success(), "{via}: {}", String::from_utf8_lossy(&sent.stderr));
        assert!(child.wait().unwrap().success(), "{via}");
        assert!(fs::read(home.path().join("into/file")).unwrap() == object());
        assert_eq!(fs::read_dir(home.path().join("into")).unwrap().count(), 1);
        let mut told = String::new();
        output.read_to_string(&mut told).unwrap();
        let arrived = told.lines().find(|line| line.contains("\"file\"")).unwrap();
        let arrived: Value = serde_json::from_str(arrived).unwrap();
        assert_eq!(arrived["sha256"], last(&sent.stdout)["files"][0]["sha256"]);
    }
}

#[test]
fn what_is_there_is_not_sent_again_unless_it_is_wrong() {
    let home = tempfile::tempdir().unwrap();
    let (file, into) = (home.path().join("file"), home.path().join("into"));
    fs::write(&file, object()).unwrap();
    fs::create_dir(&into).unwrap();
    let mut probe = fulmar();
    // Nobody answers; the hash is told nevertheless by sha256sum's twin.
    let held = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = held.local_addr().unwrap().to_string();
    let hash = run(probe.args(["send", "--patience", "0", "--json", "--to", &to]).arg(&file));
    let hash = last(&hash.stdout)["files"][0]["sha256"].as_str().unwrap()[..24].to_owned();
    let part = into.join(format!(".fulmar-{hash}.stream"));

    fs::write(&part, vec![0; 1000]).unwrap();
    let (mut child, _output, to) = receiver(home.path(), "tcp");
    let sent = send(home.path(), "tcp", &to, &file);
    assert_eq!(sent.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&sent.stderr).contains("SHA-256 differs"));
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert_eq!(fs::read_dir(&into).unwrap().count(), 0, "it is not taken, nor kept");

    fs::write(&part, &object()[..250_000]).unwrap();
    let (mut child, _output, to) = receiver(home.path(), "tcp");
    let sent = send(home.path(), "tcp", &to, &file);
    assert!(sent.status.success() && child.wait().unwrap().success());
    let end = last(&sent.stdout);
    assert_eq!((&end["resumed_bytes"], &end["sent_bytes"]), (&250_000.into(), &150_000.into()));
    assert!(fs::read(into.join("file")).unwrap() == object());
}

#[test]
fn quic_believes_only_its_authority() {
    let [home, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let file = home.path().join("file");
    fs::write(&file, object()).unwrap();
    let (mut child, _output, to) = receiver(home.path(), "quic");
    // The other's home has no authority that knows this receiver.
    let sent = send(other.path(), "quic", &to, &file);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(sent.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&sent.stderr).contains("certificate"), "{sent:?}");
    assert_eq!(fs::read_dir(home.path().join("into")).unwrap().count(), 0);
}

/// It would try for an hour: that it ends within the test's patience says that it has not tried again.
#[test]
fn quic_does_not_try_again_where_the_certificate_is_for_another_name() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("file");
    fs::write(&file, object()).unwrap();
    let mut issue = fulmar();
    issue.env("XDG_DATA_HOME", home.path()).current_dir(home.path());
    let issued = run(issue.args(["cert", "issue", "elsewhere.example"]));
    assert!(issued.status.success(), "{issued:?}");
    let mut receive = fulmar();
    receive.env("XDG_DATA_HOME", home.path()).args(["receive", "--via", "quic", "--json"]);
    receive.args(["--from", "127.0.0.1:0", "--dir"]).arg(home.path().join("into"));
    receive.arg("--cert").arg(home.path().join("elsewhere.example.pem"));
    receive.arg("--cert-key").arg(home.path().join("elsewhere.example.key"));
    let mut child = receive.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut ready = String::new();
    output.read_line(&mut ready).unwrap();
    let ready: Value = serde_json::from_str(&ready).unwrap();
    let port = ready["address"].as_str().unwrap().rsplit_once(':').unwrap().1;
    let mut send = fulmar();
    send.env("XDG_DATA_HOME", home.path()).args(["send", "--patience", "3600", "--via", "quic"]);
    let sent = run(send.args(["--to", &format!("localhost:{port}")]).arg(&file));
    child.kill().unwrap();
    child.wait().unwrap();
    let said = String::from_utf8_lossy(&sent.stderr);
    assert_eq!(sent.status.code(), Some(1), "{said}");
    assert!(said.contains("certificate") && said.contains("localhost"), "{said}");
}

#[test]
fn a_key_is_for_norm() {
    let mut send = fulmar();
    send.env("FULMAR_BULK_KEY", "0f".repeat(32)).args([
        "send",
        "--via",
        "tcp",
        "--to",
        "localhost:9",
    ]);
    assert_eq!(run(send.arg("/dev/null")).status.code(), Some(2));
}
