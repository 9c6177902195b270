//! JSON Web Tokens over real sockets and in real time: the connection ends with the token, unless the
//! client shows a fresh one before.
#![allow(clippy::unwrap_used)]

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fulmar_tests::{TestBroker, Wire, field, packet};
use ring::hmac;

const SECRET: &str = "a secret of the issuer's";

/// Tokens count for a minute longer than they say.
const GRACE_S: u64 = 60;

fn broker() -> (TestBroker, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, SECRET).unwrap();
    let config = format!("[auth]\njwt_algorithm = \"HS256\"\njwt_key_file = {key:?}\n");
    (TestBroker::builder().config(&config).start(), folder)
}

/// A token that is good for so many more seconds.
fn token(seconds: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let claims = format!(r#"{{"sub":"ann","exp":{}}}"#, now + seconds - GRACE_S);
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

#[test]
fn a_token_as_password_holds_until_it_expires() {
    let (broker, _folder) = broker();
    let log_in = |token: &str| {
        let mut wire = Wire::dial(broker.address("mqtt"));
        let head = [field("MQTT"), vec![5, 0xc2, 0, 0, 0], field("c")].concat();
        wire.send(&packet(0x10, &[head, field("ann"), field(token)].concat()));
        let (_, body) = wire.read().unwrap();
        (wire, body[1])
    };
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
