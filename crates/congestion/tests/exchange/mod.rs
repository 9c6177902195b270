//! A client and a server over QUIC, and the link between them in simulated time: every run is equal, and does not
//! wait.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use quinn_proto::congestion::ControllerFactory;
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig,
    Event, ReadError, ServerConfig, StreamEvent, StreamId, TransportConfig, WriteError,
};
use rustls::pki_types::PrivateKeyDer;

/// Bytes of IP and UDP in front of each datagram.
const HEADERS: usize = 28;

type Control = Arc<dyn ControllerFactory + Send + Sync>;

/// The same in both directions.
#[derive(Clone, Copy)]
pub(crate) struct Link {
    pub(crate) bits_per_second: u64,
    /// One way.
    pub(crate) delay: Duration,
    /// The longest queueing delay; datagrams that would wait longer are dropped.
    pub(crate) queue: Duration,
}

/// The result of an exchange.
#[derive(Debug)]
pub(crate) struct Took {
    pub(crate) time: Duration,
    /// Datagrams for which the queue had no room, so far.
    pub(crate) dropped: u64,
}

struct Lane {
    link: Link,
    free_at: Instant,
    dropped: u64,
    under_way: VecDeque<(Instant, BytesMut)>,
}

impl Lane {
    fn send(&mut self, now: Instant, datagram: &[u8]) {
        let begin = self.free_at.max(now);
        if begin - now > self.link.queue {
            self.dropped += 1;
            return;
        }
        let bits = 8 * (datagram.len() + HEADERS) as u64;
        let lasts = Duration::from_nanos(bits * 1_000_000_000 / self.link.bits_per_second);
        self.free_at = begin + lasts;
        self.under_way.push_back((self.free_at + self.link.delay, datagram.into()));
    }
}

struct End {
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    out: Lane,
    address: SocketAddr,
    /// Bytes still to write, by stream.
    owed: BTreeMap<StreamId, usize>,
    /// Bytes of a request or a response that have arrived.
    came: Vec<u8>,
    finished: bool,
}

/// A client that requests a number of bytes, and a server that sends them.
pub(crate) struct World {
    now: Instant,
    client: End,
    server: End,
}

fn transport(control: Control) -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    config.max_idle_timeout(None).mtu_discovery_config(None).congestion_controller_factory(control);
    Arc::new(config)
}

fn end(link: Link, now: Instant, port: u16, config: Option<ServerConfig>) -> End {
    let seed = [u8::from(config.is_some()); 32];
    let endpoint =
        Endpoint::new(Arc::new(EndpointConfig::default()), config.map(Arc::new), true, Some(seed));
    let out = Lane { link, free_at: now, dropped: 0, under_way: VecDeque::new() };
    let address = SocketAddr::from(([192, 0, 2, 1], port));
    let (owed, came) = (BTreeMap::new(), Vec::new());
    End { endpoint, connection: None, out, address, owed, came, finished: false }
}

impl World {
    /// A connected pair; both send under the same congestion control.
    pub(crate) fn connected(link: Link, control: &Control) -> World {
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
        let mut config =
            ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()));
        config.transport_config(transport(Arc::clone(control)));
        let tls = rustls::ClientConfig::builder_with_provider(provider);
        let tls = tls.with_protocol_versions(versions).unwrap();
        let tls = tls.with_root_certificates(roots).with_no_client_auth();
        let mut wanted = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
        wanted.transport_config(transport(Arc::clone(control)));
        let now = Instant::now();
        let mut client = end(link, now, 1, None);
        let server = end(link, now, 2, Some(config));
        let connection = client.endpoint.connect(now, wanted, server.address, "localhost");
        client.connection = Some(connection.unwrap());
        let mut world = World { now, client, server };
        world.run(|world| {
            let (_, connection) = world.client.connection.as_ref().unwrap();
            !connection.is_handshaking()
        });
        world
    }

    /// Lets time pass until nothing more happens, at most for `time`.
    pub(crate) fn rest(&mut self, time: Duration) {
        let until = self.now + time;
        self.run_until(Some(until), |world| world.now >= until);
    }

    /// Bytes the server may have in flight.
    pub(crate) fn server_window(&self) -> u64 {
        let (_, connection) = self.server.connection.as_ref().unwrap();
        connection.congestion_state().window()
    }

    /// Requests this many bytes.
    pub(crate) fn ask(&mut self, bytes: usize) -> Took {
        let begun = self.now;
        let (_, connection) = self.client.connection.as_mut().unwrap();
        let id = connection.streams().open(Dir::Bi).unwrap();
        let mut stream = connection.send_stream(id);
        stream.write(&(bytes as u64).to_be_bytes()).unwrap();
        stream.finish().unwrap();
        self.client.finished = false;
        self.client.came.clear();
        self.run(|world| world.client.finished);
        assert_eq!(self.client.came.len(), bytes);
        Took { time: self.now - begun, dropped: self.server.out.dropped }
    }

    fn run(&mut self, is_done: impl Fn(&World) -> bool) {
        self.run_until(None, is_done);
    }

    /// Runs until it `is_done`, or nothing is left to happen.
    fn run_until(&mut self, end: Option<Instant>, is_done: impl Fn(&World) -> bool) {
        for _ in 0..1_000_000 {
            self.client.act(self.now);
            self.server.act(self.now);
            if is_done(self) {
                return;
            }
            let moments = [self.client.next(), self.server.next(), end];
            let Some(next) = moments.into_iter().flatten().min() else { return };
            self.now = self.now.max(next);
            let (client, server) = (&mut self.client, &mut self.server);
            server.take_from(self.now, client);
            client.take_from(self.now, server);
        }
        panic!("it never ends");
    }
}

