//! QUIC clients that mean harm or have bad luck: replayed first flights, stalled handshakes,
//! readers that do not read, clients that vanish.
#![allow(clippy::unwrap_used)]

mod quic_site;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fulmar_broker::MemoryPressure;
use fulmar_mqtt::{QoS, ReasonCode};
use fulmar_transport::RetryPolicy;
use fulmar_transport::tickets::Tickets;
use quic_site::*;
use quinn::{ClientConfig, Connection, Endpoint, TransportConfig};
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Connects once, so that the configuration holds a ticket.
async fn collect_ticket(site: &Site, config: &ClientConfig) {
    let (connection, mut control, _) = site.client_with(config, &hello("e")).await;
    control.send(&disconnect()).await;
    timeout(TIMEOUT, connection.closed()).await.unwrap();
}

/// A client of `site` that has subscribed to `early`.
async fn listener(site: &Site) -> (Connection, Pipe) {
    let (connection, mut control, _) = site.client(&hello("s")).await;
    control.send(&subscribe("early", QoS::AtMostOnce)).await;
    assert_eq!(control.next().await, Seen::Suback);
    (connection, control)
}

#[tokio::test]
async fn a_recorded_first_flight_works_once() {
    let site = Site::start(2, |_| {});
    let config = site.client_config();
    collect_ticket(&site, &config).await;
    let (_sub_conn, mut sub, _) = site.client(&hello("s")).await;
    sub.send(&subscribe("early", QoS::AtMostOnce)).await;
    sub.next().await;
    let received = || site.broker.metrics().sum(|shard| &shard.messages_received);

    let relay = Relay::start(site.address()).await;
    let (connection, mut control, accepted) = come_back(config, relay.address, 0).await;
    assert!(timeout(TIMEOUT, accepted).await.unwrap(), "early data was refused");
    assert_eq!(control.next().await, Seen::Connack(false));
    assert_eq!(sub.payload().await, b"!");
    assert_eq!(received(), 1);
    let flight = relay.recorded.lock().unwrap().clone();
    connection.close(0u32.into(), b"");
    site.eventually("the first connection to go", |site| site.connections() == 1).await;

    replay(&flight, &site).await;
    site.publish_last("early").await;
    assert_eq!(sub.payload().await, b"last");
    assert_eq!(received(), 2);
    let early = || site.broker.metrics().sum(|shard| &shard.quic_early_accepted);
    assert_eq!(early(), 1);
}

/// Clients whose last connection saw losses send their first flight twice.
#[tokio::test]
async fn a_doubled_first_flight_is_executed_once() {
    let site = Site::start(2, |_| {});
    let config = site.client_config();
    collect_ticket(&site, &config).await;
    let (_sub_conn, mut sub) = listener(&site).await;
    let metrics = || {
        let metrics = site.broker.metrics();
        let early = metrics.sum(|shard| &shard.quic_early_accepted);
        (metrics.sum(|shard| &shard.messages_received), early)
    };
    let relay = Relay::start(site.address()).await;
    relay.doubles.store(true, Ordering::SeqCst);
    let (connection, mut control, accepted) = come_back(config, relay.address, 1).await;
    assert!(timeout(TIMEOUT, accepted).await.unwrap(), "early data was refused");
    assert_eq!(control.next().await, Seen::Connack(false));
    assert_eq!(control.next().await, Seen::Puback(1));
    assert_eq!(sub.payload().await, b"!");
    assert_eq!(metrics().0, 1);
    site.eventually("one connection of it", |site| site.connections() == 2).await;
    let flight = relay.recorded.lock().unwrap().clone();
    connection.close(0u32.into(), b"");
    site.eventually("the first connection to go", |site| site.connections() == 1).await;

    // The captured datagrams, each twice, when the connection is long gone.
    let doubled: Vec<_> =
        flight.iter().flat_map(|datagram| [datagram, datagram]).cloned().collect();
    replay(&doubled, &site).await;
    site.publish_last("early").await;
    assert_eq!(sub.payload().await, b"last");
    assert_eq!(metrics(), (2, 1));
}

