//! QUIC from end to end with quinn as the client: streams, early data, migration, vanishing.
#![allow(clippy::unwrap_used)]

mod quic_site;

use std::net::UdpSocket;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::flow::{self, DataFlow, FlowFlags, FlowHeader};
use fulmar_mqtt::{QoS, ReasonCode};
use fulmar_transport::RetryPolicy;
use quic_site::*;
use tokio::time::timeout;

#[tokio::test]
async fn a_qos2_exchange_and_an_orderly_goodbye() {
    let site = Site::start(2, |_| {});
    let (_sub_conn, mut sub, _) = site.client(&hello("s")).await;
    sub.send(&subscribe("#", QoS::ExactlyOnce)).await;
    assert_eq!(sub.next().await, Seen::Suback);
    let leaver = Hello { id: "p", lasting: false, will: Some("will") };
    let (connection, mut publisher, _) = site.client(&leaver).await;
    publisher.send(&publish_at(QoS::ExactlyOnce, "t", b"2", 3)).await;
    assert_eq!(publisher.next().await, Seen::Ack(AckKind::Pubrec, 3));
    // Sent again, it is not a second message.
    publisher.send(&publish_at(QoS::ExactlyOnce, "t", b"2", 3)).await;
    assert_eq!(publisher.next().await, Seen::Ack(AckKind::Pubrec, 3));
    publisher.send(&ack(AckKind::Pubrel, 3)).await;
    assert_eq!(publisher.next().await, Seen::Ack(AckKind::Pubcomp, 3));
    assert_eq!(sub.next().await, Seen::Publish { payload: b"2".to_vec(), id: 1, dup: false });
    sub.send(&ack(AckKind::Pubrec, 1)).await;
    assert_eq!(sub.next().await, Seen::Ack(AckKind::Pubrel, 1));
    sub.send(&ack(AckKind::Pubcomp, 1)).await;
    publisher.send(&disconnect()).await;
    assert_eq!(close_code(&connection).await, 0);
    site.publish_last("t").await;
    // And no will before it.
    assert_eq!(sub.payload().await, b"last");
}

/// The end of the handshake and CONNECT come right behind each other, and the first has an Initial packet too.
#[tokio::test]
async fn what_follows_the_handshake_at_once_is_not_lost() {
    let site = Site::start(1, |_| {});
    let mut lost = 0;
    for _ in 0..20 {
        let (connection, _control, _) = site.client(&hello("c")).await;
        lost += connection.stats().path.lost_packets;
    }
    assert!(lost < 20, "{lost} lost packets on loopback");
}

#[tokio::test]
async fn a_stream_for_each_message_is_answered_and_given_back() {
    let site = Site::start(1, |quic| quic.max_streams = 8);
    let (connection, _control, _) = site.client(&hello("c")).await;
    for i in 1..=50u16 {
        let mut data = timeout(TIMEOUT, Pipe::open(&connection)).await.expect("no stream left");
        data.send(&publish("t", b"x", i)).await;
        data.out.finish().unwrap();
        assert_eq!(data.next().await, Seen::Puback(i));
        assert_eq!(timeout(TIMEOUT, data.input.read(&mut [0])).await.unwrap(), Ok(None));
    }
    for i in 1..=50u16 {
        let mut data = timeout(TIMEOUT, Pipe::open(&connection)).await.expect("no stream left");
        data.send(&publish("t", b"x", i)).await;
        data.out.reset(7u32.into()).unwrap();
        let _ = data.input.stop(7u32.into());
    }
}

