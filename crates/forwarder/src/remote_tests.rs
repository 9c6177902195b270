//! The connection to an upstream broker that the test plays.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fulmar_gateway::outbox::Item;
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::codec::{MAX_PACKET_BYTES, decode, peek_frame};
use fulmar_mqtt::packet::{Ack, Connack, Publish, Suback};
use fulmar_mqtt::{Packet, PacketId, Properties, QoS, Version};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::test_support::{LONG, outbox, shared};

/// Messages that the upstream broker has for the gateway.
const MESSAGES: u16 = 3;

/// Serves one connection: sends the messages after SUBACK, acknowledges all publications, and counts PUBACKs.
async fn upstream(mut stream: TcpStream, topic: &str, acknowledged: &AtomicUsize) {
    let mut input = Vec::new();
    while stream.read_buf(&mut input).await.is_ok_and(|read| read > 0) {
        let (mut done, mut output) = (0, Vec::new());
        while let Some(frame) = peek_frame(&input[done..], MAX_PACKET_BYTES).unwrap() {
            answer(&decode(&frame, Version::V5).unwrap(), topic, acknowledged, &mut output);
            done += frame.len;
        }
        input.drain(..done);
        stream.write_all(&output).await.unwrap();
    }
}

fn answer(packet: &Packet<'_>, topic: &str, acknowledged: &AtomicUsize, output: &mut Vec<u8>) {
    let (reason, properties) = (ReasonCode::Success, Properties::NONE);
    match packet {
        Packet::Connect(_) => {
            let session_present = false;
            Connack { session_present, reason, properties }.encode(Version::V5, output);
        }
        Packet::Subscribe(subscribe) => {
            let packet_id = subscribe.packet_id;
            Suback { packet_id, properties, codes: &[1] }.encode(Version::V5, output);
            for number in 1..=MESSAGES {
                Publish {
                    dup: false,
                    qos: QoS::AtLeastOnce,
                    retain: false,
                    topic,
                    packet_id: PacketId::new(number),
                    properties,
                    payload: &number.to_be_bytes(),
                }
                .encode(Version::V5, output);
            }
        }
        Packet::Publish(publish) => {
            let packet_id = publish.packet_id.unwrap();
            Ack { packet_id, reason, properties }.encode(AckKind::Puback, Version::V5, output);
        }
        Packet::Ack(AckKind::Puback, _) => {
            acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        _ => {}
    }
}

/// Polls until `done`, and then lets other tasks run.
async fn until(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::task::yield_now().await;
    }
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
}

/// A gateway's section, and the listener that it names.
async fn listening() -> (String, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let config = format!(
        "url = \"mqtt://{address}\"\n[[up]]\nfilter = \"sensor/#\"\n\
         [[down]]\nfilter = \"command/#\"\nfrom_prefix = \"command/\"\n"
    );
    (config, listener)
}

/// Runs the connection to the upstream broker, which has messages of `topic`, while `test` runs.
async fn while_connected(
    shared: &Shared,
    outbox: &OutboxHandle,
    (listener, topic): (TcpListener, &'static str),
    down: &mpsc::Sender<DownlinkMessage>,
    test: impl AsyncFnOnce(&AtomicUsize),
) {
    let acknowledged = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&acknowledged);
    let broker = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        upstream(stream, topic, &counted).await;
    });
    let mut scheduler = UplinkScheduler::new(shared.config.window(), shared.config.batching());
    let options = options(shared).unwrap();
    let (client, events) = Client::connect(options).unwrap();
    let mut uplink = Uplink::new(shared, outbox, client, events, down, &mut scheduler);
    let (_stop, mut stopped) = watch::channel(false);
    tokio::select! {
        _ = uplink.run(&mut stopped) => panic!("the client gave up"),
        () = test(&acknowledged) => {}
    }
    broker.abort();
}

#[tokio::test]
async fn what_comes_down_and_has_to_wait_does_not_hold_up_what_goes_up() {
    let folder = tempfile::tempdir().unwrap();
    let (config, listener) = listening().await;
    let shared = shared(&config);
    let thread = outbox(&shared, &folder.path().join("dead.jsonl"));
    let handle = thread.handle();
    let (down, mut coming_down) = mpsc::channel(1);
    let test = async |_: &AtomicUsize| {
        until("the local session has too much", || down.capacity() == 0).await;
        let (topic, origin) = ("sensor/1".to_owned(), None);
        let (id, at) = ("1".to_owned(), String::new());
        let (qos, priority) = (QoS::AtLeastOnce, Priority::Normal);
        let (payload, properties, retain) = (b"21.5".to_vec(), Vec::new(), false);
        let item = Item {
            topic,
            payload,
            properties,
            qos,
            retain,
            priority,
            id,
            at,
            origin,
            expires_ms: None,
        };
        let (_, put) = handle.store(vec![item]).await;
        shared.metrics.wake(put.unwrap().taken);
        until("acknowledged by the upstream broker", || {
            shared.metrics.sent.load(Ordering::Relaxed) == 1
        })
        .await;
        for number in 1..=MESSAGES {
            let message: DownlinkMessage = coming_down.recv().await.unwrap();
            assert_eq!(*message.payload, number.to_be_bytes(), "in order");
        }
    };
    while_connected(&shared, &handle, (listener, "command/1"), &down, test).await;
}

#[tokio::test]
async fn a_dead_letter_from_upstream_is_acknowledged_when_it_is_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("dead.jsonl");
    let (config, listener) = listening().await;
    let shared = shared(&config);
    let thread = outbox(&shared, &file);
    std::fs::remove_file(&file).unwrap();
    // Not writable, for root as well.
    std::fs::create_dir(&file).unwrap();
    let (down, _coming_down) = mpsc::channel(1);
    let test = async |acknowledged: &AtomicUsize| {
        until("a failure", || shared.metrics.failure.lock().is_some()).await;
        assert_eq!(acknowledged.load(Ordering::Relaxed), 0);
        std::fs::remove_dir(&file).unwrap();
        let all = usize::from(MESSAGES);
        until("all acknowledged", || acknowledged.load(Ordering::Relaxed) == all).await;
        assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), all);
    };
    // The rule has no name for it.
    while_connected(&shared, &thread.handle(), (listener, "command"), &down, test).await;
}
