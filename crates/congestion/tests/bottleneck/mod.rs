//! QUIC connections that share one bottleneck, in simulated time: a link with a rate, a delay, a queue, and random loss in
//! both directions. Runs with the same seed are equal, and do not wait.
#![allow(clippy::unwrap_used, dead_code)]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use fulmar_congestion::copies::{Copies, CopyQueue, SentDatagram, SharedCopies, share, watched};
use quinn_proto::congestion::ControllerFactory;
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig,
    Event, ServerConfig, StreamEvent, StreamId, TransportConfig, VarInt,
};
use rustls::pki_types::PrivateKeyDer;

/// Bytes of IP and UDP in front of each datagram.
const HEADERS: usize = 28;
/// Queueing delay before this time is not counted, because every control has to start.
const BEGINNING: Duration = Duration::from_secs(2);

pub(crate) type Control = Arc<dyn ControllerFactory + Send + Sync>;

/// The bottleneck, the same in both directions; only the forward direction has a short queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bottleneck {
    pub(crate) bits_per_second: f64,
    /// One way.
    pub(crate) delay: Duration,
    /// The longest queueing delay; datagrams that would wait longer are dropped.
    pub(crate) queue: Duration,
    /// Share of packets lost at random, in each direction, after the handshake.
    pub(crate) loss: f64,
}

/// A flow: its congestion control, its beginning and its size.
#[derive(Clone)]
pub(crate) struct Flow {
    pub(crate) control: Control,
    pub(crate) begin: Duration,
    pub(crate) bytes: usize,
    /// Unread bytes that the receiver allows.
    pub(crate) window: u32,
    /// The idle timeout.
    pub(crate) idle: Duration,
    /// The sender sends copies, as `fulmar send` does.
    pub(crate) copies: bool,
}

/// The result of a flow.
#[derive(Clone, Debug, Default)]
pub(crate) struct FlowResult {
    /// When its sender was connected, and when its last byte arrived, since the beginning of the run.
    pub(crate) connected: Option<Duration>,
    pub(crate) done: Option<Duration>,
    /// Bytes that arrived.
    pub(crate) bytes: usize,
    /// Bytes that arrived per tenth of a second.
    pub(crate) tenths: Vec<usize>,
    /// Why the connection ended early.
    pub(crate) died: Option<String>,
    /// Datagrams for which the queue had no room.
    pub(crate) dropped: u64,
    /// Queueing delays of its datagrams, in milliseconds.
    pub(crate) waits: Vec<f32>,
    /// The longest queueing delay.
    pub(crate) longest_wait: Duration,
}

impl FlowResult {
    /// Bytes per second, from its beginning to its end or that of the run.
    pub(crate) fn rate(&self, end: Duration) -> f64 {
        let begun = self.connected.unwrap_or(end);
        let end = self.done.unwrap_or(end);
        self.bytes as f64 / (end.saturating_sub(begun)).as_secs_f64().max(1e-3)
    }

    /// Bytes per second in a part of the run.
    pub(crate) fn rate_within(&self, from: Duration, to: Duration) -> f64 {
        let tenth = |at: Duration| (at.as_millis() / 100) as usize;
        let bytes: usize = self.tenths.iter().take(tenth(to)).skip(tenth(from)).sum();
        bytes as f64 / (to - from).as_secs_f64()
    }

    /// A percentile of the queueing delay, in milliseconds.
    pub(crate) fn wait(&self, percent: usize) -> f32 {
        let mut waits = self.waits.clone();
        waits.sort_by(f32::total_cmp);
        waits
            .get((waits.len() * percent / 100).min(waits.len().saturating_sub(1)))
            .copied()
            .unwrap_or(0.0)
    }
}

/// A direction of the bottleneck.
struct Direction {
    free_at: Duration,
    queue: Duration,
}

struct End {
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    address: SocketAddr,
    copies: Option<SharedCopies>,
    waiting: CopyQueue<Vec<u8>>,
}

