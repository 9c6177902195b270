//! The worker and its connections over plain TCP on loopback: what arrives, what a hostile or slow
//! peer cannot do, and what is left afterwards.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use common::{Client, PATIENCE, PINGREQ, PINGRESP, TestServer, eventually, packet, publish};
use fulmar_transport::{
    Carrier, Clock, ListenerConfig, Server, ServerConfig, StartError, TransportLimits,
};

#[test]
fn messages_cross_workers() {
    let server = TestServer::start(2, vec![Carrier::TCP]);
    // SO_REUSEPORT spreads by hash: sixteen land on one of two workers once in 32,768 runs, and
    // even then the test holds.
    let mut subscribers: Vec<_> = (0..16).map(|i| server.client(&format!("sub{i}"))).collect();
    for subscriber in &mut subscribers {
        subscriber.subscribe("home/#");
    }
    let mut publisher = server.client("pub");
    for i in 0..100u32 {
        publisher.send(&publish("home/radon", &i.to_be_bytes()));
    }
    for subscriber in &mut subscribers {
        for i in 0..100u32 {
            assert_eq!(subscriber.receive("home/radon"), i.to_be_bytes());
        }
    }
}

#[test]
fn a_large_packet_may_come_in_any_pieces() {
    let server = TestServer::start(1, vec![Carrier::TCP]);
    let mut subscriber = server.client("sub");
    subscriber.subscribe("t");
    let mut publisher = server.client("pub");
    for (size, piece) in [(1000 * 1024, 1400), (8 * 1024, 1)] {
        let payload: Vec<u8> = (0..size).map(|i: usize| (i * 7) as u8).collect();
        for part in publish("t", &payload).chunks(piece) {
            publisher.0.write_all(part).unwrap();
        }
        assert!(subscriber.receive("t") == payload, "{size} bytes in pieces of {piece}");
    }
    publisher.send(&[&publish("t", b"a")[..], &publish("t", b"b")].concat());
    assert_eq!(subscriber.receive("t"), b"a");
    assert_eq!(subscriber.receive("t"), b"b");
}

#[test]
fn a_reader_that_stops_does_not_stall_the_others() {
    let server = TestServer::start(1, vec![Carrier::TCP]);
    let mut stopped = server.client("stopped");
    stopped.subscribe("t");
    let mut reader = server.client("reader");
    reader.subscribe("t");
    let mut publisher = server.client("pub");
    let payload = vec![1; 64 * 1024];
    // 64 MiB: more than the stopped one's socket buffers and outbox take.
    for _ in 0..1024 {
        publisher.send(&publish("t", &payload));
        assert_eq!(reader.receive("t").len(), payload.len());
    }
    assert!(server.broker.metrics().sum(|shard| &shard.messages_dropped_qos0) > 0);
    // It reads what was kept for it and goes on: an answer marks the end of what was kept.
    stopped.send(&PINGREQ);
    while stopped.next().0 != PINGRESP {}
    publisher.send(&publish("t", b"last"));
    assert_eq!(reader.receive("t"), b"last");
    while stopped.receive("t") != b"last" {}
}

#[test]
fn a_peer_that_leaves_within_a_packet_leaves_nothing() {
    let server = TestServer::start(1, vec![Carrier::TCP]);
    let whole = publish("t", &[0; 1000]);
    for cut in [0, 1, 2, 500] {
        let mut client = server.client("half");
        client.send(&whole[..cut]);
        drop(client);
        eventually("the connection to be forgotten", || server.connections() == 0);
    }
}

#[test]
fn a_violation_is_told_before_the_end() {
    let server = TestServer::start(1, vec![Carrier::TCP]);
    let mut client = server.client("bad");
    // A reserved packet type, and much behind it that nobody will read.
    client.send(&[&packet(0xf5, b"")[..], &vec![0; 100_000]].concat());
    let (first, body) = client.next();
    assert_eq!(first, 0xe0);
    assert!(body[0] >= 0x80, "reason {:#x}", body[0]);
    client.expect_end();
    drop(client);
    eventually("the connection to be forgotten", || server.connections() == 0);
}

