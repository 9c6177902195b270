//! SIGHUP at a running broker: what is read again, for whom it holds, and that a mistake changes
//! nothing.
#![allow(clippy::unwrap_used)]

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use fulmar_tests::{PATIENCE, TestBroker, Wire, eventually, field, fulmar, packet, run};
use tempfile::TempDir;

/// A folder with two authorities, `a` and `b`: each has issued a `localhost` for servers and a
/// `meter` for clients.
struct Authorities(TempDir);

impl Authorities {
    fn new() -> Authorities {
        let made = Authorities(tempfile::tempdir().unwrap());
        for ca in ["a", "b"] {
            for what in [&["localhost", "--san", "127.0.0.1"][..], &["meter", "--client"]] {
                let (out, dir) = (made.0.path().join(ca), made.0.path().join(ca));
                let mut command = fulmar();
                command.args(["cert", "issue"]).args(what);
                let output = run(command.arg("--dir").arg(dir).arg("--out").arg(out));
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            }
        }
        made
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    /// Copies a file over another, with its mode.
    fn put(&self, from: &str, to: &str) {
        fs::copy(self.path(from), self.path(to)).unwrap();
    }

    /// A broker with `a`'s certificates, in files of its own.
    fn broker(&self, more: &str) -> TestBroker {
        for (from, to) in [
            ("a/localhost.pem", "server.pem"),
            ("a/localhost.key", "server.key"),
            ("a/ca.pem", "clients.pem"),
        ] {
            self.put(from, to);
        }
        let of = |file| self.path(file).display().to_string();
        let (cert, key, clients) = (of("server.pem"), of("server.key"), of("clients.pem"));
        let tls = format!("cert = {cert:?}\nkey = {key:?}\nclient_ca = {clients:?}\n");
        TestBroker::builder().config(&format!("[tls]\n{tls}{more}")).start()
    }
}

/// Whether a client gets its message through.
fn publishes(broker: &TestBroker, listener: &str, options: &[&Path]) -> bool {
    let url = format!("{listener}://{}", broker.address(listener));
    let mut command = fulmar();
    command.args(["pub", &url, "-t", "plant/x", "-m", "x", "-q", "1"]);
    run(command.args(options)).status.success()
}

/// Options of a client that believes `server_ca` and, if it has one, shows a certificate.
fn options(server_ca: &Path, certificate: Option<&Path>) -> Vec<PathBuf> {
    let mut options = vec!["--cafile".into(), server_ca.to_owned()];
    if let Some(path) = certificate {
        let key = path.with_extension("key");
        options.extend(["--cert".into(), path.to_owned(), "--key".into(), key]);
    }
    options
}

fn lets_in(broker: &TestBroker, server_ca: &Path, certificate: Option<&Path>) -> [bool; 2] {
    let options = options(server_ca, certificate);
    let options: Vec<&Path> = options.iter().map(PathBuf::as_path).collect();
    ["mqtts", "quic"].map(|listener| publishes(broker, listener, &options))
}

fn reload(broker: &TestBroker) {
    broker.hang_up();
    broker.wait_for_log("access rules reloaded");
}

/// `fulmar sub`, once there are so many subscriptions: it ends with the first message.
fn subscriber(broker: &TestBroker, listener: &str, server_ca: &Path, count: f64) -> Child {
    let url = format!("{listener}://{}", broker.address(listener));
    let mut command = fulmar();
    command.args(["sub", &url, "-t", "plant/x", "-C", "1", "--cafile"]).arg(server_ca);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    eventually("the subscription", || broker.metric("subscriptions") == count);
    child
}

#[test]
fn new_connections_get_the_new_certificate_and_old_ones_stay() {
    let ca = Authorities::new();
    let broker = ca.broker("");
    let (a, b) = (ca.path("a/ca.pem"), ca.path("b/ca.pem"));
    assert_eq!(lets_in(&broker, &a, None), [true, true]);
    assert_eq!(lets_in(&broker, &b, None), [false, false]);
    let coaps = |ca: &Path| publishes(&broker, "coaps", &["--cafile".as_ref(), ca]);
    assert_eq!([coaps(&a), coaps(&b)], [true, false]);
    let mut old = subscriber(&broker, "quic", &a, 1.0);
    let mut old_coaps = subscriber(&broker, "coaps", &a, 2.0);
    ca.put("b/localhost.pem", "server.pem");
    ca.put("b/localhost.key", "server.key");
    reload(&broker);
    assert_eq!([coaps(&a), coaps(&b)], [false, true]);
    assert_eq!(lets_in(&broker, &a, None), [false, false]);
    assert_eq!(lets_in(&broker, &b, None), [true, true]);
    for old in [&mut old, &mut old_coaps] {
        assert!(old.wait().unwrap().success(), "the old connection heard the new ones");
    }
}

#[test]
fn client_authorities_are_exchanged() {
    let ca = Authorities::new();
    let broker = ca.broker(
        "client_auth = \"required\"\n[acl]\ndefault_allow = false\n\
        [[acl.rules]]\nallow = true\nuser = \"meter\"\ntopic = \"plant/#\"\n",
    );
    let server = ca.path("a/ca.pem");
    let (a, b) = (ca.path("a/meter.pem"), ca.path("b/meter.pem"));
    assert_eq!(lets_in(&broker, &server, Some(&a)), [true, true]);
    assert_eq!(lets_in(&broker, &server, Some(&b)), [false, false]);
    assert_eq!(lets_in(&broker, &server, None), [false, false]);
    ca.put("b/ca.pem", "clients.pem");
    reload(&broker);
    assert_eq!(lets_in(&broker, &server, Some(&a)), [false, false]);
    assert_eq!(lets_in(&broker, &server, Some(&b)), [true, true]);
}

#[test]
fn a_mistake_changes_nothing_and_says_what_to_mend() {
    let ca = Authorities::new();
    let broker = ca.broker("client_auth = \"optional\"\n");
    let (a, clean) = (ca.path("a/ca.pem"), fs::read_to_string(broker.config_file()).unwrap());
    let mistakes: [(&str, &dyn Fn(), &str); 6] = [
        (
            "server.pem",
            &|| fs::write(ca.path("server.pem"), "-----BEGIN").unwrap(),
            "no certificate",
        ),
        ("server.key", &|| ca.put("a/localhost.key", "server.key"), "cannot be used together"),
        (
            "server.key",
            &|| fs::set_permissions(ca.path("server.key"), Permissions::from_mode(0o644)).unwrap(),
            "chmod 600",
        ),
        ("clients.pem", &|| fs::remove_file(ca.path("clients.pem")).unwrap(), "No such file"),
        (
            "fulmar.toml",
            &|| fs::write(broker.config_file(), format!("{clean}\n[acl]\ndefault = 1\n")).unwrap(),
            "default_allow",
        ),
        (
            "client_auth",
            &|| fs::write(broker.config_file(), clean.replace("optional", "required")).unwrap(),
            "requires a restart",
        ),
    ];
    for (at, (file, make, said)) in mistakes.iter().enumerate() {
        // What is right beside the mistake must not hold either.
        ca.put("b/localhost.pem", "server.pem");
        ca.put("b/localhost.key", "server.key");
        ca.put("b/ca.pem", "clients.pem");
        make();
        broker.hang_up();
        let told = || broker.log().lines().filter(|line| line.contains("nothing changed")).count();
        eventually(&format!("{said:?} in the log"), || told() > at);
        let log = broker.log();
        let line = log.lines().rfind(|line| line.contains("nothing changed")).unwrap();
        for part in [*file, *said, "fix this"] {
            assert!(line.contains(part), "{part:?} is not in {line}");
        }
        assert_eq!(lets_in(&broker, &a, Some(&ca.path("a/meter.pem"))), [true, true], "{line}");
        fs::write(broker.config_file(), &clean).unwrap();
        for file in ["server.key", "clients.pem"] {
            let _ = fs::remove_file(ca.path(file));
        }
    }
}

#[test]
fn access_rules_hold_for_clients_that_are_connected() {
    let broker = TestBroker::start();
    let mut client = TcpStream::connect(broker.address("mqtt")).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut say = |bytes: &[u8], wanted: &[u8]| {
        client.write_all(bytes).unwrap();
        let mut head = [0; 2];
        client.read_exact(&mut head).unwrap();
        let mut rest = vec![0; usize::from(head[1])];
        client.read_exact(&mut rest).unwrap();
        let answer = [&head[..], &rest].concat();
        assert!(answer.starts_with(wanted), "{answer:x?}");
    };
    say(b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00", b"\x20");
    // QoS 1 to "a/b", identifiers 1 and 2. PUBACK: no subscribers (0x10), not authorised (0x87).
    say(b"\x32\x08\x00\x03a/b\x00\x01\x00", b"\x40\x03\x00\x01\x10");
    fs::write(broker.config_file(), "[acl]\ndefault_allow = false\n").unwrap();
    reload(&broker);
    say(b"\x32\x08\x00\x03a/b\x00\x02\x00", b"\x40\x03\x00\x02\x87");
}

#[test]
fn a_new_name_gets_into_the_development_certificate() {
    let broker = TestBroker::start();
    fs::write(broker.config_file(), "[tls]\nnames = [\"broker.test\"]\n").unwrap();
    reload(&broker);
    let mut command = fulmar();
    command.args(["cert", "show"]).arg(broker.data().join("ca").join("server.pem"));
    let shown = String::from_utf8(run(&mut command).stdout).unwrap();
    assert!(shown.contains("broker.test"), "{shown}");
    assert_eq!(lets_in(&broker, &broker.ca_file(), None), [true, true]);
}

#[test]
fn changes_that_take_a_restart_are_named() {
    let broker = TestBroker::start();
    fs::write(broker.config_file(), "[limits]\nmax_sessions = 5\n").unwrap();
    reload(&broker);
    let line = broker.wait_for_log("takes effect after a restart");
    assert!(line.contains("limits.max_sessions"), "{line}");
}

#[test]
fn users_who_are_no_longer_in_the_password_file_are_disconnected() {
    let folder = tempfile::tempdir().unwrap();
    let (file, secret) = (folder.path().join("passwords"), folder.path().join("secret"));
    fs::write(&secret, "correct horse\n").unwrap();
    let passwd = |args: &[&str]| {
        let mut command = fulmar();
        command.arg("passwd").args(args).arg("--file").arg(&file);
        let output = run(command.stdin(fs::File::open(&secret).unwrap()));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    ["stays", "goes", "changes"].iter().for_each(|user| passwd(&[user]));
    let config = format!("[auth]\npassword_file = {file:?}\n");
    let broker = TestBroker::builder().config(&config).start();
    let mut clients = ["stays", "goes", "changes"].map(|user| {
        let mut wire = Wire::dial(broker.address("mqtt"));
        let head = [field("MQTT"), vec![5, 0xc2, 0, 0, 0], field(user)].concat();
        wire.send(&packet(0x10, &[head, field(user), field("correct horse")].concat()));
        let (first, body) = wire.read().expect("CONNACK");
        assert_eq!((first, body[1]), (0x20, 0), "{user}");
        wire
    });
    passwd(&["goes", "-D"]);
    // The same password, with another salt: nobody can tell that from another one.
    passwd(&["changes"]);
    reload(&broker);
    for client in &mut clients[1..] {
        let (first, body) = client.read().expect("DISCONNECT");
        assert_eq!((first, body[0]), (0xe0, 0x87));
    }
    clients[0].ping();
}
