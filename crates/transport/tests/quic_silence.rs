//! How long a QUIC client may be silent: as long as its Keep Alive says, whatever the listener's idle
//! timeout, and without being woken unless its own library would let go of the connection.
#![allow(clippy::unwrap_used)]

mod quic_site;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fulmar_mqtt::QoS;
use quic_site::*;
use quinn::{ClientConfig, Connection, IdleTimeout, TransportConfig};

const IDLE: Duration = Duration::from_secs(2);

fn site() -> Site {
    Site::start(1, |quic| quic.idle_timeout = IDLE)
}

/// A client's settings with an idle timeout of its own.
fn with_idle_timeout(site: &Site, timeout: Option<Duration>) -> ClientConfig {
    let mut transport = TransportConfig::default();
    transport.max_idle_timeout(timeout.map(|timeout| IdleTimeout::try_from(timeout).unwrap()));
    let mut config = site.client_config();
    config.transport_config(Arc::new(transport));
    config
}

async fn connect(site: &Site, config: &ClientConfig, id: &str, alive_s: u16) -> (Connection, Pipe) {
    let connection = site.dial(config).await;
    let mut control = Pipe::open(&connection).await;
    control.send(&connect_alive(id, alive_s)).await;
    assert_eq!(control.next().await, Seen::Connack(false));
    (connection, control)
}

/// Clients without Keep Alive come one after the other and are closed by the idle timeout, so that
/// several of them have passed.
async fn idle_timeouts_pass(site: &Site, count: usize) {
    let config = with_idle_timeout(site, None);
    for _ in 0..count {
        let (connection, _control) = connect(site, &config, "idler", 0).await;
        assert_eq!(close_code(&connection).await, 0);
    }
}

#[tokio::test]
async fn mqtt_3_1_2_22_a_quic_client_may_be_silent_as_long_as_its_keep_alive_says() {
    let site = site();
    // A library that never lets go, one that would in a minute and a half.
    for own in [None, Some(Duration::from_secs(90))] {
        let config = with_idle_timeout(&site, own);
        let (connection, mut control) = connect(&site, &config, "sleeper", 60).await;
        // The effects of the beginning are over when the first idle client is gone.
        idle_timeouts_pass(&site, 1).await;
        let received = connection.stats().udp_rx.datagrams;
        idle_timeouts_pass(&site, 2).await;
        assert!(connection.close_reason().is_none());
        assert_eq!(connection.stats().udp_rx.datagrams, received, "it was woken");
        control.send(&publish("t", b"x", 1)).await;
        assert_eq!(control.next().await, Seen::Puback(1));
    }
}

#[tokio::test]
async fn mqtt_3_1_2_22_a_client_whose_library_would_let_go_sooner_is_held() {
    let site = site();
    let config = with_idle_timeout(&site, Some(Duration::from_secs(2)));
    let (connection, mut control) = connect(&site, &config, "held", 60).await;
    idle_timeouts_pass(&site, 5).await;
    assert!(connection.close_reason().is_none());
    control.send(&publish("t", b"x", 1)).await;
    assert_eq!(control.next().await, Seen::Puback(1));
}

#[tokio::test]
async fn a_vanished_client_whose_keep_alive_is_long_is_missed_as_soon_as_its_library_would_be() {
    let site = site();
    let config = with_idle_timeout(&site, Some(Duration::from_secs(2)));
    let (_watcher, mut watcher, _) =
        site.client_with(&site.patient_config(64 * 1024), &hello("w")).await;
    watcher.send(&subscribe("will", QoS::AtMostOnce)).await;
    watcher.next().await;
    let relay = Relay::start(site.address()).await;
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let connecting = endpoint.connect_with(config, relay.address, "localhost").unwrap();
    let connection = connecting.await.unwrap();
    let mut control = Pipe::open(&connection).await;
    control.send(&connect_alive("vanished", 3600)).await;
    assert_eq!(control.next().await, Seen::Connack(false));
    relay.passing.store(false, Ordering::SeqCst);
    assert_eq!(watcher.payload().await, b"vanished");
}

#[tokio::test]
async fn mqtt_3_1_2_22_a_silent_quic_client_is_closed_after_one_and_a_half_keep_alives() {
    let site = site();
    let (_watcher, mut watcher, _) =
        site.client_with(&site.patient_config(64 * 1024), &hello("w")).await;
    watcher.send(&subscribe("will", QoS::AtMostOnce)).await;
    watcher.next().await;
    let config = with_idle_timeout(&site, None);
    let (connection, mut control) = connect(&site, &config, "silent", 2).await;
    assert_eq!(control.next().await, Seen::Disconnect(fulmar_mqtt::ReasonCode::KeepAliveTimeout));
    assert_eq!(close_code(&connection).await, 0x8D);
    assert_eq!(watcher.payload().await, b"silent");
}