#[test]
fn incomplete_packets_are_bounded_over_all_connections() {
    let limits = TransportLimits { max_partial_bytes_per_worker: 200_000, ..Default::default() };
    let server = TestServer::with_limits(1, vec![Carrier::TCP], limits, true);
    let mut good = server.client("good");
    let part = &publish("t", &[0; 500_000])[..60_000];
    let mut hoarders: Vec<_> = (0..4).map(|i| server.client(&format!("hoarder{i}"))).collect();
    for hoarder in &mut hoarders {
        let _ = hoarder.0.write_all(part);
    }
    eventually("hoarders to be closed", || server.connections() <= 4);
    good.send(&PINGREQ);
    assert_eq!(good.next().0, PINGRESP);
    drop(hoarders);
    eventually("all hoarders to be gone", || server.connections() == 1);
    // What they held counts no more.
    let mut late = server.client("late");
    let whole = publish("t", &[0; 70_000]);
    late.send(&whole[..60_000]);
    late.send(&whole[60_000..]);
    late.send(&PINGREQ);
    assert_eq!(late.next().0, PINGRESP);
}

#[test]
fn clients_coming_and_going_leak_nothing() {
    let server = TestServer::start(1, vec![Carrier::TCP]);
    for i in 0..1500 {
        let mut client = server.client("churn");
        if i % 2 == 0 {
            client.send(&packet(0xe0, b""));
            client.expect_end();
        }
    }
    eventually("all connections to be gone", || server.connections() == 0);
    let pid = std::process::id();
    let sockets = || {
        std::fs::read_dir(format!("/proc/{pid}/fd"))
            .unwrap()
            .filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok())
            .filter(|target| target.to_string_lossy().starts_with("socket:"))
            .count()
    };
    // Other tests of this process have sockets of their own, but not hundreds.
    eventually("sockets to be closed", || sockets() < 200);
}

#[test]
fn draining_tells_clients_and_ends() {
    let server = TestServer::start(2, vec![Carrier::TCP]);
    let mut clients: Vec<_> = (0..8).map(|i| server.client(&format!("c{i}"))).collect();
    let address = server.address(0);
    let mut silent = server.dial(0);
    let waiter = std::thread::spawn(move || {
        for client in &mut clients {
            assert_eq!(client.next(), (0xe0, vec![0x8b]));
            client.expect_end();
        }
    });
    let begun = Instant::now();
    server.server.drain(PATIENCE);
    assert!(begun.elapsed() < PATIENCE / 2, "drained in {:?}", begun.elapsed());
    waiter.join().unwrap();
    // Reset where no worker had accepted it yet when the listeners closed.
    let end = silent.read(&mut [0]).map_err(|error| error.kind());
    assert!(matches!(end, Ok(0) | Err(ErrorKind::ConnectionReset)), "{end:?}");
    assert!(std::net::TcpStream::connect(address).is_err());
}

#[test]
fn a_client_that_says_nothing_is_closed() {
    let limits =
        TransportLimits { handshake_timeout: Duration::from_millis(50), ..Default::default() };
    let server = TestServer::with_limits(1, vec![Carrier::TCP, Carrier::WS], limits, true);
    Client(server.dial(1)).expect_end();
    drop(server);
}

#[test]
fn an_address_in_use_is_named() {
    let server = TestServer::start(1, vec![Carrier::TCP]);
    let address = server.address(0);
    let policy = fulmar_broker::ListenerPolicy { name: "second".into(), allow_anonymous: true };
    let (carrier, policy) = (Carrier::TCP, std::sync::Arc::new(policy));
    let listener = ListenerConfig { address, carrier, policy, proxies: None };
    let config = ServerConfig {
        workers: 1,
        coalesce: std::time::Duration::ZERO,
        listeners: vec![listener],
        quic: Vec::new(),
        origins: Default::default(),
        limits: TransportLimits::default(),
    };
    let error = Server::start(&server.broker, config, Clock::start()).unwrap_err();
    assert!(matches!(error, StartError::Bind { address: named, .. } if named == address));
    assert!(error.to_string().contains("another program listens there"), "{error}");
}
