//! Two ends of QUIC and a path that loses packets, in simulated time, with copies as clients and the broker send them:
//! `cases` has what is done over it, `tcp` a model of what TCP makes of the same.
#![allow(clippy::unwrap_used, dead_code)]

pub(crate) mod cases;
pub(crate) mod tcp;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use fulmar_congestion::Congestion;
use fulmar_congestion::copies::{Copied, Copies, CopyQueue, Sent, SharedCopies, share};
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Endpoint, EndpointConfig,
    ServerConfig, TransportConfig,
};
use rustls::pki_types::PrivateKeyDer;

/// Which ends send copies, and what they know of the path at the beginning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Mode {
    pub(crate) copies: bool,
    /// The loss that an earlier connection found: at the client, at the server.
    pub(crate) known: [f64; 2],
    /// The congestion control of both ends.
    pub(crate) control: Congestion,
}

pub(crate) const OFF: Mode = Mode { copies: false, known: [0.0; 2], control: Congestion::Cubic };
pub(crate) const FRESH: Mode = Mode { copies: true, ..OFF };

/// A path: time one way, and the shares lost on the way to the server and back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) delay: Duration,
    pub(crate) loss: [f64; 2],
}

/// Certificates, and the tickets of clients: one for all runs that are to share tickets.
#[derive(Clone)]
pub(crate) struct Keys {
    server: ServerConfig,
    client: ClientConfig,
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
        let mut tls = tls.with_single_cert(vec![certificate], key).unwrap();
        tls.max_early_data_size = u32::MAX;
        let server = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()));
        let tls = rustls::ClientConfig::builder_with_provider(provider);
        let tls = tls.with_protocol_versions(versions).unwrap();
        let mut tls = tls.with_root_certificates(roots).with_no_client_auth();
        tls.enable_early_data = true;
        let client = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
        Keys { server, client }
    }
}

fn transport(control: Congestion, round_trip: Option<Duration>) -> TransportConfig {
    let mut config = TransportConfig::default();
    config.mtu_discovery_config(None).congestion_controller_factory(control.factory());
    config.max_idle_timeout(Some(Duration::from_secs(60).try_into().unwrap()));
    if let Some(round_trip) = round_trip {
        config.initial_rtt(round_trip);
    }
    config
}

/// How an end knows what it loses.
pub(crate) enum Copier {
    /// From its controller, as the client does.
    Watched(SharedCopies),
    /// From statistics, as the broker does, which looks every so often.
    Looking {
        copies: Option<Box<Copies>>,
        known: f64,
        look_at: Instant,
        sent: u64,
        lost: u64,
        acks: u64,
    },
}

const LOOK: Duration = Duration::from_millis(100);

/// One end.
pub(crate) struct End {
    endpoint: Endpoint,
    pub(crate) connection: Option<(ConnectionHandle, Connection)>,
    address: SocketAddr,
    pub(crate) copier: Option<Copier>,
    waiting: CopyQueue<Vec<u8>>,
    is_validated: bool,
    /// Datagrams and bytes sent, without copies.
    pub(crate) sent: Copied,
    pub(crate) copied: Copied,
}

type Arrival = Reverse<(Duration, u64, usize, Vec<u8>)>;

/// A client, a server and the path between them.
pub(crate) struct Pair {
    pub(crate) ends: [End; 2],
    path: Path,
    /// What is sent now may be lost.
    pub(crate) loses: bool,
    arrivals: BinaryHeap<Arrival>,
    count: u64,
    random: fastrand::Rng,
    start: Instant,
}

impl Pair {
    /// A connection that begins at `now`.
    pub(crate) fn new(
        keys: &Keys,
        path: Path,
        mode: Mode,
        round_trip: Option<Duration>,
        (start, now): (Instant, Duration),
        seed: u64,
    ) -> Pair {
        let at = start + now;
        let mut random = fastrand::Rng::with_seed(seed);
        let [mut client, mut server] = [1000, 1001].map(|port| End {
            endpoint: Endpoint::new(
                Arc::new(EndpointConfig::default()),
                None,
                true,
                Some(std::array::from_fn(|_| random.u8(..))),
            ),
            connection: None,
            address: SocketAddr::from(([192, 0, 2, 1], port)),
            copier: None,
            waiting: CopyQueue::new(64),
            is_validated: true,
            sent: Copied::default(),
            copied: Copied::default(),
        });
        let mut config = keys.server.clone();
        // A server that knows what the client's network loses knows its round trip, too.
        let known = round_trip.filter(|_| mode.known[1] > 0.0);
        config.transport_config(Arc::new(transport(mode.control, known)));
        server.endpoint.set_server_config(Some(Arc::new(config)));
        server.is_validated = false;
        let mut config = keys.client.clone();
        let mut own = transport(mode.control, round_trip);
        if mode.copies {
            let copies = Arc::new(Mutex::new(Copies::new(at, mode.known[0])));
            own.congestion_controller_factory(mode.control.factory_watched_by(&copies));
            client.copier = Some(Copier::Watched(copies));
            let [_, known] = mode.known;
            let copies = (known > 0.0).then(|| Box::new(Copies::new(at, known)));
            let (look_at, sent, lost, acks) = (at + LOOK, 0, 0, 0);
            server.copier = Some(Copier::Looking { copies, known, look_at, sent, lost, acks });
        }
        config.transport_config(Arc::new(own));
        let connected = client.endpoint.connect(at, config, server.address, "localhost").unwrap();
        client.connection = Some(connected);
        let (ends, arrivals) = ([client, server], BinaryHeap::new());
        Pair { ends, path, loses: true, arrivals, count: 0, random, start }
    }

