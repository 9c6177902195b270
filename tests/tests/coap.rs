//! CoAP at the program's edge: messages cross between MQTT and CoAP, `fulmar pub` and `fulmar sub` speak it,
//! and what the rules forbid is refused. Datagrams are written by hand where no client would send them.

#![allow(clippy::unwrap_used)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use fulmar_tests::{TestBroker, eventually, fulmar, http_get, write_secret};

fn run(arguments: &[&str]) -> Output {
    fulmar().args(arguments).output().unwrap()
}

fn publish(url: &str, topic: &str, text: &str, more: &[&str]) -> Output {
    let mut arguments = vec!["pub", url, "-t", topic, "-m", text];
    arguments.extend_from_slice(more);
    run(&arguments)
}

/// Starts `fulmar sub` for one message.
fn subscribe(url: &str, topic: &str, count: &str) -> std::process::Child {
    let mut command: Command = fulmar();
    command.args(["sub", url, "-t", topic, "-C", count, "-W", "60", "-q", "1"]);
    command.stdout(Stdio::piped()).spawn().unwrap()
}

fn urls(broker: &TestBroker) -> (String, String) {
    (format!("mqtt://{}", broker.address("mqtt")), format!("coap://{}", broker.address("coap")))
}

/// Sends a datagram and gives the answer, repeating it as a client would.
fn ask(server: SocketAddr, datagram: &[u8]) -> Vec<u8> {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let mut room = [0; 2048];
    let mut answer = None;
    eventually("an answer", || {
        socket.send_to(datagram, server).unwrap();
        answer = socket.recv(&mut room).ok().map(|len| room[..len].to_vec());
        answer.is_some()
    });
    answer.unwrap()
}

/// A confirmable request with message id 7 and this path.
fn request(code: u8, path: &[&str], payload: &[u8]) -> Vec<u8> {
    let mut datagram = vec![0x41, code, 0, 7, 0x5A];
    for (at, segment) in path.iter().enumerate() {
        datagram.push(if at == 0 { 0xB0 } else { 0 } | segment.len() as u8);
        datagram.extend_from_slice(segment.as_bytes());
    }
    if !payload.is_empty() {
        datagram.push(0xFF);
        datagram.extend_from_slice(payload);
    }
    datagram
}

const GET: u8 = 1;
const POST: u8 = 2;
const PUT: u8 = 3;
const DELETE: u8 = 4;

#[test]
fn values_cross_between_mqtt_and_coap() {
    let broker = TestBroker::start();
    let (mqtt, coap) = urls(&broker);
    let server = broker.address("coap");
    assert_eq!(ask(server, &request(GET, &["ps", "a", "b"], b""))[1], 0x84, "4.04");
    assert!(publish(&mqtt, "a/b", "21.5", &["-r", "-q", "1"]).status.success());
    let answer = ask(server, &request(GET, &["ps", "a", "b"], b""));
    assert_eq!(answer[1], 0x45, "2.05");
    assert!(answer.ends_with(b"\xFF21.5"), "{answer:02x?}");
    assert!(publish(&coap, "a/b", "22", &["-r"]).status.success());
    let sub = subscribe(&mqtt, "a/b", "1").wait_with_output().unwrap();
    assert_eq!(sub.stdout, b"22\n");
    assert_eq!(ask(server, &request(DELETE, &["ps", "a", "b"], b""))[1], 0x42, "2.02");
    assert_eq!(ask(server, &request(GET, &["ps", "a", "b"], b""))[1], 0x84);
}

#[test]
fn observers_are_told_what_mqtt_publishes() {
    let broker = TestBroker::start();
    let (mqtt, coap) = urls(&broker);
    publish(&mqtt, "a", "first", &["-r", "-q", "1"]);
    let observer = subscribe(&coap, "a", "3");
    eventually("the observer's subscription", || is_subscribed(&broker));
    for text in ["second", "third"] {
        assert!(publish(&mqtt, "a", text, &["-q", "1"]).status.success());
    }
    let output = observer.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "first\nsecond\nthird\n");
}

