//! Whether a connection survives a bad minute, in simulated time and with the settings of real ones.
#![allow(clippy::unwrap_used)]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;

use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::{
    Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, Event, ServerConfig, StreamId,
};

use super::*;

const DELAY: Duration = Duration::from_millis(50);
const SECOND: Duration = Duration::from_secs(1);
/// When the link becomes bad, and when the run ends.
const BAD_FROM: Duration = Duration::from_secs(10);
const END: Duration = Duration::from_secs(180);
const MESSAGE: [u8; 100] = [b'x'; 100];
/// Events that no run needs.
const MAX_STEPS: u32 = 1_000_000;

struct End {
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    address: SocketAddr,
    lost: Option<String>,
}

/// A datagram that arrives: the time, the order and the end.
type Arrival = Reverse<(Duration, u64, usize, Vec<u8>)>;

/// A client, a broker, and the link between them.
struct World {
    start: Instant,
    now: Duration,
    ends: [End; 2],
    arrivals: BinaryHeap<Arrival>,
    count: u64,
    random: fastrand::Rng,
    loss: f64,
    bad_for: Duration,
    stream: Option<StreamId>,
    written: usize,
    received: usize,
}

/// The transport configuration of a client with these options, and the certificate that it trusts.
pub(crate) fn configs() -> (quinn_proto::ClientConfig, ServerConfig) {
    let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = issued.signing_key.serialize_der().try_into().unwrap();
    let certificate = issued.cert.der().clone();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let tls = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let options = Options::new("quic://localhost").unwrap();
    let dialer = QuicDialer::new(tls, &options).unwrap();
    let mut client = dialer.config.clone();
    client.transport_config(Arc::new(dialer.transport(None).unwrap()));
    let tls = rustls::ServerConfig::builder().with_no_client_auth();
    let mut tls = tls.with_single_cert(vec![certificate], key).unwrap();
    tls.alpn_protocols = vec![b"mqtt".to_vec()];
    let mut server = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()));
    // The broker accepts any silence that a Keep Alive may allow.
    let mut transport = TransportConfig::default();
    transport.max_idle_timeout(Some(IdleTimeout::try_from(100_000 * SECOND).unwrap()));
    server.transport_config(Arc::new(transport));
    (client, server)
}

impl World {
    fn new(loss: f64, bad_for: Duration, seed: u64) -> World {
        let (client, server) = configs();
        let start = Instant::now();
        let end = |server: Option<ServerConfig>, port: u16| End {
            endpoint: Endpoint::new(
                Arc::new(EndpointConfig::default()),
                server.map(Arc::new),
                true,
                Some([seed as u8; 32]),
            ),
            connection: None,
            address: SocketAddr::from(([192, 0, 2, 1], port)),
            lost: None,
        };
        let mut ends = [end(None, 1000), end(Some(server), 1001)];
        let to = ends[1].address;
        ends[0].connection =
            Some(ends[0].endpoint.connect(start, client, to, "localhost").unwrap());
        World {
            start,
            now: Duration::ZERO,
            ends,
            arrivals: BinaryHeap::new(),
            count: 0,
            random: fastrand::Rng::with_seed(seed),
            loss,
            bad_for,
            stream: None,
            written: 0,
            received: 0,
        }
    }

    /// A message each second until ten seconds before the end.
    fn run(mut self) -> World {
        for _ in 0..MAX_STEPS {
            for end in 0..2 {
                self.work(end);
            }
            let next_second = Duration::from_secs(self.now.as_secs() + 1);
            let timers =
                self.ends.iter_mut().filter_map(|end| end.connection.as_mut()?.1.poll_timeout());
            let next = timers.map(|at| at.saturating_duration_since(self.start)).min();
            let arrival = self.arrivals.peek().map(|next| next.0.0);
            let next = [next, arrival, Some(next_second)].into_iter().flatten().min();
            self.now = self.now.max(next.unwrap());
            if self.now >= END {
                return self;
            }
            self.receive();
        }
        panic!("it never ends");
    }

