//! Enhanced authentication (MQTT 5.0 section 4.12) with method `JWT`, and tokens that expire.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use common::{Conn, Seen, Setup, World};
use fulmar_broker::auth::{AccessControl, JwtVerifier};
use fulmar_broker::{Account, Limits, MemoryLimits};
use fulmar_mqtt::packet::{Auth, Connect, LastWill};
use fulmar_mqtt::{Packet, Properties, Property, PropertyBuf, QoS, ReasonCode, Version};
use ring::hmac;

const SECRET: &[u8] = b"a secret of the issuer, 32 bytes";

/// Worlds begin 1,000 s after the epoch; tokens count for a minute longer than they say.
fn token(user: &str, exp: u64) -> Vec<u8> {
    let parts = [r#"{"alg":"HS256"}"#.to_owned(), format!(r#"{{"sub":"{user}","exp":{exp}}}"#)];
    let signed = parts.map(|part| URL_SAFE_NO_PAD.encode(part)).join(".");
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET), signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag)).into_bytes()
}

fn world() -> World {
    limited(MemoryLimits::NONE)
}

fn limited(memory: MemoryLimits) -> World {
    let jwt = Some(JwtVerifier::new("HS256", SECRET).unwrap());
    World::with(Setup {
        access_control: AccessControl { jwt, ..AccessControl::default() },
        limits: Limits { memory, ..Limits::default() },
        ..Setup::default()
    })
}

fn exchange(method: Option<&'static str>, data: Option<&[u8]>) -> PropertyBuf {
    let mut properties = PropertyBuf::new();
    if let Some(method) = method {
        properties.push(Property::AuthenticationMethod(method));
    }
    if let Some(data) = data {
        properties.push(Property::AuthenticationData(data));
    }
    properties
}

fn connect(world: &mut World, method: Option<&'static str>, data: Option<&[u8]>) -> Conn {
    let conn = world.open(0);
    let properties = exchange(method, data);
    world.send(
        conn,
        &Packet::Connect(Connect {
            version: Version::V5,
            bridge: false,
            clean_start: true,
            keep_alive_s: 0,
            client_id: "c",
            properties: properties.as_properties(),
            will: None,
            username: None,
            password: None,
        }),
    );
    conn
}

fn auth(world: &mut World, conn: Conn, reason: ReasonCode, data: Option<&[u8]>) {
    let properties = exchange(Some("JWT"), data);
    world.send(conn, &Packet::Auth(Auth { reason, properties: properties.as_properties() }));
}

fn connack(reason: ReasonCode) -> Seen {
    Seen::Connack { present: false, reason, assigned: None }
}

#[test]
fn mqtt_4_12_0_1_an_unknown_method_is_refused_with_8c() {
    let mut world = world();
    let conn = connect(&mut world, Some("SCRAM-SHA-256"), Some(b"n,,n=ann,r=x"));
    assert_eq!(world.seen(conn), [connack(ReasonCode::BadAuthenticationMethod)]);
    assert!(world.is_closed(conn));
    let mut closed_gate = World::new();
    let conn = connect(&mut closed_gate, Some("JWT"), Some(&token("ann", 2000)));
    assert_eq!(closed_gate.seen(conn), [connack(ReasonCode::BadAuthenticationMethod)]);
}

#[test]
fn data_without_a_method_is_a_protocol_error() {
    let mut world = world();
    let conn = connect(&mut world, None, Some(b"x"));
    assert_eq!(world.seen(conn), [connack(ReasonCode::ProtocolError)]);
}

#[test]
fn a_token_in_connect_lets_in_and_a_bad_one_does_not() {
    let mut world = world();
    let conn = connect(&mut world, Some("JWT"), Some(&token("ann", 2000)));
    assert_eq!(world.seen(conn), [connack(ReasonCode::Success)]);
    for bad in [token("ann", 900), b"ey.ey.ey".to_vec(), vec![0xff; 70_000 / 2]] {
        let conn = connect(&mut world, Some("JWT"), Some(&bad));
        assert_eq!(world.seen(conn), [connack(ReasonCode::BadUserNameOrPassword)]);
        assert!(world.is_closed(conn));
    }
}

#[test]
fn connect_without_a_token_is_asked_for_one() {
    let mut world = world();
    let conn = connect(&mut world, Some("JWT"), None);
    assert_eq!(world.seen(conn), [Seen::Auth(ReasonCode::ContinueAuthentication)]);
    auth(&mut world, conn, ReasonCode::ContinueAuthentication, Some(&token("ann", 2000)));
    assert_eq!(world.seen(conn), [connack(ReasonCode::Success)]);
}

