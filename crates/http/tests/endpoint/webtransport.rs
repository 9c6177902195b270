//! MQTT over WebTransport: keep-alive, origins, draining.

use std::time::{Duration, Instant};

use fulmar_http::{BodyBudget, Limits};
use http::{Method, StatusCode};

use crate::site::*;

#[tokio::test]
async fn webtransport_carries_mqtt_until_the_server_drains() {
    let site = start();
    let (connection, mut sender) = site.dial().await;
    let (_session, status) = session(&mut sender, None).await;
    assert_eq!(status, StatusCode::OK);
    let (mut send, mut receive) = mqtt(&connection, 0).await;
    let begun = Instant::now();
    let Site { endpoint, server, .. } = site;
    let drained = tokio::task::spawn_blocking(move || {
        endpoint.stop_accepting();
        server.drain(PATIENCE);
        endpoint.drain(PATIENCE);
    });
    let rest = receive.read_to_end(1000).await.unwrap();
    assert!(rest.ends_with(&[0xe0, 1, 0x8b]) || rest.ends_with(&[0xe0, 2, 0x8b, 0]), "{rest:?}");
    send.finish().unwrap();
    drained.await.unwrap();
    assert!(begun.elapsed() < PATIENCE, "nobody had to be waited for");
}

/// The same without a Keep Alive.
const CONNECT_FOR_EVER: &[u8] = b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00";

#[tokio::test]
async fn a_session_lives_as_long_as_its_keep_alive_and_other_connections_as_the_idle_timeout() {
    let limits = Limits { idle_timeout: Duration::from_secs(3), ..limits() };
    let site = start_with("127.0.0.1:0".parse().unwrap(), limits, BodyBudget::new(BUDGET_BYTES));
    let (kept, mut sender) = site.dial_patient(None).await;
    let (_session, status) = session(&mut sender, None).await;
    assert_eq!(status, StatusCode::OK);
    // A Keep Alive of 60 s; the client sends nothing more.
    let mut stream = mqtt(&kept, 0).await;
    let heard = kept.stats().udp_tx.datagrams;
    // Later connections that are as silent are closed: one without MQTT, and one without a Keep Alive.
    let (idle, mut other) = site.dial_patient(None).await;
    assert_eq!(ask(&mut other, Method::GET, "/", b"").await.0, StatusCode::OK);
    is_given_up(&idle).await;
    let (unkept, mut third) = site.dial_patient(None).await;
    let (_endless, _) = session(&mut third, None).await;
    let _silent = mqtt_by(&unkept, 0, CONNECT_FOR_EVER).await;
    is_given_up(&unkept).await;
    // Except for acknowledgements at the beginning, the server sent nothing to the client.
    assert!(kept.stats().udp_tx.datagrams <= heard + 10, "it was woken");
    assert!(is_alive(&mut stream).await);
    // When MQTT has ended, the idle timeout applies.
    stream.0.write_all(&[0xE0, 0]).await.unwrap();
    is_given_up(&kept).await;
}

#[tokio::test]
async fn a_client_that_would_let_go_before_its_keep_alive_says_is_asked() {
    let site = start();
    let idle = Some(Duration::from_secs(5));
    let (kept, mut sender) = site.dial_patient(idle).await;
    let (_session, _) = session(&mut sender, None).await;
    let mut stream = mqtt(&kept, 0).await;
    for _ in 0..2 {
        let (unasked, mut other) = site.dial_patient(idle).await;
        assert_eq!(ask(&mut other, Method::GET, "/", b"").await.0, StatusCode::OK);
        is_given_up(&unasked).await;
    }
    assert!(is_alive(&mut stream).await);
}

#[tokio::test]
async fn pages_of_other_origins_have_no_session() {
    let site = start();
    let (_connection, mut sender) = site.dial().await;
    let own = format!("https://localhost:{}", site.endpoint.bound().https[0].port());
    for (origin, expected) in [
        ("https://evil.example", StatusCode::FORBIDDEN),
        ("null", StatusCode::FORBIDDEN),
        (own.as_str(), StatusCode::OK),
        ("https://dashboard.example", StatusCode::OK),
    ] {
        assert_eq!(session(&mut sender, Some(origin)).await.1, expected, "{origin}");
    }
    assert_eq!(site.count("origins_refused_total"), 2);
}
