//! Passive round-trip times compared with the endpoints' own: two real QUIC endpoints (quinn's, in virtual time) over
//! the link model, observed at the client.

#![allow(clippy::unwrap_used)]

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmar_lab::link::{Direction, HostId, Link, LinkConfig, Output};
use fulmar_lab::observe::{FlowReport, FlowView, Flows, Observer, SpinReport};
use fulmar_lab::units::{MILLISECOND, Nanos, SECOND};
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig,
    ServerConfig, StreamId, Transmit,
};

const HERE: HostId = HostId(0);
const THERE: HostId = HostId(1);
const CLIENT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(198, 18, 0, 2), 4000);
const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(198, 18, 1, 2), 14_567);
const LENGTH: Nanos = 20 * SECOND;

/// An endpoint and its one connection.
struct Side {
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    stream: Option<StreamId>,
    address: SocketAddrV4,
    peer: SocketAddrV4,
}

impl Side {
    fn new(
        server: Option<ServerConfig>,
        address: SocketAddrV4,
        peer: SocketAddrV4,
        seed: u8,
    ) -> Side {
        let mut config = EndpointConfig::default();
        config.rng_seed(Some([seed; 32]));
        let endpoint = Endpoint::new(Arc::new(config), server.map(Arc::new), false, None);
        Side { endpoint, connection: None, stream: None, address, peer }
    }

    fn receive(&mut self, now: Instant, payload: &[u8]) {
        let mut buffer = Vec::new();
        let from = SocketAddr::V4(self.peer);
        match self.endpoint.handle(now, from, None, None, payload.into(), &mut buffer) {
            Some(DatagramEvent::NewConnection(incoming)) => {
                let accepted = self.endpoint.accept(incoming, now, &mut buffer, None);
                self.connection = Some(accepted.unwrap());
            }
            Some(DatagramEvent::ConnectionEvent(_, event)) => {
                self.connection.as_mut().unwrap().1.handle_event(event);
            }
            _ => {}
        }
    }

    /// Runs timers, writes a little, reads everything; returns the datagrams to be sent.
    fn drive(&mut self, now: Instant, writes: bool) -> Vec<Vec<u8>> {
        let Some((handle, connection)) = &mut self.connection else { return Vec::new() };
        if connection.poll_timeout().is_some_and(|at| at <= now) {
            connection.handle_timeout(now);
        }
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(*handle, event) {
                connection.handle_event(event);
            }
        }
        while connection.poll().is_some() {}
        if writes && !connection.is_handshaking() {
            if self.stream.is_none() {
                self.stream = connection.streams().open(Dir::Uni);
            }
            let _ = self.stream.map(|stream| connection.send_stream(stream).write(&[7; 200]));
        }
        while let Some(stream) = connection.streams().accept(Dir::Uni) {
            self.stream = Some(stream);
        }
        if let Some(stream) = self.stream.filter(|_| !writes && self.address == SERVER)
            && let Ok(mut chunks) = connection.recv_stream(stream).read(true)
        {
            while let Ok(Some(_)) = chunks.next(usize::MAX) {}
            let _ = chunks.finalize();
        }
        let (mut datagrams, mut buffer) = (Vec::new(), Vec::new());
        while let Some(Transmit { size, .. }) = connection.poll_transmit(now, 1, &mut buffer) {
            datagrams.push(ip_packet(self.address, self.peer, &buffer[..size]));
            buffer.clear();
        }
        datagrams
    }
}

/// An IPv4 UDP packet without checksums, which the model does not look at.
fn ip_packet(from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    packet.extend_from_slice(&((28 + payload.len()) as u16).to_be_bytes());
    packet.extend_from_slice(&[0, 0, 0x40, 0, 64, 17, 0, 0]);
    packet.extend_from_slice(&from.ip().octets());
    packet.extend_from_slice(&to.ip().octets());
    packet.extend_from_slice(&from.port().to_be_bytes());
    packet.extend_from_slice(&to.port().to_be_bytes());
    packet.extend_from_slice(&((8 + payload.len()) as u16).to_be_bytes());
    packet.extend_from_slice(&[0, 0]);
    packet.extend_from_slice(payload);
    packet
}

fn sides(now: Instant, seeds: (u8, u8)) -> (Side, Side) {
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let chain = vec![certified.cert.der().clone()];
    let key = rustls_pki_types::PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(chain[0].clone()).unwrap();
    let server = ServerConfig::with_single_cert(chain, key.into()).unwrap();
    let client = ClientConfig::with_root_certificates(Arc::new(roots)).unwrap();
    let (mut near, far) = (
        Side::new(None, CLIENT, SERVER, seeds.0),
        Side::new(Some(server), SERVER, CLIENT, seeds.1),
    );
    let connected = near.endpoint.connect(now, client, SERVER.into(), "localhost");
    near.connection = Some(connected.unwrap());
    (near, far)
}

