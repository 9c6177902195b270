//! SCRAM-SHA-256 as enhanced authentication (MQTT 5.0 section 4.12).
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Conn, Setup, World};
use fulmar_broker::auth::{AccessControl, Identity, IdentityChanges, IdentityTable};
use fulmar_broker::{Account, Limits, MemoryLimits};
use fulmar_mqtt::codec::{decode, peek_frame};
use fulmar_mqtt::packet::{Auth, Connect};
use fulmar_mqtt::{Packet, Properties, Property, PropertyBuf, ReasonCode, Version};
use fulmar_scram::{ClientExchange, DecoyKey, MECHANISM, Verifier};

const ITERATIONS: u32 = 4096;

struct Broker {
    world: World,
    table: Arc<IdentityTable>,
}

/// A packet of the server, as far as authentication is concerned.
#[derive(Debug, PartialEq)]
enum Said {
    Connack(ReasonCode, Option<String>),
    Auth(ReasonCode, Option<String>),
    Disconnect(ReasonCode),
}

fn user(revision: u64, password: Option<&str>) -> Identity {
    let verifier = |password: &str| Verifier::new(password.as_bytes(), ITERATIONS).unwrap();
    let identity = Identity::new(None, None, false, revision, Vec::new()).unwrap();
    identity.with_verifier(password.map(verifier))
}

impl Broker {
    /// Ann and bob have the passwords "secret" and "other"; eve has a password that was set before SCRAM was there.
    fn start() -> Broker {
        let table = Arc::new(IdentityTable::default());
        let users = [("ann", Some("secret")), ("bob", Some("other")), ("eve", None)];
        let users = users.map(|(name, password)| (name.into(), Some(user(1, password))));
        table.change(IdentityChanges { users: users.into(), ..IdentityChanges::default() });
        let access_control = AccessControl {
            identities: Some(Arc::clone(&table)),
            scram: Some(DecoyKey::new([7; 32], ITERATIONS)),
            ..AccessControl::default()
        };
        let memory = MemoryLimits::NONE.with(Account::Logins, 100_000);
        let limits = Limits { memory, ..Limits::default() };
        let world = World::with(Setup { access_control, limits, ..Setup::default() });
        Broker { world, table }
    }

    fn connect(&mut self, data: Option<&str>, more: impl FnOnce(&mut PropertyBuf)) -> Conn {
        self.connect_as(None, data, more)
    }

    fn connect_as(
        &mut self,
        username: Option<&str>,
        data: Option<&str>,
        more: impl FnOnce(&mut PropertyBuf),
    ) -> Conn {
        let conn = self.world.open(0);
        let mut properties = exchange(data);
        more(&mut properties);
        let connect = Connect {
            version: Version::V5,
            bridge: false,
            clean_start: true,
            keep_alive_s: 0,
            client_id: "c",
            properties: properties.as_properties(),
            will: None,
            username,
            password: None,
        };
        self.world.send(conn, &Packet::Connect(connect));
        conn
    }

    fn auth(&mut self, conn: Conn, reason: ReasonCode, data: Option<&str>) {
        let properties = exchange(data);
        let properties = properties.as_properties();
        self.world.send(conn, &Packet::Auth(Auth { reason, properties }));
    }

    /// The server's next packet; no other has come.
    fn said(&mut self, conn: Conn) -> Said {
        let bytes = self.world.bytes(conn);
        let frame = peek_frame(&bytes, 1 << 20).unwrap().expect("a packet");
        assert_eq!(frame.len, bytes.len(), "one packet");
        match decode(&frame, Version::V5).unwrap() {
            Packet::Connack(it) => Said::Connack(it.reason, data(it.properties, it.reason)),
            Packet::Auth(it) => Said::Auth(it.reason, data(it.properties, it.reason)),
            Packet::Disconnect(it) => Said::Disconnect(it.reason),
            other => panic!("{other:?}"),
        }
    }