/// The connection to the broker that a user's peers share has nothing to send for as long.
#[test]
fn observers_outlast_the_brokers_longest_keep_alive() {
    let broker = TestBroker::builder().config("[limits]\nmax_keep_alive_s = 1\n").start();
    let (mqtt, coap) = urls(&broker);
    let observer = subscribe(&coap, "a", "1");
    eventually("the observer's subscription", || is_subscribed(&broker));
    let mut silent = TcpStream::connect(broker.address("mqtt")).unwrap();
    silent.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    silent.write_all(b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00").unwrap();
    // CONNACK, and DISCONNECT with 0x8D.
    let mut received = Vec::new();
    silent.read_to_end(&mut received).unwrap();
    assert!(received.windows(3).any(|bytes| bytes[0] == 0xE0 && bytes[2] == 0x8D), "{received:x?}");
    assert!(publish(&mqtt, "a", "text", &["-q", "1"]).status.success());
    let output = observer.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "text\n");
}

fn is_subscribed(broker: &TestBroker) -> bool {
    let text = http_get(broker.address("http"), "/metrics").1;
    let line = text.lines().find(|line| line.starts_with("fulmar_subscriptions "));
    line.is_some_and(|line| !line.ends_with(" 0"))
}

#[test]
fn a_value_of_a_hundred_kilobytes_goes_both_ways() {
    let broker = TestBroker::start();
    let (mqtt, coap) = urls(&broker);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("value");
    let value: Vec<u8> = (0..100_000).map(|at| b'a' + (at % 23) as u8).collect();
    std::fs::write(&file, &value).unwrap();
    let file = file.to_str().unwrap();
    assert!(run(&["pub", &coap, "-t", "large", "-f", file, "-r"]).status.success());
    for url in [&mqtt, &coap] {
        let output = subscribe(url, "large", "1").wait_with_output().unwrap();
        assert_eq!(output.stdout.len(), value.len() + 1, "over {url}");
        assert!(output.stdout.starts_with(&value));
    }
}

#[test]
fn access_rules_hold() {
    let rules = "[acl]\ndefault_allow = true\n[[acl.rules]]\nallow = false\nanonymous = true\ntopic = \"secret/#\"\n";
    let broker = TestBroker::builder().config(rules).start();
    let server = broker.address("coap");
    for code in [GET, POST, PUT, DELETE] {
        let answer = ask(server, &request(code, &["ps", "secret", "a"], b"x"));
        assert_eq!(answer[1], 0x83, "4.03 to {code}");
    }
    // Observe: 0 comes before the path.
    let mut observe = vec![0x41, GET, 0, 8, 0x5A, 0x60, 0x52];
    observe.extend_from_slice(b"ps\x06secret\x01a");
    assert_eq!(ask(server, &observe)[1], 0x83);
    assert_eq!(ask(server, &request(PUT, &["ps", "$SYS", "a"], b"x"))[1], 0x83);
    assert_eq!(ask(server, &request(PUT, &["ps", "open"], b"x"))[1], 0x44);
    // The commands say which topic it is, as over MQTT.
    let (_, coap) = urls(&broker);
    for output in [publish(&coap, "secret/a", "x", &[]), run(&["sub", &coap, "-t", "secret/a"])] {
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("\"secret/a\"") && said.contains("4.03"), "{said}");
    }
}