struct Pair {
    flow: Flow,
    ends: [End; 2],
    wanted: Option<ClientConfig>,
    stream: Option<StreamId>,
    left: usize,
    reads: Option<StreamId>,
    /// The handshake is complete at both ends: later packets may be lost.
    is_connected: bool,
    result: FlowResult,
}

/// A datagram that arrives: the time, the order, the flow and the end.
type Arrival = Reverse<(Duration, u64, usize, usize, Vec<u8>)>;

struct World {
    bottleneck: Bottleneck,
    start: Instant,
    now: Duration,
    pairs: Vec<Pair>,
    directions: [Direction; 2],
    arrivals: BinaryHeap<Arrival>,
    count: u64,
    random: fastrand::Rng,
}

/// One certificate for all runs, because creating one takes long in an unoptimised build.
pub(crate) struct Keys {
    server: Arc<QuicServerConfig>,
    client: Arc<QuicClientConfig>,
}

impl Keys {
    pub(crate) fn new() -> Keys {
        let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(issued.signing_key.serialize_der()).unwrap();
        let certificate = issued.cert.der().clone();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = &[&rustls::version::TLS13];
        let tls = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider));
        let tls = tls.with_protocol_versions(versions).unwrap().with_no_client_auth();
        let tls = tls.with_single_cert(vec![certificate], key).unwrap();
        let server = Arc::new(QuicServerConfig::try_from(tls).unwrap());
        let tls = rustls::ClientConfig::builder_with_provider(provider);
        let tls = tls.with_protocol_versions(versions).unwrap();
        let tls = tls.with_root_certificates(roots).with_no_client_auth();
        let client = Arc::new(QuicClientConfig::try_from(tls).unwrap());
        Keys { server, client }
    }
}

fn transport(flow: &Flow, copies: Option<&SharedCopies>) -> Arc<TransportConfig> {
    let control = Arc::clone(&flow.control);
    let control = match copies {
        Some(copies) => watched(control, Arc::clone(copies)),
        None => control,
    };
    let mut config = TransportConfig::default();
    config
        .max_idle_timeout(Some(flow.idle.try_into().unwrap()))
        .mtu_discovery_config(None)
        .stream_receive_window(VarInt::from_u32(flow.window))
        .receive_window(VarInt::from_u32(flow.window))
        .send_window(4 * u64::from(flow.window))
        .congestion_controller_factory(control);
    Arc::new(config)
}

/// Runs flows over a bottleneck until all are done, at most for `longest`.
pub(crate) fn run(
    keys: &Keys,
    bottleneck: Bottleneck,
    flows: &[Flow],
    seed: u64,
    longest: Duration,
) -> Vec<FlowResult> {
    let direction = |queue| Direction { free_at: Duration::ZERO, queue };
    let directions =
        [direction(bottleneck.queue), direction(bottleneck.queue.max(Duration::from_secs(1)))];
    let pairs = flows.iter().enumerate().map(|(index, flow)| Pair::new(keys, flow, index, seed));
    let mut world = World {
        bottleneck,
        start: Instant::now(),
        now: Duration::ZERO,
        pairs: pairs.collect(),
        directions,
        arrivals: BinaryHeap::new(),
        count: 0,
        random: fastrand::Rng::with_seed(seed),
    };
    while world.now < longest && world.pairs.iter().any(Pair::is_going) {
        if !world.step() {
            break;
        }
    }
    world.pairs.into_iter().map(|pair| pair.result).collect()
}

impl World {
    /// Processes all events that are due, and advances the time to the next one.
    fn step(&mut self) -> bool {
        for index in 0..self.pairs.len() {
            self.act(index);
        }
        let arrival = self.arrivals.peek().map(|next| next.0.0);
        let start = self.start;
        let others = self.pairs.iter_mut().filter_map(|pair| pair.next(start));
        let Some(next) = others.chain(arrival).min() else { return false };
        self.now = self.now.max(next);
        while self.arrivals.peek().is_some_and(|next| next.0.0 <= self.now) {
            let Some(Reverse((_, _, index, end, datagram))) = self.arrivals.pop() else { break };
            self.deliver(index, end, &datagram);
        }
        true
    }

