//! The client sends small datagrams again where packets are lost, and the broker acts on each message once.
#![allow(clippy::unwrap_used)]

use fulmar_client::{Client, Event, Events, Message, Options, SubscribeOptions, Trust};
use fulmar_tests::{PATIENCE, Relay, TestBroker};
use tokio::time::timeout;

/// Enough messages to see that one datagram in four is lost, and to send copies.
const MESSAGES: usize = 100;

fn options(broker: &TestBroker, relay: &Relay, id: &str) -> Options {
    let port = relay.address().port();
    let mut options = Options::new(&format!("quic://localhost:{port}")).unwrap();
    options.trust = Trust::CaFile(broker.ca_file());
    options.client_id = id.to_owned();
    options
}

async fn connected(events: &mut Events) {
    loop {
        match timeout(PATIENCE, events.next()).await.unwrap().unwrap() {
            Event::Connected { .. } => return,
            other => drop(other),
        }
    }
}

/// Publishes over a path that loses one datagram in four, which another client receives, and returns the copies.
async fn publish(broker: &TestBroker, options: &Options, relay: &Relay) -> u64 {
    let direct = Relay::start(broker.address("quic")).await;
    let (listener, mut heard) =
        Client::connect(self::options(broker, &direct, "listener")).unwrap();
    connected(&mut heard).await;
    listener.subscribe(&[("t", SubscribeOptions::default())]).await.unwrap();
    let (client, mut events) = Client::connect(options.clone()).unwrap();
    connected(&mut events).await;
    relay.lose(4);
    for number in 0..MESSAGES {
        let message = Message::new("t", number.to_string()).qos1();
        let delivery = client.publish(message).await.unwrap();
        timeout(PATIENCE, delivery).await.unwrap().unwrap();
    }
    relay.lose(0);
    let stats = client.path_stats().await.unwrap();
    assert!(stats.lost_packets > 0);
    assert!(stats.copied_bytes >= stats.copies);
    client.disconnect().await;
    for number in 0..MESSAGES {
        let event = timeout(PATIENCE, heard.next()).await.unwrap().unwrap();
        let Event::Message(message) = event else { panic!("{event:?}") };
        assert_eq!(message.payload, number.to_string().as_bytes());
    }
    listener.disconnect().await;
    stats.copies
}

#[tokio::test]
async fn lost_packets_lead_to_copies_and_the_next_first_flight_has_some() {
    let broker = TestBroker::start();
    let relay = Relay::start(broker.address("quic")).await;
    let options = options(&broker, &relay, "thin");
    assert!(publish(&broker, &options, &relay).await > 0);
    // The same network, which loses nothing any more.
    let (client, mut events) = Client::connect(options).unwrap();
    connected(&mut events).await;
    let stats = client.path_stats().await.unwrap();
    assert!(stats.copies > 0, "{stats:?}");
    client.disconnect().await;
}

#[tokio::test]
async fn without_copies_there_are_none() {
    let broker = TestBroker::start();
    let relay = Relay::start(broker.address("quic")).await;
    let options = Options { copies: false, ..options(&broker, &relay, "thin") };
    assert_eq!(publish(&broker, &options, &relay).await, 0);
}