impl End {
    /// When its next event is due.
    fn next(&mut self) -> Option<Instant> {
        let timeout =
            self.connection.as_mut().and_then(|(_, connection)| connection.poll_timeout());
        let arrival = self.out.under_way.front().map(|(at, _)| *at);
        timeout.into_iter().chain(arrival).min()
    }

    /// Receives the datagrams that have arrived, and handles timeouts.
    fn take_from(&mut self, now: Instant, other: &mut End) {
        while other.out.under_way.front().is_some_and(|(at, _)| *at <= now) {
            let (_, datagram) = other.out.under_way.pop_front().unwrap();
            self.take(now, other.address, datagram);
            self.act(now);
        }
        if let Some((_, connection)) = &mut self.connection {
            connection.handle_timeout(now);
        }
    }

    fn take(&mut self, now: Instant, from: SocketAddr, datagram: BytesMut) {
        let mut answer = Vec::new();
        match self.endpoint.handle(now, from, None, None, datagram, &mut answer) {
            Some(DatagramEvent::ConnectionEvent(_, event)) => {
                if let Some((_, connection)) = &mut self.connection {
                    connection.handle_event(event);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                let accepted = self.endpoint.accept(incoming, now, &mut answer, None);
                self.connection = Some(accepted.unwrap());
            }
            Some(DatagramEvent::Response(_)) | None => {}
        }
    }

    /// Sends everything that can be sent now.
    fn act(&mut self, now: Instant) {
        self.read();
        self.write();
        let Some((handle, connection)) = &mut self.connection else { return };
        let mut datagrams = Vec::new();
        while let Some(transmit) = connection.poll_transmit(now, 10, &mut datagrams) {
            for datagram in
                datagrams[..transmit.size].chunks(transmit.segment_size.unwrap_or(transmit.size))
            {
                self.out.send(now, datagram);
            }
            datagrams.clear();
        }
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(*handle, event) {
                connection.handle_event(event);
            }
        }
    }
}

impl End {
    /// Reads requests or a response.
    fn read(&mut self) {
        let Some((_, connection)) = &mut self.connection else { return };
        let mut readable = Vec::new();
        while let Some(event) = connection.poll() {
            match event {
                Event::Stream(StreamEvent::Readable { id }) => readable.push(id),
                Event::Stream(StreamEvent::Opened { dir }) => {
                    readable.extend(connection.streams().accept(dir));
                }
                Event::ConnectionLost { reason } => panic!("{reason}"),
                _ => {}
            }
        }
        for id in readable {
            let mut stream = connection.recv_stream(id);
            // It may have been read to its end already.
            let Ok(mut chunks) = stream.read(true) else { continue };
            let over = loop {
                match chunks.next(usize::MAX) {
                    Ok(Some(chunk)) => self.came.extend_from_slice(&chunk.bytes),
                    Ok(None) => break true,
                    Err(ReadError::Blocked) => break false,
                    Err(error) => panic!("{error}"),
                }
            };
            let _ = chunks.finalize();
            self.finished = over;
            if over && connection.side().is_server() {
                let wanted = u64::from_be_bytes(self.came[..].try_into().unwrap());
                self.came.clear();
                self.owed.insert(id, usize::try_from(wanted).unwrap());
            }
        }
    }

    /// Writes as much of the responses as the connection accepts.
    fn write(&mut self) {
        let Some((_, connection)) = &mut self.connection else { return };
        self.owed.retain(|id, left| {
            let mut stream = connection.send_stream(*id);
            while *left > 0 {
                match stream.write(&vec![b'x'; (*left).min(16_384)]) {
                    Ok(written) => *left -= written,
                    Err(WriteError::Blocked) => return true,
                    Err(error) => panic!("{error}"),
                }
            }
            stream.finish().unwrap();
            false
        });
    }
}
