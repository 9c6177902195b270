//! The server sends small datagrams again to clients whose paths lose packets.
#![allow(clippy::unwrap_used)]

mod quic_site;

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fulmar_mqtt::QoS;
use fulmar_transport::RetryPolicy;
use quic_site::*;
use quinn::ClientConfig;
use tokio::net::UdpSocket;
use tokio::time::timeout;

/// Messages to a client: enough to see that one packet in four is lost.
const MESSAGES: usize = 100;

/// Sends messages one at a time to a client behind a relay that loses one datagram in `every`, and returns how many
/// copies were counted, their bytes, and the relay.
async fn copies(site: &Site, every: usize) -> (u64, u64, Relay) {
    copies_for(&site.patient_config(64 * 1024), site, every).await
}

async fn copies_for(config: &ClientConfig, site: &Site, every: usize) -> (u64, u64, Relay) {
    let relay = Relay::start(site.address()).await;
    let (_endpoint, connection, mut sub) =
        visitor(config.clone(), relay.address, &hello("s")).await;
    sub.send(&subscribe("t", QoS::AtMostOnce)).await;
    assert_eq!(sub.next().await, Seen::Suback);
    let (_pub_connection, mut publisher, _) = site.client(&hello("p")).await;
    relay.loses.store(every, Ordering::SeqCst);
    for number in 0..MESSAGES {
        let text = number.to_string().into_bytes();
        publisher.send(&publish("t", &text, 0)).await;
        assert_eq!(sub.payload().await, text);
    }
    relay.loses.store(0, Ordering::SeqCst);
    connection.close(0u32.into(), b"");
    site.eventually("the client to be gone", |site| site.broker.connection_of("s").is_none()).await;
    let metrics = site.broker.metrics();
    (metrics.sum(|shard| &shard.quic_copies), metrics.sum(|shard| &shard.quic_copied_bytes), relay)
}

/// Datagrams that a relay has seen before, and their bytes.
fn repeated(relay: &Relay) -> (u64, u64) {
    let mut seen = HashSet::new();
    let answers = relay.answers.lock().unwrap();
    let again = answers.iter().filter(|datagram| !seen.insert(*datagram));
    again.fold((0, 0), |(count, bytes), datagram| (count + 1, bytes + datagram.len() as u64))
}

#[tokio::test]
async fn a_client_that_loses_packets_gets_them_again_and_they_are_counted() {
    let site = Site::start(1, |_| {});
    let (count, bytes, relay) = copies(&site, 4).await;
    assert!(count > 0);
    site.eventually("the copies", |_| repeated(&relay) == (count, bytes)).await;
}

#[tokio::test]
async fn nothing_is_sent_again_where_nothing_is_lost() {
    let site = Site::start(1, |_| {});
    let (count, bytes, relay) = copies(&site, 0).await;
    assert_eq!((count, bytes, repeated(&relay)), (0, 0, (0, 0)));
}

#[tokio::test]
async fn copies_can_be_switched_off() {
    let site = Site::start(1, |quic| quic.copies = false);
    let (count, bytes, relay) = copies(&site, 4).await;
    assert_eq!((count, bytes, repeated(&relay)), (0, 0, (0, 0)));
}

/// Whether a packet of the server's first flight was sent again as it was; quinn numbers what it repeats anew.
fn repeats_a_flight(answers: &[Vec<u8>]) -> bool {
    let mut seen = HashSet::new();
    let mut flight = answers.iter().filter(|datagram| datagram[0] & 0x80 != 0);
    !flight.all(|datagram| seen.insert(datagram))
}

/// The address is validated by the token that it got the last time.
#[tokio::test]
async fn a_client_that_returns_from_a_network_with_losses_gets_the_first_flight_again() {
    let site = Site::start(2, |_| {});
    let config = site.patient_config(64 * 1024);
    let (_, _, relay) = copies_for(&config, &site, 4).await;
    relay.answers.lock().unwrap().clear();
    let (_endpoint, _connection, _control) = visitor(config, relay.address, &hello("s")).await;
    site.eventually("a copy of the first flight", |_| {
        repeats_a_flight(&relay.answers.lock().unwrap())
    })
    .await;
}