/// A client that writes something every 2 ms for a while; returns the spin bit's report, and the client's own
/// estimate of the round-trip time.
fn watch(settings: &[(&str, &str)], seeds: (u8, u8)) -> (SpinReport, Duration) {
    let (flow, own) = observe(settings, seeds);
    let report = FlowReport::from(&flow);
    assert_eq!(report.protocol, "quic");
    (report.spin.unwrap(), own)
}

/// The client's flow, and its own estimate.
fn observe(settings: &[(&str, &str)], seeds: (u8, u8)) -> (FlowView, Duration) {
    let mut config = LinkConfig::default();
    for (key, value) in settings {
        config.set(key, value).unwrap();
    }
    let mut link = Link::new(config, 4).unwrap();
    let mut flows = Flows::at(HERE);
    let begin = Instant::now();
    let (mut near, mut far) = sides(begin, seeds);
    let mut at: Nanos = 0;
    while at < LENGTH {
        let now = begin + Duration::from_nanos(at);
        while let Some(output) = link.poll_event(at) {
            let Output::Arrive { direction, packet, .. } = output else { continue };
            match direction {
                Direction::Up => {
                    flows.delivered(at, THERE, &packet);
                    far.receive(now, &packet[28..]);
                }
                Direction::Down => {
                    flows.delivered(at, HERE, &packet);
                    near.receive(now, &packet[28..]);
                }
            }
        }
        for packet in near.drive(now, at.is_multiple_of(2 * MILLISECOND)) {
            flows.sent(at, HERE, &packet);
            link.receive(at, Direction::Up, packet, 0);
        }
        for packet in far.drive(now, false) {
            flows.sent(at, THERE, &packet);
            link.receive(at, Direction::Down, packet, 0);
        }
        at += MILLISECOND / 2;
    }
    (flows.flows()[0].clone(), near.connection.unwrap().1.rtt())
}

/// Each endpoint disables the bit for one connection in eight and then sets it at random (RFC 9000, 17.4). Whether it
/// does follows from the seeds of client and server.
const BOTH_TAKE_PART: (u8, u8) = (0, 0);
const CLIENT_AT_RANDOM: (u8, u8) = (1, 0);
const SERVER_AT_RANDOM: (u8, u8) = (0, 1);

/// Whether a passive round-trip time is within `percent` of the client's own.
fn agrees(passive: Nanos, own: Duration, percent: u128) -> bool {
    u128::from(passive).abs_diff(own.as_nanos()) * 100 <= percent * own.as_nanos()
}

#[test]
fn each_mode_agrees_with_the_endpoints() {
    let (spin, rtt) = watch(&[("delay", "50ms")], BOTH_TAKE_PART);
    assert!(spin.takes_part);
    for quantiles in [spin.one_way_to_server, spin.one_way_to_client, spin.two_way] {
        assert!(quantiles.sure > 150, "{quantiles:?}");
        assert!(agrees(quantiles.sure_p50, rtt, 2), "{quantiles:?} beside {rtt:?}");
    }
}

#[test]
fn reordering_is_handled() {
    let settings = [("delay", "50ms"), ("reorder", "3%"), ("reorder-by", "4ms")];
    let (spin, rtt) = watch(&settings, BOTH_TAKE_PART);
    assert!(spin.takes_part && spin.two_way.sure > 50, "{spin:?}");
    assert!(agrees(spin.two_way.sure_p50, rtt, 10), "{:?} beside {rtt:?}", spin.two_way);
}

#[test]
fn loss_is_handled() {
    // On such a lossy path, a sender has two or three packets in flight per round trip: hardly any sample is certain.
    let (spin, rtt) = watch(&[("delay", "50ms"), ("loss", "5%")], BOTH_TAKE_PART);
    assert!(spin.takes_part && spin.two_way.count > 50, "{spin:?}");
    assert!(agrees(spin.two_way.p50, rtt, 15), "{:?} beside {rtt:?}", spin.two_way);
}

#[test]
fn endpoints_that_do_not_take_part_are_told() {
    for seeds in [CLIENT_AT_RANDOM, SERVER_AT_RANDOM] {
        let (spin, _) = watch(&[("delay", "50ms")], seeds);
        assert!(!spin.takes_part, "{spin:?}");
    }
}

#[test]
fn the_paths_own_round_trip_is_known_whatever_the_bit_shows() {
    let settings = [("delay", "50ms"), ("loss", "5%"), ("reorder", "3%"), ("reorder-by", "4ms")];
    let (flow, _) = observe(&settings, BOTH_TAKE_PART);
    let samples = flow.spin_bit().two_way();
    let truths: Vec<Nanos> =
        samples.iter().filter_map(|one| flow.path_round_trip(one.at - one.rtt, one.at)).collect();
    assert!(truths.len() * 10 > samples.len() * 9, "{} of {}", truths.len(), samples.len());
    // A packet is taken from the link every half a millisecond, and few are held back by more.
    let near = |truth: &&Nanos| (100 * MILLISECOND..=102 * MILLISECOND).contains(*truth);
    let near = truths.iter().filter(near).count();
    assert!(near * 10 > truths.len() * 8, "{near} of {}: {truths:?}", truths.len());
    assert_eq!(flow.path_round_trip(0, 0), None, "nothing has arrived");
}
