//! Which of several sources decides about a client: the order of docs/access.md, with one name in several of them. Each
//! source's user has a password of its own, and each source's rules allow a topic of their own.
#![allow(clippy::unwrap_used)]

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fulmar_tests::{TestBroker, Wire, eventually, field, fulmar, packet, run, write_secret};
use ring::hmac;

const SECRET: &str = "a secret of the issuer, 32 bytes";
const STORE: &str = "of the store";
const FILE: &str = "of the file";
const PLATFORM: &str = "of the platform";
const SERVICE: &str = "of the service";

/// A service that knows everybody who has the service's password. Returns its address, and how often it was asked.
fn service() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let asked = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&asked);
    thread::spawn(move || {
        for stream in listener.incoming().take(64) {
            let (mut stream, mut text, mut room) = (stream.unwrap(), String::new(), [0; 4096]);
            while !text.ends_with('}') {
                let read = stream.read(&mut room).unwrap();
                text.push_str(std::str::from_utf8(&room[..read]).unwrap());
            }
            count.fetch_add(1, Ordering::SeqCst);
            let body = match text.contains(SERVICE) {
                true => r#"{"allow": true, "rules": [{"allow": true, "topic": "service/%u"}]}"#,
                false => r#"{"allow": false}"#,
            };
            let length = body.len();
            let head =
                format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
            let _ = stream.write_all(&[head.as_bytes(), body.as_bytes()].concat());
        }
    });
    (address, asked)
}

/// A token for this user.
fn token(user: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let claims = format!(r#"{{"sub":"{user}","exp":{}}}"#, now + 3600);
    let signed = [r#"{"typ":"JWT","alg":"HS256"}"#, &claims]
        .map(|part| URL_SAFE_NO_PAD.encode(part))
        .join(".");
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
    let tag = hmac::sign(&key, signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag))
}

/// A command with a password as its input.
fn with_password(words: &[&str], password: &str, last: &[&Path]) {
    let mut command = fulmar();
    command.args(words).args(last).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(password.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{words:?}");
}

/// A CA of clients, and a client of its per name.
fn certificates(folder: &Path, names: &[&str]) {
    let key = || rcgen::KeyPair::generate().unwrap();
    let mut ca = rcgen::CertificateParams::default();
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca_key = key();
    std::fs::write(folder.join("ca.pem"), ca.self_signed(&ca_key).unwrap().pem()).unwrap();
    let issuer = rcgen::Issuer::new(ca, ca_key);
    for name in names {
        let own = key();
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, *name);
        let issued = params.signed_by(&own, &issuer).unwrap();
        std::fs::write(folder.join(format!("{name}.pem")), issued.pem()).unwrap();
        let path = folder.join(format!("{name}.key"));
        std::fs::write(&path, own.serialize_pem()).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, mode).unwrap();
    }
}

struct Site {
    broker: TestBroker,
    folder: tempfile::TempDir,
    asked: Arc<AtomicUsize>,
}

impl Site {
    /// ann is in all sources, bob in file and platform, carl in the platform, eve in the store, where she is disabled.
    fn new() -> Site {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["ann", "bob"] {
            with_password(&["passwd", name, "--file"], FILE, &[&path("passwords")]);
        }
        write_secret(path("key"), SECRET);
        certificates(folder.path(), &["ann", "bob", "eve"]);
        let (service, asked) = service();
        let config = format!(
            "[auth]\npassword_file = {:?}\njwt_algorithm = \"HS256\"\njwt_key_file = {:?}\n\
             [auth.http]\nurl = \"http://{service}/\"\ncache_s = 0\n\
             [tls]\nclient_auth = \"optional\"\nclient_ca = {:?}\n\
             [acl]\ndefault_allow = false\n[[acl.rules]]\nallow = true\ntopic = \"rules/%u\"\n",
            path("passwords"),
            path("key"),
            path("ca.pem"),
        );
        let mut broker = TestBroker::builder().config(&config).start();
        let data = broker.data();
        let ctl = |words: &[&str]| with_password(words, STORE, &[Path::new("--data"), &data]);
        ctl(&["ctl", "roles", "add", "stored"]);
        ctl(&["ctl", "roles", "allow", "stored", "publish", "store/%u"]);
        for name in ["ann", "eve"] {
            ctl(&["ctl", "users", "add", name, "--topic-roles", "stored"]);
        }
        ctl(&["ctl", "users", "change", "eve", "--disable"]);
        let platform =
            |words: &[&str]| with_password(words, PLATFORM, &[Path::new("--data"), &data]);
        platform(&["twin", "add", "rural", "--kind", "homes"]);
        for name in ["anna", "bob", "carl"] {
            platform(&["user", "add", name, "--twin", "rural", "--role", "admin"]);
        }
        // As only earlier versions let it be.
        assert!(broker.terminate().success());
        let store = rusqlite::Connection::open(data.join("identities.db")).unwrap();
        let sql = "UPDATE account SET name = 'ann', body = replace(body, '\"anna\"', '\"ann\"') WHERE name = 'anna'";
        assert_eq!(store.execute(sql, ()).unwrap(), 1);
        drop(store);
        broker.restart();
        let log = broker.log();
        let shared =
            log.lines().filter(|line| line.contains("and a user of the platform have this name"));
        let shared: Vec<_> = shared.collect();
        assert!(matches!(shared[..], [one] if one.contains("ann")), "{log}");
        Site { broker, folder, asked }
    }

