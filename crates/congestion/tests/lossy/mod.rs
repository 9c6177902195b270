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
use fulmar_congestion::copies::{
    Copied, Copies, CopyQueue, FirstFlights, SentDatagram, SharedCopies, share,
};
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::{
    ClientConfig, Connection, ConnectionEvent, ConnectionHandle, DatagramEvent, Endpoint,
    EndpointConfig, ServerConfig, TransportConfig,
};
use rustls::pki_types::PrivateKeyDer;

/// Which ends send copies, and what they know of the path at the beginning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Mode {
    pub(crate) copies: bool,
    /// First flights are sent again as a whole.
    pub(crate) first_flights: bool,
    /// The loss that an earlier connection found: at the client, at the server.
    pub(crate) known: [f64; 2],
    /// The congestion control of both ends.
    pub(crate) control: Congestion,
}

pub(crate) const OFF: Mode =
    Mode { copies: false, first_flights: false, known: [0.0; 2], control: Congestion::Cubic };
pub(crate) const FRESH: Mode = Mode { copies: true, ..OFF };

/// A path: time one way, and the shares lost on the way to the server and back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Path {
    pub(crate) delay: Duration,
    pub(crate) loss: [f64; 2],
    /// Bits per second on the way to the server and back; 0 for any number.
    pub(crate) rate: [u64; 2],
    /// A datagram may take up to this more or less, and overtakes none.
    pub(crate) jitter: Duration,
}

impl Path {
    /// How long a datagram with its headers is being sent from an end.
    pub(crate) fn takes(&self, end: usize, bytes: usize) -> Duration {
        let bits = 8 * (bytes as u64 + 28);
        match self.rate[end] {
            0 => Duration::ZERO,
            rate => Duration::from_nanos(bits * 1_000_000_000 / rate),
        }
    }

