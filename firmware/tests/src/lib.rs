//! The small client and quinn's server in simulated time, on a link that delays, loses, doubles and mixes
//! up datagrams as a seed says. No sockets, no clock: a run is the same each time.

#![allow(missing_docs)]

mod broker;
mod mutate;

pub use broker::Broker;
pub use mutate::{Mutation, Mutations};

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant as StdInstant};

use bytes::BytesMut;
use fulmar_tiny::{Client, CloseReason, Event, Instant, KeyPair, Options, QoS, limits};
use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::{
    Connection, ConnectionHandle, DatagramEvent, Endpoint, EndpointConfig, ServerConfig, Transmit,
};

/// The name the server's certificate has.
pub const SERVER_NAME: &str = "broker.example";

/// A small generator of numbers that look random (Knuth's MMIX).
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Below `bound`.
    pub fn below(&mut self, bound: u32) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(bound)) as u32
    }

    pub fn bytes(&mut self) -> [u8; 32] {
        std::array::from_fn(|_| self.below(256) as u8)
    }
}

/// What the link does to datagrams.
#[derive(Clone, Copy)]
pub struct Link {
    pub delay_ms: u32,
    /// Up to as much more, so that datagrams overtake each other.
    pub jitter_ms: u32,
    pub loss_percent: u32,
    pub double_percent: u32,
}

impl Link {
    pub const GOOD: Self = Self { delay_ms: 20, jitter_ms: 0, loss_percent: 0, double_percent: 0 };
    pub const BAD: Self = Self { delay_ms: 30, jitter_ms: 20, loss_percent: 10, double_percent: 5 };
}

/// The server's keys and certificates.
pub struct Identity {
    certificate: rcgen::CertifiedKey<rcgen::KeyPair>,
}

impl Identity {
    pub fn ed25519() -> Self {
        Self::new(&rcgen::PKCS_ED25519)
    }

    pub fn p256() -> Self {
        Self::new(&rcgen::PKCS_ECDSA_P256_SHA256)
    }

    fn new(algorithm: &'static rcgen::SignatureAlgorithm) -> Self {
        let signing_key = rcgen::KeyPair::generate_for(algorithm).expect("a key");
        let cert = rcgen::CertificateParams::new(vec![SERVER_NAME.to_string()])
            .and_then(|params| params.self_signed(&signing_key))
            .expect("a certificate");
        Self { certificate: rcgen::CertifiedKey { cert, signing_key } }
    }

    /// The public key, as the client pins it.
    pub fn public_key<const N: usize>(&self) -> [u8; N] {
        use rcgen::PublicKeyData;
        self.certificate.signing_key.der_bytes().try_into().expect("the length of such a key")
    }

    /// The configuration of a TLS server with this identity.
    pub fn tls(&self) -> rustls::ServerConfig {
        use rustls::pki_types::PrivateKeyDer;
        let key = PrivateKeyDer::try_from(self.certificate.signing_key.serialize_der());
        tls(vec![self.certificate.cert.der().clone()], key.expect("a key"))
    }
}

/// The configuration of a TLS server with this certificate chain.
pub fn tls(
    chain: Vec<rustls::pki_types::CertificateDer<'static>>,
    key: rustls::pki_types::PrivateKeyDer<'static>,
) -> rustls::ServerConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .expect("a valid configuration");
    config.alpn_protocols = vec![b"mqtt".to_vec()];
    config.max_early_data_size = u32::MAX;
    config
}

/// A quinn configuration for `tls`.
pub fn quic(tls: rustls::ServerConfig) -> ServerConfig {
    ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).expect("QUIC's suite")))
}

/// A datagram on its way.
struct Flying {
    at_ms: u32,
    to_server: bool,
    bytes: Vec<u8>,
}

/// What the client told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    pub handshakes: u32,
    pub resumed: bool,
    pub early_data_accepted: bool,
    pub connected: u32,
    pub session_present: bool,
    pub published: Vec<u16>,
    pub subscribed: Vec<u16>,
    pub messages: Vec<(String, Vec<u8>)>,
    pub ticket: Option<Vec<u8>>,
    pub closed: Option<CloseReason>,
}

/// A client, a server and the link between them.
pub struct Net {
    pub client: Box<Client>,
    pub told: Told,
    pub broker: Broker,
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    pub link: Link,
    pub random: Random,
    pub now_ms: u32,
    start: StdInstant,
    flying: Vec<Flying>,
    /// Whether the server sends Retry first.
    pub retry: bool,
    /// All datagrams from the client, and the time they were sent.
    pub sent: Vec<(u32, Vec<u8>)>,
    /// How many connections the server accepted.
    pub accepted: u32,
    /// The address the client's datagrams come from; changed, the server validates the path.
    pub client_port: u16,
    /// Whether the caller of the client asks it every millisecond, not when it has something to do.
    pub polled: bool,
}