    /// The server's first message to this client.
    fn asked(&mut self, conn: Conn) -> String {
        match self.said(conn) {
            Said::Auth(ReasonCode::ContinueAuthentication, Some(message)) => message,
            other => panic!("{other:?}"),
        }
    }

    /// A whole exchange, and what comes of it.
    fn sign_in(&mut self, name: &str, password: &str) -> (Conn, Said) {
        let (client, first) = ClientExchange::begin(name, password.as_bytes()).unwrap();
        let conn = self.connect(Some(&first), |_| ());
        let asked = self.asked(conn);
        let (last, proof, _) = client.answer(asked.as_bytes(), None).unwrap();
        self.auth(conn, ReasonCode::ContinueAuthentication, Some(&last));
        let said = self.said(conn);
        if let Said::Connack(ReasonCode::Success, end) = &said {
            proof.check(end.as_ref().unwrap().as_bytes()).unwrap();
        }
        (conn, said)
    }

    fn signed_in(&mut self) -> Conn {
        let (conn, said) = self.sign_in("ann", "secret");
        assert!(matches!(said, Said::Connack(ReasonCode::Success, Some(_))), "{said:?}");
        conn
    }
}

fn exchange(data: Option<&str>) -> PropertyBuf {
    let mut properties = PropertyBuf::new();
    properties.push(Property::AuthenticationMethod(MECHANISM));
    if let Some(data) = data {
        properties.push(Property::AuthenticationData(data.as_bytes()));
    }
    properties
}

/// The Authentication Data; the method must be there unless the client is refused.
fn data(properties: Properties<'_>, reason: ReasonCode) -> Option<String> {
    let named = properties.iter().any(|it| it == Property::AuthenticationMethod(MECHANISM));
    assert!(named || reason.is_error(), "[MQTT-4.12.0-5]");
    fulmar_mqtt::find_property!(properties, AuthenticationData)
        .map(|data| String::from_utf8(data.to_vec()).unwrap())
}

fn refused(reason: ReasonCode) -> Said {
    Said::Connack(reason, None)
}

const WRONG: ReasonCode = ReasonCode::BadUserNameOrPassword;

#[test]
fn the_right_password_lets_in_and_both_sides_know_each_other() {
    let mut broker = Broker::start();
    let conn = broker.signed_in();
    assert!(!broker.world.is_closed(conn));
    assert_eq!(broker.sign_in("ann", "Secret").1, refused(WRONG));
    assert_eq!(broker.sign_in("bob", "secret").1, refused(WRONG));
    assert_eq!(broker.world.total("authentication_failed"), 2);
}

#[test]
fn who_has_no_verifier_looks_like_one_with_a_wrong_password() {
    let mut broker = Broker::start();
    for name in ["eve", "nobody"] {
        let asked: Vec<String> = (0..2)
            .map(|_| {
                let (_, first) = ClientExchange::begin(name, b"secret").unwrap();
                let conn = broker.connect(Some(&first), |_| ());
                let asked = broker.asked(conn);
                asked.split_once(",s=").unwrap().1.to_owned()
            })
            .collect();
        assert_eq!(asked[0], asked[1], "the salt is always the same");
        assert!(asked[0].ends_with(",i=4096"), "{}", asked[0]);
        assert_eq!(broker.sign_in(name, "secret").1, refused(WRONG));
    }
}

#[test]
fn connect_without_data_is_asked_for_the_first_message() {
    let mut broker = Broker::start();
    let conn = broker.connect(None, |_| ());
    assert_eq!(broker.said(conn), Said::Auth(ReasonCode::ContinueAuthentication, None));
    let (client, first) = ClientExchange::begin("ann", b"secret").unwrap();
    broker.auth(conn, ReasonCode::ContinueAuthentication, Some(&first));
    let asked = broker.asked(conn);
    let (last, ..) = client.answer(asked.as_bytes(), None).unwrap();
    broker.auth(conn, ReasonCode::ContinueAuthentication, Some(&last));
    assert!(matches!(broker.said(conn), Said::Connack(ReasonCode::Success, Some(_))));
}

