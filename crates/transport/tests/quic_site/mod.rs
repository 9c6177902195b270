//! A broker with a QUIC port on loopback, and what a client of it needs: quinn for the transport,
//! `fulmar-mqtt` for the packets, and a relay that records datagrams or stops passing them on.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use fulmar_broker::auth::AccessControl;
use fulmar_broker::storage::{NoStorage, Restored};
use fulmar_broker::{Broker, BrokerConfig, ClientStatistics, Limits, ListenerPolicy};
use fulmar_certs::authority::{Authority, Purpose};
use fulmar_certs::files;
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::codec::{decode, packet_len, peek_frame};
use fulmar_mqtt::packet::{
    Ack, Connect, Disconnect, FilterList, LastWill, Publish, Subscribe, SubscribeOptions,
};
use fulmar_mqtt::{Packet, PacketId, Properties, Property, PropertyBuf, QoS, ReasonCode, Version};
use fulmar_store::SqliteStorage;
use fulmar_transport::tickets::Tickets;
use fulmar_transport::tls::{ClientAuth, Identity, RootCertStore, ServerTls};
use fulmar_transport::{
    Clock, QuicKeys, QuicListener, QuicSettings, Server, ServerConfig, TransportLimits,
};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{
    ClientConfig, Connection, ConnectionError, Endpoint, RecvStream, SendStream, TransportConfig,
    ZeroRttAccepted,
};
use rustls::ConfigBuilder;
use rustls::client::WantsClientCert;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::UdpSocket;
use tokio::time::timeout;

/// Longest time anything here may take.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// One way from the server to a client behind a [`Relay`] that loses datagrams.
pub const LONG_WAY: Duration = Duration::from_millis(20);

/// What a site is started with; change what a test is about.
pub struct Setup {
    pub address: SocketAddr,
    pub quic: QuicSettings,
    pub limits: TransportLimits,
    pub broker: BrokerConfig,
    pub tickets: Arc<Tickets>,
    /// Clients' certificates are verified against the authority that signs the server's.
    pub client_auth: ClientAuth,
    /// Where the broker's state is kept; `None` for nowhere.
    pub database: Option<PathBuf>,
}

impl Setup {
    pub fn new(workers: usize) -> Setup {
        Setup {
            address: "127.0.0.1:0".parse().unwrap(),
            quic: QuicSettings::new(QuicKeys([7; 64])),
            limits: TransportLimits::default(),
            broker: BrokerConfig {
                workers,
                limits: Limits::default(),
                access_control: AccessControl::default(),
                sys_interval_s: 0,
                client_statistics: ClientStatistics::Rules,
                internal_sessions: Vec::new(),
            },
            tickets: Tickets::in_memory().unwrap(),
            client_auth: ClientAuth::Off,
            database: None,
        }
    }

    /// Starts it with certificates of its own.
    pub fn start(self) -> Site {
        self.start_in(&tempfile::tempdir().unwrap())
    }

    /// Starts it with the certificates in `dir`, which a restarted server has too.
    pub fn start_in(self, dir: &tempfile::TempDir) -> Site {
        let authority = Authority::open(dir.path()).unwrap();
        let (chain, key) = authority.server_files(&["localhost".to_owned()]).unwrap();
        let chain = files::read_chain(&chain).unwrap();
        let root = chain[1].clone();
        let identity = Identity::new(chain, files::read_key(&key).unwrap()).unwrap();
        let mut clients = RootCertStore::empty();
        clients.add(root.clone()).unwrap();
        let tls = ServerTls::with_tickets(&identity, self.client_auth, clients, &self.tickets);
        let tls = tls.unwrap();
        let clock = Clock::start();
        let workers = self.broker.workers;
        let (broker, store) = match &self.database {
            Some(path) => durable(self.broker, path, clock),
            None => {
                let nothing = Restored::default();
                (Broker::new(self.broker, Arc::new(NoStorage), nothing, clock.now()), None)
            }
        };
        let policy = Arc::new(ListenerPolicy { name: "quic".into(), allow_anonymous: true });
        let (address, settings) = (self.address, self.quic);
        let quic = vec![QuicListener { address, policy, tls, settings }];
        let config = ServerConfig {
            workers,
            coalesce: Duration::from_micros(100),
            listeners: Vec::new(),
            quic,
            origins: Default::default(),
            limits: self.limits,
        };
        let server = Server::start(&broker, config, clock).unwrap();
        Site { broker, server, root, store }
    }
}