impl Net {
    pub fn new(config: ServerConfig, link: Link, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut endpoint_config = EndpointConfig::default();
        endpoint_config.rng_seed(Some(random.bytes()));
        let endpoint =
            Endpoint::new(Arc::new(endpoint_config), Some(Arc::new(config)), false, None);
        Self {
            client: Box::new(Client::new()),
            told: Told::default(),
            broker: Broker::default(),
            endpoint,
            connection: None,
            link,
            random,
            // Near the end of what the client's clock can count, so that it wraps in every test.
            now_ms: u32::MAX - 50,
            start: StdInstant::now(),
            flying: Vec::new(),
            retry: false,
            sent: Vec::new(),
            accepted: 0,
            client_port: 40_000,
            polled: false,
        }
    }

    pub fn now(&self) -> Instant {
        Instant::from_millis(self.now_ms)
    }

    fn std_now(&self) -> StdInstant {
        let passed = self.now_ms.wrapping_sub(u32::MAX - 50);
        self.start + Duration::from_millis(passed.into())
    }

    /// Milliseconds since the test began.
    pub fn passed_ms(&self) -> u32 {
        self.now_ms.wrapping_sub(u32::MAX - 50)
    }

    /// Begins a connection; the server forgets any earlier one, but not tickets.
    pub fn connect(&mut self, options: &Options<'_>) {
        self.told = Told::default();
        self.broker = Broker::default();
        self.connection = None;
        self.flying.clear();
        self.sent.clear();
        let key = KeyPair::new(&self.random.bytes());
        let entropy = self.random.bytes();
        let now = self.now();
        self.client.connect(options, &key, &entropy, now).expect("valid options");
    }

    fn fly(&mut self, to_server: bool, bytes: Vec<u8>) {
        if self.random.below(100) < self.link.loss_percent {
            return;
        }
        let copies = 1 + u32::from(self.random.below(100) < self.link.double_percent);
        for _ in 0..copies {
            let delay = self.link.delay_ms + self.random.below(self.link.jitter_ms + 1);
            let at_ms = self.now_ms.wrapping_add(delay);
            self.flying.push(Flying { at_ms, to_server, bytes: bytes.clone() });
        }
    }

    /// Gives the client a datagram of the test's own making.
    pub fn inject(&mut self, mut datagram: Vec<u8>) {
        let now = self.now();
        self.client.receive(&mut datagram, now);
    }

    /// Whether there is a datagram on its way to the client.
    pub fn has_flying_to_client(&self) -> bool {
        self.flying.iter().any(|flying| !flying.to_server)
    }

