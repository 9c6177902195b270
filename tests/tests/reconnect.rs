//! The client library over real sockets when the network or the broker does not behave: UDP that is
//! blocked or refused, a broker that is gone, an address that changes.
#![allow(clippy::unwrap_used)]

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use fulmar_client::{
    Backoff, Client, Event, Events, Fallback, Message, Options, SubscribeOptions, Transport, Trust,
};
use fulmar_tests::{PATIENCE, Relay, TestBroker};
use tokio::time::timeout;

fn options(broker: &TestBroker, udp: SocketAddr) -> Options {
    let mut options = Options::new(&format!("quic://localhost:{}", udp.port())).unwrap();
    options.trust = Trust::CaFile(broker.ca_file());
    let wait = Duration::from_millis(200);
    options.reconnect = Some(Backoff { first: wait, longest: wait });
    options.quic_keep_alive = Duration::from_millis(500);
    options
}

fn with_fallback(broker: &TestBroker, udp: SocketAddr) -> Options {
    let fallback = Fallback::Race { port: broker.address("mqtts").port() };
    Options { fallback, ..options(broker, udp) }
}

async fn next(events: &mut Events) -> Event {
    timeout(PATIENCE, events.next()).await.expect("an event").expect("the client goes on")
}

/// A client whose first connection is over QUIC; on a busy machine, TLS wins some of the races.
async fn over_quic(options: &Options) -> (Client, Events) {
    for _ in 0..20 {
        let (client, mut events) = Client::connect(options.clone()).unwrap();
        if connected(&mut events).await == (Transport::Quic, false) {
            return (client, events);
        }
        client.disconnect().await;
    }
    panic!("TLS has won twenty times");
}

/// The transport of the next connection.
async fn connected(events: &mut Events) -> (Transport, bool) {
    loop {
        if let Event::Connected { transport, early_data, .. } = next(events).await {
            return (transport, early_data);
        }
    }
}

/// Why the connection was lost.
async fn lost(events: &mut Events) -> String {
    loop {
        if let Event::Disconnected { reason, .. } = next(events).await {
            return reason.to_string();
        }
    }
}

/// A port that takes datagrams and never answers, as behind a firewall that drops them.
fn silent() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").unwrap()
}

#[tokio::test]
async fn over_a_slow_link_connack_has_as_long_as_the_handshake() {
    let broker = TestBroker::start();
    let relay = Relay::start(broker.address("quic")).await;
    // Two seconds for the handshake and two for CONNACK.
    relay.delay(Duration::from_secs(1));
    let made = options(&broker, relay.address());
    let connect_timeout = Duration::from_millis(3800);
    let made = Options { connect_timeout, reconnect: None, ..made };
    let (client, mut events) = Client::connect(made).unwrap();
    let first = next(&mut events).await;
    assert!(matches!(first, Event::Connected { .. }), "{first:?}");
    client.disconnect().await;
}

#[tokio::test]
async fn tcp_wins_where_udp_gets_no_answer_and_is_dialled_first_then() {
    let mut broker = TestBroker::start();
    let blocked = silent();
    let made = with_fallback(&broker, blocked.local_addr().unwrap());
    let (client, mut events) = Client::connect(made).unwrap();
    assert_eq!(connected(&mut events).await.0, Transport::Tls);
    blocked.set_nonblocking(true).unwrap();
    let mut datagram = [0; 2048];
    assert!(blocked.recv(&mut datagram).is_ok(), "QUIC was tried first");
    // QUIC is left alone where TCP, tried first, is fast enough: on a busy machine not every time.
    let mut alone = false;
    for _ in 0..10 {
        while blocked.recv(&mut datagram).is_ok() {}
        broker.kill();
        broker.restart();
        assert_eq!(connected(&mut events).await.0, Transport::Tls);
        alone = blocked.recv(&mut datagram).is_err();
        if alone {
            break;
        }
    }
    assert!(alone, "QUIC was tried each time");
    client.disconnect().await;
}