/// A broker with what the database at `path` remembers.
fn durable(
    config: BrokerConfig,
    path: &Path,
    clock: Clock,
) -> (Arc<Broker>, Option<Arc<SqliteStorage>>) {
    let woken: Arc<OnceLock<Weak<Broker>>> = Arc::default();
    let wake = Arc::clone(&woken);
    let committed = move || {
        if let Some(broker) = wake.get().and_then(Weak::upgrade) {
            broker.storage_committed();
        }
    };
    let options = fulmar_store::Options::default();
    let (store, restored) = SqliteStorage::open(path, &options, Box::new(committed)).unwrap();
    let store = Arc::new(store);
    let broker = Broker::new(config, Arc::clone(&store) as Arc<_>, restored, clock.now());
    woken.set(Arc::downgrade(&broker)).unwrap();
    (broker, Some(store))
}

pub struct Site {
    pub broker: Arc<Broker>,
    pub server: Server,
    pub root: CertificateDer<'static>,
    store: Option<Arc<SqliteStorage>>,
}

impl Site {
    /// Ends it in the order in which the program does, so that its database can be opened again.
    pub fn stop(self) {
        self.server.drain(Duration::ZERO);
        if let Some(store) = self.store {
            store.close().unwrap();
        }
    }

    pub fn start(workers: usize, change: impl FnOnce(&mut QuicSettings)) -> Site {
        Site::start_in(&tempfile::tempdir().unwrap(), workers, change)
    }

    /// With the certificates in `dir`, which a restarted server has too.
    pub fn start_in(
        dir: &tempfile::TempDir,
        workers: usize,
        change: impl FnOnce(&mut QuicSettings),
    ) -> Site {
        let mut setup = Setup::new(workers);
        change(&mut setup.quic);
        setup.start_in(dir)
    }

    /// With these tickets, which may be kept in `dir`.
    pub fn start_with(dir: &tempfile::TempDir, tickets: &Arc<Tickets>, workers: usize) -> Site {
        Setup { tickets: Arc::clone(tickets), ..Setup::new(workers) }.start_in(dir)
    }

    pub fn address(&self) -> SocketAddr {
        self.server.bound_quic()[0]
    }

    /// A client's TLS and QUIC settings; tickets are remembered in them.
    pub fn client_config(&self) -> ClientConfig {
        self.finish(self.tls_builder().with_no_client_auth())
    }

    /// The same for a client with a certificate for `user` from the authority in `dir`.
    pub fn certified_config(&self, dir: &tempfile::TempDir, user: &str) -> ClientConfig {
        let authority = Authority::open(dir.path()).unwrap();
        let issued = authority.issue(user, &[], Purpose::Client, 1).unwrap();
        let chain = CertificateDer::pem_slice_iter(issued.chain_pem.as_bytes());
        let chain = chain.collect::<Result<_, _>>().unwrap();
        let key = PrivateKeyDer::from_pem_slice(issued.key_pem.as_bytes()).unwrap();
        self.finish(self.tls_builder().with_client_auth_cert(chain, key).unwrap())
    }

    fn tls_builder(&self) -> ConfigBuilder<rustls::ClientConfig, WantsClientCert> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.root.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap();
        builder.with_root_certificates(roots)
    }

    /// What a client without a certificate says in TLS; its protocol is still to be named.
    pub fn tls(&self) -> rustls::ClientConfig {
        self.tls_builder().with_no_client_auth()
    }

    pub fn finish(&self, mut tls: rustls::ClientConfig) -> ClientConfig {
        if tls.alpn_protocols.is_empty() {
            tls.alpn_protocols = vec![b"mqtt".to_vec()];
        }
        tls.enable_early_data = true;
        ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()))
    }

    /// The same with a transport that is kept alive and takes at most `window` unread bytes.
    pub fn patient_config(&self, window: u32) -> ClientConfig {
        let mut transport = TransportConfig::default();
        transport.keep_alive_interval(Some(Duration::from_millis(200)));
        transport.stream_receive_window(window.into());
        let mut config = self.client_config();
        config.transport_config(Arc::new(transport));
        config
    }

    pub async fn dial(&self, config: &ClientConfig) -> Connection {
        let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let connecting =
            endpoint.connect_with(config.clone(), self.address(), "localhost").unwrap();
        timeout(TIMEOUT, connecting).await.unwrap().unwrap()
    }

    /// A connected client and whether the session was present.
    pub async fn client(&self, hello: &Hello) -> (Connection, Pipe, bool) {
        self.client_with(&self.client_config(), hello).await
    }

    pub async fn client_with(
        &self,
        config: &ClientConfig,
        hello: &Hello,
    ) -> (Connection, Pipe, bool) {
        let connection = self.dial(config).await;
        let mut control = Pipe::open(&connection).await;
        control.send(&hello.bytes()).await;
        let Seen::Connack(present) = control.next().await else { panic!("no CONNACK") };
        (connection, control, present)
    }

    pub fn connections(&self) -> u64 {
        self.broker.metrics().connections()
    }

    pub async fn eventually(&self, what: &str, done: impl Fn(&Site) -> bool) {
        let waiting = async {
            while !done(self) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(TIMEOUT, waiting).await.unwrap_or_else(|_| panic!("waited too long for {what}"));
    }

    /// A new client publishes a last message: a subscriber that receives it first can conclude that nothing came
    /// before.
    pub async fn publish_last(&self, topic: &str) {
        let (_connection, mut control, _) = self.client(&hello("last")).await;
        control.send(&publish(topic, b"last", 1)).await;
        assert_eq!(control.next().await, Seen::Puback(1));
    }
}

