//! Early data of QUIC clients with certificates: their identity is known before anything is done for them, and where
//! a certificate is required, nothing is done before the handshake is complete.
#![allow(clippy::unwrap_used)]

mod quic_site;

use fulmar_broker::access::{AccessRules, Rule, Who};
use fulmar_broker::auth::AccessControl;
use fulmar_mqtt::QoS;
use fulmar_transport::tls::ClientAuth;
use quic_site::*;
use quinn::{ClientConfig, Connection};
use tempfile::TempDir;
use tokio::net::UdpSocket;
use tokio::time::timeout;

/// A broker on which `meter-7` may use the topic `early`, and nobody may do anything else.
fn site(dir: &TempDir, auth: ClientAuth) -> Site {
    let mut setup = Setup::new(1);
    let who = Who::User("meter-7".into());
    let rule = Rule { allow: true, who, action: None, filter: "early".into() };
    let rules = AccessRules::new(vec![rule], false).unwrap();
    setup.broker.access_control = AccessControl { rules, ..AccessControl::default() };
    setup.client_auth = auth;
    setup.start_in(dir)
}

/// A subscriber, a publisher's settings with a ticket in them.
async fn prepare(site: &Site, dir: &TempDir) -> (Connection, Pipe, ClientConfig) {
    let config = site.certified_config(dir, "meter-7");
    let (connection, mut control, _) = site.client_with(&config, &hello("s")).await;
    control.send(&subscribe("early", QoS::AtMostOnce)).await;
    assert_eq!(control.next().await, Seen::Suback);
    (connection, control, config)
}

/// The first flight of a returning client, CONNECT and PUBLISH in it, that reached nobody.
async fn first_flight(config: ClientConfig) -> Vec<Vec<u8>> {
    let nobody = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let (_connection, _control, _) = come_back(config, nobody.local_addr().unwrap(), 0).await;
    let (mut flight, mut buffer) = (Vec::new(), [0; 2048]);
    // The second is at the latest the first one's repetition, with all that was written since.
    while flight.len() < 2 {
        let length = timeout(PATIENCE, nobody.recv(&mut buffer)).await.unwrap().unwrap();
        flight.push(buffer[..length].to_vec());
    }
    flight
}

/// Sends the flight and nothing after it, and waits for the server's answer.
async fn send(site: &Site, flight: &[Vec<u8>]) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for datagram in flight {
        socket.send_to(datagram, site.address()).await.unwrap();
    }
    timeout(PATIENCE, socket.recv(&mut [0; 2048])).await.expect("no answer").unwrap();
    socket
}

/// `meter-7` publishes one last message, so that a subscriber that receives it knows that nothing came before.
async fn last_word(site: &Site, dir: &TempDir) {
    let config = site.certified_config(dir, "meter-7");
    let (_connection, mut control, _) = site.client_with(&config, &hello("last")).await;
    control.send(&publish("early", b"last", 1)).await;
    assert_eq!(control.next().await, Seen::Puback(1));
}

#[tokio::test]
async fn who_sends_early_data_is_known_from_the_ticket() {
    for auth in [ClientAuth::Optional, ClientAuth::Required] {
        let dir = tempfile::tempdir().unwrap();
        let site = site(&dir, auth);
        let (_connection, mut sub, config) = prepare(&site, &dir).await;
        let (_connection, mut control, accepted) = come_back(config, site.address(), 1).await;
        assert!(timeout(PATIENCE, accepted).await.unwrap(), "early data was refused");
        assert_eq!(control.next().await, Seen::Connack(false));
        assert_eq!(control.next().await, Seen::Puback(1));
        assert_eq!(sub.payload().await, b"!", "{auth:?}");
    }
}

#[tokio::test]
async fn a_client_without_certificate_is_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let site = site(&dir, ClientAuth::Optional);
    let (_connection, mut sub, _) = prepare(&site, &dir).await;
    let (_stranger, mut control, _) = site.client(&hello("x")).await;
    control.send(&publish("early", b"!", 0)).await;
    last_word(&site, &dir).await;
    assert_eq!(sub.payload().await, b"last");
}

#[tokio::test]
async fn a_first_flight_alone_does_nothing_where_certificates_are_required() {
    for (auth, done) in [(ClientAuth::Optional, true), (ClientAuth::Required, false)] {
        let dir = tempfile::tempdir().unwrap();
        let site = site(&dir, auth);
        let (_connection, mut sub, config) = prepare(&site, &dir).await;
        let flight = first_flight(config).await;
        let _thief = send(&site, &flight).await;
        last_word(&site, &dir).await;
        // The one worker reads in order: what the flight does, it has done before the last word.
        if done {
            assert_eq!(sub.payload().await, b"!");
        }
        assert_eq!(sub.payload().await, b"last", "{auth:?}");
    }
}