    fn act(&mut self, index: usize) {
        let now = self.start + self.now;
        let begins = self.now >= self.pairs[index].flow.begin;
        if let Some(wanted) = self.pairs[index].wanted.take_if(|_| begins) {
            let to = self.pairs[index].ends[1].address;
            let client = &mut self.pairs[index].ends[0];
            client.connection =
                Some(client.endpoint.connect(now, wanted, to, "localhost").unwrap());
        }
        loop {
            self.pairs[index].work(self.now);
            let mut busy = false;
            for end in 0..2 {
                let side = &mut self.pairs[index].ends[end];
                let Some((handle, connection)) = &mut side.connection else { continue };
                if connection.poll_timeout().is_some_and(|at| at <= now) {
                    connection.handle_timeout(now);
                    busy = true;
                }
                let mut out = Vec::new();
                let mut datagrams = Vec::new();
                side.waiting.send_due(now, |copy| datagrams.push(copy.clone()));
                while let Some(transmit) = connection.poll_transmit(now, 10, &mut out) {
                    let each = transmit.segment_size.unwrap_or(transmit.size);
                    if let Some(copies) = &side.copies {
                        let is_handshake = out[0] & 0x80 != 0;
                        let is_validated = transmit.size <= each;
                        let sent =
                            SentDatagram { bytes: transmit.size, is_handshake, is_validated };
                        let plan = share(copies).sent(now, sent);
                        side.waiting.push(now, plan, || out[..transmit.size].to_vec());
                    }
                    datagrams.extend(out[..transmit.size].chunks(each).map(<[u8]>::to_vec));
                    out.clear();
                }
                while let Some(event) = connection.poll_endpoint_events() {
                    if let Some(event) = side.endpoint.handle_event(*handle, event) {
                        connection.handle_event(event);
                    }
                    busy = true;
                }
                for datagram in datagrams {
                    self.send(index, end, datagram);
                    busy = true;
                }
            }
            if !busy {
                return;
            }
        }
    }

    fn send(&mut self, index: usize, end: usize, datagram: Vec<u8>) {
        let result = &mut self.pairs[index].result;
        let direction = &mut self.directions[end];
        let begin = direction.free_at.max(self.now);
        let wait = begin - self.now;
        if wait > direction.queue {
            result.dropped += u64::from(end == 0);
            return;
        }
        if let (0, Some(connected)) = (end, result.connected) {
            result.longest_wait = result.longest_wait.max(wait);
            if self.now > connected + BEGINNING {
                result.waits.push(wait.as_secs_f32() * 1e3);
            }
        }
        let bits = 8.0 * (datagram.len() + HEADERS) as f64;
        direction.free_at = begin + Duration::from_secs_f64(bits / self.bottleneck.bits_per_second);
        if self.pairs[index].is_connected && self.random.f64() < self.bottleneck.loss {
            return;
        }
        self.count += 1;
        let at = direction.free_at + self.bottleneck.delay;
        self.arrivals.push(Reverse((at, self.count, index, 1 - end, datagram)));
    }

