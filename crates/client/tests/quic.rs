//! The client and a quinn server: 0-RTT, accepted, and refused after the server has lost its tickets; and a search for a
//! silent server at an address that refuses.

#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fulmar_client::{Backoff, Client, Event, Events, Message, Options, Trust};
use fulmar_mqtt::ack::{self, AckKind};
use fulmar_mqtt::codec::{decode, peek_frame};
use fulmar_mqtt::packet::Connack;
use fulmar_mqtt::properties::Properties;
use fulmar_mqtt::{Packet, ReasonCode, Version};
use quinn::crypto::rustls::QuicServerConfig;
use tokio::net::UdpSocket;
use tokio::time::{sleep, timeout};

const LOCAL: &str = "127.0.0.1:0";
const PATIENCE: Duration = Duration::from_secs(20);

fn server_config() -> quinn::ServerConfig {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = made.signing_key.serialize_der().try_into().unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    tls.alpn_protocols = vec![b"mqtt".to_vec()];
    tls.max_early_data_size = u32::MAX;
    quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()))
}

/// Serves one connection up to its first QoS 1 message, acknowledges it and returns the payloads.
async fn serve_one(endpoint: &quinn::Endpoint) -> (quinn::Connection, Vec<String>) {
    let connection = endpoint.accept().await.unwrap().await.unwrap();
    let (mut send, mut receive) = connection.accept_bi().await.unwrap();
    let (mut input, mut payloads, mut done) = (Vec::new(), Vec::new(), false);
    while !done {
        let chunk = receive.read_chunk(4096, true).await.unwrap().unwrap();
        input.extend_from_slice(&chunk.bytes);
        let mut out = Vec::new();
        while let Some(frame) = peek_frame(&input, 1 << 20).unwrap() {
            match decode(&frame, Version::V5).unwrap() {
                Packet::Connect(_) => {
                    let (reason, properties) = (ReasonCode::Success, Properties::NONE);
                    Connack { session_present: false, reason, properties }
                        .encode(Version::V5, &mut out);
                }
                Packet::Publish(publish) => {
                    payloads.push(String::from_utf8(publish.payload.to_vec()).unwrap());
                    if let Some(id) = publish.packet_id {
                        let (kind, reason) = (AckKind::Puback, ReasonCode::Success);
                        ack::encode(&mut out, Version::V5, kind, id, reason);
                        done = true;
                    }
                }
                other => panic!("unexpected {}", other.name()),
            }
            let used = frame.len;
            input.drain(..used);
        }
        send.write_all(&out).await.unwrap();
    }
    (connection, payloads)
}

async fn early(events: &mut Events) -> bool {
    loop {
        if let Event::Connected { early_data, .. } = events.next().await.unwrap() {
            return early_data;
        }
    }
}

async fn lost(events: &mut Events) {
    while !matches!(events.next().await.unwrap(), Event::Disconnected { .. }) {}
}

#[tokio::test]
async fn a_reconnect_uses_early_data_and_survives_its_refusal() {
    let endpoint = quinn::Endpoint::server(server_config(), LOCAL.parse().unwrap()).unwrap();
    let mut options = Options::new(&format!("quic://{}", endpoint.local_addr().unwrap())).unwrap();
    options.trust = Trust::Insecure;
    // The loss is detected before the next attempt, so later publications are sent early.
    let wait = Duration::from_millis(200);
    options.reconnect = Some(Backoff { first: wait, longest: wait });
    let (client, mut events) = Client::connect(options).unwrap();

    for (round, expect_early) in [false, true, false].into_iter().enumerate() {
        if round == 2 {
            // New tickets, new certificate: the client's ticket is invalid now.
            endpoint.set_server_config(Some(server_config()));
        }
        let zero = client.publish(Message::new("t", format!("{round} zero"))).await.unwrap();
        let one = client.publish(Message::new("t", format!("{round} one")).qos1()).await.unwrap();
        let (connection, payloads) = serve_one(&endpoint).await;
        assert_eq!(payloads, [format!("{round} zero"), format!("{round} one")]);
        zero.await.unwrap();
        one.await.unwrap();
        assert_eq!(early(&mut events).await, expect_early, "round {round}");
        connection.close(0u32.into(), b"");
        lost(&mut events).await;
    }
}

/// Relays until `gap`; then nothing until datagrams come from another port of the client.
async fn relay(near: UdpSocket, server: SocketAddr, gap: Arc<tokio::sync::Notify>) {
    let far = UdpSocket::bind(LOCAL).await.unwrap();
    let (mut client, mut is_gap) = (None, false);
    let (mut out, mut back) = ([0; 2000], [0; 2000]);
    loop {
        tokio::select! {
            received = near.recv_from(&mut out) => {
                let (length, from) = received.unwrap();
                is_gap &= client.replace(from).is_none_or(|before| before == from);
                if !is_gap {
                    far.send_to(&out[..length], server).await.unwrap();
                }
            }
            received = far.recv_from(&mut back) => {
                if let Some(client) = client.filter(|_| !is_gap) {
                    near.send_to(&back[..received.unwrap().0], client).await.unwrap();
                }
            }
            () = gap.notified() => is_gap = true,
        }
    }
}

#[tokio::test]
async fn an_address_that_refuses_does_not_end_the_connection_of_a_silent_server() {
    let endpoint = quinn::Endpoint::server(server_config(), LOCAL.parse().unwrap()).unwrap();
    let near = UdpSocket::bind(LOCAL).await.unwrap();
    let closed = UdpSocket::bind(LOCAL).await.unwrap().local_addr().unwrap();
    let url = format!("quic://{},{closed}", near.local_addr().unwrap());
    let gap = Arc::new(tokio::sync::Notify::new());
    tokio::spawn(relay(near, endpoint.local_addr().unwrap(), Arc::clone(&gap)));
    let mut options = Options::new(&url).unwrap();
    options.trust = Trust::Insecure;
    let (client, mut events) = Client::connect(options).unwrap();
    let publish = async {
        let connected = events.next().await.unwrap();
        assert!(matches!(connected, Event::Connected { .. }), "{connected:?}");
        gap.notify_one();
        // The first event after that: the client has moved back to the relay, or given up.
        let next = loop {
            tokio::select! {
                next = events.next() => break next.unwrap(),
                () = sleep(Duration::from_millis(20)) => {
                    drop(client.publish(Message::new("t", "steady")).await.unwrap());
                }
            }
        };
        assert!(matches!(next, Event::Migrated { .. }), "{next:?}");
        client.publish(Message::new("t", "end").qos1()).await.unwrap().await.unwrap();
    };
    let served = async { tokio::join!(serve_one(&endpoint), publish).0 };
    let (_connection, payloads) = timeout(PATIENCE, served).await.unwrap();
    assert_eq!(payloads.last().unwrap(), "end");
}
