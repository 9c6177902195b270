//! The end of a client's certificate: it ends the connection, and nothing that was made with it before opens another,
//! neither a TLS session that is resumed nor its early data; and its will is not published.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fulmar_client::{Client, Event, Events, Message, Options, Trust, Will};
use fulmar_tests::{PATIENCE, TestBroker, Wire, eventually, field, http_get, packet, write_secret};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use tempfile::TempDir;
use tokio::time::timeout;

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// A CA for clients, and one below it that is valid as long as its clients' certificates are said to be.
struct Authority {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

fn authority(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

impl Authority {
    fn new() -> Authority {
        let (params, key) = (authority("clients"), KeyPair::generate().unwrap());
        let folder = tempfile::tempdir().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        fs::write(folder.path().join("ca.pem"), certificate.pem()).unwrap();
        Authority { folder, issuer: Issuer::new(params, key) }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    /// A client's certificate, valid until then, or one that is itself valid for long from a CA that is valid until then.
    fn issue(&self, name: &str, end_s: u64, by_intermediate: bool) -> (PathBuf, PathBuf) {
        let end = date_time_ymd(1970, 1, 1) + Duration::from_secs(end_s);
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        let pem = if by_intermediate {
            let (mut between, between_key) = (authority(name), KeyPair::generate().unwrap());
            between.not_after = end;
            let signed = between.signed_by(&between_key, &self.issuer).unwrap();
            let issuer = Issuer::new(between, between_key);
            [params.signed_by(&key, &issuer).unwrap().pem(), signed.pem()].concat()
        } else {
            params.not_after = end;
            params.signed_by(&key, &self.issuer).unwrap().pem()
        };
        let files = (self.path(&format!("{name}.pem")), self.path(&format!("{name}.key")));
        fs::write(&files.0, pem).unwrap();
        write_secret(&files.1, key.serialize_pem());
        files
    }

    fn broker(&self) -> TestBroker {
        let ca = self.path("ca.pem");
        let tls = format!("[tls]\nclient_auth = \"required\"\nclient_ca = {ca:?}\n");
        TestBroker::builder().config(&tls).start()
    }
}

/// The listeners over TLS, by the scheme of their URLs.
const LISTENERS: [(&str, &str); 4] =
    [("quic", "quic"), ("mqtts", "mqtts"), ("wss", "wss"), ("wss", "https")];

fn options(broker: &TestBroker, at: (&str, &str), id: &str, files: &(PathBuf, PathBuf)) -> Options {
    let port = broker.address(at.1).port();
    let path = if at.0 == "wss" { "/mqtt" } else { "" };
    let mut options = Options::new(&format!("{}://localhost:{port}{path}", at.0)).unwrap();
    options.trust = Trust::CaFile(broker.ca_file());
    options.client_id = id.to_owned();
    options.certificate = Some(files.clone());
    options.reconnect = None;
    options
}

/// The first event: whether the client is connected, and whether by early data.
async fn outcome(events: &mut Events) -> Option<bool> {
    loop {
        match timeout(PATIENCE, events.next()).await.expect("an event")? {
            Event::Connected { early_data, .. } => return Some(early_data),
            Event::Disconnected { .. } => return None,
            _ => {}
        }
    }
}

/// How long certificates are valid: longer on a machine that is too busy to use them in time.
const LIFETIMES_S: [u64; 3] = [6, 24, 96];

/// Clients that have connected twice; `None` if that took longer than their certificates are valid.
async fn resumed(ca: &Authority, broker: &TestBroker, end: u64) -> Option<Vec<(String, Options)>> {
    let mut all = Vec::new();
    for (number, at) in LISTENERS.into_iter().enumerate() {
        for by_intermediate in [false, true] {
            let name = format!("meter-{number}-{by_intermediate}");
            let files = ca.issue(&name, end, by_intermediate);
            let options = options(broker, at, &name, &files).with_shared_tickets().unwrap();
            // The second one resumes the session of the first: while the certificate is valid, it may.
            for round in 0..2 {
                let (client, mut events) = Client::connect(options.clone()).unwrap();
                let early = outcome(&mut events).await;
                if now_s() >= end {
                    return None;
                }
                assert_eq!(early, Some(at.0 == "quic" && round == 1), "{name} {at:?}");
                let ping = Message::new("a", "x").qos(fulmar_client::QoS::AtLeastOnce);
                client.publish(ping).await.ok()?.await.ok()?;
                client.disconnect().await;
            }
            all.push((name, options));
        }
    }
    (now_s() < end).then_some(all)
}

#[tokio::test]
async fn a_resumed_session_opens_nothing_after_the_end() {
    let ca = Authority::new();
    let broker = ca.broker();
    let (mut end, mut all) = (0, None);
    for lifetime_s in LIFETIMES_S {
        if all.is_none() {
            end = now_s() + lifetime_s;
            all = resumed(&ca, &broker, end).await;
        }
    }
    eventually("the certificate's end", || now_s() > end);
    for (name, options) in all.expect("clients before the end of their certificates") {
        for _ in 0..2 {
            let (_client, mut events) = Client::connect(options.clone()).unwrap();
            assert_eq!(outcome(&mut events).await, None, "{name}: {}", broker.log());
        }
        eventually(&format!("the refusal of the session that {name} resumes"), || {
            broker.log().lines().any(|line| {
                line.contains("connection refused: certificate expired") && line.contains(&name)
            })
        });
    }
}

/// Clients with wills; `None` if they did not connect in time.
async fn mortals(
    ca: &Authority,
    broker: &TestBroker,
    end: u64,
) -> Option<Vec<(String, Client, Events)>> {
    let mut all = Vec::new();
    for (number, at) in LISTENERS.into_iter().enumerate() {
        let name = format!("meter-{number}");
        let files = ca.issue(&name, end, number % 2 == 1);
        let mut options = options(broker, at, &name, &files);
        options.will = Some(Will { message: Message::new("last/meter", name.clone()), delay_s: 0 });
        let (client, mut events) = Client::connect(options).unwrap();
        let connected = outcome(&mut events).await;
        if now_s() >= end {
            return None;
        }
        assert_eq!(connected, Some(false), "{name}");
        all.push((name, client, events));
    }
    Some(all)
}

#[tokio::test]
async fn a_connection_ends_with_its_certificate_and_leaves_no_will() {
    for lifetime_s in LIFETIMES_S {
        let ca = Authority::new();
        let broker = ca.broker();
        // Over plain TCP, which needs no certificate.
        let mut witness = Wire::connect(broker.address("mqtt"), "witness");
        witness.send(&packet(0x82, &[vec![0, 1, 0], field("last/#"), vec![0]].concat()));
        assert_eq!(witness.read().unwrap().1[3], 0, "SUBACK");
        let end = now_s() + lifetime_s;
        let Some(all) = mortals(&ca, &broker, end).await else { continue };
        for (name, _client, mut events) in all {
            assert_eq!(outcome(&mut events).await, None, "{name}");
            assert!(now_s() > end, "{name}: not before");
            let listed = || http_get(broker.address("http"), &format!("/connections/{name}")).0;
            eventually("it to be gone", || listed() == 404);
        }
        let log = broker.log();
        assert_eq!(log.matches("will not published").count(), LISTENERS.len(), "{log}");
        let mut publisher = Wire::connect(broker.address("mqtt"), "publisher");
        publisher.send(&packet(0x30, &[field("last/word"), vec![0]].concat()));
        let (_, body) = witness.read().unwrap();
        assert_eq!(&body[2..11], b"last/word", "the first message");
        return;
    }
    panic!("no clients before the end of their certificates");
}
