//! A client with several addresses, and servers that name another one, over TCP (MQTT 5.0 section 4.11).

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use fulmar_client::{Backoff, Client, Error, Event, Events, Options, ReasonCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const ACCEPTED: &[u8] = &[0x20, 3, 0, 0, 0];
const PATIENCE: Duration = Duration::from_secs(20);

async fn bind() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// The bytes of a packet that ends with reason 0x9C and a Server Reference: CONNACK with a flag byte, or DISCONNECT.
fn use_another(first: &[u8], reference: &str) -> Vec<u8> {
    let length = u8::try_from(reference.len()).unwrap();
    let head = first.iter().copied();
    let rest = [0x9C, length + 3, 0x1C, 0, length];
    let mut packet: Vec<u8> = head.chain(rest).chain(reference.bytes()).collect();
    packet.insert(1, u8::try_from(packet.len() - 1).unwrap());
    packet
}

/// Reads CONNECT, and answers.
async fn answer(listener: &TcpListener, bytes: &[u8]) -> TcpStream {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut head = [0; 2];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(head[0], 0x10, "CONNECT");
    stream.read_exact(&mut vec![0; head[1].into()]).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream
}

async fn connected(events: &mut Events) -> u16 {
    loop {
        let event = tokio::time::timeout(PATIENCE, events.next()).await.unwrap().unwrap();
        match event {
            Event::Connected { url, .. } => return url.port,
            Event::Disconnected { reason, retry_in } => panic!("{reason}, {retry_in:?}"),
            _ => {}
        }
    }
}

fn options(url: &str) -> Options {
    let mut options = Options::new(url).unwrap();
    let wait = Duration::from_millis(50);
    options.reconnect = Some(Backoff { first: wait, longest: wait });
    options.connect_timeout = Duration::from_secs(2);
    options
}

#[tokio::test]
async fn a_refusal_and_a_silent_server_do_not_end_a_list() {
    let (closed, refused) = bind().await;
    drop(closed);
    // The kernel accepts for it.
    let (_silent, silent_port) = bind().await;
    let (serving, port) = bind().await;
    let url = format!("mqtt://127.0.0.1:{refused},127.0.0.1:{silent_port},127.0.0.1:{port}");
    let (_client, mut events) = Client::connect(options(&url)).unwrap();
    let (_stream, at) = tokio::join!(answer(&serving, ACCEPTED), connected(&mut events));
    assert_eq!(at, port);
}

#[tokio::test]
async fn a_list_without_a_server_is_one_failure() {
    let (first, a) = bind().await;
    let (second, b) = bind().await;
    drop((first, second));
    let mut options = options(&format!("mqtt://127.0.0.1:{a},127.0.0.1:{b}"));
    options.reconnect = None;
    let (_client, mut events) = Client::connect(options).unwrap();
    let Some(Event::Disconnected { reason, retry_in: None }) = events.next().await else {
        panic!("no failure");
    };
    let text = reason.to_string();
    assert!(matches!(reason, Error::NoAddress { tried: 2, .. }), "{text}");
    assert!(text.contains(&format!("127.0.0.1:{b}")), "{text}");
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn mqtt5_4_11_a_client_goes_where_connack_and_disconnect_send_it() {
    let (standby, first) = bind().await;
    let (serving, second) = bind().await;
    let (next, third) = bind().await;
    let url = format!("mqtt://127.0.0.1:{first}");
    let (_client, mut events) = Client::connect(options(&url)).unwrap();
    let other = use_another(&[0x20, 0], &format!("127.0.0.1:{second}"));
    let (_closing, mut stream, at) =
        tokio::join!(answer(&standby, &other), answer(&serving, ACCEPTED), connected(&mut events));
    assert_eq!(at, second);
    let drained = use_another(&[0xE0], &format!("127.0.0.1:{third}"));
    stream.write_all(&drained).await.unwrap();
    let Some(Event::Disconnected { reason, retry_in: Some(_) }) = events.next().await else {
        panic!("no end");
    };
    assert!(matches!(reason, Error::Disconnected(ReasonCode::UseAnotherServer)), "{reason}");
    let (_stream, at) = tokio::join!(answer(&next, ACCEPTED), connected(&mut events));
    assert_eq!(at, third);
}

#[tokio::test]
async fn a_server_on_a_plain_connection_cannot_send_a_client_to_another_machine() {
    let (server, port) = bind().await;
    let mut options = options(&format!("mqtt://127.0.0.1:{port}"));
    options.reconnect = None;
    (options.username, options.password) = (Some("ann".into()), Some(b"secret".to_vec()));
    let (_client, mut events) = Client::connect(options).unwrap();
    // TEST-NET-1: nothing would answer there.
    let elsewhere = use_another(&[0x20, 0], "192.0.2.1:9");
    let (_stream, event) = tokio::join!(answer(&server, &elsewhere), events.next());
    let Some(Event::Disconnected { reason, retry_in: None }) = event else {
        panic!("{event:?}");
    };
    let text = reason.to_string();
    assert!(text.contains("Use another server") && text.contains(&port.to_string()), "{text}");
}
