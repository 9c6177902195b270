//! QUIC's settings do what they say: address validation under load, IPv6, qlog, the spin bit; and
//! flows outlive the broker's process.
#![allow(clippy::unwrap_used)]

mod quic_site;

use std::net::SocketAddr;

use std::sync::atomic::Ordering;

use fulmar_congestion::Congestion;
use fulmar_mqtt::QoS;
use fulmar_mqtt::flow::{self, DataFlow, FlowFlags, FlowHeader};
use fulmar_transport::RetryPolicy;
use quic_site::*;
use quinn::Endpoint;
use tokio::net::UdpSocket;
use tokio::time::timeout;

/// First byte of the server's answer to a new client's first packet, which reaches the server by
/// way of somebody else, so that the handshake goes no further.
async fn first_answer(site: &Site) -> u8 {
    let here = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let other = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let (config, address) = (site.client_config(), here.local_addr().unwrap());
    let _connecting = endpoint.connect_with(config, address, "localhost").unwrap();
    let mut buffer = [0; 2048];
    let length = timeout(TIMEOUT, here.recv(&mut buffer)).await.unwrap().unwrap();
    // Only this server's datagrams, not late ones for an earlier owner of the port.
    other.connect(site.address()).await.unwrap();
    other.send(&buffer[..length]).await.unwrap();
    timeout(TIMEOUT, other.recv(&mut buffer)).await.expect("not answered").unwrap();
    buffer[0]
}

#[tokio::test]
async fn many_handshakes_in_progress_make_new_clients_prove_their_address() {
    const FREE: usize = 5;
    let site = Site::start(1, |quic| {
        quic.retry = RetryPolicy::Auto;
        quic.retry_above = FREE;
    });
    // Types of long headers (RFC 9000 section 17.2): 0 Initial, 3 Retry.
    let kind = |first: u8| first >> 4 & 3;
    for _ in 0..FREE {
        assert_eq!(kind(first_answer(&site).await), 0);
    }
    for _ in 0..3 {
        assert_eq!(kind(first_answer(&site).await), 3);
    }
    // One that can prove it is let in as ever.
    let (_connection, mut control, _) = site.client(&hello("c")).await;
    control.send(&publish("t", b"", 1)).await;
    assert_eq!(control.next().await, Seen::Puback(1));
}

#[tokio::test]
async fn ipv6_clients_connect_and_move() {
    let mut setup = Setup::new(2);
    setup.address = "[::1]:0".parse().unwrap();
    let site = setup.start();
    let own: SocketAddr = "[::1]:0".parse().unwrap();
    let endpoint = Endpoint::client(own).unwrap();
    let connecting =
        endpoint.connect_with(site.client_config(), site.address(), "localhost").unwrap();
    let connection = timeout(TIMEOUT, connecting).await.unwrap().unwrap();
    let mut control = Pipe::open(&connection).await;
    control.send(&hello("six").bytes()).await;
    assert_eq!(control.next().await, Seen::Connack(false));
    for i in 1..=20u16 {
        if i % 5 == 0 {
            endpoint.rebind(std::net::UdpSocket::bind(own).unwrap()).unwrap();
        }
        control.send(&publish("t", b"", i)).await;
        assert_eq!(control.next().await, Seen::Puback(i));
    }
    connection.close(0u32.into(), b"");
    site.eventually("the moves to be counted", |site| {
        site.broker.metrics().sum(|shard| &shard.quic_migrations) >= 1
    })
    .await;
}

#[tokio::test]
async fn larger_datagrams_are_tried_only_if_asked_for() {
    for wanted in [false, true] {
        let site = Site::start(1, |quic| quic.mtu_discovery = wanted);
        let (connection, mut control, _) = site.client(&hello("c")).await;
        for i in 1..=10 {
            control.send(&publish("t", b"", i)).await;
            assert_eq!(control.next().await, Seen::Puback(i));
        }
        // They are PINGs with padding.
        assert_eq!(connection.stats().frame_rx.ping > 0, wanted);
    }
}

/// The broker sends half a megabyte to a client to which one datagram in twenty is lost; its congestion window is
/// `as_expected` when it measures it next.
async fn window_on_a_lossy_path(congestion: Congestion, as_expected: fn(u64) -> bool) {
    let site = Site::start(1, |quic| quic.congestion = congestion);
    let relay = Relay::start(site.address()).await;
    // A long way from the beginning, which loses nothing yet.
    relay.loses.store(usize::MAX, Ordering::SeqCst);
    let config = site.patient_config(4 << 20);
    let (_endpoint, _connection, mut far) = visitor(config, relay.address, &hello("far")).await;
    far.send(&subscribe("map/#", QoS::AtMostOnce)).await;
    assert_eq!(far.next().await, Seen::Suback);
    relay.loses.store(20, Ordering::SeqCst);
    let (_connection, mut near, _) = site.client(&hello("near")).await;
    for i in 1..=50 {
        near.send(&publish("map/tile", &[0; 10_000], i)).await;
        assert_eq!(near.next().await, Seen::Puback(i));
    }
    for _ in 1..=50 {
        assert_eq!(far.payload().await.len(), 10_000);
    }
    assert!(relay.dropped.load(Ordering::SeqCst) >= 10);
    site.eventually("the window that was expected", |site| {
        let stats = site.broker.connection_of("far").and_then(|far| far.stats);
        stats.is_some_and(|stats| as_expected(stats.cwnd_bytes))
    })
    .await;
}