    fn work(&mut self, index: usize) {
        let now = self.start + self.now;
        let due = (self.now.min(END - 10 * SECOND)).as_secs() as usize;
        let mut sent = Vec::new();
        let end = &mut self.ends[index];
        let Some((handle, connection)) = &mut end.connection else { return };
        connection.handle_timeout(now);
        while let Some(event) = connection.poll() {
            if let Event::ConnectionLost { reason } = event {
                end.lost = Some(reason.to_string());
            }
        }
        if index == 0 && !connection.is_handshaking() && end.lost.is_none() {
            let id =
                *self.stream.get_or_insert_with(|| connection.streams().open(Dir::Bi).unwrap());
            while self.written < due {
                connection.send_stream(id).write(&MESSAGE).unwrap();
                self.written += 1;
            }
        }
        if index == 1 {
            self.received += read(connection, &mut self.stream);
        }
        let mut buffer = Vec::new();
        while let Some(transmit) = connection.poll_transmit(now, 1, &mut buffer) {
            sent.push(buffer[..transmit.size].to_vec());
            buffer.clear();
        }
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = end.endpoint.handle_event(*handle, event) {
                connection.handle_event(event);
            }
        }
        for datagram in sent {
            let is_bad = self.now >= BAD_FROM && self.now < BAD_FROM + self.bad_for;
            if is_bad && self.random.f64() < self.loss {
                continue;
            }
            self.count += 1;
            self.arrivals.push(Reverse((self.now + DELAY, self.count, 1 - index, datagram)));
        }
    }

    fn receive(&mut self) {
        while self.arrivals.peek().is_some_and(|next| next.0.0 <= self.now) {
            let Some(Reverse((_, _, index, datagram))) = self.arrivals.pop() else { break };
            let (now, from) = (self.start + self.now, self.ends[1 - index].address);
            let end = &mut self.ends[index];
            let mut answer = Vec::new();
            match end.endpoint.handle(now, from, None, None, datagram[..].into(), &mut answer) {
                Some(DatagramEvent::ConnectionEvent(_, event)) => {
                    if let Some((_, connection)) = &mut end.connection {
                        connection.handle_event(event);
                    }
                }
                Some(DatagramEvent::NewConnection(incoming)) => {
                    let accepted = end.endpoint.accept(incoming, now, &mut answer, None);
                    end.connection = Some(accepted.unwrap());
                }
                Some(DatagramEvent::Response(_)) | None => {}
            }
        }
    }
}

/// The number of bytes that can be read.
fn read(connection: &mut Connection, stream: &mut Option<StreamId>) -> usize {
    connection.streams().accept(Dir::Bi);
    let Some(id) = *stream else { return 0 };
    let mut from = connection.recv_stream(id);
    let Ok(mut chunks) = from.read(true) else { return 0 };
    let mut bytes = 0;
    while let Ok(Some(chunk)) = chunks.next(usize::MAX) {
        bytes += chunk.bytes.len();
    }
    let _ = chunks.finalize();
    bytes
}

#[test]
fn a_connection_survives_a_bad_minute() {
    for (loss, bad_for) in [(1.0, 45 * SECOND), (0.5, 60 * SECOND), (1.0, 60 * SECOND)] {
        for seed in 1..=10 {
            let world = World::new(loss, bad_for, seed).run();
            let lost = world.ends.each_ref().map(|end| end.lost.clone());
            assert_eq!(lost, [None, None], "{loss} for {bad_for:?}, seed {seed}");
            assert_eq!(world.received, world.written * MESSAGE.len(), "seed {seed}");
        }
    }
}

#[test]
fn a_broker_that_is_gone_is_noticed() {
    let world = World::new(1.0, END, 1).run();
    assert!(world.ends[0].lost.is_some());
}