#[tokio::test]
async fn a_network_without_losses_gets_the_first_flight_once() {
    let site = Site::start(2, |_| {});
    let config = site.patient_config(64 * 1024);
    let (_, _, relay) = copies_for(&config, &site, 0).await;
    let (_endpoint, _connection, mut control) = visitor(config, relay.address, &hello("s")).await;
    control.send(&publish("t", b"", 1)).await;
    assert_eq!(control.next().await, Seen::Puback(1));
    assert!(!repeats_a_flight(&relay.answers.lock().unwrap()));
}

/// Nothing of it arrives here. A server that knows no round trip repeats it once in 2.5 s, after 1 s.
#[tokio::test]
async fn a_first_flight_is_repeated_by_the_round_trip_of_the_last_connection() {
    let mut sent = 0;
    // On a busy machine, a round trip is sometimes measured as so long that there is time for few.
    for _ in 0..5 {
        sent = datagrams_of_a_repeated_flight().await;
        if sent > 8 {
            return;
        }
    }
    panic!("{sent} datagrams");
}

async fn datagrams_of_a_repeated_flight() -> usize {
    let site = Site::start(1, |quic| quic.handshake_timeout = Duration::from_millis(2500));
    let config = site.patient_config(64 * 1024);
    copies_for(&config, &site, 4).await;
    let first = first_datagram(config).await;
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    silent.send_to(&first, site.address()).await.unwrap();
    // Copies are the same bytes.
    let (mut sent, mut buffer) = (HashSet::new(), [0; 2048]);
    while let Ok(length) = timeout(Duration::from_secs(4), silent.recv(&mut buffer)).await {
        sent.insert(buffer[..length.unwrap()].to_vec());
    }
    sent.len()
}

/// A client that forges an address from a network with losses cannot make the server send more there.
#[tokio::test]
async fn who_has_not_proven_its_address_gets_no_copies_whatever_its_network_loses() {
    let site = Site::start(1, |quic| {
        quic.retry = RetryPolicy::Never;
        quic.handshake_timeout = Duration::from_secs(3);
    });
    copies(&site, 4).await;
    let first = first_datagram(site.client_config()).await;
    let thief = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    thief.send_to(&first, site.address()).await.unwrap();
    // The server repeats itself until it gives the handshake up.
    let (mut answers, mut buffer) = (Vec::new(), [0; 2048]);
    let silence = Duration::from_secs(3);
    while let Ok(length) = timeout(silence, thief.recv(&mut buffer)).await {
        answers.push(buffer[..length.unwrap()].to_vec());
    }
    let sent = answers.iter().map(Vec::len).sum::<usize>();
    assert!(sent > first.len(), "it was not answered: {sent}");
    assert!(sent <= 3 * first.len(), "{sent} bytes for {}", first.len());
    assert!(!repeats_a_flight(&answers));
}

