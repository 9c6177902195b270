//! SIGTERM: clients are told and get what is theirs, within a bound, and the program exits with 0.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fulmar_tests::{PATIENCE, TestBroker, eventually, fulmar};

/// CONNECT of MQTT 5.0 with clean start and a chosen identifier.
const CONNECT: &[u8] = b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00";
/// SUBSCRIBE to `#` at QoS 0.
const SUBSCRIBE: &[u8] = b"\x82\x07\x00\x01\x00\x00\x01#\x00";
/// DISCONNECT with 0x8B, Server shutting down (MQTT 5.0 section 3.14.2.1), up to its reason.
const SHUTTING_DOWN: [u8; 3] = [0xe0, 0x01, 0x8b];

fn subscriber(broker: &TestBroker) -> TcpStream {
    let mut client = TcpStream::connect(broker.address("mqtt")).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(&[CONNECT, SUBSCRIBE].concat()).unwrap();
    eventually("the subscription", || broker.metric("subscriptions") == 1.0);
    client
}

/// Publishes at QoS 0 as much as the subscriber's socket and outbox can hold, and more.
fn flood(broker: &TestBroker, messages: usize) {
    let mut client = TcpStream::connect(broker.address("mqtt")).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    // 16 KiB each: remaining length 16,384, topic "t", no properties.
    let head = b"\x30\x80\x80\x01\x00\x01t\x00";
    let publish = [&head[..], &[b'x'; 16_380]].concat();
    client.write_all(CONNECT).unwrap();
    for _ in 0..messages {
        client.write_all(&publish).unwrap();
    }
    client.write_all(b"\xc0\x00").unwrap();
    // CONNACK and what else there is, then PINGRESP: the broker has taken everything.
    let (mut seen, mut piece) = (Vec::new(), [0; 4096]);
    while !seen.ends_with(b"\xd0\x00") {
        let len = client.read(&mut piece).unwrap();
        assert_ne!(len, 0, "the broker closed the publisher");
        seen.extend_from_slice(&piece[..len]);
    }
}

#[test]
fn a_client_gets_what_is_on_its_way_before_the_goodbye() {
    let mut broker = TestBroker::builder().config("[server]\ndrain_timeout_s = 20\n").start();
    let mut client = subscriber(&broker);
    // As much as the outbox takes without dropping.
    flood(&broker, 60);
    let reader: JoinHandle<Vec<u8>> = std::thread::spawn(move || {
        let mut all = Vec::new();
        client.read_to_end(&mut all).unwrap();
        all
    });
    assert_eq!(broker.terminate().code(), Some(0), "{}", broker.log());
    let all = reader.join().unwrap();
    let payload = all.iter().filter(|byte| **byte == b'x').count();
    assert_eq!(payload / 16_380, 60);
    let goodbye = &all[all.len() - 16..];
    assert!(goodbye.windows(3).any(|bytes| bytes == SHUTTING_DOWN), "{goodbye:x?}");
}

#[test]
fn a_client_that_does_not_read_is_waited_for_so_long_and_no_longer() {
    let bound = Duration::from_secs(1);
    let mut broker = TestBroker::builder().env("FULMAR_SERVER__DRAIN_TIMEOUT_S", "1").start();
    let client = subscriber(&broker);
    flood(&broker, 2_000);
    let begun = Instant::now();
    assert_eq!(broker.terminate().code(), Some(0), "{}", broker.log());
    let took = begun.elapsed();
    assert!((bound..bound + PATIENCE / 2).contains(&took), "{took:?}");
    assert!(broker.log().contains("closed without waiting any longer"), "{}", broker.log());
    drop(client);
}

/// `fulmar sub` on one transport, connected.
fn listening(broker: &TestBroker, listener: &str) -> Child {
    // At the HTTP endpoint MQTT is in WebSocket frames.
    let scheme = if listener == "https" { "wss" } else { listener };
    let path = if scheme.starts_with("ws") { "/mqtt" } else { "" };
    let url = format!("{scheme}://{}{path}", broker.address(listener));
    let mut command = fulmar();
    // Ends by itself when it waits in vain.
    let patience = PATIENCE.as_secs().to_string();
    command.args(["sub", &url, "-t", "#", "-W", &patience, "--cafile"]).arg(broker.ca_file());
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn clients_of_every_transport_are_told() {
    let mut broker = TestBroker::builder().config("[server]\ndrain_timeout_s = 20\n").start();
    let listeners = ["mqtt", "mqtts", "ws", "wss", "quic", "https"];
    let clients = listeners.map(|listener| listening(&broker, listener));
    eventually("all to subscribe", || broker.metric("subscriptions") == 6.0);
    assert_eq!(broker.terminate().code(), Some(0), "{}", broker.log());
    assert!(!broker.log().contains("closed without waiting any longer"), "{}", broker.log());
    for (listener, mut client) in listeners.into_iter().zip(clients) {
        let mut said = Vec::new();
        let lines = BufReader::new(client.stderr.take().unwrap()).lines();
        let told = lines.map_while(Result::ok).any(|line| {
            said.push(line.to_lowercase());
            said.iter().any(|line| line.contains("shutting down"))
        });
        // It would go on trying.
        client.kill().unwrap();
        client.wait().unwrap();
        assert!(told, "{listener}: {said:?}");
    }
}
