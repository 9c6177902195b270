//! Requests and connections that give way when they take more memory than there is.

use std::time::Duration;

use fulmar_broker::MemoryPressure;
use fulmar_http::{BodyBudget, Limits, Plain};
use http::{Method, StatusCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::site::*;

/// The limit of connections in the tests below.
const FEW: usize = 8;

#[tokio::test]
async fn half_requests_make_room_for_whole_ones() {
    let few = Limits { max_connections: FEW, ..limits() };
    let any = "127.0.0.1:0".parse().unwrap();
    let site = start_with(any, few.clone(), BodyBudget::new(BUDGET_BYTES));
    let plain = Plain::start(&[any], &few, &BodyBudget::new(BUDGET_BYTES), router()).unwrap();
    for half in ["", "GET / HTT", "POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nhalf"]
    {
        let mut silent = Vec::new();
        for _ in 0..FEW {
            // Before and after a handshake.
            silent.push(TcpStream::connect(site.endpoint.bound().https[0]).await.unwrap());
            let mut socket = TcpStream::connect(plain.bound()[0]).await.unwrap();
            socket.write_all(half.as_bytes()).await.unwrap();
            silent.push(socket);
        }
        let mut talking = Vec::new();
        for _ in 0..FEW {
            let mut stream = site.dial_tcp(b"http/1.1").await;
            stream.write_all(half.as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
            talking.push(stream);
        }
        let request = "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        let answer = answered(site.dial_tcp(b"http/1.1").await, request).await;
        assert!(answer.ends_with("hello"), "{half:?}: {answer}");
        let socket = TcpStream::connect(plain.bound()[0]).await.unwrap();
        let answer = answered(socket, request).await;
        assert!(answer.ends_with("hello"), "{half:?}: {answer}");
    }
    assert!(site.count("connections_shed_total") > 0);
}

#[tokio::test]
async fn half_bodies_make_room_for_whole_ones() {
    // Clients without a token have a quarter: four bodies of this size.
    let any = "127.0.0.1:0".parse().unwrap();
    // With their headers, of 0.4 KB each, and 4 KB for what handles them.
    let site = start_with(any, limits(), BodyBudget::new(4 * 4 * (MAX_BODY_BYTES + 4_600)));
    let head = |length: usize| {
        format!(
            "POST /echo HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
        )
    };
    let half = "x".repeat(MAX_BODY_BYTES - 100);
    let mut waiting = Vec::new();
    for _ in 0..16 {
        let mut stream = site.dial_tcp(b"http/1.1").await;
        stream.write_all(head(MAX_BODY_BYTES).as_bytes()).await.unwrap();
        stream.write_all(half.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        waiting.push(stream);
    }
    // In whatever order the server reads them, it has room for four.
    let refused = || site.count("bodies_refused_total");
    tokio::time::timeout(PATIENCE, async {
        while refused() < 12 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("twelve of sixteen have no room");
    let whole = "y".repeat(MAX_BODY_BYTES);
    let request = head(MAX_BODY_BYTES) + &whole;
    let answer = answered(site.dial_tcp(b"http/1.1").await, &request).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with(&whole), "{answer}");
    let (_connection, mut sender) = site.dial().await;
    let answer = ask(&mut sender, Method::POST, "/echo", whole.as_bytes()).await;
    assert_eq!(answer, (StatusCode::OK, whole.into_bytes()));
    // Each that is refused gets a response.
    let mut refusals = 0;
    for mut stream in waiting {
        stream.write_all(&[b'x'; 100]).await.ok();
        stream.flush().await.ok();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        if response.starts_with("HTTP/1.1 503 ") {
            assert!(response.contains("retry-after: "), "{response}");
            refusals += 1;
        } else {
            assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
        }
    }
    // The two whole bodies displaced one each, unless the first was answered before the second came.
    assert!((13..=14).contains(&refusals), "{refusals} of 16");
}

#[tokio::test]
async fn half_requests_count_with_their_headers() {
    let any = "127.0.0.1:0".parse().unwrap();
    // Clients without a token have a quarter, which is room for two of these.
    let site = start_with(any, limits(), BodyBudget::new(4 * 22_000));
    let head = format!(
        "POST /echo HTTP/1.1\r\nhost: a\r\nx-long: {}\r\ncontent-length: 9\r\n\r\n",
        "x".repeat(6_000)
    );
    let mut waiting = Vec::new();
    for _ in 0..6 {
        let mut stream = site.dial_tcp(b"http/1.1").await;
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        waiting.push(stream);
    }
    tokio::time::timeout(PATIENCE, async {
        while site.count("bodies_refused_total") < 4 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("four of six have no room");
}

#[tokio::test]
async fn half_headers_over_http3_make_room_for_whole_requests() {
    let site = start();
    let refused = || site.count("bodies_refused_total");
    // Each has a quarter of the quarter that is for clients without a token.
    let half = [b"\x01\x60\x00".as_slice(), &[0; BUDGET_BYTES / 16]].concat();
    let mut waiting = Vec::new();
    for _ in 0..16 {
        let (connection, sender) = site.dial().await;
        let (mut send, receive) = connection.open_bi().await.unwrap();
        send.write_all(&half).await.unwrap();
        waiting.push((connection, sender, send, receive));
    }
    tokio::time::timeout(PATIENCE, async {
        while refused() < 12 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("twelve of sixteen have no room");
    let (_connection, mut sender) = site.dial().await;
    let answer = ask(&mut sender, Method::POST, "/echo", b"whole").await;
    assert_eq!(answer, (StatusCode::OK, b"whole".to_vec()));
}

#[tokio::test]
async fn more_than_a_strangers_window_passes_over_http3() {
    let site = start();
    let (_connection, mut sender) = site.dial().await;
    let body = vec![b'x'; MAX_BODY_BYTES];
    for _ in 0..200 {
        let answer = ask(&mut sender, Method::POST, "/echo", &body).await;
        assert_eq!(answer, (StatusCode::OK, body.clone()), "200 KB through a window of 32 KiB");
    }
}

#[tokio::test]
async fn connections_with_many_pieces_give_way_while_memory_is_short_and_taken() {
    let site = start();
    let (suspect, mut sender) = site.dial().await;
    let (honest, mut other) = site.dial().await;
    while suspect.stats().frame_tx.stream < 1_200 {
        assert_eq!(ask(&mut sender, Method::GET, "/", b"").await.0, StatusCode::OK);
    }
    let set = async {
        loop {
            site.memory.set(MemoryPressure::Rising);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let error = tokio::select! {
        error = suspect.closed() => error,
        () = set => unreachable!(),
        () = tokio::time::sleep(PATIENCE) => panic!("nobody closes it"),
    };
    assert!(error.to_string().contains("too many pieces"), "{error}");
    assert_eq!(honest.close_reason(), None);
    assert_eq!(ask(&mut other, Method::GET, "/", b"").await.0, StatusCode::OK);
}