#[test]
fn what_is_not_offered_is_refused_with_8c() {
    let mut broker = Broker::start();
    let conn = broker.connect(Some("p=tls-exporter,,n=ann,r=x"), |_| ());
    assert_eq!(broker.said(conn), refused(ReasonCode::BadAuthenticationMethod));
    broker.world = World::new();
    let conn = broker.connect(Some("n,,n=ann,r=x"), |_| ());
    assert_eq!(broker.said(conn), refused(ReasonCode::BadAuthenticationMethod));
}

#[test]
fn messages_that_are_none_and_other_names_are_refused() {
    for malformed in ["", "n,,", "n,,n=ann,r="] {
        let mut broker = Broker::start();
        let conn = broker.connect(Some(malformed), |_| ());
        assert_eq!(broker.said(conn), refused(ReasonCode::ProtocolError), "{malformed}");
    }
    let mut broker = Broker::start();
    let conn = broker.connect_as(Some("bob"), Some("n,,n=ann,r=x"), |_| ());
    assert_eq!(broker.said(conn), refused(WRONG));
    let conn = broker.connect(Some("n,a=bob,n=ann,r=x"), |_| ());
    assert_eq!(broker.said(conn), refused(WRONG));
    let conn = broker.connect(Some("n,,n=ann,r=x"), |_| ());
    broker.asked(conn);
    broker.auth(conn, ReasonCode::ContinueAuthentication, Some("c=biws,r=x"));
    assert_eq!(broker.said(conn), refused(ReasonCode::ProtocolError));
    assert!(broker.world.is_closed(conn));
}

#[test]
fn an_exchange_that_is_left_ends_with_the_time_for_connecting() {
    let mut broker = Broker::start();
    let conn = broker.connect(Some("n,,n=ann,r=x"), |_| ());
    broker.asked(conn);
    broker.world.wait(Duration::from_secs(11));
    assert!(broker.world.is_closed(conn));
}

/// The limit applies to the AUTH with the server's first message, and to CONNACK with its last one.
#[test]
fn mqtt_3_1_2_24_nothing_larger_than_the_client_accepts_is_sent() {
    let mut broker = Broker::start();
    let (client, first) = ClientExchange::begin("ann", b"secret").unwrap();
    let mut accepted = None;
    for most in 5..300 {
        let conn = broker.connect(Some(&first), |it| {
            it.push(Property::MaximumPacketSize(most));
        });
        let bytes = broker.world.bytes(conn);
        assert!(bytes.len() <= most as usize, "{} bytes, and {most} are accepted", bytes.len());
        if bytes[0] >> 4 == 15 {
            accepted = Some((conn, bytes, most));
            break;
        }
    }
    let (conn, asked, most) = accepted.expect("one that is large enough");
    let frame = peek_frame(&asked, 1000).unwrap().unwrap();
    let Packet::Auth(asked) = decode(&frame, Version::V5).unwrap() else { panic!("no AUTH") };
    let asked = data(asked.properties, asked.reason).unwrap();
    let (last, ..) = client.answer(asked.as_bytes(), None).unwrap();
    broker.auth(conn, ReasonCode::ContinueAuthentication, Some(&last));
    let connack = broker.world.bytes(conn);
    assert!(connack[0] >> 4 == 2 && connack.len() <= most as usize, "{connack:?}");
}

fn begin_again(broker: &mut Broker, conn: Conn, password: &[u8]) -> (String, String) {
    let (client, first) = ClientExchange::begin("ann", password).unwrap();
    broker.auth(conn, ReasonCode::ReAuthenticate, Some(&first));
    let asked = broker.asked(conn);
    let (last, ..) = client.answer(asked.as_bytes(), None).unwrap();
    (first, last)
}