    /// Takes away what follows the Initial packet in each datagram on its way to the client: true if there
    /// was one.
    pub fn leave_initial_packets(&mut self) -> bool {
        let mut any = false;
        for flying in self.flying.iter_mut().filter(|flying| !flying.to_server) {
            let bytes = &mut flying.bytes;
            // First byte, version, our empty ID, the server's, no token, a length of two bytes.
            let at = 7 + usize::from(bytes[6]) + 1;
            assert!(bytes[0] & 0xf0 == 0xc0 && bytes[at] & 0xc0 == 0x40, "an Initial packet");
            let len = usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]) & 0x3fff);
            bytes.truncate(at + 2 + len);
            any = true;
        }
        any
    }

    /// Everything that can be done without time passing.
    fn turn(&mut self) {
        let due: Vec<Flying> = {
            let now = self.now();
            let (due, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.flying)
                .into_iter()
                .partition(|flying| now.reached(Instant::from_millis(flying.at_ms)));
            self.flying = later;
            due
        };
        for flying in due {
            if flying.to_server {
                self.server_receive(&flying.bytes);
            } else {
                let mut bytes = flying.bytes;
                let now = self.now();
                self.client.receive(&mut bytes, now);
            }
        }
        self.server_turn();
        self.client_turn();
    }

    fn client_turn(&mut self) {
        let now = self.now();
        while let Some(event) = self.client.poll_event(now) {
            let mut new_ticket = false;
            match event {
                Event::Handshake { resumed, early_data_accepted } => {
                    self.told.handshakes += 1;
                    self.told.resumed = resumed;
                    self.told.early_data_accepted = early_data_accepted;
                }
                Event::Connected { session_present } => {
                    self.told.connected += 1;
                    self.told.session_present = session_present;
                }
                Event::Published { id, .. } => self.told.published.push(id),
                Event::Subscribed { id, .. } => self.told.subscribed.push(id),
                Event::Message(message) => {
                    self.told.messages.push((message.topic.into(), message.payload.into()));
                }
                Event::Ticket => new_ticket = true,
                Event::Closed(reason) => self.told.closed = Some(reason),
                _ => {}
            }
            if new_ticket {
                self.told.ticket = self.client.ticket().map(Into::into);
            }
        }
        let mut datagram = [0; limits::DATAGRAM_BYTES];
        while let Some(length) = self.client.poll_transmit(&mut datagram, now) {
            self.sent.push((self.now_ms, datagram[..length].to_vec()));
            self.fly(true, datagram[..length].to_vec());
        }
    }

    fn server_receive(&mut self, bytes: &[u8]) {
        let mut response = Vec::new();
        let remote = SocketAddr::from((Ipv4Addr::LOCALHOST, self.client_port));
        let now = self.std_now();
        let event = self.endpoint.handle(now, remote, None, None, bytes.into(), &mut response);
        match event {
            Some(DatagramEvent::NewConnection(incoming)) => {
                if self.retry && incoming.may_retry() && !incoming.remote_address_validated() {
                    if let Ok(transmit) = self.endpoint.retry(incoming, &mut response) {
                        self.server_sent(&transmit, &response);
                    }
                } else {
                    match self.endpoint.accept(incoming, now, &mut response, None) {
                        Ok(connection) => {
                            self.connection = Some(connection);
                            self.accepted += 1;
                        }
                        Err(error) => {
                            if let Some(transmit) = error.response {
                                self.server_sent(&transmit, &response);
                            }
                        }
                    }
                }
            }
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some((own, connection)) = &mut self.connection
                    && *own == handle
                {
                    connection.handle_event(event);
                }
            }
            Some(DatagramEvent::Response(transmit)) => self.server_sent(&transmit, &response),
            None => {}
        }
    }

    fn server_sent(&mut self, transmit: &Transmit, bytes: &[u8]) {
        let bytes = &bytes[..transmit.size];
        for datagram in bytes.chunks(transmit.segment_size.unwrap_or(transmit.size).max(1)) {
            self.fly(false, datagram.to_vec());
        }
    }

    fn server_turn(&mut self) {
        let now = self.std_now();
        let Some((handle, mut connection)) = self.connection.take() else { return };
        if connection.poll_timeout().is_some_and(|at| at <= now) {
            connection.handle_timeout(now);
        }
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(handle, event) {
                connection.handle_event(event);
            }
        }
        self.broker.serve(&mut connection);
        let mut buffer = Vec::new();
        while let Some(transmit) = connection.poll_transmit(now, 1, &mut buffer) {
            self.server_sent(&transmit, &buffer);
            buffer.clear();
        }
        self.connection = Some((handle, connection));
    }

    /// When something happens next.
    fn next_ms(&mut self) -> Option<u32> {
        let now = self.now_ms;
        if self.polled {
            return Some(now.wrapping_add(1));
        }
        let server = self.connection.as_mut().and_then(|(_, connection)| connection.poll_timeout());
        let server = server.map(|at| {
            let wait = at.saturating_duration_since(self.start);
            wait.as_millis() as u32 + u32::from(wait.subsec_nanos() % 1_000_000 != 0)
        });
        let client = self.client.deadline().map(Instant::as_millis);
        let flying = self.flying.iter().map(|flying| flying.at_ms);
        let begin = u32::MAX - 50;
        flying
            .chain(client)
            .map(|at| at.wrapping_sub(begin))
            .chain(server)
            .map(|at| if at > u32::MAX / 2 { 0 } else { at })
            .min()
            .map(|at| at.max(now.wrapping_sub(begin) + 1).wrapping_add(begin))
    }

    /// Lets time pass until `done`; false if it is not done `within_ms`, or nothing is left to happen.
    pub fn run_until(&mut self, within_ms: u32, done: impl Fn(&Self) -> bool) -> bool {
        let end = self.passed_ms() + within_ms;
        loop {
            self.turn();
            if done(self) {
                return true;
            }
            match self.next_ms() {
                Some(next) if next.wrapping_sub(u32::MAX - 50) <= end => self.now_ms = next,
                _ => return false,
            }
        }
    }

    /// Lets time pass.
    pub fn run(&mut self, for_ms: u32) {
        let end = self.now_ms.wrapping_add(for_ms);
        self.run_until(for_ms, |_| false);
        self.now_ms = end;
        self.turn();
    }

    /// The server's side of the connection.
    pub fn server(&mut self) -> &mut Connection {
        &mut self.connection.as_mut().expect("a connection").1
    }

    /// The server loses its memory of the connection.
    pub fn forget(&mut self) {
        if let Some((handle, _)) = self.connection.take() {
            self.endpoint.handle_event(handle, quinn_proto::EndpointEvent::drained());
        }
    }

    /// Sends a datagram that is not the client's to the server.
    pub fn to_server(&mut self, datagram: &[u8]) {
        self.server_receive(&BytesMut::from(datagram));
    }

    /// Publishes a reading and subscribes to commands, as a sensor does when it wakes.
    pub fn speak(&mut self) {
        self.client.publish("s/1/radon", b"37", QoS::AtLeastOnce).expect("room");
        self.client.subscribe("s/1/command", QoS::AtLeastOnce).expect("room");
    }

    /// Whether what [`speak`](Self::speak) said has been answered, and a command has come.
    pub fn is_answered(&self) -> bool {
        !self.told.published.is_empty()
            && !self.told.subscribed.is_empty()
            && !self.told.messages.is_empty()
    }
}
