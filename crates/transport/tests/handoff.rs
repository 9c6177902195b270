//! Connections accepted elsewhere: they are the workers' as any other, and draining reaches them.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use common::{Client, PATIENCE, TestServer, eventually};
use fulmar_broker::{ListenerPolicy, Peer, TransportKind};
use fulmar_transport::{Carrier, Framing, Handoff};

fn peer(allow_anonymous: bool) -> Peer {
    Peer {
        address: "192.0.2.7:4711".parse().unwrap(),
        transport: TransportKind::WebTransport,
        identity: None,
        listener: Arc::new(ListenerPolicy { name: "elsewhere".into(), allow_anonymous }),
    }
}

fn open(handoff: &Handoff, peer: Peer, framing: Framing) -> Client<UnixStream> {
    let stream = handoff.open(peer, framing).unwrap();
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    Client(stream)
}

#[test]
fn every_worker_takes_some_and_they_meet_clients_of_listeners() {
    let site = TestServer::start(2, vec![Carrier::TCP]);
    let handoff = site.server.handoff();
    let mut all: Vec<_> = (0..4).map(|_| open(&handoff, peer(true), Framing::Bytes)).collect();
    for (number, client) in all.iter_mut().enumerate() {
        client.connect(&format!("handed{number}"));
        client.subscribe("t");
    }
    let opened = |kind: TransportKind| {
        site.broker.metrics().sum(|shard| &shard.connections_opened[kind.index()])
    };
    assert_eq!(opened(TransportKind::WebTransport), 4);
    site.client("plain").send(&common::publish("t", b"to all"));
    for client in &mut all {
        assert_eq!(client.receive("t"), b"to all");
    }
    drop(all);
    eventually("their ends to be noticed", || site.connections() == 0);
}

#[test]
fn websocket_frames_are_read_as_on_a_listener() {
    let site = TestServer::start(1, vec![Carrier::TCP]);
    let mut client = open(&site.server.handoff(), peer(true), Framing::WebSocket);
    let connect = common::connect("framed");
    // Masked with zeros, which changes nothing.
    let header = [&[0x82, 0x80 | connect.len() as u8][..], &[0; 4]].concat();
    client.send(&[header, connect].concat());
    let (first, body) = client.next();
    assert_eq!((first, body[0]), (0x82, 0x20), "a binary frame with CONNACK");
}

#[test]
fn the_peers_own_policy_holds() {
    let site = TestServer::start(1, vec![Carrier::TCP]);
    let mut client = open(&site.server.handoff(), peer(false), Framing::Bytes);
    assert_eq!(client.try_connect("nobody"), 0x87, "who are you?");
}

#[test]
fn draining_tells_them_and_takes_no_more() {
    let site = TestServer::start(2, vec![Carrier::TCP]);
    let handoff = site.server.handoff();
    let mut client = open(&handoff, peer(true), Framing::Bytes);
    client.connect("told");
    let draining = std::thread::spawn(move || site.server.drain(PATIENCE));
    let (first, body) = client.next();
    assert_eq!((first, body[0]), (0xe0, 0x8b), "DISCONNECT, server shutting down");
    client.expect_end();
    drop(client);
    draining.join().unwrap();
    let refused = handoff.open(peer(true), Framing::Bytes).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotConnected);
}