#[test]
fn rejected_datagrams_are_counted_and_logged_by_reason() {
    let broker = TestBroker::builder()
        .config("[coap]\nmax_peers = 1\n")
        .log_level("info,fulmar_udp=debug")
        .start();
    let rejected = || {
        ["coap_malformed_total", "coap_peers_refused_total"].map(|name| broker.metric(name) as u64)
    };
    assert_eq!(rejected(), [0, 0]);
    let mut observer = subscribe(&urls(&broker).1, "a", "1");
    eventually("the observer's subscription", || is_subscribed(&broker));
    let send = |datagram: &[u8]| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.send_to(datagram, broker.address("coap")).unwrap();
    };
    send(b"not CoAP");
    eventually("a malformed datagram", || rejected() == [1, 0]);
    let line = "a datagram that is not CoAP";
    broker.wait_for_log(line);
    assert_eq!(broker.log().matches(line).count(), 1, "{}", broker.log());
    for times in 1..=3 {
        send(&[0x40, 0, 0, 9]);
        eventually("a refused peer", || rejected() == [1, times]);
    }
    let line = "[coap] max_peers is reached";
    broker.wait_for_log(line);
    assert_eq!(broker.log().matches(line).count(), 1, "logged at intervals: {}", broker.log());
    observer.kill().unwrap();
    observer.wait().unwrap();
}

#[test]
fn without_anonymous_clients_there_is_no_coap() {
    let settings = "[auth]\nallow_anonymous = \"never\"\npassword_file = \"passwords\"\n";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("passwords");
    write_secret(&file, "");
    let settings = settings.replace("passwords", file.to_str().unwrap());
    let broker = TestBroker::builder().config(&settings).start();
    assert!(broker.bound().iter().all(|(name, _)| name != "coap"));
}

#[test]
fn what_is_wrong_is_said() {
    let broker = TestBroker::start();
    let server = broker.address("coap");
    assert_eq!(ask(server, &[0x40, 0, 0, 9]), [0x70, 0, 0, 9], "a ping is answered with a reset");
    for (path, code) in [
        (&["other"][..], 0x84),
        (&["ps", "+"], 0x80),
        (&["ps", "a", "#"], 0x80),
        (&["ps", "a/b"], 0x80),
    ] {
        assert_eq!(ask(server, &request(PUT, path, b"x"))[1], code, "{path:?}");
    }
    let core = ask(server, &request(GET, &[".well-known", "core"], b""));
    assert!(core.windows(5).any(|part| part == b"</ps>"), "{core:02x?}");
    let (_, coap) = urls(&broker);
    let wildcard = run(&["sub", &coap, "-t", "a/+"]);
    assert_eq!(wildcard.status.code(), Some(2));
    let nobody = run(&["pub", "coap://127.0.0.1:1", "-t", "a", "-m", "x"]);
    assert_eq!(nobody.status.code(), Some(1));
    // What CoAP does not have is not ignored: somebody might take it for a login.
    for (more, says) in [
        (&["-u", "ann", "-P", "x"][..], "-u: coap:// has no login and no encryption; use coaps://"),
        (&["-i", "x", "-c", "--will-topic", "w"], "-i, -c, --will-topic: CoAP has no sessions"),
    ] {
        let refused = run(&[&["pub", &coap, "-t", "a", "-m", "x"], more].concat());
        assert_eq!(refused.status.code(), Some(2));
        let error = String::from_utf8_lossy(&refused.stderr);
        assert!(error.contains(says), "{error}");
    }
}

const METER_7: [&str; 4] = ["-u", "meter-7", "-P", "a-key-of-more-than-16-bytes"];

/// A file with the key of [`METER_7`].
fn psk_file() -> (std::path::PathBuf, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("psk");
    write_secret(&keys, "meter-7:a-key-of-more-than-16-bytes\n");
    (keys, folder)
}

