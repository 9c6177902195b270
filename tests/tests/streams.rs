//! The client library on several QUIC streams against the real broker: nothing is lost and nothing
//! comes twice that must not, whatever becomes of connection and broker.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use fulmar_client::{
    Backoff, Client, Event, Events, Fallback, Message, Options, QoS, Streams, SubscribeOptions,
    Transport, Trust,
};
use fulmar_tests::{PATIENCE, Relay, TestBroker};
use tokio::time::timeout;

const TOPICS: usize = 6;

/// Options for `broker`, or for `address` in its place.
fn options(broker: &TestBroker, address: SocketAddr, id: &str) -> Options {
    let mut options = Options::new(&format!("quic://localhost:{}", address.port())).unwrap();
    options.trust = Trust::CaFile(broker.ca_file());
    options.client_id = id.to_owned();
    options.session_expiry_s = 600;
    options.streams = Streams::PerTopicAndSubscription;
    // Fewer streams than topics: some share.
    options.max_data_streams = 4;
    // Who has nothing to say learns by this that its broker was killed.
    options.quic_keep_alive = Duration::from_secs(2);
    let wait = Duration::from_millis(50);
    options.reconnect = Some(Backoff { first: wait, longest: wait * 4 });
    options
}

fn topic(number: usize) -> String {
    format!("room/{}/temperature", number % TOPICS)
}

async fn subscribe(client: &Client, qos: QoS) {
    let options = SubscribeOptions { qos, ..SubscribeOptions::default() };
    let filters: Vec<_> = (0..TOPICS).map(|room| (topic(room), options)).collect();
    let codes = client.subscribe(&filters).await.unwrap();
    assert_eq!(codes.len(), TOPICS);
    assert!(codes.iter().all(|code| !code.is_error()), "{codes:?}");
}

/// Publishes numbered messages in turn to all topics, and waits until all are acknowledged.
async fn publish(client: &Client, numbers: std::ops::Range<usize>, qos: QoS) {
    let mut deliveries = Vec::new();
    for number in numbers {
        let message = Message::new(topic(number), number.to_string()).qos(qos);
        deliveries.push(client.publish(message).await.unwrap());
    }
    for delivery in deliveries {
        timeout(PATIENCE, delivery).await.unwrap().unwrap();
    }
}

/// How often each number has come, and each topic's numbers in order of arrival.
#[derive(Debug, Default)]
struct Got {
    times: BTreeMap<usize, usize>,
    by_topic: BTreeMap<String, Vec<usize>>,
    transports: Vec<Transport>,
    may_repeat: usize,
}

impl Got {
    /// Gathers until every number up to `all` has come.
    async fn until(&mut self, events: &mut Events, all: usize) {
        while self.times.len() < all {
            let event = timeout(PATIENCE, events.next()).await;
            let event = event.unwrap_or_else(|_| panic!("only {} of {all}", self.times.len()));
            match event.unwrap() {
                Event::Message(message) => {
                    let number = std::str::from_utf8(&message.payload).unwrap().parse().unwrap();
                    *self.times.entry(number).or_default() += 1;
                    self.by_topic.entry(message.topic).or_default().push(number);
                }
                Event::Connected { transport, .. } => self.transports.push(transport),
                Event::MayRepeat { messages } => self.may_repeat += messages,
                _ => {}
            }
        }
    }

    fn assert_in_order(&self) {
        for (topic, numbers) in &self.by_topic {
            let mut seen = Vec::new();
            for number in numbers {
                if !seen.contains(number) {
                    seen.push(*number);
                }
            }
            assert!(seen.is_sorted(), "{topic}: {numbers:?}");
        }
    }
}

/// The broker is killed twice while messages are under way in both directions.
async fn survive_kills(qos: QoS, persistent_flows: bool) -> Got {
    let mut broker = TestBroker::start();
    let address = broker.address("quic");
    let connect = |id| {
        let options = Options { persistent_flows, ..options(&broker, address, id) };
        Client::connect(options).unwrap()
    };
    let (subscriber, mut events) = connect("subscriber");
    let (publisher, mut publisher_events) = connect("publisher");
    tokio::spawn(async move { while publisher_events.next().await.is_some() {} });
    subscribe(&subscriber, qos).await;
    let mut got = Got::default();
    for round in 0..3 {
        let numbers = round * 300..(round + 1) * 300;
        let gathered = got.until(&mut events, numbers.end - 100);
        let sending = publish(&publisher, numbers.clone(), qos);
        let (interrupted, ()) = tokio::join!(
            async {
                gathered.await;
                if round < 2 {
                    broker.kill();
                    broker.restart();
                }
            },
            sending
        );
        let () = interrupted;
        got.until(&mut events, numbers.end).await;
    }
    // What would come twice has come by the time a last message has.
    publish(&publisher, 900..901, qos).await;
    got.until(&mut events, 901).await;
    publisher.disconnect().await;
    subscriber.disconnect().await;
    got
}

#[tokio::test]
async fn plain_streams_lose_nothing_when_the_broker_is_killed() {
    let got = survive_kills(QoS::AtLeastOnce, false).await;
    got.assert_in_order();
    assert_eq!(got.times.len(), 901);
}

#[tokio::test]
async fn persistent_flows_deliver_once_when_the_broker_is_killed() {
    let got = survive_kills(QoS::ExactlyOnce, true).await;
    got.assert_in_order();
    let twice: Vec<_> = got.times.iter().filter(|(_, times)| **times != 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
    assert_eq!(got.may_repeat, 0);
}

#[tokio::test]
async fn qos_2_arrives_once_also_without_persistent_flows() {
    let got = survive_kills(QoS::ExactlyOnce, false).await;
    let twice: Vec<_> = got.times.iter().filter(|(_, times)| **times != 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
}

#[tokio::test]
async fn flows_go_on_over_tcp_where_udp_is_blocked_later() {
    let broker = TestBroker::start();
    let relay = Relay::start(broker.address("quic")).await;
    let fallback = Fallback::Race { port: broker.address("mqtts").port() };
    let mut names = (0..20).map(|number| format!("roamer-{number}"));
    // On a busy machine, TLS wins some of the races for the first connection.
    let (roamer, mut events, mut got) = loop {
        let name = names.next().expect("QUIC wins one of twenty races");
        let made = Options {
            persistent_flows: true,
            fallback,
            keep_alive_s: 5,
            ..options(&broker, relay.address(), &name)
        };
        let (roamer, mut events) = Client::connect(made).unwrap();
        subscribe(&roamer, QoS::AtLeastOnce).await;
        let mut got = Got::default();
        publish(&roamer, 0..60, QoS::AtLeastOnce).await;
        got.until(&mut events, 60).await;
        if got.transports == [Transport::Quic] {
            break (roamer, events, got);
        }
        roamer.disconnect().await;
    };
    drop(relay);
    publish(&roamer, 60..120, QoS::AtLeastOnce).await;
    got.until(&mut events, 120).await;
    got.assert_in_order();
    assert_eq!(got.transports, [Transport::Quic, Transport::Tls]);
    roamer.disconnect().await;
}