    fn deliver(&mut self, index: usize, end: usize, datagram: &[u8]) {
        let now = self.start + self.now;
        let from = self.pairs[index].ends[1 - end].address;
        let side = &mut self.pairs[index].ends[end];
        let mut answer = Vec::new();
        match side.endpoint.handle(now, from, None, None, BytesMut::from(datagram), &mut answer) {
            Some(DatagramEvent::ConnectionEvent(_, event)) => {
                if let Some((_, connection)) = &mut side.connection {
                    connection.handle_event(event);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                let accepted = side.endpoint.accept(incoming, now, &mut answer, None);
                side.connection = Some(accepted.unwrap());
            }
            Some(DatagramEvent::Response(_)) | None => {}
        }
    }
}

impl Pair {
    fn new(keys: &Keys, flow: &Flow, index: usize, seed: u64) -> Pair {
        let now = Instant::now();
        let copies = flow.copies.then(|| Arc::new(Mutex::new(Copies::new(now, 0.0))));
        let mut config = ServerConfig::with_crypto(Arc::clone(&keys.server) as _);
        config.transport_config(transport(flow, None));
        let mut wanted = ClientConfig::new(Arc::clone(&keys.client) as _);
        wanted.transport_config(transport(flow, copies.as_ref()));
        let port = 1000 + 2 * u16::try_from(index).unwrap();
        let seed = seed as u8;
        let end = |server: Option<ServerConfig>, port: u16, copies| End {
            endpoint: Endpoint::new(
                Arc::new(EndpointConfig::default()),
                server.map(Arc::new),
                true,
                Some([seed.wrapping_add(port as u8); 32]),
            ),
            connection: None,
            address: SocketAddr::from(([192, 0, 2, 1], port)),
            copies,
            waiting: CopyQueue::new(64),
        };
        Pair {
            flow: flow.clone(),
            ends: [end(None, port, copies), end(Some(config), port + 1, None)],
            wanted: Some(wanted),
            stream: None,
            left: flow.bytes,
            reads: None,
            is_connected: false,
            result: FlowResult::default(),
        }
    }

    fn is_going(&self) -> bool {
        self.result.done.is_none() && self.result.died.is_none()
    }

    fn next(&mut self, start: Instant) -> Option<Duration> {
        if self.wanted.is_some() {
            return Some(self.flow.begin);
        }
        let timeouts = self.ends.iter_mut().flat_map(|end| {
            let timeout = end.connection.as_mut().and_then(|(_, inner)| inner.poll_timeout());
            [timeout, end.waiting.next()]
        });
        timeouts.flatten().map(|at| at.saturating_duration_since(start)).min()
    }

    /// Writes as much as the connection accepts, and reads what arrived.
    fn work(&mut self, now: Duration) {
        let [client, server] = &mut self.ends;
        if let Some((_, connection)) = &mut client.connection {
            while let Some(event) = connection.poll() {
                match event {
                    Event::Connected => {
                        self.result.connected = Some(now);
                        self.stream = connection.streams().open(Dir::Uni);
                    }
                    Event::ConnectionLost { reason } => {
                        self.result.died.get_or_insert(format!("sender: {reason}"));
                    }
                    _ => {}
                }
            }
            if let Some(id) = self.stream {
                let mut stream = connection.send_stream(id);
                while self.left > 0 {
                    let Ok(written) = stream.write(&[b'x'; 65_536][..self.left.min(65_536)]) else {
                        break;
                    };
                    self.left -= written;
                    if self.left == 0 {
                        stream.finish().unwrap();
                    }
                }
            }
        }
        if let Some((_, connection)) = &mut server.connection {
            self.is_connected = self.result.connected.is_some() && !connection.is_handshaking();
            while let Some(event) = connection.poll() {
                match event {
                    Event::Stream(StreamEvent::Opened { dir }) => {
                        self.reads = self.reads.or(connection.streams().accept(dir));
                    }
                    Event::ConnectionLost { reason } => {
                        self.result.died.get_or_insert(format!("receiver: {reason}"));
                    }
                    _ => {}
                }
            }
            let Some(id) = self.reads else { return };
            let mut stream = connection.recv_stream(id);
            let Ok(mut chunks) = stream.read(true) else { return };
            let tenth = (now.as_millis() / 100) as usize;
            loop {
                match chunks.next(usize::MAX) {
                    Ok(Some(chunk)) => {
                        self.result.bytes += chunk.bytes.len();
                        self.result.tenths.resize(tenth + 1, 0);
                        self.result.tenths[tenth] += chunk.bytes.len();
                    }
                    Ok(None) => {
                        self.result.done.get_or_insert(now);
                        break;
                    }
                    Err(_) => break,
                }
            }
            let _ = chunks.finalize();
        }
    }
}