fn ctl(broker: &TestBroker, words: &[&str]) {
    let done = fulmar().arg("ctl").arg("--data").arg(broker.data()).args(words).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

fn ban(broker: &TestBroker, network: &str) {
    ctl(broker, &["clients", "ban", "--network", network, "--for", "1h"]);
}

/// Another machine, as the broker sees it: all of 127.0.0.0/8 is this one.
fn peer(address: &str, server: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind((address, 0)).unwrap();
    socket.connect(server).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    socket
}

/// Waits for a message with this code and end, repeating `datagram` until it comes.
fn expect(socket: &UdpSocket, datagram: &[u8], code: u8, end: &[u8]) {
    let mut room = [0; 2048];
    eventually(&format!("code {code:#x}"), || {
        if !datagram.is_empty() {
            socket.send(datagram).unwrap();
        }
        let received = socket.recv(&mut room).map_or(&[][..], |len| &room[..len]);
        received.get(1) == Some(&code) && received.ends_with(end)
    });
}

/// They have no CONNECT of their own at which the broker would ask about their network.
#[test]
fn bans_of_networks_hold_for_peers_that_share_a_connection() {
    let broker = TestBroker::start();
    let server = broker.address("coap");
    let (banned, honest) = (peer("127.0.0.2", server), peer("127.0.0.1", server));
    let observe = [0x41, 1, 0, 8, 0x5B, 0x60, 0x52, b'p', b's', 0x01, b'a'];
    for observer in [&banned, &honest] {
        expect(observer, &observe, 0x45, b"");
    }
    ban(&broker, "127.0.0.2/32");
    // Its observation ends with 4.03.
    expect(&banned, b"", 0x83, b"banned");
    for (number, (code, path)) in
        [(3, &["ps", "a"][..]), (1, &["ps", "a"]), (1, &["ps", ""]), (1, &[".well-known", "core"])]
            .into_iter()
            .enumerate()
    {
        let mut put = request(code, path, b"from a banned network");
        put[3] = 20 + number as u8;
        expect(&banned, &put, 0x83, b"banned");
    }
    let line = broker.wait_for_log("CoAP refused: banned");
    assert!(line.contains(&format!("peer={}", banned.local_addr().unwrap())), "{line}");
    let other = peer("127.0.0.1", server);
    expect(&other, &request(3, &["ps", "a"], b"honest"), 0x44, b"");
    // A notification.
    expect(&honest, b"", 0x45, b"honest");
    ctl(&broker, &["clients", "unban", "1"]);
    let mut put = request(3, &["ps", "a"], b"again");
    put[3] = 40;
    expect(&banned, &put, 0x44, b"");
}

#[test]
fn bans_of_networks_end_dtls_sessions_and_refuse_handshakes() {
    let (keys, _folder) = psk_file();
    let broker = TestBroker::builder().config(&format!("[coap]\npsk_file = {keys:?}\n")).start();
    let url = format!("coaps://{}", broker.address("coaps"));
    let mut arguments = vec!["sub", &url, "-t", "a", "-W", "60"];
    arguments.extend_from_slice(&METER_7);
    let mut subscriber = fulmar().args(&arguments).stderr(Stdio::null()).spawn().unwrap();
    // The connection to the broker has the client's address: that decides there, and is in the log.
    let server = format!("peer={} ", broker.address("coaps"));
    let line = broker.wait_for_log("user=\"meter-7\"");
    assert!(line.contains("peer=127.0.0.1:") && !line.contains(&server), "{line}");
    eventually("an observation", || is_subscribed(&broker));
    ban(&broker, "127.0.0.0/8");
    eventually("its end", || subscriber.try_wait().unwrap().is_some());
    let refused = publish(&url, "a", "x", &METER_7);
    assert!(!refused.status.success());
    broker.wait_for_log("CoAP refused: banned");
    ctl(&broker, &["clients", "unban", "1"]);
    let accepted = publish(&url, "a", "x", &METER_7);
    assert!(accepted.status.success(), "{}", String::from_utf8_lossy(&accepted.stderr));
    // A user: what it is told is no failure of the server's.
    ctl(&broker, &["clients", "ban", "--user", "meter-7", "--for", "1h"]);
    let refused = publish(&url, "a", "x", &METER_7);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("4.03"), "{refused:?}");
}