#[tokio::test]
async fn a_restarted_server_refuses_early_data_and_acts_once() {
    let dir = tempfile::tempdir().unwrap();
    let before = Site::start_in(&dir, 1, |_| {});
    let config = before.client_config();
    collect_ticket(&before, &config).await;
    drop(before);
    let site = Site::start_in(&dir, 1, |_| {});
    let (_sub_conn, mut sub, _) = site.client(&hello("s")).await;
    sub.send(&subscribe("early", QoS::AtMostOnce)).await;
    sub.next().await;
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let connecting = endpoint.connect_with(config, site.address(), "localhost").unwrap();
    let Ok((connection, accepted)) = connecting.into_0rtt() else { panic!("no ticket kept") };
    let flight = [hello("e").bytes(), publish("early", b"!", 0)].concat();
    let mut early = Pipe::open(&connection).await;
    early.send(&flight).await;
    assert!(!timeout(TIMEOUT, accepted).await.unwrap(), "a lost ticket was accepted");
    // What was said early is lost, as the client now knows.
    let mut control = Pipe::open(&connection).await;
    control.send(&flight).await;
    assert_eq!(control.next().await, Seen::Connack(false));
    assert_eq!(sub.payload().await, b"!");
    site.publish_last("early").await;
    assert_eq!(sub.payload().await, b"last");
}

#[tokio::test]
async fn early_data_survives_a_restart_and_its_recording_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let start = || {
        let tickets = Tickets::open(&dir.path().join("tickets.db")).unwrap();
        Site::start_with(&dir, &tickets, 1)
    };
    let first = start();
    let config = first.client_config();
    collect_ticket(&first, &config).await;
    drop(first);

    let second = start();
    let (_sub_conn, mut sub) = listener(&second).await;
    let relay = Relay::start(second.address()).await;
    let (_connection, _control, accepted) = come_back(config, relay.address, 0).await;
    assert!(timeout(TIMEOUT, accepted).await.unwrap(), "the ticket was forgotten");
    assert_eq!(sub.payload().await, b"!");
    let flight = relay.recorded.lock().unwrap().clone();
    drop(second);

    let third = start();
    let (_sub_conn, mut sub) = listener(&third).await;
    replay(&flight, &third).await;
    third.publish_last("early").await;
    assert_eq!(sub.payload().await, b"last");
    assert_eq!(third.broker.metrics().sum(|shard| &shard.quic_early_accepted), 0);
}

#[tokio::test]
async fn who_comes_back_has_a_token_and_needs_no_retry_even_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let start = || Site::start_in(&dir, 1, |quic| quic.retry = RetryPolicy::Always);
    let first = start();
    let config = first.client_config();
    assert_eq!(retries(&first, &config).await, 1, "a stranger's address was believed");
    assert_eq!(retries(&first, &config).await, 0);
    drop(first);
    // Each connection brings a token for the next; the last of them is of the server before.
    let second = start();
    assert_eq!(retries(&second, &config).await, 0);
    assert_eq!(retries(&second, &second.client_config()).await, 1);
}

/// How many Retry packets one connection took.
async fn retries(site: &Site, config: &ClientConfig) -> usize {
    let relay = Relay::start(site.address()).await;
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let connecting = endpoint.connect_with(config.clone(), relay.address, "localhost").unwrap();
    let connection = timeout(TIMEOUT, connecting).await.unwrap().unwrap();
    let mut control = Pipe::open(&connection).await;
    control.send(&hello("e").bytes()).await;
    assert_eq!(control.next().await, Seen::Connack(false));
    control.send(&disconnect()).await;
    timeout(TIMEOUT, connection.closed()).await.unwrap();
    let seen = relay.first_bytes.lock().unwrap();
    seen.iter().filter(|(from_client, first)| !from_client && first >> 4 == 0xF).count()
}

#[tokio::test]
async fn stalled_handshakes_give_their_places_back() {
    const STALLED: usize = 10;
    let site = Site::start(1, |quic| {
        quic.handshake_timeout = Duration::from_secs(3);
        quic.retry = RetryPolicy::Never;
        quic.max_handshakes = STALLED;
    });
    // First packets of clients that mistake the attacker for the server; the attacker passes them on.
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut buffer = [0; 2048];
    for _ in 0..STALLED {
        let here = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let thief = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = here.local_addr().unwrap();
        let connecting = endpoint.connect_with(site.client_config(), address, "localhost").unwrap();
        let length = timeout(TIMEOUT, here.recv(&mut buffer)).await.unwrap().unwrap();
        thief.send_to(&buffer[..length], site.address()).await.unwrap();
        timeout(TIMEOUT, thief.recv(&mut buffer)).await.expect("not answered").unwrap();
        drop(connecting);
    }
    let (_connection, mut control, _) = site.client(&hello("c")).await;
    control.send(&subscribe("t", QoS::AtMostOnce)).await;
    assert_eq!(control.next().await, Seen::Suback);
}

