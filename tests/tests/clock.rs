//! The system's clock is wrong at the start, and set in both directions while the broker runs and while it does not.
#![allow(clippy::unwrap_used)]

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fulmar_tests::{TestBroker, TestClock, Wire, eventually, field, packet, write_secret};
use ring::hmac;

const EXPIRY_S: u32 = 3600;
const DAY_S: i64 = 24 * 3600;
const SECRET: &str = "a secret of the issuer, 32 bytes";

/// A session that outlives its connection by an hour. Returns whether it was there.
fn session(broker: &TestBroker) -> (Wire, bool) {
    let mut wire = Wire::dial(broker.address("mqtt"));
    let expiry = [vec![0x11], EXPIRY_S.to_be_bytes().to_vec()].concat();
    let head = [field("MQTT"), vec![5, 0, 0, 0, expiry.len() as u8], expiry, field("sleeper")];
    wire.send(&packet(0x10, &head.concat()));
    let (first, body) = wire.read().expect("CONNACK");
    assert_eq!((first, body[1]), (0x20, 0));
    (wire, body[0] == 1)
}

/// Publishes with QoS 1 and an expiry of an hour.
fn publish(wire: &mut Wire, topic: &str, retain: bool) {
    let expiry = [vec![0x02], EXPIRY_S.to_be_bytes().to_vec()].concat();
    let body = [field(topic), vec![0, 1, expiry.len() as u8], expiry, b"x".to_vec()].concat();
    wire.send(&packet(0x32 | u8::from(retain), &body));
    assert_eq!(wire.read().unwrap().0, 0x40, "PUBACK");
}

/// Subscribes with QoS 1.
fn subscribe(wire: &mut Wire, filter: &str) {
    wire.send(&packet(0x82, &[vec![0, 1, 0], field(filter), vec![1]].concat()));
    assert_eq!(wire.read().unwrap().0, 0x90, "SUBACK");
}

/// Reads a message to `topic`. What is left of its expiry is no more than there was.
fn received(wire: &mut Wire, topic: &str) {
    let (first, body) = wire.read().unwrap();
    assert_eq!((first & 0xf0, &body[2..2 + topic.len()]), (0x30, topic.as_bytes()));
    let properties = &body[2 + topic.len() + 2..];
    assert_eq!(properties[..2], [5, 0x02], "its expiry alone");
    let left = u32::from_be_bytes(properties[2..6].try_into().unwrap());
    assert!((EXPIRY_S / 2..=EXPIRY_S).contains(&left), "{left} s are left");
}

/// Session, its message and a retained one are there, however the clock was set.
fn all_there(broker: &TestBroker, when: &str) {
    let (mut sleeper, present) = session(broker);
    assert!(present, "the session has expired: {when}");
    received(&mut sleeper, "queued");
    let mut other = Wire::connect(broker.address("mqtt"), "other");
    subscribe(&mut other, "kept");
    received(&mut other, "kept");
    // Not acknowledged, so that it comes again.
}

#[test]
fn sessions_and_messages_outlive_a_clock_that_is_set() {
    let Some(clock) = TestClock::new() else { return };
    clock.reset();
    let mut builder = TestBroker::builder();
    for (key, value) in clock.environment() {
        builder = builder.env(key, &value);
    }
    let mut broker = builder.start();
    let (mut sleeper, _) = session(&broker);
    subscribe(&mut sleeper, "queued");
    drop(sleeper);
    eventually("the client to be gone", || broker.metric("connections{transport=\"tcp\"}") == 0.0);
    let mut publisher = Wire::connect(broker.address("mqtt"), "publisher");
    publish(&mut publisher, "queued", false);
    publish(&mut publisher, "kept", true);
    all_there(&broker, "before anything was set");
    for (ahead, when) in [(0, "from 1970"), (-DAY_S, "back"), (10 * DAY_S, "forwards")] {
        clock.set(ahead);
        eventually("the broker to see it", || {
            publisher.ping();
            broker.log().matches("the system's clock was set, or").count() > 0
        });
        all_there(&broker, when);
        broker.terminate();
        broker.restart();
        all_there(&broker, when);
        broker.kill();
        broker.restart();
        all_there(&broker, when);
        publisher = Wire::connect(broker.address("mqtt"), "publisher");
    }
    for (ahead, when) in [(-DAY_S, "back while it was away"), (DAY_S, "forwards, likewise")] {
        broker.kill();
        clock.set(ahead);
        broker.restart();
        all_there(&broker, when);
    }
}

/// A token of an hour that begins (`nbf`) this many seconds from now.
fn token(begins_s: i64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs().cast_signed();
    let (begin, end) = (now + begins_s, now + begins_s + 3600);
    let claims = format!(r#"{{"sub":"ann","nbf":{begin},"exp":{end}}}"#);
    let signed = [r#"{"typ":"JWT","alg":"HS256"}"#, &claims]
        .map(|part| URL_SAFE_NO_PAD.encode(part))
        .join(".");
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
    let tag = hmac::sign(&key, signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag))
}

/// A client with this token as its password, and whether it is accepted.
fn log_in(broker: &TestBroker, id: &str, token: &str) -> (Wire, bool) {
    let mut wire = Wire::dial(broker.address("mqtt"));
    let head = [field("MQTT"), vec![5, 0xc2, 0, 0, 0], field(id), field("ann"), field(token)];
    wire.send(&packet(0x10, &head.concat()));
    let (_, body) = wire.read().expect("CONNACK");
    (wire, body[1] == 0)
}

#[test]
fn tokens_are_judged_by_the_clock_as_it_is_now() {
    let Some(clock) = TestClock::new() else { return };
    clock.reset();
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    write_secret(&key, SECRET);
    let config = format!("[auth]\njwt_algorithm = \"HS256\"\njwt_key_file = {key:?}\n");
    let mut builder = TestBroker::builder().config(&config);
    for (key, value) in clock.environment() {
        builder = builder.env(key, &value);
    }
    let broker = builder.start();
    let (good, expired) = (token(-600), token(-DAY_S));
    assert!(!log_in(&broker, "early", &good).1, "in 1970 it has not begun");
    clock.set(0);
    let (mut client, accepted) = log_in(&broker, "good", &good);
    assert!(accepted, "it has begun");
    assert!(!log_in(&broker, "late", &expired).1, "it has expired");
    client.ping();
    // What a client has shown ends by the same clock.
    clock.set(DAY_S);
    let (mut other, _) = log_in(&broker, "later", &good);
    assert_eq!(other.read(), None);
    assert_eq!(client.read().map(|(first, _)| first), Some(0xe0), "DISCONNECT");
}