    /// Whose rules the client has after this login: those whose topic it may publish to.
    fn rights(&self, user: &str, password: &str) -> String {
        let fields =
            [field("MQTT"), vec![5, 0xC2, 0, 0, 0], field(""), field(user), field(password)];
        let mut wire = Wire::dial(self.broker.address("mqtt"));
        wire.send(&packet(0x10, &fields.concat()));
        let (first, body) = wire.read().expect("CONNACK");
        assert_eq!(first, 0x20);
        if body[1] != 0 {
            return format!("refused {:#x}", body[1]);
        }
        let mut allows = |source: &str| {
            let topic = match source {
                "platform" => "fulmar/rural/sensor/attic/radon".to_owned(),
                _ => format!("{source}/{user}"),
            };
            wire.send(&packet(0x32, &[field(&topic), vec![0, 1, 0, b'1']].concat()));
            let (first, body) = wire.read().expect("PUBACK");
            assert_eq!(first, 0x40);
            body.get(2).is_none_or(|code| *code < 0x80)
        };
        let sources = ["store", "rules", "service", "platform"];
        sources.into_iter().filter(|source| allows(source)).collect::<Vec<_>>().join(" ")
    }

    /// Whether a client with this certificate may publish; it also sends a name and a password.
    fn publishes(&self, certificate: &str, topic: &str) -> bool {
        let mut command = fulmar();
        let url = format!("mqtts://{}", self.broker.address("mqtts"));
        command.args(["pub", &url, "-u", "bob", "-t", topic, "-m", "1", "-q", "1", "--cafile"]);
        command.arg(self.broker.ca_file()).env("FULMAR_PASSWORD", FILE);
        command.arg("--cert").arg(self.folder.path().join(format!("{certificate}.pem")));
        command.arg("--key").arg(self.folder.path().join(format!("{certificate}.key")));
        run(&mut command).status.success()
    }
}

#[test]
fn the_first_source_that_knows_a_name_decides() {
    let site = Site::new();
    eventually("the platform's users", || site.rights("carl", PLATFORM) == "platform");
    // Until then, the service was.
    let before = site.asked.load(Ordering::SeqCst);
    let wrong = "refused 0x86";
    for (user, password, rights) in [
        // In the store: no other password counts, and only the store's rules.
        ("ann", STORE, "store"),
        ("ann", FILE, wrong),
        ("ann", PLATFORM, wrong),
        ("ann", SERVICE, wrong),
        ("ann", &token("ann"), "store"),
        ("eve", STORE, "refused 0x87"),
        ("eve", SERVICE, wrong),
        ("eve", &token("eve"), "refused 0x87"),
        // In the file.
        ("bob", FILE, "rules"),
        ("bob", PLATFORM, wrong),
        ("bob", SERVICE, wrong),
        ("bob", &token("bob"), "rules"),
        // An account of the platform.
        ("carl", SERVICE, wrong),
        ("carl", STORE, wrong),
        // A token is nobody else's, and no password either.
        ("bob", &token("ann"), wrong),
        ("dora", &token("dora"), "rules"),
    ] {
        assert_eq!(site.rights(user, password), rights, "{user} with {password:?}");
    }
    assert_eq!(site.asked.load(Ordering::SeqCst), before, "it is asked about nobody of these");
    assert_eq!(site.rights("dora", SERVICE), "rules service");
    assert_eq!(site.rights("dora", "anything else"), wrong);
    assert_eq!(site.asked.load(Ordering::SeqCst), before + 2);
}

#[test]
fn a_certificate_comes_before_name_and_password() {
    let site = Site::new();
    let allowed = |certificate: &str, topics: [&str; 3]| {
        topics.map(|topic| site.publishes(certificate, topic))
    };
    // In the store: its rules.
    let topics = ["store/ann", "rules/ann", "rules/bob"];
    assert_eq!(allowed("ann", topics), [true, false, false]);
    assert_eq!(allowed("bob", ["rules/bob", "store/bob", "service/bob"]), [true, false, false]);
    assert_eq!(allowed("eve", ["store/eve", "rules/eve", "rules/bob"]), [false; 3], "disabled");
    assert_eq!(site.asked.load(Ordering::SeqCst), 0);
}