    /// How long the way takes this time.
    pub(crate) fn lasts(&self, random: &mut fastrand::Rng) -> Duration {
        self.delay + self.jitter.mul_f64(2.0 * random.f64()) - self.jitter
    }
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
    /// As the client does it, and the broker: until the handshake has ended and was answered.
    first: Option<FirstFlights<Vec<u8>>>,
    /// The client's measurement: from the first datagram to the first answer.
    round_trip: Option<Duration>,
    withheld: Vec<ConnectionEvent>,
    begun: Option<Instant>,
    has_sent_short: bool,
    /// The server's: ACK frames received when the last datagram was sent; one came since, but too soon.
    acks: u64,
    is_answered_early: bool,
    is_validated: bool,
    /// Of an end whose peer's address is not validated: bytes received and sent, copies included.
    exchanged: [usize; 2],
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
    /// When the link is free again, and when the last datagram arrives, in each direction.
    free_at: [Duration; 2],
    latest: [Duration; 2],
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
            first: mode.first_flights.then(|| FirstFlights::new(at)),
            round_trip: None,
            withheld: Vec::new(),
            begun: None,
            has_sent_short: false,
            acks: 0,
            is_answered_early: false,
            is_validated: true,
            exchanged: [0; 2],
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
        let (free_at, latest) = ([now; 2], [now; 2]);
        Pair { ends, path, loses: true, arrivals, count: 0, free_at, latest, random, start }
    }

    /// When something happens next.
    pub(crate) fn next(&mut self) -> Option<Duration> {
        let start = self.start;
        let own = self.ends.iter_mut().flat_map(|end| {
            let timeout = end.connection.as_mut().and_then(|(_, inner)| inner.poll_timeout());
            [timeout, end.waiting.next(), end.first.as_ref().and_then(FirstFlights::next)]
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
            own.repeat_first_flights(at, &mut again);
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
        let sent = self.free_at[end].max(now) + self.path.takes(end, datagram.len());
        self.free_at[end] = sent;
        if self.loses && self.random.f64() < self.path.loss[end] {
            return;
        }
        let arrives = (sent + self.path.lasts(&mut self.random)).max(self.latest[end]);
        self.latest[end] = arrives;
        self.count += 1;
        self.arrivals.push(Reverse((arrives, self.count, 1 - end, datagram)));
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
        self.exchanged[0] += datagram.len();
        let was_up = self.connection.as_ref().is_some_and(|(_, inner)| !inner.is_handshaking());
        match self.endpoint.handle(now, from, None, None, BytesMut::from(datagram), &mut answer) {
            Some(DatagramEvent::ConnectionEvent(_, event)) => {
                if let Some((_, connection)) = &mut self.connection {
                    // quinn drops packets that overtake the end of the handshake, and copies of them later.
                    if datagram[0] & 0x80 == 0
                        && self.first.is_some()
                        && connection.is_handshaking()
                    {
                        self.withheld.push(event);
                        return;
                    }
                    connection.handle_event(event);
                    if !connection.is_handshaking() {
                        self.withheld.drain(..).for_each(|event| connection.handle_event(event));
                    }
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                self.is_validated = incoming.remote_address_validated();
                let accepted = self.endpoint.accept(incoming, now, &mut answer, None);
                self.connection = Some(accepted.unwrap());
            }
            Some(DatagramEvent::Response(_)) | None => {}
        }
        self.heard(now, was_up);
    }

    /// What the arrival of a datagram says about the first flights: at the client by acknowledgements, at the server by
    /// the progress of the handshake.
    fn heard(&mut self, now: Instant, was_up: bool) {
        let Some((_, connection)) = &self.connection else { return };
        let Some(first) = &mut self.first else { return };
        let is_up = !connection.is_handshaking();
        if connection.side().is_client() {
            let since = self.begun.get_or_insert(now);
            self.round_trip.get_or_insert(now - *since);
            return;
        }
        let acks = connection.stats().frame_rx.acks;
        self.round_trip = (acks > 0).then(|| connection.rtt());
        if !is_up {
            first.poked(now, self.round_trip);
        } else if !was_up {
            first.answered();
        } else if acks > self.acks {
            let since = first.waiting_since().unwrap_or(now);
            self.is_answered_early = now - since < connection.rtt() / 2;
            self.first.take_if(|_| !self.is_answered_early);
        }
    }

    /// Lets the client's first flights know what is acknowledged; they end when all is that was sent with keys of the
    /// handshake's end.
    fn settle(&mut self) {
        let Some(Copier::Watched(copies)) = &self.copier else { return };
        let Some(news) = share(copies).take_acknowledged() else { return };
        match &mut self.first {
            Some(_) if news.is_all && self.has_sent_short => self.first = None,
            Some(first) if news.is_all => first.answered(),
            Some(first) => first.acknowledged(news.sent, |datagram| datagram[0] & 0xB0 == 0x80),
            None => {}
        }
    }

    fn repeat_first_flights(&mut self, now: Instant, again: &mut Vec<Vec<u8>>) {
        self.settle();
        let Some(first) = &mut self.first else { return };
        let is_bounded = !self.is_validated
            && self.connection.as_ref().is_some_and(|(_, inner)| inner.is_handshaking());
        let [received, sent] = &mut self.exchanged;
        first.send_due(now, self.round_trip, |datagram| {
            if !is_bounded || *sent + datagram.len() <= 3 * *received {
                *sent += datagram.len();
                again.push(datagram.clone());
            }
        });
        if !again.is_empty() && self.is_answered_early {
            self.first = None;
        }
    }

    /// Datagrams to be sent now; copies of them are kept.
    fn output(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let mut datagrams = Vec::new();
        loop {
            let Some((_, connection)) = &mut self.connection else { return datagrams };
            if let Some(copier) = &mut self.copier {
                copier.look(connection, now);
            }
            let mut buffer = Vec::new();
            self.settle();
            let Some((handle, connection)) = &mut self.connection else { return datagrams };
            while let Some(transmit) = connection.poll_transmit(now, 1, &mut buffer) {
                self.sent.datagrams += 1;
                self.sent.bytes += transmit.size as u64;
                let is_handshake = buffer[0] & 0x80 != 0;
                let is_validated = self.is_validated || !connection.is_handshaking();
                if let Some(copier) = &mut self.copier {
                    let sent = SentDatagram { bytes: transmit.size, is_handshake, is_validated };
                    copier.sent(now, sent, &mut self.waiting, &buffer);
                }
                self.exchanged[1] += buffer.len();
                self.begun.get_or_insert(now);
                if let Some(first) = &mut self.first {
                    first.sent(now, self.round_trip, buffer.len(), || buffer.clone());
                    self.acks = connection.stats().frame_rx.acks;
                    self.is_answered_early = false;
                    self.has_sent_short |= !is_handshake;
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

    fn sent(
        &mut self,
        now: Instant,
        sent: SentDatagram,
        waiting: &mut CopyQueue<Vec<u8>>,
        bytes: &[u8],
    ) {
        let plan = match self {
            Copier::Watched(copies) => share(copies).sent(now, sent),
            Copier::Looking { copies: Some(copies), .. } => copies.sent(now, sent),
            Copier::Looking { .. } => return,
        };
        waiting.push(now, plan, || bytes.to_vec());
    }
}