#[tokio::test]
async fn losses_by_chance_shrink_the_window_of_cubic() {
    window_on_a_lossy_path(Congestion::Cubic, |bytes| bytes < 10_000).await;
}

#[tokio::test]
async fn losses_by_chance_leave_the_adaptive_window_alone() {
    // More than it begins with.
    window_on_a_lossy_path(Congestion::Adaptive, |bytes| bytes > 14_720).await;
}

#[tokio::test]
async fn a_qlog_tells_what_was_sent_and_received() {
    let folder = tempfile::tempdir().unwrap();
    let site = Site::start(1, |quic| quic.qlog_dir = Some(folder.path().to_owned()));
    let (connection, mut control, _) = site.client(&hello("c")).await;
    for i in 1..=20 {
        control.send(&publish("t", b"", i)).await;
        assert_eq!(control.next().await, Seen::Puback(i));
    }
    connection.close(0u32.into(), b"");
    let files = || std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path());
    assert_eq!(files().count(), 1);
    // The file is whole when the server has forgotten the connection.
    drop(site);
    let text = std::fs::read_to_string(files().next().unwrap()).unwrap();
    // JSON text sequences (RFC 7464).
    let records: Vec<serde_json::Value> = text
        .split('\u{1e}')
        .filter(|record| !record.trim().is_empty())
        .map(|record| serde_json::from_str(record).unwrap_or_else(|e| panic!("{e}: {record}")))
        .collect();
    assert!(records[0]["qlog_version"].is_string(), "{}", records[0]);
    assert!(records[0]["title"].as_str().unwrap().ends_with(".qlog"), "{}", records[0]);
    for name in ["packet_sent", "packet_received", "metrics_updated"] {
        let told = |record: &&serde_json::Value| {
            record["name"].as_str().is_some_and(|found| found.ends_with(name))
        };
        let count = records.iter().filter(told).count();
        assert!(count >= 1, "{count} of {name}");
    }
}

/// How many of the server's short headers carry the spin bit that the client showed last, and
/// whether both values were seen; the bit is not protected (RFC 9000 section 17.4).
fn reflected(first_bytes: &[(bool, u8)]) -> (usize, usize, bool) {
    let (mut same, mut all, mut seen) = (0, 0, [false; 2]);
    let mut client = None;
    for (from_client, first) in first_bytes.iter().filter(|(_, first)| first & 0x80 == 0) {
        let spin = first & 0x20 != 0;
        if *from_client {
            client = Some(spin);
        } else if let Some(client) = client {
            all += 1;
            same += usize::from(spin == client);
            seen[usize::from(spin)] = true;
        }
    }
    (same, all, seen == [true; 2])
}

#[tokio::test]
async fn the_spin_bit_comes_back() {
    const EXCHANGES: u16 = 40;
    let site = Site::start(1, |_| {});
    // Each end leaves it out on one connection of eight, as RFC 9000 demands, and shows noise.
    for attempt in 0.. {
        assert!(attempt < 10, "no connection spins");
        let relay = Relay::start(site.address()).await;
        let (_endpoint, _connection, mut control) =
            visitor(site.client_config(), relay.address, &hello("c")).await;
        for i in 1..=EXCHANGES {
            control.send(&publish("t", b"", i)).await;
            assert_eq!(control.next().await, Seen::Puback(i));
        }
        let (same, all, both) = reflected(&relay.first_bytes.lock().unwrap());
        assert!(all >= usize::from(EXCHANGES), "{all} packets");
        // Packets that cross may differ; noise agrees half of the time.
        if both && same * 10 >= all * 9 {
            return;
        }
    }
}

#[tokio::test]
async fn a_named_flow_survives_the_brokers_restart() {
    let folder = tempfile::tempdir().unwrap();
    let start = || {
        let mut setup = Setup::new(2);
        setup.database = Some(folder.path().join("broker.db"));
        setup.start_in(&folder)
    };
    let lasting = Hello { id: "c", lasting: true, will: None };
    let flags = FlowFlags(FlowFlags::PERSISTENT_QOS | FlowFlags::PERSISTENT_SUBSCRIPTIONS);
    let mut header = Vec::new();
    flow::encode(&FlowHeader::ClientData(DataFlow { id: 4, expiry_s: 600, flags }), &mut header);

    let site = start();
    let (connection, _control, _) = site.client(&lasting).await;
    let mut data = Pipe::open(&connection).await;
    data.send(&[&header[..], &subscribe("f", QoS::AtLeastOnce)].concat()).await;
    assert_eq!(data.next().await, Seen::Suback);
    let (_pub_conn, mut publisher, _) = site.client(&hello("p")).await;
    publisher.send(&publish("f", b"1", 1)).await;
    assert_eq!(publisher.next().await, Seen::Puback(1));
    assert_eq!(data.next().await, Seen::Publish { payload: b"1".to_vec(), id: 1, dup: false });
    connection.close(0u32.into(), b"");
    site.eventually("the client to go", |site| site.connections() == 1).await;
    publisher.send(&publish("f", b"2", 2)).await;
    assert_eq!(publisher.next().await, Seen::Puback(2));
    site.stop();

    let site = start();
    let (connection, _control, present) = site.client(&lasting).await;
    assert!(present);
    let (_pub_conn, mut publisher, _) = site.client(&hello("p")).await;
    publisher.send(&publish("f", b"3", 1)).await;
    assert_eq!(publisher.next().await, Seen::Puback(1));
    let mut data = Pipe::open(&connection).await;
    data.send(&header).await;
    for expected in [b"1", b"2", b"3"] {
        assert_eq!(data.payload().await, expected);
    }
}