#[test]
fn mqtt_3_1_2_30_nothing_but_auth_may_answer_a_challenge() {
    let mut world = world();
    let conn = connect(&mut world, Some("JWT"), None);
    world.seen(conn);
    world.publish(conn, "t", "x", QoS::AtMostOnce, 0);
    assert_eq!(world.seen(conn), [connack(ReasonCode::ProtocolError)]);
    assert!(world.is_closed(conn));
    let silent = connect(&mut world, Some("JWT"), None);
    world.wait(Duration::from_secs(11));
    assert!(world.is_closed(silent), "nobody may think about it for ever");
}

#[test]
fn an_expired_token_disconnects_with_87_and_a_fresh_one_prevents_it() {
    let mut world = world();
    let conn = connect(&mut world, Some("JWT"), Some(&token("ann", 1100)));
    world.seen(conn);
    world.wait(Duration::from_secs(150));
    auth(&mut world, conn, ReasonCode::ReAuthenticate, Some(&token("ann", 1400)));
    assert_eq!(world.seen(conn), [Seen::Auth(ReasonCode::Success)]);
    world.wait(Duration::from_secs(300));
    assert!(!world.is_closed(conn), "it has been renewed");
    world.wait(Duration::from_secs(11));
    assert_eq!(world.seen(conn), [Seen::Disconnect(ReasonCode::NotAuthorized)]);
    assert!(world.is_closed(conn));
}

#[test]
fn a_fresh_token_may_be_asked_for_too() {
    let mut world = world();
    let conn = connect(&mut world, Some("JWT"), Some(&token("ann", 1100)));
    world.seen(conn);
    auth(&mut world, conn, ReasonCode::ReAuthenticate, None);
    assert_eq!(world.seen(conn), [Seen::Auth(ReasonCode::ContinueAuthentication)]);
    auth(&mut world, conn, ReasonCode::ContinueAuthentication, Some(&token("ann", 1400)));
    assert_eq!(world.seen(conn), [Seen::Auth(ReasonCode::Success)]);
}

#[test]
fn nobody_becomes_somebody_else_by_authenticating_again() {
    let mut world = world();
    let conn = connect(&mut world, Some("JWT"), Some(&token("ann", 2000)));
    world.seen(conn);
    auth(&mut world, conn, ReasonCode::ReAuthenticate, Some(&token("bob", 2000)));
    assert_eq!(world.seen(conn), [Seen::Disconnect(ReasonCode::NotAuthorized)]);
}

#[test]
fn auth_without_a_method_at_connect_or_out_of_order_is_a_protocol_error() {
    let mut world = world();
    let plain = connect(&mut world, None, None);
    world.seen(plain);
    auth(&mut world, plain, ReasonCode::ReAuthenticate, Some(&token("ann", 2000)));
    assert_eq!(world.seen(plain), [Seen::Disconnect(ReasonCode::ProtocolError)]);
    let conn = connect(&mut world, Some("JWT"), Some(&token("ann", 2000)));
    world.seen(conn);
    auth(&mut world, conn, ReasonCode::ContinueAuthentication, Some(&token("ann", 2000)));
    assert_eq!(world.seen(conn), [Seen::Disconnect(ReasonCode::ProtocolError)]);
}

#[test]
fn unfinished_logins_of_an_address_share_what_long_ones_may_take() {
    let mut world = limited(MemoryLimits::NONE.with(Account::Logins, 1_000_000));
    let properties = exchange(Some("JWT"), None);
    let mut begin = |address: [u8; 4], payload: &[u8]| {
        let conn = world.open_from(0, address);
        let connect = Connect {
            version: Version::V5,
            bridge: false,
            clean_start: true,
            keep_alive_s: 0,
            client_id: "c",
            properties: properties.as_properties(),
            will: Some(LastWill {
                topic: "gone",
                payload,
                qos: QoS::AtMostOnce,
                retain: false,
                properties: Properties::NONE,
            }),
            username: None,
            password: None,
        };
        world.send(conn, &Packet::Connect(connect));
        let seen = world.seen(conn);
        (conn, seen == [Seen::Auth(ReasonCode::ContinueAuthentication)], seen)
    };
    let (eve, ann) = ([192, 0, 2, 1], [192, 0, 2, 2]);
    let began: Vec<_> =
        (0..30).map(|_| begin(eve, &[0; 50_000])).take_while(|(_, began, _)| *began).collect();
    assert_eq!(began.len(), 10, "half of it");
    assert_eq!(begin(eve, &[0; 50_000]).2, [connack(ReasonCode::QuotaExceeded)]);
    // Short ones do not count, and another address has its share.
    assert!(begin(eve, b"short").1 && begin(ann, &[0; 50_000]).1);
    for (conn, ..) in began {
        world.cut(conn);
    }
    let used = world.broker.memory_totals(Account::Logins).0;
    assert!((50_000..60_000).contains(&used), "ann's: {used}");
}
