//! What operators see of QUIC connections' paths: in `$SYS`, from the broker, in the counters.
#![allow(clippy::unwrap_used)]

mod quic_site;

use std::net::UdpSocket;

use fulmar_broker::ClientStatistics;
use fulmar_broker::access::{AccessRules, Action, Rule, Who};
use fulmar_mqtt::{QoS, ReasonCode};
use fulmar_text::metrics::Metrics;
use quic_site::*;
use quinn::Endpoint;

/// A client whose identifier is no topic level, at the second of two addresses.
async fn traveller(site: &Site) -> (Endpoint, quinn::Connection, Pipe) {
    let (endpoint, connection, mut control) =
        visitor(site.client_config(), site.address(), &hello("car/7")).await;
    let mut data = Pipe::open(&connection).await;
    data.send(&publish("t", b"", 1)).await;
    assert_eq!(data.next().await, Seen::Puback(1));
    endpoint.rebind(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
    control.send(&publish("t", b"", 2)).await;
    assert_eq!(control.next().await, Seen::Puback(2));
    (endpoint, connection, control)
}

#[tokio::test]
async fn a_connections_path_is_told_to_those_who_subscribe() {
    let mut setup = Setup::new(2);
    setup.broker.sys_interval_s = 1;
    setup.broker.client_statistics = ClientStatistics::Everyone;
    let site = setup.start();
    let (_sub_conn, mut sub, _) =
        site.client_with(&site.patient_config(64 * 1024), &hello("s")).await;
    let (_endpoint, connection, _control) = traveller(&site).await;
    let moved = |site: &Site| {
        site.broker
            .connection_of("car/7")
            .and_then(|car| car.stats)
            .is_some_and(|stats| stats.migrations == 1)
    };
    site.eventually("the client to be listed with its move", moved).await;
    sub.send(&subscribe("$SYS/broker/connections/car%2F7/transport", QoS::AtMostOnce)).await;
    assert_eq!(sub.next().await, Seen::Suback);
    let told: serde_json::Value = serde_json::from_slice(&sub.payload().await).unwrap();
    let number = |name: &str| told[name].as_u64().unwrap_or_else(|| panic!("{name} in {told}"));
    assert!((1..10_000_000).contains(&number("rtt_us")), "{told}");
    assert!(number("cwnd_bytes") > 1200 && number("mtu_bytes") >= 1200, "{told}");
    assert!(number("sent_packets") > 0 && number("sent_bytes") > number("sent_packets"), "{told}");
    assert!(number("received_bytes") > 0 && number("measured_ms") > 0, "{told}");
    assert_eq!((number("streams"), number("streams_opened")), (2, 2), "{told}");
    assert_eq!((number("migrations"), &told["early_data"]), (1, &false.into()), "{told}");
    assert_eq!(told.get("client"), None, "the topic says who it is: {told}");

    let listed = site.broker.connections(0, 10);
    let names: Vec<&str> = listed.iter().map(|entry| &*entry.client).collect();
    assert!(names.contains(&"car/7"), "{names:?}");
    let after = site.broker.connections(listed[0].place, 10);
    assert_eq!(after[..], listed[1..]);
    connection.close(0u32.into(), b"");
    site.eventually("the client to be forgotten", |site| {
        site.broker.connection_of("car/7").is_none()
    })
    .await;
    assert!(site.broker.metrics().sum(|shard| &shard.quic_streams_opened) >= 3);
    let mut metrics = Metrics::default();
    site.broker.metrics().report(&mut metrics);
    let page = metrics.prometheus();
    let rtt = |value: &str| -> f64 {
        let mut lines = page.lines();
        let found = lines
            .find_map(|line| line.strip_prefix("fulmar_quic_rtt_seconds_")?.strip_prefix(value));
        found.and_then(|number| number.trim().parse().ok()).unwrap_or_else(|| panic!("{page}"))
    };
    assert!(rtt("count") >= 2.0 && rtt("sum") > 0.0, "{page}");
}

#[tokio::test]
async fn access_rules_say_who_may_see_it() {
    let deny = Rule {
        allow: false,
        who: Who::Client("nosy".into()),
        action: Some(Action::Subscribe),
        filter: "$SYS/broker/connections/#".into(),
        exact: false,
    };
    let mut setup = Setup::new(1);
    setup.broker.access_control.rules = AccessRules::new(vec![deny], true).unwrap();
    setup.broker.sys_interval_s = 1;
    let site = setup.start();
    let denied = Seen::Denied(ReasonCode::NotAuthorized.as_u8());
    let (_nosy, mut nosy, _) = site.client(&hello("nosy")).await;
    let (_other, mut other, _) = site.client(&hello("other")).await;
    let figures = "$SYS/broker/connections/+/transport";
    for (client, wanted) in [(&mut nosy, denied), (&mut other, Seen::Suback)] {
        client.send(&subscribe(figures, QoS::AtMostOnce)).await;
        assert_eq!(client.next().await, wanted);
    }
    while !String::from_utf8(other.payload().await).unwrap().contains("rtt_us") {}
    // Of a wider subscription the figures are kept back. Three rounds, known by the uptime.
    nosy.send(&subscribe("$SYS/#", QoS::AtMostOnce)).await;
    assert_eq!(nosy.next().await, Seen::Suback);
    let mut rounds = 0;
    while rounds < 3 {
        let text = String::from_utf8(nosy.payload().await).unwrap();
        assert!(!text.contains("rtt_us"), "{text}");
        rounds += i32::from(text.ends_with(" seconds"));
    }
}

#[tokio::test]
async fn without_access_rules_nobody_is_told_of_others() {
    let mut setup = Setup::new(1);
    setup.broker.sys_interval_s = 1;
    let site = setup.start();
    let (_connection, mut nosy, _) = site.client(&hello("nosy")).await;
    let denied = Seen::Denied(ReasonCode::NotAuthorized.as_u8());
    for filter in ["$SYS/broker/connections/#", "$share/g/$SYS/broker/connections/+/transport"] {
        nosy.send(&subscribe(filter, QoS::AtMostOnce)).await;
        assert_eq!(nosy.next().await, denied);
    }
    nosy.send(&subscribe("$SYS/broker/#", QoS::AtMostOnce)).await;
    assert_eq!(nosy.next().await, Seen::Suback);
    // Three rounds of $SYS, known by the uptime; figures of a path are the only ones with names.
    let mut rounds = 0;
    while rounds < 3 {
        let text = String::from_utf8(nosy.payload().await).unwrap();
        assert!(!text.contains("rtt_us"), "{text}");
        rounds += i32::from(text.ends_with(" seconds"));
    }
}

#[tokio::test]
async fn a_session_taken_over_is_listed_once() {
    let site = Site::start(2, |_| {});
    let (_first, _control, _) = site.client(&hello("twin")).await;
    site.eventually("the first to be listed", |site| site.broker.connection_of("twin").is_some())
        .await;
    let (_second, mut control, _) = site.client(&hello("twin")).await;
    site.eventually("the first to go", |site| site.connections() == 1).await;
    control.send(&publish("t", b"", 1)).await;
    assert_eq!(control.next().await, Seen::Puback(1));
    site.eventually("the second to be listed", |site| site.broker.connection_of("twin").is_some())
        .await;
    assert_eq!(site.broker.connections(0, 10).len(), 1);
}