#[tokio::test]
async fn a_vanished_clients_will_is_published() {
    let site = Site::start(2, |quic| quic.idle_timeout = Duration::from_secs(3));
    let (_sub_conn, mut sub, _) =
        site.client_with(&site.patient_config(64 * 1024), &hello("s")).await;
    sub.send(&subscribe("will", QoS::AtMostOnce)).await;
    sub.next().await;
    let relay = Relay::start(site.address()).await;
    let (_endpoint, _connection, _control) = visitor(
        site.patient_config(64 * 1024),
        relay.address,
        &Hello { id: "v", lasting: false, will: Some("will") },
    )
    .await;
    assert_eq!(site.connections(), 2);
    relay.passing.store(false, Ordering::SeqCst);
    assert_eq!(sub.payload().await, b"gone");
    site.eventually("the vanished client to be forgotten", |site| site.connections() == 1).await;
}

#[tokio::test]
async fn a_reader_that_does_not_read_holds_little() {
    const MESSAGES: u32 = 8000;
    let site = Site::start(2, |_| {});
    let config = site.patient_config(64 * 1024);
    let (_slow_conn, mut slow, _) = site.client_with(&config, &hello("slow")).await;
    slow.send(&subscribe("t", QoS::AtMostOnce)).await;
    slow.next().await;
    let (_conn, mut publisher, _) = site.client(&hello("p")).await;
    let mut payload = [0; 1024];
    for i in 0..MESSAGES {
        payload[..4].copy_from_slice(&i.to_be_bytes());
        publisher.send(&publish("t", &payload, 0)).await;
    }
    publisher.send(&publish("other", b"", 1)).await;
    assert_eq!(publisher.next().await, Seen::Puback(1));
    site.eventually("messages to be dropped for the slow reader", |site| {
        site.broker.metrics().sum(|shard| &shard.messages_dropped_qos0) > u64::from(MESSAGES) / 2
    })
    .await;
    // The client's window, quinn's and the outbox: far from the 8 MiB that were published.
    let handed_out = site.broker.metrics().sum(|shard| &shard.bytes_sent);
    assert!(handed_out < 2 * 1024 * 1024, "{handed_out} bytes are on their way");
    for i in 0..20u32 {
        assert_eq!(slow.payload().await[..4], i.to_be_bytes());
    }
}

/// The first `sent` bytes of a PUBLISH of `whole` bytes.
fn cut_publish(whole: usize, sent: usize) -> Vec<u8> {
    let mut packet = publish("t", &vec![0; whole], 0);
    packet.truncate(sent);
    packet
}

#[tokio::test]
async fn cut_packets_on_many_streams_are_bounded() {
    const PACKET_BYTES: usize = 60 * 1024;
    let mut setup = Setup::new(1);
    setup.broker.limits.max_packet_bytes = 64 * 1024;
    setup.limits.max_partial_bytes_per_connection = 256 * 1024;
    setup.limits.max_partial_bytes_per_worker = 512 * 1024;
    let site = setup.start();
    let refused = || site.broker.metrics().sum(|shard| &shard.partial_refused);
    // What one held is given back when it goes, or the third of these would be refused for others.
    for round in 1..=4 {
        let (connection, mut control, _) = site.client(&hello("c")).await;
        let opener = connection.clone();
        let flood = tokio::spawn(async move {
            let mut streams = Vec::new();
            while let Ok((mut out, input)) = opener.open_bi().await {
                if out.write_all(&cut_publish(PACKET_BYTES, PACKET_BYTES / 2)).await.is_err() {
                    break;
                }
                streams.push((out, input));
            }
        });
        assert_eq!(control.next().await, Seen::Disconnect(ReasonCode::QuotaExceeded));
        assert_eq!(close_code(&connection).await, 0x97);
        assert_eq!(refused(), round);
        timeout(TIMEOUT, flood).await.unwrap().unwrap();
    }
    let (_connection, mut control, _) = site.client(&hello("c")).await;
    let whole = cut_publish(PACKET_BYTES, usize::MAX);
    let (start, rest) = whole.split_at(PACKET_BYTES / 2);
    control.send(start).await;
    control.send(rest).await;
    control.send(&publish("t", b"", 1)).await;
    assert_eq!(control.next().await, Seen::Puback(1));
}