#[test]
fn mqtt_4_12_1_a_connected_client_may_authenticate_again() {
    let mut broker = Broker::start();
    let conn = broker.signed_in();
    let (_, last) = begin_again(&mut broker, conn, b"secret");
    broker.auth(conn, ReasonCode::ContinueAuthentication, Some(&last));
    assert!(matches!(broker.said(conn), Said::Auth(ReasonCode::Success, Some(_))));
    assert!(!broker.world.is_closed(conn));
    let (_, last) = begin_again(&mut broker, conn, b"wrong");
    broker.auth(conn, ReasonCode::ContinueAuthentication, Some(&last));
    assert_eq!(broker.said(conn), Said::Disconnect(ReasonCode::NotAuthorized));
    assert!(broker.world.is_closed(conn));
}

#[test]
fn nobody_becomes_somebody_else_by_authenticating_again() {
    let mut broker = Broker::start();
    let conn = broker.signed_in();
    broker.auth(conn, ReasonCode::ReAuthenticate, Some("n,,n=bob,r=x"));
    assert_eq!(broker.said(conn), Said::Disconnect(ReasonCode::NotAuthorized));
}

#[test]
fn one_exchange_at_a_time_and_not_for_ever() {
    let mut broker = Broker::start();
    let conn = broker.signed_in();
    let (first, _) = begin_again(&mut broker, conn, b"secret");
    broker.auth(conn, ReasonCode::ReAuthenticate, Some(&first));
    assert_eq!(broker.said(conn), Said::Disconnect(ReasonCode::ProtocolError));
    let conn = broker.signed_in();
    let (_, last) = begin_again(&mut broker, conn, b"secret");
    broker.world.wait(Duration::from_secs(11));
    broker.auth(conn, ReasonCode::ContinueAuthentication, Some(&last));
    assert_eq!(broker.said(conn), Said::Disconnect(ReasonCode::NotAuthorized));
    let conn = broker.signed_in();
    broker.auth(conn, ReasonCode::ContinueAuthentication, Some("c=biws,r=x,p=AA=="));
    assert_eq!(broker.said(conn), Said::Disconnect(ReasonCode::ProtocolError));
}

#[test]
fn a_password_that_changes_during_the_exchange_ends_the_connection() {
    let mut broker = Broker::start();
    let (client, first) = ClientExchange::begin("ann", b"secret").unwrap();
    let conn = broker.connect(Some(&first), |_| ());
    let asked = broker.asked(conn);
    let users = vec![("ann".into(), Some(user(2, Some("changed"))))];
    broker.table.change(IdentityChanges { users, ..IdentityChanges::default() });
    let (last, ..) = client.answer(asked.as_bytes(), None).unwrap();
    broker.auth(conn, ReasonCode::ContinueAuthentication, Some(&last));
    assert!(broker.world.is_closed(conn));
    assert_eq!(broker.sign_in("ann", "secret").1, refused(WRONG));
    assert!(matches!(broker.sign_in("ann", "changed").1, Said::Connack(ReasonCode::Success, _)));
}

#[test]
fn half_exchanges_of_an_address_share_what_they_may_take() {
    let mut broker = Broker::start();
    let first = format!("n,,n={},r=x", "a".repeat(3_000));
    let conns: Vec<_> = (0..50).map(|_| broker.connect(Some(&first), |_| ())).collect();
    let said: Vec<_> = conns.iter().map(|conn| broker.said(*conn)).collect();
    let asked = said.iter().take_while(|said| matches!(said, Said::Auth(..))).count();
    assert!((5..10).contains(&asked), "{asked}");
    assert_eq!(said[asked], refused(ReasonCode::QuotaExceeded));
    for conn in conns {
        broker.world.cut(conn);
    }
    assert_eq!(broker.world.broker.memory_totals(Account::Logins).0, 0);
    assert!(matches!(broker.sign_in("ann", "secret").1, Said::Connack(ReasonCode::Success, _)));
    assert_eq!(broker.world.broker.memory_totals(Account::Logins).0, 0);
}