/// An open session would otherwise go on for as long as its client is not silent for a day.
#[test]
fn a_dtls_session_ends_with_the_certificate_of_its_client() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: String| {
        let path = folder.path().join(name);
        write_secret(&path, text);
        path.to_str().unwrap().to_owned()
    };
    let authority = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca = file("ca.pem", params.self_signed(&authority).unwrap().pem());
    let issuer = rcgen::Issuer::new(params, authority);
    let broker = TestBroker::builder()
        .config(&format!("[tls]\nclient_auth = \"required\"\nclient_ca = {ca:?}\n"))
        .start();
    let own = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, "meter-9");
    params.not_after = (SystemTime::now() + Duration::from_secs(15)).into();
    let certificate = file("own.pem", params.signed_by(&own, &issuer).unwrap().pem());
    let key = file("own.key", own.serialize_pem());
    let (url, root) = (format!("coaps://{}", broker.address("coaps")), broker.ca_file());
    let ours = ["--cafile", root.to_str().unwrap(), "--cert", &certificate, "--key", &key];
    let mut subscriber =
        fulmar().args(["sub", &url, "-t", "a"]).args(ours).stderr(Stdio::null()).spawn().unwrap();
    eventually("an observation", || is_subscribed(&broker));
    broker.wait_for_log("closed, because the client's certificate has ended");
    eventually("no subscription", || !is_subscribed(&broker));
    subscriber.kill().unwrap();
    subscriber.wait().unwrap();
    assert!(!publish(&url, "a", "x", &ours).status.success());
}

/// As CoAP: QoS -1, without a session.
#[test]
fn bans_of_networks_hold_for_mqtt_sn_without_a_session() {
    let broker = TestBroker::builder().listen("mqtt_sn", &["127.0.0.1:0"]).start();
    let (mqtt, _) = urls(&broker);
    let server = broker.address("mqtt_sn");
    let (banned, honest) = (peer("127.0.0.2", server), peer("127.0.0.1", server));
    // PUBLISH to the short topic name "ab".
    let message = |text: &str| {
        [&[7 + text.len() as u8, 0x0C, 0x62, b'a', b'b', 0, 0], text.as_bytes()].concat()
    };
    ban(&broker, "127.0.0.2/32");
    let mut subscriber = subscribe(&mqtt, "ab", "1");
    eventually("a subscription", || is_subscribed(&broker));
    banned.send(&message("banned")).unwrap();
    broker.wait_for_log("MQTT-SN message refused: banned");
    honest.send(&message("honest")).unwrap();
    let mut text = String::new();
    subscriber.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    subscriber.wait().unwrap();
    assert_eq!(text, "honest\n");
}

#[test]
fn over_dtls_users_have_names_and_the_server_a_certificate() {
    let (keys, _folder) = psk_file();
    let settings = format!(
        "[coap]\npsk_file = {keys:?}\n[acl]\ndefault_allow = true\n[[acl.rules]]\nallow = false\nanonymous = true\n\
         topic = \"keyed/#\"\n"
    );
    let broker = TestBroker::builder().config(&settings).start();
    let url = format!("coaps://{}", broker.address("coaps"));
    let user = METER_7;
    let put = publish(&url, "keyed/a", "21.5", &[&user[..], &["-r"]].concat());
    assert!(put.status.success(), "{}", String::from_utf8_lossy(&put.stderr));
    let ca = broker.ca_file();
    let ca = ["--cafile", ca.to_str().unwrap()];
    let refused = publish(&url, "keyed/a", "x", &ca);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("4.03"), "{refused:?}");
    assert!(publish(&url, "open", "x", &ca).status.success());
    let short = publish(&url, "keyed/a", "x", &["-u", "meter-7", "-P", "short"]);
    let said = String::from_utf8_lossy(&short.stderr).into_owned();
    assert!(said.contains("at least 16 bytes") && said.contains("psk_file"), "{said}");
    assert_eq!(short.status.code(), Some(2), "{said}");
    // Without the authority's certificate the server is nobody.
    let stranger = publish(&url, "open", "x", &["--cafile", "/etc/ssl/certs/ca-certificates.crt"]);
    let stranger = String::from_utf8_lossy(&stranger.stderr).into_owned();
    assert!(stranger.contains("certificate") || stranger.contains("/etc/ssl"), "{stranger}");
    let mut arguments = vec!["sub", &url, "-t", "keyed/a", "-C", "1", "-W", "60"];
    arguments.extend_from_slice(&user);
    assert_eq!(run(&arguments).stdout, b"21.5\n");
}