/// A recording of a first flight that both ends copied is executed once.
#[tokio::test]
async fn a_copied_first_flight_is_executed_once() {
    let site = Site::start(2, |_| {});
    let config = site.patient_config(64 * 1024);
    let (_, _, relay) = copies_for(&config, &site, 4).await;
    let (_listening, mut sub, _) = site.client(&hello("l")).await;
    sub.send(&subscribe("early", QoS::AtMostOnce)).await;
    assert_eq!(sub.next().await, Seen::Suback);
    let early = || site.broker.metrics().sum(|shard| &shard.quic_early_accepted);
    let before = early();
    relay.recorded.lock().unwrap().clear();
    relay.answers.lock().unwrap().clear();
    relay.doubles.store(true, Ordering::SeqCst);
    let (connection, mut control, accepted) = come_back(config, relay.address, 1).await;
    assert!(timeout(TIMEOUT, accepted).await.unwrap(), "early data was refused");
    assert_eq!(control.next().await, Seen::Connack(false));
    assert_eq!(control.next().await, Seen::Puback(1));
    assert_eq!(sub.payload().await, b"!");
    site.eventually("the server's copies", |_| repeats_a_flight(&relay.answers.lock().unwrap()))
        .await;
    let flight = relay.recorded.lock().unwrap().clone();
    connection.close(0u32.into(), b"");
    site.eventually("the client to be gone", |site| site.broker.connection_of("e").is_none()).await;
    // The captured datagrams, each twice.
    let doubled: Vec<_> =
        flight.iter().flat_map(|datagram| [datagram, datagram]).cloned().collect();
    replay(&doubled, &site).await;
    site.publish_last("early").await;
    assert_eq!(sub.payload().await, b"last");
    assert_eq!(early(), before + 1);
}

/// quinn numbers what it repeats anew.
#[tokio::test]
async fn a_first_flight_that_is_not_answered_is_sent_again_as_it_was() {
    let site = Site::start(1, |_| {});
    let relay = Relay::start(site.address()).await;
    // All of the server's datagrams are lost, so the client repeats itself as well.
    relay.loses.store(1, Ordering::SeqCst);
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let _connecting =
        endpoint.connect_with(site.client_config(), relay.address, "localhost").unwrap();
    site.eventually("the first flight again", |_| repeats_a_flight(&relay.answers.lock().unwrap()))
        .await;
    let [received, sent] = [&relay.recorded, &relay.answers]
        .map(|datagrams| datagrams.lock().unwrap().iter().map(Vec::len).sum::<usize>());
    assert!(sent <= 3 * received, "{sent} bytes for {received}");
}

/// Passes on a client's first datagram and, until it pauses, what it sends with the keys that follow the handshake; then
/// the rest of the handshake, and nothing more.
async fn hold_back_the_handshake(near: UdpSocket, far: UdpSocket) {
    let (mut held, mut client, mut is_over) = (Vec::new(), None, false);
    let (mut out, mut back) = ([0; 2048], [0; 2048]);
    loop {
        let pause = tokio::time::sleep(Duration::from_millis(100));
        tokio::select! {
            Ok((length, from)) = near.recv_from(&mut out), if !is_over => {
                let datagram = &out[..length];
                let is_first = client.replace(from).is_none();
                if is_first || datagram[0] & 0x80 == 0 {
                    far.send(datagram).await.unwrap();
                } else {
                    held.push(datagram.to_vec());
                }
            }
            Ok(length) = far.recv(&mut back) => {
                near.send_to(&back[..length], client.unwrap()).await.unwrap();
            }
            () = pause, if !is_over && !held.is_empty() => {
                for datagram in &held {
                    far.send(datagram).await.unwrap();
                }
                is_over = true;
            }
        }
    }
}

/// quinn drops it, and later copies of it, too.
#[tokio::test]
async fn what_overtakes_the_end_of_the_handshake_waits_for_it() {
    let site = Site::start(1, |_| {});
    // On a busy machine, the client may pause before it says CONNECT.
    for _ in 0..5 {
        let near = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        far.connect(site.address()).await.unwrap();
        let address = near.local_addr().unwrap();
        let relay = tokio::spawn(hold_back_the_handshake(near, far));
        let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let connecting = endpoint.connect_with(site.client_config(), address, "localhost");
        let connection = timeout(TIMEOUT, connecting.unwrap()).await.unwrap().unwrap();
        let mut control = Pipe::open(&connection).await;
        control.send(&hello("o").bytes()).await;
        let answer = timeout(Duration::from_secs(5), control.next()).await;
        relay.abort();
        if answer.is_ok_and(|answer| answer == Seen::Connack(false)) {
            return;
        }
    }
    panic!("CONNECT was never answered");
}
