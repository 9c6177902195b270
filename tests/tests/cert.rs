//! `fulmar cert` as scripts use it: what it prints, what it writes, what it refuses. OpenSSL says
//! whether what it writes is good; in `crates/certs` it says so of every kind of certificate.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use fulmar_tests::{fulmar, run};
use serde_json::Value;

fn cert(folder: &Path, args: &[&str]) -> Output {
    let mut command = fulmar();
    command.arg("cert").args(args).args(["--dir", "ca"]).current_dir(folder);
    run(&mut command)
}

fn json(folder: &Path, args: &[&str]) -> Value {
    let output = cert(folder, &[args, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn show(folder: &Path, file: &str) -> Value {
    let mut command = fulmar();
    let output = run(command.args(["cert", "show", file, "--json"]).current_dir(folder));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn mode(path: impl AsRef<Path>) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// Whether OpenSSL, at its strictest, takes the certificate for `purpose`.
fn openssl_takes(folder: &Path, certificate: &str, purpose: &[&str]) -> bool {
    let mut command = Command::new("openssl");
    command.args(["verify", "-x509_strict", "-CAfile", "ca/ca.pem"]).args(purpose);
    run(command.arg(certificate).current_dir(folder)).status.success()
}

#[test]
fn a_server_and_a_client_are_certified() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let ca = json(folder, &["ca"]);
    assert_eq!(ca["ca"], "ca/ca.pem");
    assert_eq!(mode(folder.join("ca")), 0o700);
    let server = json(folder, &["issue", "broker.lan", "--san", "192.0.2.7", "--out", "new/out"]);
    assert_eq!(server["certificate"], "new/out/broker.lan.pem");
    assert_eq!(server["ca"], "ca/ca.pem");
    let client = json(folder, &["issue", "meter-7", "--client", "--days", "30"]);
    assert_eq!(client["key"], "./meter-7.key");
    for key in ["new/out/broker.lan.key", "meter-7.key", "ca/ca.key"] {
        assert_eq!(mode(folder.join(key)), 0o600, "{key}");
    }
    let about = show(folder, "new/out/broker.lan.pem");
    assert_eq!(about["names"], serde_json::json!(["broker.lan", "192.0.2.7"]));
    assert_eq!(about["not_after"], server["not_after"]);
    let about = show(folder, "meter-7.pem");
    assert_eq!((&about["user"], &about["is_client"]), (&"meter-7".into(), &true.into()));
    if Command::new("openssl").arg("version").output().is_err() {
        eprintln!("not checked: openssl is not installed");
        return;
    }
    let takes = |file, purpose: &[&str]| openssl_takes(folder, file, purpose);
    let server = "new/out/broker.lan.pem";
    assert!(takes(server, &["-purpose", "sslserver", "-verify_hostname", "broker.lan"]));
    assert!(takes(server, &["-purpose", "sslserver", "-verify_ip", "192.0.2.7"]));
    assert!(!takes(server, &["-purpose", "sslclient"]));
    assert!(takes("meter-7.pem", &["-purpose", "sslclient"]));
    assert!(!takes("meter-7.pem", &["-purpose", "sslserver"]));
}

#[test]
fn nothing_is_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let read = || {
        ["ca/ca.pem", "ca/ca.key", "a.pem", "a.key"].map(|f| std::fs::read(folder.join(f)).unwrap())
    };
    json(folder, &["ca"]);
    json(folder, &["issue", "a"]);
    let before = read();
    json(folder, &["ca"]);
    let again = cert(folder, &["issue", "a", "--client"]);
    assert_eq!(again.status.code(), Some(1));
    let error = String::from_utf8(again.stderr).unwrap();
    assert!(error.contains("a.pem exists already; move it away"), "{error}");
    assert_eq!(read(), before);
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 3, "nothing left beside them");
}

/// Who mistypes the CA's folder gets a certificate of a CA that nobody trusts.
#[test]
fn a_ca_that_a_certificate_creates_is_said() {
    let folder = tempfile::tempdir().unwrap();
    for (name, said) in [("a", "created a new development CA in ca"), ("b", "")] {
        let output = cert(folder.path(), &["issue", name]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8(output.stderr).unwrap().trim_end(), said, "{name}");
    }
}

#[test]
fn what_cannot_be_certified_is_said() {
    let folder = tempfile::tempdir().unwrap();
    for (args, code, said) in [
        (&["issue", "../a"][..], 2, "is not valid as a file name"),
        (&["issue", "a", "--days", "0"], 2, "--days"),
        (&["issue", "a", "--client", "--san", "b"], 2, "--san"),
        (&["issue", "a b"], 1, "neither a host name nor an IP address"),
        (&["issue", "a", "--san", "mqtt://b"], 1, "neither a host name nor an IP address"),
    ] {
        let output = cert(folder.path(), args);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
        assert!(error.contains(said), "{args:?}: {error}");
    }
    let mut command = fulmar();
    let output = run(command.args(["cert", "show", "/dev/null"]));
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("no certificate in PEM form"));
}
