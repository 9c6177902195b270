//! JSON Web Tokens over real sockets and in real time: the connection ends with the token, unless the
//! client shows a fresh one before.
#![allow(clippy::unwrap_used)]

use std::io::Write as _;
use std::process::Stdio;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fulmar_tests::{TestBroker, Wire, eventually, field, fulmar, packet, run, write_secret};
use ring::hmac;

const SECRET: &str = "a secret of the issuer, 32 bytes";

/// Tokens count for a minute longer than they say.
const GRACE_S: u64 = 60;

fn broker() -> (TestBroker, tempfile::TempDir) {
    broker_with("")
}

fn broker_with(more: &str) -> (TestBroker, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    write_secret(&key, SECRET);
    let config = format!("[auth]\njwt_algorithm = \"HS256\"\njwt_key_file = {key:?}\n{more}");
    (TestBroker::builder().config(&config).start(), folder)
}

/// A token that is good for so many more seconds.
fn token(seconds: u64) -> String {
    token_with(seconds, "")
}

/// The same with more claims.
fn token_with(seconds: u64, more: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let claims = format!(r#"{{"sub":"ann","exp":{}{more}}}"#, now + seconds - GRACE_S);
    let signed = [r#"{"typ":"JWT","alg":"HS256"}"#, &claims]
        .map(|part| URL_SAFE_NO_PAD.encode(part))
        .join(".");
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
    let tag = hmac::sign(&key, signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag))
}

/// The method and a token, as properties of CONNECT and AUTH (MQTT 5.0 section 3.15.2.2).
fn exchange(token: &str) -> Vec<u8> {
    let properties = [vec![0x15], field("JWT"), vec![0x16], field(token)].concat();
    let len = properties.len();
    [vec![len as u8 | 0x80, (len / 128) as u8], properties].concat()
}

/// A client that has shown a token by enhanced authentication.
fn by_method(broker: &TestBroker, id: &str, token: &str) -> Wire {
    let mut wire = Wire::dial(broker.address("mqtt"));
    let head = [field("MQTT"), vec![5, 2, 0, 0]].concat();
    wire.send(&packet(0x10, &[head, exchange(token), field(id)].concat()));
    let (first, body) = wire.read().unwrap();
    assert_eq!((first, body[1]), (0x20, 0), "CONNACK with success");
    wire
}

/// Reads until the broker has closed; what it said last.
fn last_words(wire: &mut Wire) -> (u8, u8) {
    let mut last = (0, 0);
    while let Some((first, body)) = wire.read() {
        last = (first, body[0]);
    }
    last
}

/// A client that shows a token as its password, and the reason code of its CONNACK.
fn by_password(broker: &TestBroker, token: &str) -> (Wire, u8) {
    let mut wire = Wire::dial(broker.address("mqtt"));
    let head = [field("MQTT"), vec![5, 0xc2, 0, 0, 0], field("c")].concat();
    wire.send(&packet(0x10, &[head, field("ann"), field(token)].concat()));
    let (_, body) = wire.read().unwrap();
    (wire, body[1])
}

/// RFC 7519 section 4.1.3. An issuer signs tokens for other services, too, which can show them here.
#[test]
fn a_token_for_another_service_is_refused_and_the_log_says_why() {
    let (broker, _folder) = broker();
    let log_in = |broker: &TestBroker, more: &str| by_password(broker, &token_with(600, more)).1;
    assert_eq!(log_in(&broker, ""), 0);
    let foreign = token_with(600, r#","aud":"billing""#);
    assert_eq!(by_password(&broker, &foreign).1, 0x86);
    let line = broker.wait_for_log(r#"token refused: it is for "billing" (aud)"#);
    assert!(line.contains("jwt_audience") && line.contains("peer=127.0.0.1:"), "{line}");
    assert!(!broker.log().contains(foreign.rsplit('.').next().unwrap()), "the signature");
    by_password(&broker, &token(0));
    broker.wait_for_log("token refused: it expired 6");

    let ours = "jwt_audience = [\"mqtt\", \"broker\"]\njwt_issuer = \"https://login.example\"\n";
    let (broker, _folder) = broker_with(ours);
    let iss = r#","iss":"https://login.example""#;
    assert_eq!(log_in(&broker, &format!(r#","aud":["billing","broker"]{iss}"#)), 0);
    for (more, reason) in [
        (format!(r#","aud":"billing"{iss}"#), r#"it is for "billing" (aud)"#),
        (iss.to_owned(), "does not say for whom it is (aud)"),
        (r#","aud":"mqtt""#.to_owned(), "names no issuer (iss)"),
        (r#","aud":"mqtt","iss":"https://other.example""#.to_owned(), "https://other.example"),
    ] {
        assert_eq!(log_in(&broker, &more), 0x86, "{more}");
        broker.wait_for_log(reason);
    }
}

#[test]
fn a_token_as_password_holds_until_it_expires() {
    let (broker, _folder) = broker();
    let log_in = |token: &str| by_password(&broker, token);
    assert_eq!(log_in(&token(0)).1, 0x86, "it has expired");
    let (mut wire, reason) = log_in(&token(12));
    assert_eq!(reason, 0);
    assert_eq!(last_words(&mut wire), (0xe0, 0x87), "DISCONNECT, Not authorized");
}

#[test]
fn who_shows_a_fresh_token_in_time_stays() {
    let (broker, _folder) = broker();
    let short = token(12);
    let mut renewing = by_method(&broker, "renewing", &short);
    let mut idle = by_method(&broker, "idle", &short);
    renewing.send(&packet(0xf0, &[vec![0x19], exchange(&token(1000))].concat()));
    let (first, body) = renewing.read().unwrap();
    assert_eq!(first, 0xf0, "AUTH");
    assert!(body.is_empty() || body[0] == 0, "Success");
    assert_eq!(last_words(&mut idle), (0xe0, 0x87), "DISCONNECT, Not authorized");
    renewing.ping();
}

/// Runs `fulmar user` on the broker's store, with a password as standard input.
fn user(broker: &TestBroker, args: &[&str]) {
    let mut command = fulmar();
    command.arg("user").args(args).arg("--data").arg(broker.data());
    command.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"correct horse\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_user_whom_the_store_has_lost_gets_no_more_than_before() {
    let (mut broker, _folder) = broker_with("[platform]\nenabled = false\n");
    user(&broker, &["add", "root", "--admin"]);
    user(&broker, &["add", "ann"]);
    let token = token(1000);
    let log_in = |broker: &TestBroker| {
        let mut wire = Wire::dial(broker.address("mqtt"));
        let head = [field("MQTT"), vec![5, 0xc2, 0, 0, 0], field("c")].concat();
        wire.send(&packet(0x10, &[head, field("ann"), field(&token)].concat()));
        let (_, body) = wire.read().unwrap();
        (wire, body[1])
    };
    // The store gives her nothing; `[acl]` would give her everything.
    let publish = |wire: &mut Wire| {
        wire.send(&packet(0x32, &[field("t"), vec![0, 1, 0]].concat()));
        wire.read().map(|(first, body)| (first, body.get(2).copied()))
    };
    eventually("the store's rules", || publish(&mut log_in(&broker).0) == Some((0x40, Some(0x87))));
    let (mut connected, reason) = log_in(&broker);
    assert_eq!(reason, 0);
    user(&broker, &["remove", "ann"]);
    assert_eq!(last_words(&mut connected), (0xe0, 0x87), "DISCONNECT, Not authorized");
    assert_eq!(log_in(&broker).1, 0x87);
    broker.kill();
    broker.restart();
    assert_eq!(log_in(&broker).1, 0x87, "after a restart, too");
    user(&broker, &["add", "ann"]);
    eventually("she is back", || log_in(&broker).1 == 0);
    assert_eq!(publish(&mut log_in(&broker).0), Some((0x40, Some(0x87))), "with the store's rules");
    user(&broker, &["remove", "ann"]);
    eventually("she is refused again", || log_in(&broker).1 == 0x87);
    let mut forget = fulmar();
    forget.args(["ctl", "users", "remove", "ann", "--forget", "--data"]).arg(broker.data());
    assert!(run(&mut forget).status.success());
    assert_eq!(log_in(&broker).1, 0);
    assert_ne!(publish(&mut log_in(&broker).0), Some((0x40, Some(0x87))), "with everybody's rules");
}