#[tokio::test]
async fn a_refused_udp_port_costs_no_head_start() {
    let broker = TestBroker::start();
    // Bound and let go: nobody is there.
    let closed = silent().local_addr().unwrap();
    let (client, mut events) = Client::connect(with_fallback(&broker, closed)).unwrap();
    assert_eq!(connected(&mut events).await.0, Transport::Tls);
    client.disconnect().await;
    let lonely = Options { reconnect: None, ..options(&broker, closed) };
    let (_client, mut events) = Client::connect(lonely).unwrap();
    let Event::Disconnected { reason, .. } = next(&mut events).await else { panic!() };
    assert!(reason.to_string().contains("is a broker listening there?"), "{reason}");
}

#[tokio::test]
async fn early_data_wins_no_race_without_an_answer() {
    let broker = TestBroker::start();
    let relay = Relay::start(broker.address("quic")).await;
    let address = relay.address();
    let (client, mut events) = over_quic(&with_fallback(&broker, address)).await;
    // A message each way, so that the ticket has come too.
    client.publish(Message::new("t", "1").qos1()).await.unwrap().await.unwrap();
    drop(relay);
    lost(&mut events).await;
    let _blocked = UdpSocket::bind(address).unwrap();
    let delivery = client.publish(Message::new("t", "2").qos1()).await.unwrap();
    assert_eq!(connected(&mut events).await.0, Transport::Tls);
    timeout(PATIENCE, delivery).await.unwrap().unwrap();
    client.disconnect().await;
}

#[tokio::test]
async fn a_killed_broker_is_noticed_at_the_next_sign_of_life() {
    let mut broker = TestBroker::start();
    let udp = broker.address("quic");
    let (_client, mut events) = Client::connect(options(&broker, udp)).unwrap();
    assert_eq!(connected(&mut events).await.0, Transport::Quic);
    broker.kill();
    // Not by the idle timeout, which is 8 s: by a keep alive and its retransmission.
    let reason = lost(&mut events).await;
    assert!(reason.contains("UDP port is closed"), "{reason}");
    broker.restart();
    connected(&mut events).await;
}

#[tokio::test]
async fn a_connection_moves_to_another_socket_and_says_so() {
    let broker = TestBroker::start();
    let udp = broker.address("quic");
    let (client, mut events) = Client::connect(options(&broker, udp)).unwrap();
    assert_eq!(connected(&mut events).await.0, Transport::Quic);
    client.subscribe(&[("t", SubscribeOptions::default())]).await.unwrap();
    client.rebind().await;
    let Event::Migrated { local } = next(&mut events).await else { panic!("another event first") };
    assert!(local.ip().is_loopback());
    client.publish(Message::new("t", "x").qos1()).await.unwrap().await.unwrap();
    assert!(matches!(next(&mut events).await, Event::Message(_)));
    let stats = client.path_stats().await.unwrap();
    assert_eq!((stats.transport, stats.migrations), (Transport::Quic, 1));
    assert!(stats.rtt.is_some());
    client.disconnect().await;
}

/// The token of an earlier connection is proof enough (RFC 9000 section 8.1.3).
#[tokio::test]
async fn a_new_client_with_shared_tickets_need_not_prove_its_address_again() {
    let broker = TestBroker::builder().config("[quic]\nretry = \"always\"").start();
    let relay = Relay::start(broker.address("quic")).await;
    let options = options(&broker, relay.address()).with_shared_tickets().unwrap();
    for _ in 0..2 {
        let (client, mut events) = Client::connect(options.clone()).unwrap();
        connected(&mut events).await;
        // The token comes with the answer to CONNECT, or soon after.
        client.subscribe(&[("t", SubscribeOptions::default())]).await.unwrap();
        client.disconnect().await;
        assert_eq!(relay.retries(), 1);
    }
}
