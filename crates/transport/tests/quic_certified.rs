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

/// A broker on which `meter-7` may use the topic `early`; everything else is denied.
fn start_broker(dir: &TempDir, auth: ClientAuth) -> Site {
    let mut setup = Setup::new(1);
    let who = Who::User("meter-7".into());
    let rule = Rule { allow: true, who, action: None, filter: "early".into(), exact: false };
    let rules = AccessRules::new(vec![rule], false).unwrap();
    setup.broker.access_control = AccessControl { rules, ..AccessControl::default() };
    setup.client_auth = auth;
    setup.start_in(dir)
}

/// A connected subscriber, and a client configuration that has a ticket.
async fn prepare(site: &Site, dir: &TempDir) -> (Connection, Pipe, ClientConfig) {
    let config = site.certified_config(dir, "meter-7");
    let (connection, mut control, _) = site.client_with(&config, &hello("s")).await;
    control.send(&subscribe("early", QoS::AtMostOnce)).await;
    assert_eq!(control.next().await, Seen::Suback);
    (connection, control, config)
}

/// The first flight of a returning client, with CONNECT and PUBLISH. It was not delivered.
async fn first_flight(config: ClientConfig) -> Vec<Vec<u8>> {
    let sink = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let (_connection, _control, _) = come_back(config, sink.local_addr().unwrap(), 0).await;
    let (mut flight, mut buffer) = (Vec::new(), [0; 2048]);
    // The second datagram is at the latest a retransmission of the first, with everything written since.
    while flight.len() < 2 {
        let length = timeout(TIMEOUT, sink.recv(&mut buffer)).await.unwrap().unwrap();
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
    timeout(TIMEOUT, socket.recv(&mut [0; 2048])).await.expect("no answer").unwrap();
    socket
}

/// `meter-7` publishes a last message: a subscriber that receives it first can conclude that nothing came before.
async fn publish_last(site: &Site, dir: &TempDir) {
    let config = site.certified_config(dir, "meter-7");
    let (_connection, mut control, _) = site.client_with(&config, &hello("last")).await;
    control.send(&publish("early", b"last", 1)).await;
    assert_eq!(control.next().await, Seen::Puback(1));
}

#[tokio::test]
async fn the_ticket_identifies_the_early_data_client() {
    for auth in [ClientAuth::Optional, ClientAuth::Required] {
        let dir = tempfile::tempdir().unwrap();
        let site = start_broker(&dir, auth);
        let (_connection, mut sub, config) = prepare(&site, &dir).await;
        let (_connection, mut control, accepted) = come_back(config, site.address(), 1).await;
        assert!(timeout(TIMEOUT, accepted).await.unwrap(), "early data was refused");
        assert_eq!(control.next().await, Seen::Connack(false));
        assert_eq!(control.next().await, Seen::Puback(1));
        assert_eq!(sub.payload().await, b"!", "{auth:?}");
    }
}

#[tokio::test]
async fn a_client_without_certificate_is_anonymous() {
    let dir = tempfile::tempdir().unwrap();
    let site = start_broker(&dir, ClientAuth::Optional);
    let (_connection, mut sub, _) = prepare(&site, &dir).await;
    let (_anonymous, mut control, _) = site.client(&hello("x")).await;
    control.send(&publish("early", b"!", 0)).await;
    publish_last(&site, &dir).await;
    assert_eq!(sub.payload().await, b"last");
}

#[tokio::test]
async fn a_first_flight_alone_does_nothing_where_certificates_are_required() {
    for (auth, done) in [(ClientAuth::Optional, true), (ClientAuth::Required, false)] {
        let dir = tempfile::tempdir().unwrap();
        let site = start_broker(&dir, auth);
        let (_connection, mut sub, config) = prepare(&site, &dir).await;
        let flight = first_flight(config).await;
        let _replayed = send(&site, &flight).await;
        publish_last(&site, &dir).await;
        // The only worker reads in order: the flight has taken effect before the last message is published.
        if done {
            assert_eq!(sub.payload().await, b"!");
        }
        assert_eq!(sub.payload().await, b"last", "{auth:?}");
    }
}