#[tokio::test]
async fn nothing_is_lost_when_the_address_changes_amid_a_burst() {
    let site = Site::start(2, |_| {});
    let (_sub_conn, mut sub, _) = site.client(&hello("s")).await;
    sub.send(&subscribe("t", QoS::AtLeastOnce)).await;
    sub.next().await;
    let (endpoint, _connection, mut control) =
        visitor(site.client_config(), site.address(), &hello("m")).await;
    for i in 1..=200u16 {
        control.send(&publish("t", &i.to_be_bytes(), i)).await;
        if i % 50 == 0 {
            assert_eq!(control.next().await, Seen::Puback(i - 49));
            endpoint.rebind(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
            for acknowledged in i - 48..=i {
                assert_eq!(control.next().await, Seen::Puback(acknowledged));
            }
        }
    }
    for i in 1..=200u16 {
        assert_eq!(sub.payload().await, i.to_be_bytes());
    }
    assert!(site.broker.metrics().sum(|shard| &shard.quic_migrations) >= 1);
}

#[tokio::test]
async fn messages_pass_and_a_bad_packet_is_answered_before_the_close() {
    let site = Site::start(2, |_| {});
    let (_sub_conn, mut sub, _) = site.client(&hello("s")).await;
    sub.send(&subscribe("t/#", QoS::AtLeastOnce)).await;
    assert_eq!(sub.next().await, Seen::Suback);
    let (pub_conn, mut publisher, _) = site.client(&hello("p")).await;
    publisher.send(&publish("t/1", b"one", 5)).await;
    assert_eq!(publisher.next().await, Seen::Puback(5));
    assert_eq!(sub.next().await, Seen::Publish { payload: b"one".to_vec(), id: 1, dup: false });
    publisher.send(&[0x36, 0x05, 0, 1, b'a', 0, 1]).await;
    assert_eq!(publisher.next().await, Seen::Disconnect(ReasonCode::MalformedPacket));
    assert_eq!(close_code(&pub_conn).await, 0x81);
    sub.send(&puback(1)).await;
}

#[tokio::test]
async fn large_and_many_messages_come_whole_and_in_order() {
    let site = Site::start(2, |_| {});
    let (_sub_conn, mut sub, _) = site.client(&hello("s")).await;
    sub.send(&subscribe("t", QoS::AtMostOnce)).await;
    sub.next().await;
    let (_pub_conn, mut publisher, _) = site.client(&hello("p")).await;
    let large: Vec<u8> = (0..200 * 1024).map(|i| (i % 251) as u8).collect();
    publisher.send(&publish("t", &large, 0)).await;
    assert_eq!(sub.payload().await, large);
    let burst: Vec<u8> = (0..2000u32).flat_map(|i| publish("t", &i.to_be_bytes(), 0)).collect();
    publisher.send(&burst).await;
    for i in 0..2000u32 {
        assert_eq!(sub.payload().await, i.to_be_bytes());
    }
}

#[tokio::test]
async fn data_streams_carry_their_own_acknowledgements_and_deliveries() {
    let site = Site::start(2, |_| {});
    let connection = site.dial(&site.client_config()).await;
    let mut control = Pipe::open(&connection).await;
    // Opened and used before CONNECT: waits for it.
    let mut data = Pipe::open(&connection).await;
    data.send(&subscribe("d", QoS::AtLeastOnce)).await;
    control.send(&hello("c").bytes()).await;
    assert_eq!(control.next().await, Seen::Connack(false));
    assert_eq!(data.next().await, Seen::Suback);
    let mut third = Pipe::open(&connection).await;
    third.send(&publish("d", b"x", 9)).await;
    assert_eq!(third.next().await, Seen::Puback(9));
    assert_eq!(data.payload().await, b"x");
}

#[tokio::test]
async fn a_stream_that_only_publishes_need_not_be_heard() {
    let site = Site::start(1, |_| {});
    let (_sub_conn, mut sub, _) = site.client(&hello("s")).await;
    sub.send(&subscribe("t", QoS::AtMostOnce)).await;
    sub.next().await;
    let (connection, mut control, _) = site.client(&hello("p")).await;
    let mut data = Pipe::open(&connection).await;
    data.send(&publish("t", b"1", 0)).await;
    assert_eq!(sub.payload().await, b"1");
    data.input.stop(0u32.into()).unwrap();
    // The server knows of it when it has answered what was said after.
    control.send(&publish("other", b"", 1)).await;
    assert_eq!(control.next().await, Seen::Puback(1));
    data.send(&publish("t", b"2", 0)).await;
    data.out.finish().unwrap();
    assert_eq!(sub.payload().await, b"2");
}

#[tokio::test]
async fn after_a_loss_streams_share_no_datagram() {
    const STREAMS: usize = 8;
    let site = Site::start(1, |_| {});
    let (_pub_conn, mut publisher, _) = site.client(&hello("p")).await;
    let relay = Relay::start(site.address()).await;
    let (_endpoint, connection, mut control) =
        visitor(site.client_config(), relay.address, &hello("c")).await;
    let topics: Vec<String> = (0..STREAMS).map(|i| format!("t/{i}")).collect();
    let mut streams = Vec::new();
    for topic in &topics {
        let mut stream = Pipe::open(&connection).await;
        stream.send(&subscribe(topic, QoS::AtMostOnce)).await;
        assert_eq!(stream.next().await, Seen::Suback);
        streams.push(stream);
    }
    let burst: Vec<u8> = topics.iter().flat_map(|topic| publish(topic, b"x", 0)).collect();
    let datagrams = || connection.stats().udp_rx.datagrams;

    let before = datagrams();
    publisher.send(&burst).await;
    for stream in &mut streams {
        assert_eq!(stream.payload().await, b"x");
    }
    let together = datagrams() - before;
    assert!(together < STREAMS as u64, "{together} datagrams without a loss");

    relay.passing.store(false, Ordering::SeqCst);
    publisher.send(&publish("t/0", b"late", 0)).await;
    site.eventually("a loss", |_| relay.dropped.load(Ordering::SeqCst) > 0).await;
    relay.passing.store(true, Ordering::SeqCst);
    assert_eq!(streams[0].payload().await, b"late");
    // The server learns of the loss with the acknowledgement that this brings along.
    control.send(&publish("other", b"", 1)).await;
    assert_eq!(control.next().await, Seen::Puback(1));

    let before = datagrams();
    publisher.send(&burst).await;
    for stream in &mut streams {
        assert_eq!(stream.payload().await, b"x");
    }
    let apart = datagrams() - before;
    assert!(apart >= STREAMS as u64, "{apart} datagrams after a loss");
}

/// As LabOverWire's client does for every strategy but one: each message, or each topic, has a
/// unidirectional stream, with or without a flow header, and the answers are waited for on the control stream.
#[tokio::test]
async fn unidirectional_streams_are_answered_on_the_control_stream() {
    let site = Site::start(2, |quic| quic.max_streams = 8);
    let (connection, mut control, _) = site.client(&hello("c")).await;
    let open = || async {
        timeout(TIMEOUT, connection.open_uni()).await.expect("no stream left").unwrap()
    };
    let mut topic = open().await;
    topic.write_all(&subscribe("t/#", QoS::AtLeastOnce)).await.unwrap();
    assert_eq!(control.next().await, Seen::Suback);
    topic.write_all(&publish("t/1", b"first", 1)).await.unwrap();
    // The message and its acknowledgement, in either order.
    let mut both = [control.next().await, control.next().await];
    both.sort_by_key(|seen| matches!(seen, Seen::Publish { .. }));
    let message = Seen::Publish { payload: b"first".to_vec(), id: 1, dup: false };
    assert_eq!(both, [Seen::Puback(1), message]);
    control.send(&puback(1)).await;
    // Many more than may be open at once, which are given back.
    let flags = FlowFlags(FlowFlags::PERSISTENT_QOS);
    let mut header = Vec::new();
    let flow = DataFlow { id: 4, expiry_s: 600, flags };
    flow::encode(&FlowHeader::ClientData(flow), &mut header);
    for i in 2..=50u16 {
        let mut data = open().await;
        let header = if i % 2 == 0 { &header[..] } else { &[] };
        data.write_all(&[header, &publish("other", b"x", i)].concat()).await.unwrap();
        data.finish().unwrap();
        assert_eq!(control.next().await, Seen::Puback(i));
    }
    for i in 1..=20u16 {
        let mut data = open().await;
        data.write_all(&publish("other", b"x", 0)[..3]).await.unwrap();
        data.reset(i.into()).unwrap();
    }
    // An exchange goes on over the control stream.
    let mut data = open().await;
    data.write_all(&publish_at(QoS::ExactlyOnce, "other", b"x", 60)).await.unwrap();
    data.finish().unwrap();
    assert_eq!(control.next().await, Seen::Ack(AckKind::Pubrec, 60));
    control.send(&ack(AckKind::Pubrel, 60)).await;
    assert_eq!(control.next().await, Seen::Ack(AckKind::Pubcomp, 60));
    // Errors there are reported as well.
    let mut data = open().await;
    data.write_all(&publish("a/+", b"x", 61)).await.unwrap();
    assert_eq!(control.next().await, Seen::Disconnect(ReasonCode::TopicNameInvalid));
}

#[tokio::test]
async fn a_unidirectional_stream_before_connect_waits_for_it() {
    let site = Site::start(1, |_| {});
    let connection = site.dial(&site.client_config()).await;
    let mut data = connection.open_uni().await.unwrap();
    data.write_all(&publish("t", b"x", 7)).await.unwrap();
    data.finish().unwrap();
    let mut control = Pipe::open(&connection).await;
    control.send(&hello("c").bytes()).await;
    assert_eq!(control.next().await, Seen::Connack(false));
    assert_eq!(control.next().await, Seen::Puback(7));
}

#[tokio::test]
async fn a_named_flow_survives_its_connection() {
    let site = Site::start(2, |_| {});
    let lasting = Hello { id: "c", lasting: true, will: None };
    let flags = FlowFlags(FlowFlags::PERSISTENT_QOS | FlowFlags::PERSISTENT_SUBSCRIPTIONS);
    let mut header = Vec::new();
    let flow = DataFlow { id: 4, expiry_s: 600, flags };
    flow::encode(&FlowHeader::ClientData(flow), &mut header);

    let (connection, _control, present) = site.client(&lasting).await;
    assert!(!present);
    let mut data = Pipe::open(&connection).await;
    data.send(&[&header[..], &subscribe("f", QoS::AtLeastOnce)].concat()).await;
    assert_eq!(data.next().await, Seen::Suback);
    let (_pub_conn, mut publisher, _) = site.client(&hello("p")).await;
    publisher.send(&publish("f", b"1", 1)).await;
    assert_eq!(data.next().await, Seen::Publish { payload: b"1".to_vec(), id: 1, dup: false });
    connection.close(0u32.into(), b"gone");
    site.eventually("the first connection to go", |site| site.connections() == 1).await;
    publisher.send(&publish("f", b"2", 2)).await;

    let (connection, mut control, present) = site.client(&lasting).await;
    assert!(present);
    let mut data = Pipe::open(&connection).await;
    // Nothing follows the header, and it comes in two parts.
    let (start, rest) = header.split_at(3);
    data.send(start).await;
    control.send(&publish("other", b"", 1)).await;
    assert_eq!(control.next().await, Seen::Puback(1));
    data.send(rest).await;
    assert_eq!(data.next().await, Seen::Publish { payload: b"1".to_vec(), id: 1, dup: true });
    assert_eq!(data.next().await, Seen::Publish { payload: b"2".to_vec(), id: 2, dup: false });
}

#[tokio::test]
async fn a_returning_client_publishes_in_its_first_flight() {
    let site = Site::start(2, |_| {});
    let (_sub_conn, mut sub, _) = site.client(&hello("s")).await;
    sub.send(&subscribe("early", QoS::AtMostOnce)).await;
    sub.next().await;
    let config = site.client_config();
    let first = site.dial(&config).await;
    let mut control = Pipe::open(&first).await;
    control.send(&hello("e").bytes()).await;
    control.next().await;
    first.close(0u32.into(), b"");
    let (_connection, mut control, accepted) = come_back(config, site.address(), 0).await;
    assert!(timeout(TIMEOUT, accepted).await.unwrap(), "early data was refused");
    assert_eq!(control.next().await, Seen::Connack(false));
    assert_eq!(sub.payload().await, b"!");
}

#[tokio::test]
async fn a_client_whose_address_changes_keeps_its_session() {
    let site = Site::start(2, |_| {});
    let (_sub_conn, mut sub, _) = site.client(&hello("s")).await;
    sub.send(&subscribe("t", QoS::AtMostOnce)).await;
    sub.next().await;
    let (endpoint, connection, mut control) =
        visitor(site.client_config(), site.address(), &hello("m")).await;
    for i in 1..=100u16 {
        if i % 10 == 0 {
            endpoint.rebind(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        }
        control.send(&publish("t", &i.to_be_bytes(), i)).await;
        assert_eq!(control.next().await, Seen::Puback(i));
        assert_eq!(sub.payload().await, i.to_be_bytes());
    }
    drop(connection);
    site.eventually("the migrations to be counted", |site| {
        site.broker.metrics().sum(|shard| &shard.quic_migrations) >= 5
    })
    .await;
}

#[tokio::test]
async fn a_vanished_client_is_forgotten_after_the_idle_timeout() {
    let site = Site::start(2, |quic| quic.idle_timeout = Duration::from_secs(3));
    let (endpoint, _connection, _control) =
        visitor(site.client_config(), site.address(), &hello("v")).await;
    assert_eq!(site.connections(), 1);
    // The client moves to a socket that reaches nobody, and so falls silent without a word.
    let nowhere = UdpSocket::bind("127.0.0.1:0").unwrap();
    let held = UdpSocket::bind("127.0.0.1:0").unwrap();
    nowhere.connect(held.local_addr().unwrap()).unwrap();
    endpoint.rebind(nowhere).unwrap();
    site.eventually("the vanished client to be forgotten", |site| {
        site.connections() == 0 && site.broker.sessions() == 0
    })
    .await;
}

#[tokio::test]
async fn idlers_and_garbage_disturb_nobody() {
    let site = Site::start(2, |quic| {
        quic.handshake_timeout = Duration::from_secs(3);
        quic.retry = RetryPolicy::Always;
    });
    let idler = site.dial(&site.client_config()).await;
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for seed in 0..2000u32 {
        let mut state = seed.wrapping_mul(2_654_435_761) | 1;
        let bytes: Vec<u8> = (0..seed % 1300)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .collect();
        socket.send_to(&bytes, site.address()).unwrap();
    }
    let (_connection, mut control, _) = site.client(&hello("c")).await;
    control.send(&subscribe("t", QoS::AtMostOnce)).await;
    assert_eq!(control.next().await, Seen::Suback);
    control.send(&publish("t", b"x", 0)).await;
    assert_eq!(control.payload().await, b"x");
    timeout(TIMEOUT, idler.closed()).await.expect("the idler is closed");
}

#[tokio::test]
async fn a_draining_server_says_so_and_does_not_wait_for_nothing() {
    let site = Site::start(2, |_| {});
    let (connection, mut control, _) = site.client(&hello("c")).await;
    let patience = Duration::from_secs(60);
    let draining = tokio::task::spawn_blocking(move || site.server.drain(patience));
    assert_eq!(control.next().await, Seen::Disconnect(ReasonCode::ServerShuttingDown));
    assert_eq!(close_code(&connection).await, 0x8B);
    timeout(TIMEOUT, draining).await.expect("drained at once").unwrap();
}