    /// When something happens next.
    pub(crate) fn next(&mut self) -> Option<Duration> {
        let start = self.start;
        let own = self.ends.iter_mut().flat_map(|end| {
            let timeout = end.connection.as_mut().and_then(|(_, inner)| inner.poll_timeout());
            [timeout, end.waiting.next()]
        });
        let own = own.flatten().map(|at| at.saturating_duration_since(start));
        own.chain(self.arrivals.peek().map(|next| next.0.0)).min()
    }

    /// Does what is due: timers, what arrives, copies, and what there is to send.
    pub(crate) fn act(&mut self, now: Duration) {
        let at = self.start + now;
        while self.arrivals.peek().is_some_and(|next| next.0.0 <= now) {
            let Some(Reverse((_, _, end, datagram))) = self.arrivals.pop() else { break };
            let from = self.ends[1 - end].address;
            self.ends[end].receive(at, from, &datagram);
            self.transmit(end, now);
        }
        for end in 0..2 {
            let own = &mut self.ends[end];
            if let Some((_, connection)) = &mut own.connection
                && connection.poll_timeout().is_some_and(|timeout| timeout <= at)
            {
                connection.handle_timeout(at);
            }
            let mut again = Vec::new();
            own.waiting.send_due(at, |datagram| again.push(datagram.clone()));
            for datagram in again {
                let copied = &mut self.ends[end].copied;
                copied.datagrams += 1;
                copied.bytes += datagram.len() as u64;
                self.carry(end, now, datagram);
            }
            self.transmit(end, now);
        }
    }

    fn transmit(&mut self, end: usize, now: Duration) {
        for datagram in self.ends[end].output(self.start + now) {
            self.carry(end, now, datagram);
        }
    }

    fn carry(&mut self, end: usize, now: Duration, datagram: Vec<u8>) {
        if self.loses && self.random.f64() < self.path.loss[end] {
            return;
        }
        self.count += 1;
        self.arrivals.push(Reverse((now + self.path.delay, self.count, 1 - end, datagram)));
    }

    /// What the client has found that the path loses.
    pub(crate) fn known(&self) -> f64 {
        match &self.ends[0].copier {
            Some(Copier::Watched(copies)) => share(copies).loss(),
            _ => 0.0,
        }
    }

    /// The same of the server.
    pub(crate) fn known_by_server(&self) -> f64 {
        match &self.ends[1].copier {
            Some(Copier::Looking { copies: Some(copies), .. }) => copies.loss(),
            _ => 0.0,
        }
    }
}

impl End {
    fn receive(&mut self, now: Instant, from: SocketAddr, datagram: &[u8]) {
        let mut answer = Vec::new();
        match self.endpoint.handle(now, from, None, None, BytesMut::from(datagram), &mut answer) {
            Some(DatagramEvent::ConnectionEvent(_, event)) => {
                if let Some((_, connection)) = &mut self.connection {
                    connection.handle_event(event);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                self.is_validated = incoming.remote_address_validated();
                let accepted = self.endpoint.accept(incoming, now, &mut answer, None);
                self.connection = Some(accepted.unwrap());
            }
            Some(DatagramEvent::Response(_)) | None => {}
        }
    }

    /// Datagrams to be sent now; copies of them are kept.
    fn output(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let mut datagrams = Vec::new();
        loop {
            let Some((handle, connection)) = &mut self.connection else { return datagrams };
            if let Some(copier) = &mut self.copier {
                copier.look(connection, now);
            }
            let mut buffer = Vec::new();
            while let Some(transmit) = connection.poll_transmit(now, 1, &mut buffer) {
                self.sent.datagrams += 1;
                self.sent.bytes += transmit.size as u64;
                let is_handshake = buffer[0] & 0x80 != 0;
                let is_validated = self.is_validated || !connection.is_handshaking();
                if let Some(copier) = &mut self.copier {
                    let sent = Sent { bytes: transmit.size, is_handshake, is_validated };
                    copier.sent(now, sent, &mut self.waiting, &buffer);
                }
                datagrams.push(std::mem::take(&mut buffer));
            }
            let mut busy = false;
            while let Some(event) = connection.poll_endpoint_events() {
                if let Some(event) = self.endpoint.handle_event(*handle, event) {
                    connection.handle_event(event);
                    busy = true;
                }
            }
            if !busy {
                return datagrams;
            }
        }
    }
}

impl Copier {
    fn look(&mut self, connection: &Connection, now: Instant) {
        let Copier::Looking { copies, known, look_at, sent, lost, acks } = self else { return };
        let path = connection.stats().path;
        if now < *look_at || (path.lost_packets == 0 && copies.is_none()) {
            return;
        }
        *look_at = now + LOOK;
        let policy = copies.get_or_insert_with(|| Box::new(Copies::new(now, *known)));
        policy.observe(now, path.rtt, path.sent_packets - *sent, path.lost_packets - *lost);
        (*sent, *lost) = (path.sent_packets, path.lost_packets);
        let came = connection.stats().frame_rx.acks;
        if std::mem::replace(acks, came) != came {
            policy.acknowledged();
        }
    }

    fn sent(&mut self, now: Instant, sent: Sent, waiting: &mut CopyQueue<Vec<u8>>, bytes: &[u8]) {
        let plan = match self {
            Copier::Watched(copies) => share(copies).sent(now, sent),
            Copier::Looking { copies: Some(copies), .. } => copies.sent(now, sent),
            Copier::Looking { .. } => return,
        };
        waiting.push(now, plan, || bytes.to_vec());
    }
}
