//! The server sends small datagrams again to clients whose paths lose packets.
#![allow(clippy::unwrap_used)]

mod quic_site;

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use fulmar_mqtt::QoS;
use quic_site::*;

/// Messages to a client: enough to see that one packet in four is lost.
const MESSAGES: usize = 100;

/// Sends messages one at a time to a client behind a relay that loses one datagram in `every`, and returns how many
/// copies were counted, their bytes, and the relay.
async fn copies(site: &Site, every: usize) -> (u64, u64, Relay) {
    let relay = Relay::start(site.address()).await;
    let config = site.patient_config(64 * 1024);
    let (_endpoint, connection, mut sub) = visitor(config, relay.address, &hello("s")).await;
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