#[tokio::test]
async fn a_worker_holds_a_bounded_part_of_packets_for_all() {
    // What fits a first flight, so that it is here before what is said after it.
    const PACKET_BYTES: usize = 9 * 1024;
    let mut setup = Setup::new(1);
    setup.limits.max_partial_bytes_per_worker = 48 * 1024;
    let site = setup.start();
    let mut held = Vec::new();
    let last = loop {
        let (connection, mut control, _) = site.client(&hello("")).await;
        let whole = publish("t", &[0; PACKET_BYTES], 0);
        // Another stream, so that what it carries is not held behind.
        let mut data = Pipe::open(&connection).await;
        let sent = || connection.stats().udp_tx.bytes;
        let before = sent();
        control.send(&whole[..PACKET_BYTES]).await;
        let on_its_way = |_: &Site| sent() > before + PACKET_BYTES as u64;
        site.eventually("the packet to be sent", on_its_way).await;
        // The connection may be closed by now.
        let _ = data.out.write_all(&publish("t", b"", 1)).await;
        let refused = tokio::select! {
            biased;
            code = close_code(&connection) => Some(code),
            seen = data.read() => { assert_eq!(seen, Seen::Puback(1)); None }
        };
        if let Some(code) = refused {
            break code;
        }
        held.push((connection, control));
        assert!(held.len() < 10, "nobody was refused");
    };
    assert_eq!(last, 0x97);
    // Those that were there before are not harmed.
    for (_, control) in &mut held {
        control.send(&publish("t", &[0; PACKET_BYTES], 0)[PACKET_BYTES..]).await;
        control.send(&publish("t", b"", 2)).await;
        assert_eq!(control.next().await, Seen::Puback(2));
    }
}

#[tokio::test]
async fn strangers_are_held_little_for() {
    let site = Site::start(1, |_| {});
    // A CONNECT of half a megabyte, which any other packet may have.
    let connection = site.dial(&site.client_config()).await;
    let mut control = Pipe::open(&connection).await;
    control.send(&[0x10, 0x80, 0x80, 0x20]).await;
    assert_eq!(close_code(&connection).await, 0x95);
    // The start of something else is enough to know it.
    let connection = site.dial(&site.client_config()).await;
    let mut control = Pipe::open(&connection).await;
    control.send(&[0x30]).await;
    assert_eq!(close_code(&connection).await, 0x82);
    // What comes on other streams before CONNECT fills one small window.
    let connection = site.dial(&site.client_config()).await;
    let mut control = Pipe::open(&connection).await;
    control.send(&[0x10]).await;
    let mut data = Pipe::open(&connection).await;
    let flood = tokio::spawn(async move { data.out.write_all(&[0x30; 1024 * 1024]).await });
    let blocked = || connection.stats().frame_tx.data_blocked > 0;
    site.eventually("the client to run out of credit", |_| blocked()).await;
    assert!(connection.stats().udp_tx.bytes < 128 * 1024, "{:?}", connection.stats().udp_tx);
    flood.abort();
}