/// A client that has connected by way of `address`, and its endpoint, which may be moved.
pub async fn visitor(
    config: ClientConfig,
    address: SocketAddr,
    hello: &Hello,
) -> (Endpoint, Connection, Pipe) {
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let connecting = endpoint.connect_with(config, address, "localhost").unwrap();
    let connection = timeout(TIMEOUT, connecting).await.unwrap().unwrap();
    let mut control = Pipe::open(&connection).await;
    control.send(&hello.bytes()).await;
    assert_eq!(control.next().await, Seen::Connack(false));
    (endpoint, connection, control)
}

/// Client `e` comes back with the ticket in its settings: CONNECT and a PUBLISH to `early`, with this
/// packet identifier if it is not 0, in the first flight. Whether that was taken is still to come.
pub async fn come_back(
    config: ClientConfig,
    address: SocketAddr,
    id: u16,
) -> (Connection, Pipe, ZeroRttAccepted) {
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let connecting = endpoint.connect_with(config, address, "localhost").unwrap();
    let Ok((connection, accepted)) = connecting.into_0rtt() else { panic!("no ticket kept") };
    let mut control = Pipe::open(&connection).await;
    control.send(&[hello("e").bytes(), publish("early", b"!", id)].concat()).await;
    (connection, control, accepted)
}

/// The first datagram of a client with these settings, which no server has received.
pub async fn first_datagram(config: ClientConfig) -> Vec<u8> {
    let here = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = here.local_addr().unwrap();
    let connecting = endpoint.connect_with(config, address, "localhost").unwrap();
    let mut buffer = vec![0; 2048];
    let length = timeout(TIMEOUT, here.recv(&mut buffer)).await.unwrap().unwrap();
    drop(connecting);
    buffer.truncate(length);
    buffer
}

/// Sends a recorded flight again until the server has forgotten the connection, if it knew it, and
/// begins another: it answers with an Initial packet then.
pub async fn replay(flight: &[Vec<u8>], site: &Site) {
    let thief = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let replaying = async {
        let mut buffer = [0; 2048];
        loop {
            for datagram in flight {
                thief.send_to(datagram, site.address()).await.unwrap();
            }
            let answer = timeout(Duration::from_millis(50), thief.recv(&mut buffer)).await;
            // Whatever the QUIC bit is, which either side may send as 0 (RFC 9287).
            if answer.is_ok() && buffer[0] & 0xB0 == 0x80 {
                return;
            }
        }
    };
    timeout(TIMEOUT, replaying).await.expect("the server never answered the replay");
}

pub struct Hello {
    pub id: &'static str,
    pub lasting: bool,
    pub will: Option<&'static str>,
}

impl Hello {
    pub fn bytes(&self) -> Vec<u8> {
        let mut properties = PropertyBuf::new();
        if self.lasting {
            properties.push(Property::SessionExpiryInterval(600));
        }
        encode(&Packet::Connect(Connect {
            version: Version::V5,
            bridge: false,
            clean_start: !self.lasting,
            keep_alive_s: 0,
            client_id: self.id,
            properties: properties.as_properties(),
            will: self.will.map(|topic| LastWill {
                topic,
                payload: b"gone",
                qos: QoS::AtMostOnce,
                retain: false,
                properties: Properties::NONE,
            }),
            username: None,
            password: None,
        }))
    }
}

