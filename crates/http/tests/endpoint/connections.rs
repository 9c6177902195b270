//! Connections: handshakes that fail, hostile streams, certificates that change.

use std::time::Duration;

use http::{Method, StatusCode};
use rustls::pki_types::CertificateDer;
use tokio::net::UdpSocket;

use crate::site::*;

/// The first datagram of a client.
async fn first_datagram(client: &quinn::Endpoint) -> Vec<u8> {
    let here = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let connecting = client.connect(here.local_addr().unwrap(), "localhost").unwrap();
    let mut room = vec![0; 2048];
    let length = tokio::time::timeout(PATIENCE, here.recv(&mut room)).await.unwrap().unwrap();
    drop(connecting);
    room.truncate(length);
    room
}

#[tokio::test]
async fn handshakes_that_fail_make_strangers_prove_their_address_and_others_get_in() {
    let client = start().client_for(b"nonsense");
    let mut nonsense = Vec::new();
    for _ in 0..100 {
        nonsense.push(first_datagram(&client).await);
    }
    // Their authentication fails: they do not become connections.
    let broken = nonsense.iter().map(|first| [&first[..first.len() - 1], &[0]].concat()).collect();
    for flood in [nonsense, broken] {
        let site = start();
        let thief = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        thief.connect(site.endpoint.bound().https[0]).await.unwrap();
        let mut room = [0; 2048];
        let is_retry = async {
            for first in flood.iter().cycle() {
                thief.send(first).await.unwrap();
                let answer = thief.recv(&mut room);
                let answer = tokio::time::timeout(Duration::from_millis(20), answer).await;
                // Type 3 of the packets with long headers (RFC 9000 section 17.2.5), whatever the QUIC bit is.
                if answer.is_ok() && room[0] & 0xB0 == 0xB0 {
                    break;
                }
            }
        };
        tokio::time::timeout(PATIENCE, is_retry).await.expect("failures do not count");
        let flood = tokio::spawn(async move {
            for first in flood.iter().cycle() {
                thief.send(first).await.ok();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        for _ in 0..3 {
            let (_connection, mut sender) = site.dial().await;
            let (status, _) = ask(&mut sender, Method::GET, "/", b"").await;
            assert_eq!(status, StatusCode::OK, "who proves its address is served");
        }
        flood.abort();
    }
}

/// The number of hostile connections, each with its own seed.
const HOSTILE: u64 = 50;

/// The beginning of a stream of HTTP/3 or WebTransport, or of an unknown type, followed by random bytes.
fn hostile(random: &mut fastrand::Rng) -> Vec<u8> {
    // DATA, HEADERS, CANCEL_PUSH, SETTINGS, PUSH_PROMISE, GOAWAY, WebTransport streams, unknown types.
    let kinds: [&[u8]; 9] =
        [&[0], &[1], &[3], &[4], &[5], &[7], &[0x40, 0x41], &[0x40, 0x54], &[0x21]];
    let mut bytes = kinds[random.usize(..kinds.len())].to_vec();
    for _ in 0..random.usize(..6) {
        // A length, which may be false, and some of the bytes.
        let width = random.usize(..4);
        bytes.push((width as u8) << 6 | random.u8(..64));
        bytes.extend((1..1_usize << width).map(|_| random.u8(..)));
        bytes.extend((0..random.usize(..80)).map(|_| random.u8(..)));
    }
    bytes
}

/// A fuzzer on real connections, because h3's streams need one.
#[tokio::test]
async fn hostile_streams_harm_nobody_else() {
    let site = start();
    let (_connection, mut honest) = site.dial().await;
    for seed in 0..HOSTILE {
        let mut random = fastrand::Rng::with_seed(seed);
        let (connection, _sender) = site.dial().await;
        for _ in 0..random.usize(1..6) {
            let mut send = if random.bool() {
                // The server may have closed the connection by now.
                let Ok((send, _)) = connection.open_bi().await else { break };
                send
            } else {
                let Ok(send) = connection.open_uni().await else { break };
                send
            };
            send.write_all(&hostile(&mut random)).await.ok();
            match random.u8(..3) {
                0 => drop(send.finish()),
                1 => drop(send.reset(random.u32(..).into())),
                _ => drop(send.stopped()),
            }
        }
        let answer = ask(&mut honest, Method::GET, "/", b"");
        let answer = tokio::time::timeout(PATIENCE, answer).await;
        assert_eq!(answer.map(|(status, _)| status), Ok(StatusCode::OK), "seed {seed}");
        if random.bool() {
            connection.close(random.u32(..).into(), b"");
        }
    }
}

fn shown(connection: &quinn::Connection) -> CertificateDer<'static> {
    let chain = connection.peer_identity().unwrap();
    chain.downcast::<Vec<CertificateDer<'static>>>().unwrap()[0].clone()
}

#[tokio::test]
async fn a_new_short_lived_certificate_drops_no_connection() {
    let mut site = start();
    let address = site.endpoint.bound().webtransport[0];
    let (before, mut sender) = site.dial_at(address).await;
    let (_session, status) = session(&mut sender, None).await;
    assert_eq!(status, StatusCode::OK);
    let (mut send, mut receive) = mqtt(&before, 0).await;
    let (next, certificate) = identity();
    site.roots.add(certificate.clone()).unwrap();
    site.short_lived.replace(&next);
    let (after, mut other) = site.dial_at(address).await;
    assert_ne!(shown(&before), certificate);
    assert_eq!(shown(&after), certificate);
    assert_eq!(ask(&mut other, Method::GET, "/", b"").await.0, StatusCode::OK);
    // PINGREQ on the old connection; before its response comes the rest of CONNACK.
    send.write_all(&[0xc0, 0]).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(&[0xd0, 0]) {
        let chunk = receive.read_chunk(100, true).await.unwrap();
        answer.extend_from_slice(&chunk.expect("the stream goes on").bytes);
    }
    // The pages have another certificate.
    let (pages, _sender) = site.dial().await;
    assert_ne!(shown(&pages), certificate);
}