#[tokio::test]
async fn a_stranger_may_send_a_bounded_number_of_pieces() {
    let site = Site::start(1, |_| {});
    let connection = site.dial(&site.client_config()).await;
    let mut control = Pipe::open(&connection).await;
    control.send(&[0x10]).await;
    let mut data = Pipe::open(&connection).await;
    let closed = async {
        // A piece each, as what was written before has mostly been sent.
        while data.out.write_all(&[0x30]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        connection.closed().await
    };
    let error = timeout(TIMEOUT, closed).await.unwrap();
    assert!(error.to_string().contains("too many pieces"), "{error}");
    // Clients that are let in may send any number.
    let (_connection, mut control, _) = site.client(&hello("c")).await;
    for _ in 0..3_000 {
        control.send(&publish("t", b"", 0)).await;
        tokio::task::yield_now().await;
    }
    control.send(&subscribe("t", QoS::AtMostOnce)).await;
    assert_eq!(control.next().await, Seen::Suback);
}

/// Sends empty publications until they have made 1,200 pieces.
async fn send_pieces(connection: &quinn::Connection, pipe: &mut Pipe) {
    while connection.stats().frame_tx.stream < 1_200 {
        pipe.send(&publish("t", b"", 0)).await;
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn clients_with_many_pieces_on_several_streams_give_way_while_memory_is_short_and_taken() {
    let site = Site::start(1, |_| {});
    let (suspect, _control, _) = site.client(&hello("a")).await;
    let mut data = Pipe::open(&suspect).await;
    let (busy, mut control, _) = site.client(&hello("b")).await;
    send_pieces(&suspect, &mut data).await;
    send_pieces(&busy, &mut control).await;
    control.send(&subscribe("t", QoS::AtMostOnce)).await;
    assert_eq!(control.next().await, Seen::Suback, "all of its pieces have come");
    let received = || site.broker.metrics().sum(|shard| &shard.messages_received);
    site.eventually("all publications", |_| received() >= 2 * 1_150).await;
    site.broker.set_memory_pressure(MemoryPressure::Rising);
    let error = timeout(TIMEOUT, suspect.closed()).await.unwrap();
    assert!(error.to_string().contains("too many pieces"), "{error}");
    control.send(&subscribe("u", QoS::AtMostOnce)).await;
    assert_eq!(control.next().await, Seen::Suback, "one with a single stream stays");
}

#[tokio::test]
async fn who_has_not_proven_its_address_is_sent_three_times_what_came_at_most() {
    let site = Site::start(1, |quic| quic.retry = RetryPolicy::Never);
    let first = first_datagram(site.client_config()).await;
    let thief = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    thief.send_to(&first, site.address()).await.unwrap();
    // The server repeats itself until it gives the handshake up.
    let (mut sent, mut buffer) = (0, [0; 2048]);
    let silence = Duration::from_secs(7);
    while let Ok(length) = timeout(silence, thief.recv(&mut buffer)).await {
        sent += length.unwrap();
    }
    assert!(sent > first.len(), "it was not answered: {sent}");
    assert!(sent <= 3 * first.len(), "{sent} bytes for {}", first.len());
}

#[tokio::test]
async fn handshakes_that_fail_make_strangers_prove_their_address() {
    let site = Site::start(1, |_| {});
    let mut config = site.tls();
    config.alpn_protocols = vec![b"nonsense".to_vec()];
    let first = first_datagram(site.finish(config)).await;
    let thief = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut buffer = [0; 2048];
    let is_retry = async {
        loop {
            thief.send_to(&first, site.address()).await.unwrap();
            let answer = timeout(Duration::from_millis(200), thief.recv(&mut buffer)).await;
            // Type 3 of the packets with long headers, whatever the QUIC bit is.
            if answer.is_ok() && buffer[0] & 0xB0 == 0xB0 {
                break;
            }
        }
    };
    timeout(TIMEOUT, is_retry).await.expect("failures do not count");
    // A client that validates its address is served.
    let config = site.client_config();
    assert_eq!(retries(&site, &config).await, 1);
}

/// A router on the way to `server` that forgets the client when the flag is set: from then on everything goes by way of
/// another port. It counts the bytes that came from the client and went to it since, and ends when more than three
/// times as many went as came before the client can have answered a challenge. If `loses_acks`, it drops what the client
/// says between its first packet and its answer to a challenge, as if the client acknowledged little.
struct Router {
    address: SocketAddr,
    forgets: Arc<AtomicBool>,
    counted: Arc<Mutex<[usize; 2]>>,
    task: JoinHandle<()>,
}

impl Router {
    async fn start(server: SocketAddr, loses_acks: bool) -> Router {
        let front = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = front.local_addr().unwrap();
        let (forgets, counted) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new([0; 2])));
        let (has_moved, counts) = (Arc::clone(&forgets), Arc::clone(&counted));
        let task = tokio::spawn(async move {
            let backs = [
                UdpSocket::bind("127.0.0.1:0").await.unwrap(),
                UdpSocket::bind("127.0.0.1:0").await.unwrap(),
            ];
            let (mut client, mut buffers) = (None, [[0; 2048]; 3]);
            let [a, b, c] = &mut buffers;
            loop {
                tokio::select! {
                    Ok((length, from)) = front.recv_from(a) => {
                        client = Some(from);
                        let now = usize::from(has_moved.load(Ordering::SeqCst));
                        if now == 1 {
                            let came = &mut counts.lock().unwrap()[0];
                            if loses_acks && *came > 0 && *came + length < 1200 {
                                continue;
                            }
                            *came += length;
                        }
                        backs[now].send_to(&a[..length], server).await.unwrap();
                    }
                    Ok(length) = backs[0].recv(b) => {
                        if let Some(client) = client.filter(|_| !has_moved.load(Ordering::SeqCst)) {
                            front.send_to(&b[..length], client).await.unwrap();
                        }
                    }
                    Ok(length) = backs[1].recv(c) => {
                        let [came, went] = &mut *counts.lock().unwrap();
                        *went += length;
                        assert!(*went <= 3 * *came || *came > 1200, "{went} bytes for {came}");
                        let _ = front.try_send_to(&c[..length], client.unwrap());
                    }
                }
            }
        });
        Router { address, forgets, counted, task }
    }

    fn forget(&self) {
        self.forgets.store(true, Ordering::SeqCst);
    }

    /// Bytes that came from the client and went to it since it was forgotten.
    fn counted(&self) -> [usize; 2] {
        assert!(!self.task.is_finished(), "more than three times what came was sent");
        *self.counted.lock().unwrap()
    }
}

#[tokio::test]
async fn a_new_address_is_sent_little_until_it_has_proven_itself_and_is_answered_all_the_same() {
    let site = Site::start(1, |_| {});
    let router = Router::start(site.address(), false).await;
    let (_endpoint, _connection, mut control) =
        visitor(site.patient_config(64 * 1024), router.address, &hello("c")).await;
    control.send(&publish("t", b"", 1)).await;
    assert_eq!(control.next().await, Seen::Puback(1));
    router.forget();
    for id in 2..40 {
        control.send(&publish("t", b"", id)).await;
        assert_eq!(control.next().await, Seen::Puback(id));
    }
    let [came, went] = router.counted();
    assert!(went > 200 && came > 1200, "it was never challenged: {came}, {went}");
    router.task.abort();
}

/// A subscriber that sends nothing large of its own accord, and that the router has forgotten.
async fn forgotten_subscriber(site: &Site, router: &Router) -> (Endpoint, Connection, Pipe) {
    let mut transport = TransportConfig::default();
    transport.mtu_discovery_config(None);
    let mut config = site.client_config();
    config.transport_config(Arc::new(transport));
    let (endpoint, connection, mut subscriber) = visitor(config, router.address, &hello("s")).await;
    subscriber.send(&subscribe("large", QoS::AtMostOnce)).await;
    assert_eq!(subscriber.next().await, Seen::Suback);
    router.forget();
    (endpoint, connection, subscriber)
}

/// One small packet of a subscriber is enough, PINGREQ for instance: what is published later does not wait for its next.
#[tokio::test]
async fn a_subscriber_at_a_new_port_gets_large_messages_without_saying_anything_more() {
    let site = Site::start(1, |_| {});
    let router = Router::start(site.address(), true).await;
    let (_endpoint, _connection, mut subscriber) = forgotten_subscriber(&site, &router).await;
    subscriber.send(&publish("other", b"", 1)).await;
    assert_eq!(subscriber.next().await, Seen::Puback(1));
    let (_publisher, mut control, _) = site.client(&hello("p")).await;
    control.send(&publish("large", &[7; 100_000], 1)).await;
    assert_eq!(subscriber.payload().await.len(), 100_000);
    router.counted();
    router.task.abort();
}

/// Messages that were sent to the old port meanwhile arrive after the subscriber's first packet from the new one.
#[tokio::test]
async fn a_subscriber_at_a_new_port_gets_what_was_lost_on_the_way_to_the_old_one() {
    let site = Site::start(1, |_| {});
    let router = Router::start(site.address(), true).await;
    let (_endpoint, _connection, mut subscriber) = forgotten_subscriber(&site, &router).await;
    let (_publisher, mut control, _) = site.client(&hello("p")).await;
    control.send(&publish("large", &[7; 100_000], 1)).await;
    assert_eq!(control.next().await, Seen::Puback(1));
    subscriber.send(&publish("other", b"", 1)).await;
    assert_eq!(subscriber.payload().await.len(), 100_000);
    router.counted();
    router.task.abort();
}