/// A CONNECT with this Keep Alive, in seconds, and a will.
pub fn connect_alive(id: &str, keep_alive_s: u16) -> Vec<u8> {
    encode(&Packet::Connect(Connect {
        version: Version::V5,
        bridge: false,
        clean_start: true,
        keep_alive_s,
        client_id: id,
        properties: Properties::NONE,
        will: Some(LastWill {
            topic: "will",
            payload: id.as_bytes(),
            qos: QoS::AtMostOnce,
            retain: false,
            properties: Properties::NONE,
        }),
        username: None,
        password: None,
    }))
}

pub fn hello(id: &'static str) -> Hello {
    Hello { id, lasting: false, will: None }
}

pub fn encode(packet: &Packet<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    packet.encode(Version::V5, &mut bytes);
    bytes
}

pub fn subscribe(filter: &str, qos: QoS) -> Vec<u8> {
    let mut list = Vec::new();
    let options = SubscribeOptions { qos, ..SubscribeOptions::default() };
    FilterList::encode_one(&mut list, filter, Some(options));
    encode(&Packet::Subscribe(Subscribe {
        packet_id: PacketId::FIRST,
        properties: Properties::NONE,
        filters: FilterList::from_encoded(&list, true, Version::V5).unwrap(),
    }))
}

pub fn publish(topic: &str, payload: &[u8], id: u16) -> Vec<u8> {
    let qos = if id == 0 { QoS::AtMostOnce } else { QoS::AtLeastOnce };
    publish_at(qos, topic, payload, id)
}

pub fn publish_at(qos: QoS, topic: &str, payload: &[u8], id: u16) -> Vec<u8> {
    let packet_id = PacketId::new(id);
    let properties = Properties::NONE;
    let publish = Publish { dup: false, qos, retain: false, topic, packet_id, properties, payload };
    encode(&Packet::Publish(publish))
}

pub fn puback(id: u16) -> Vec<u8> {
    ack(AckKind::Puback, id)
}

pub fn disconnect() -> Vec<u8> {
    let reason = ReasonCode::Success;
    encode(&Packet::Disconnect(Disconnect { reason, properties: Properties::NONE }))
}

pub fn ack(kind: AckKind, id: u16) -> Vec<u8> {
    let packet_id = PacketId::new(id).unwrap();
    let (reason, properties) = (ReasonCode::Success, Properties::NONE);
    encode(&Packet::Ack(kind, Ack { packet_id, reason, properties }))
}

#[derive(Debug, PartialEq, Eq)]
pub enum Seen {
    Connack(bool),
    Publish {
        payload: Vec<u8>,
        id: u16,
        dup: bool,
    },
    Puback(u16),
    Ack(AckKind, u16),
    Suback,
    /// Of a subscription that was refused.
    Denied(u8),
    Disconnect(ReasonCode),
}

/// The code the server has closed with.
pub async fn close_code(connection: &Connection) -> u64 {
    match timeout(TIMEOUT, connection.closed()).await.expect("never closed") {
        ConnectionError::ApplicationClosed(close) => close.error_code.into_inner(),
        other => panic!("not closed by MQTT: {other}"),
    }
}

/// One bidirectional stream that carries packets.
pub struct Pipe {
    pub out: SendStream,
    pub input: RecvStream,
    buffer: Vec<u8>,
}

impl Pipe {
    pub async fn open(connection: &Connection) -> Pipe {
        let (out, input) = connection.open_bi().await.unwrap();
        Pipe { out, input, buffer: Vec::new() }
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        self.out.write_all(bytes).await.unwrap();
    }

    pub async fn next(&mut self) -> Seen {
        timeout(TIMEOUT, self.read()).await.expect("nothing came")
    }

    pub async fn read(&mut self) -> Seen {
        loop {
            if let Some(frame) = peek_frame(&self.buffer, usize::MAX).unwrap() {
                let seen = match decode(&frame, Version::V5).unwrap() {
                    Packet::Connack(connack) => Seen::Connack(connack.session_present),
                    Packet::Publish(publish) => Seen::Publish {
                        payload: publish.payload.to_vec(),
                        id: publish.packet_id.map_or(0, PacketId::get),
                        dup: publish.dup,
                    },
                    Packet::Ack(AckKind::Puback, ack) => Seen::Puback(ack.packet_id.get()),
                    Packet::Ack(kind, ack) => Seen::Ack(kind, ack.packet_id.get()),
                    Packet::Suback(suback) => match suback.codes {
                        [code] if *code >= 0x80 => Seen::Denied(*code),
                        _ => Seen::Suback,
                    },
                    Packet::Disconnect(disconnect) => Seen::Disconnect(disconnect.reason),
                    other => panic!("unexpected {}", other.name()),
                };
                let length = packet_len(&self.buffer, usize::MAX).unwrap().unwrap().total;
                self.buffer.drain(..length);
                return seen;
            }
            let mut piece = [0; 4096];
            let length = self.input.read(&mut piece).await.unwrap().expect("stream ended");
            self.buffer.extend_from_slice(&piece[..length]);
        }
    }

