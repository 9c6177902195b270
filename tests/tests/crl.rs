//! Revocation lists: which clients they keep out, that those which are connected are disconnected, and that a list which
//! cannot be read changes nothing.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use fulmar_tests::{TestBroker, eventually, fulmar, http_get, run};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer,
    KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};
use tempfile::TempDir;

/// A CA for clients, in a folder with its files.
struct Authority {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "clients");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        fs::write(folder.path().join("ca.pem"), certificate.pem()).unwrap();
        Authority { folder, issuer: Issuer::new(params, key) }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    /// A client's certificate and key, as `NAME.pem` and `NAME.key`.
    fn issue(&self, name: &str, serial: u64) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.serial_number = Some(SerialNumber::from(serial));
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        fs::write(self.path(&format!("{name}.pem")), certificate.pem()).unwrap();
        let path = self.path(&format!("{name}.key"));
        fs::write(&path, key.serialize_pem()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// A list that is valid until this year.
    fn list(&self, revoked: &[u64], until: i32) -> String {
        let revoked = revoked.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(until, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap().pem().unwrap()
    }

    fn write(&self, list: &str) {
        fs::write(self.path("list"), list).unwrap();
    }

    fn broker(&self, more: &str) -> TestBroker {
        let (ca, list) = (self.path("ca.pem"), self.path("list"));
        let tls = format!(
            "[tls]\nclient_auth = \"required\"\nclient_ca = {ca:?}\ncrl_files = [{list:?}]\n{more}"
        );
        TestBroker::builder().config(&tls).start()
    }

    /// A client with the certificate `name`.
    fn client(&self, broker: &TestBroker, name: &str, what: &[&str]) -> std::process::Command {
        let mut command = fulmar();
        command.args(what).args(["-t", "a", "--cafile"]).arg(broker.ca_file());
        command.arg("--cert").arg(self.path(&format!("{name}.pem")));
        command.arg("--key").arg(self.path(&format!("{name}.key")));
        command
    }

    fn publishes(&self, broker: &TestBroker, listener: &str, name: &str) -> bool {
        let url = format!("{listener}://{}", broker.address(listener));
        let mut command = self.client(broker, name, &["pub", &url, "-m", "x", "-q", "1"]);
        run(&mut command).status.success()
    }
}

struct Subscriber(Child);

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn is_connected(broker: &TestBroker, client: &str) -> bool {
    http_get(broker.address("http"), &format!("/connections/{client}")).0 == 200
}

#[test]
fn a_revoked_certificate_ends_its_clients_connections_and_opens_none() {
    let ca = Authority::new();
    ca.issue("stolen", 7);
    ca.issue("honest", 8);
    ca.write(&ca.list(&[], 2100));
    let broker = ca.broker("");
    let mut subscribers = Vec::new();
    for listener in ["mqtts", "quic"] {
        let url = format!("{listener}://{}", broker.address(listener));
        for name in ["stolen", "honest"] {
            let id = format!("{name}-{listener}");
            let mut command = ca.client(&broker, name, &["sub", &url, "--id", &id]);
            let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            subscribers.push(Subscriber(child));
            eventually(&id, || is_connected(&broker, &id));
        }
    }
    assert!(broker.metric("crl_next_update_seconds") > 4e9);

    // Half a list changes nothing; the log names the file.
    let revoking = ca.list(&[7], 2100);
    ca.write(&revoking[..revoking.len() / 2]);
    let line = broker.wait_for_log("revocation lists not reloaded");
    assert!(line.contains(ca.path("list").to_str().unwrap()), "{line}");
    assert!(is_connected(&broker, "stolen-mqtts") && ca.publishes(&broker, "mqtts", "stolen"));

    ca.write(&revoking);
    broker.wait_for_log("revocation lists reloaded");
    for listener in ["mqtts", "quic"] {
        let (stolen, honest) = (format!("stolen-{listener}"), format!("honest-{listener}"));
        eventually(&stolen, || !is_connected(&broker, &stolen));
        assert!(is_connected(&broker, &honest), "{honest}");
        assert!(!ca.publishes(&broker, listener, "stolen"), "{listener}");
        assert!(ca.publishes(&broker, listener, "honest"), "{listener}");
    }
    broker.wait_for_log("certificate revoked");
}

#[test]
fn a_list_applies_as_soon_as_the_other_files_can_be_read_again() {
    let ca = Authority::new();
    ca.issue("stolen", 7);
    ca.write(&ca.list(&[], 2100));
    let broker = ca.broker("");
    assert!(ca.publishes(&broker, "mqtts", "stolen"));
    let (file, away) = (ca.path("ca.pem"), ca.path("away.pem"));
    fs::rename(&file, &away).unwrap();
    ca.write(&ca.list(&[7], 2100));
    broker.wait_for_log("revocation lists not reloaded");
    fs::rename(&away, &file).unwrap();
    broker.wait_for_log("revocation lists reloaded");
    assert!(!ca.publishes(&broker, "mqtts", "stolen"));
    assert_eq!(broker.log().matches("revocation lists not reloaded").count(), 1);
}

#[test]
fn an_expired_list_refuses_new_clients_unless_it_is_accepted() {
    let ca = Authority::new();
    ca.issue("meter", 8);
    ca.write(&ca.list(&[], 2021));
    let broker = ca.broker("");
    assert!(!ca.publishes(&broker, "mqtts", "meter"));
    broker.wait_for_log("has expired: new clients");
    ca.write(&ca.list(&[], 2100));
    broker.hang_up();
    broker.wait_for_log("access rules reloaded");
    assert!(ca.publishes(&broker, "mqtts", "meter"));

    ca.write(&ca.list(&[9], 2021));
    ca.issue("stolen", 9);
    let broker = ca.broker("crl_expired = \"accept\"\n");
    assert!(ca.publishes(&broker, "mqtts", "meter"));
    assert!(!ca.publishes(&broker, "mqtts", "stolen"));
}

#[test]
fn a_list_that_cannot_be_read_at_the_start_is_an_error_with_its_key() {
    let ca = Authority::new();
    let (pem, list) = (ca.path("ca.pem"), ca.path("list"));
    fs::write(&list, "-----BEGIN X509 CRL-----\nMIIB").unwrap();
    let config = ca.path("fulmar.toml");
    let text =
        format!("[tls]\nclient_auth = \"required\"\nclient_ca = {pem:?}\ncrl_files = [{list:?}]\n");
    fs::write(&config, text).unwrap();
    let mut command = fulmar();
    command.arg("serve").arg("--config").arg(&config).arg("--data").arg(ca.path("data"));
    let output = run(&mut command);
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && log.contains("[tls] crl_files"), "{log}");
    assert!(log.contains(list.to_str().unwrap()), "{log}");
}