    pub async fn payload(&mut self) -> Vec<u8> {
        match self.next().await {
            Seen::Publish { payload, .. } => payload,
            other => panic!("expected a message, saw {other:?}"),
        }
    }
}

/// Passes datagrams between one client and the server until it is stopped, and records the client's.
pub struct Relay {
    pub address: SocketAddr,
    pub passing: Arc<AtomicBool>,
    /// The server's datagrams that were not passed on.
    pub dropped: Arc<AtomicUsize>,
    /// Of the server's datagrams, one in this many is lost, and the others take [`LONG_WAY`]; 0 for a loopback
    /// without losses.
    pub loses: Arc<AtomicUsize>,
    pub recorded: Arc<Mutex<Vec<Vec<u8>>>>,
    /// Whether the client's datagrams arrive twice.
    pub doubles: Arc<AtomicBool>,
    /// The server's datagrams, those that are lost included.
    pub answers: Arc<Mutex<Vec<Vec<u8>>>>,
    /// First bytes of all datagrams passed on, and whether the client sent them.
    pub first_bytes: Arc<Mutex<Vec<(bool, u8)>>>,
}

impl Relay {
    pub async fn start(server: SocketAddr) -> Relay {
        let near = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let far = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        far.connect(server).await.unwrap();
        let address = near.local_addr().unwrap();
        let relay = Relay {
            address,
            passing: Arc::new(AtomicBool::new(true)),
            dropped: Arc::default(),
            loses: Arc::default(),
            recorded: Arc::default(),
            doubles: Arc::default(),
            answers: Arc::default(),
            first_bytes: Arc::default(),
        };
        let client = Arc::new(Mutex::new(address));
        let (passing, recorded) = (Arc::clone(&relay.passing), Arc::clone(&relay.recorded));
        let doubles = Arc::clone(&relay.doubles);
        let (sent, answered) = (Arc::clone(&relay.first_bytes), Arc::clone(&relay.first_bytes));
        let (from, to, remember) = (Arc::clone(&near), Arc::clone(&far), Arc::clone(&client));
        tokio::spawn(async move {
            let mut buffer = [0; 2048];
            while let Ok((length, sender)) = from.recv_from(&mut buffer).await {
                *remember.lock().unwrap() = sender;
                recorded.lock().unwrap().push(buffer[..length].to_vec());
                if passing.load(Ordering::SeqCst) {
                    sent.lock().unwrap().push((true, buffer[0]));
                    to.send(&buffer[..length]).await.unwrap();
                    if doubles.load(Ordering::SeqCst) {
                        to.send(&buffer[..length]).await.unwrap();
                    }
                }
            }
        });
        let (passing, dropped) = (Arc::clone(&relay.passing), Arc::clone(&relay.dropped));
        let (loses, answers) = (Arc::clone(&relay.loses), Arc::clone(&relay.answers));
        tokio::spawn(async move {
            let mut buffer = [0; 2048];
            let mut count = 0;
            while let Ok(length) = far.recv(&mut buffer).await {
                let to = *client.lock().unwrap();
                count += 1;
                answers.lock().unwrap().push(buffer[..length].to_vec());
                let every = loses.load(Ordering::SeqCst);
                if every > 0 && count % every == 0 {
                    dropped.fetch_add(1, Ordering::SeqCst);
                } else if every > 0 {
                    let (near, datagram) = (Arc::clone(&near), buffer[..length].to_vec());
                    tokio::spawn(async move {
                        tokio::time::sleep(LONG_WAY).await;
                        near.send_to(&datagram, to).await.unwrap();
                    });
                } else if passing.load(Ordering::SeqCst) {
                    answered.lock().unwrap().push((false, buffer[0]));
                    near.send_to(&buffer[..length], to).await.unwrap();
                } else {
                    dropped.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
        relay
    }
}
