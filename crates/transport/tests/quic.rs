//! QUIC from end to end with quinn as the client: streams, early data, migration, vanishing.
#![allow(clippy::unwrap_used)]

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use fulmar_broker::auth::Gate;
use fulmar_broker::storage::{NoStorage, Restored};
use fulmar_broker::{Broker, BrokerConfig, Limits, ListenerPolicy};
use fulmar_certs::authority::Authority;
use fulmar_certs::files;
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::codec::{decode, packet_len, peek_frame};
use fulmar_mqtt::flow::{self, DataFlow, FlowFlags, FlowHeader};
use fulmar_mqtt::packet::{Ack, Connect, FilterList, Publish, Subscribe, SubscribeOptions};
use fulmar_mqtt::{Packet, PacketId, Properties, Property, PropertyBuf, QoS, ReasonCode, Version};
use fulmar_transport::tls::{ClientAuth, Identity, RootCertStore, ServerTls};
use fulmar_transport::{
    Clock, QuicKeys, QuicListener, QuicSettings, RetryPolicy, Server, ServerConfig, TransportLimits,
};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, Endpoint, RecvStream, SendStream};
use rustls_pki_types::CertificateDer;
use tokio::time::timeout;

/// Longest time anything here may take.
const PATIENCE: Duration = Duration::from_secs(20);

struct Site {
    broker: Arc<Broker>,
    server: Server,
    root: CertificateDer<'static>,
}

impl Site {
    fn start(workers: usize, change: impl FnOnce(&mut QuicSettings)) -> Site {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::open(dir.path()).unwrap();
        let (chain, key) = authority.server_files(&["localhost".to_owned()]).unwrap();
        let chain = files::read_chain(&chain).unwrap();
        let root = chain[1].clone();
        let identity = Identity::new(chain, files::read_key(&key).unwrap()).unwrap();
        let tls = ServerTls::new(&identity, ClientAuth::Off, RootCertStore::empty()).unwrap();
        let mut settings = QuicSettings::new(QuicKeys([7; 64]));
        change(&mut settings);
        let clock = Clock::start();
        let config = BrokerConfig {
            workers,
            limits: Limits::default(),
            gate: Gate::default(),
            sys_interval_s: 0,
        };
        let broker = Broker::new(config, Arc::new(NoStorage), Restored::default(), clock.now());
        let policy = Arc::new(ListenerPolicy { name: "quic".into(), allow_anonymous: true });
        let address = "127.0.0.1:0".parse().unwrap();
        let quic = vec![QuicListener { address, policy, tls, settings }];
        let limits = TransportLimits::default();
        let config = ServerConfig { workers, listeners: Vec::new(), quic, limits };
        let server = Server::start(&broker, config, clock).unwrap();
        Site { broker, server, root }
    }

    fn address(&self) -> SocketAddr {
        self.server.bound_quic()[0]
    }

    /// A client's TLS and QUIC settings; tickets are remembered in them.
    fn client_config(&self) -> ClientConfig {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.root.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"mqtt".to_vec()];
        tls.enable_early_data = true;
        ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()))
    }

    async fn dial(&self, config: &ClientConfig) -> Connection {
        let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let connecting =
            endpoint.connect_with(config.clone(), self.address(), "localhost").unwrap();
        timeout(PATIENCE, connecting).await.unwrap().unwrap()
    }

    /// A connected client and whether the session was present.
    async fn client(&self, hello: &Hello) -> (Connection, Pipe, bool) {
        let connection = self.dial(&self.client_config()).await;
        let mut control = Pipe::open(&connection).await;
        control.send(&hello.bytes()).await;
        let Seen::Connack(present) = control.next().await else { panic!("no CONNACK") };
        (connection, control, present)
    }

    fn connections(&self) -> u64 {
        self.broker.metrics().connections()
    }

    async fn eventually(&self, what: &str, done: impl Fn(&Site) -> bool) {
        let waiting = async {
            while !done(self) {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("waited too long for {what}"));
    }
}

struct Hello {
    id: &'static str,
    lasting: bool,
}

impl Hello {
    fn bytes(&self) -> Vec<u8> {
        let mut properties = PropertyBuf::new();
        if self.lasting {
            properties.push(Property::SessionExpiryInterval(600));
        }
        encode(&Packet::Connect(Connect {
            version: Version::V5,
            clean_start: !self.lasting,
            keep_alive_s: 0,
            client_id: self.id,
            properties: properties.as_properties(),
            will: None,
            username: None,
            password: None,
        }))
    }
}

fn hello(id: &'static str) -> Hello {
    Hello { id, lasting: false }
}

fn encode(packet: &Packet<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    packet.encode(Version::V5, &mut bytes);
    bytes
}

fn subscribe(filter: &str, qos: QoS) -> Vec<u8> {
    let mut list = Vec::new();
    let options = SubscribeOptions { qos, ..SubscribeOptions::default() };
    FilterList::encode_one(&mut list, filter, Some(options));
    encode(&Packet::Subscribe(Subscribe {
        packet_id: PacketId::FIRST,
        properties: Properties::NONE,
        filters: FilterList::from_encoded(&list, true, Version::V5).unwrap(),
    }))
}

fn publish(topic: &str, payload: &[u8], id: u16) -> Vec<u8> {
    let packet_id = PacketId::new(id);
    let qos = if packet_id.is_some() { QoS::AtLeastOnce } else { QoS::AtMostOnce };
    let properties = Properties::NONE;
    let publish = Publish { dup: false, qos, retain: false, topic, packet_id, properties, payload };
    encode(&Packet::Publish(publish))
}

fn puback(id: u16) -> Vec<u8> {
    let packet_id = PacketId::new(id).unwrap();
    let (reason, properties) = (ReasonCode::Success, Properties::NONE);
    encode(&Packet::Ack(AckKind::Puback, Ack { packet_id, reason, properties }))
}

#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Connack(bool),
    Publish { payload: Vec<u8>, id: u16, dup: bool },
    Puback(u16),
    Suback,
    Disconnect(ReasonCode),
}

/// One bidirectional stream that carries packets.
struct Pipe {
    out: SendStream,
    input: RecvStream,
    buffer: Vec<u8>,
}

impl Pipe {
    async fn open(connection: &Connection) -> Pipe {
        let (out, input) = connection.open_bi().await.unwrap();
        Pipe { out, input, buffer: Vec::new() }
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.out.write_all(bytes).await.unwrap();
    }

    async fn next(&mut self) -> Seen {
        timeout(PATIENCE, self.read()).await.expect("nothing came")
    }

    async fn read(&mut self) -> Seen {
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
                    Packet::Suback(_) => Seen::Suback,
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

    async fn payload(&mut self) -> Vec<u8> {
        match self.next().await {
            Seen::Publish { payload, .. } => payload,
            other => panic!("expected a message, saw {other:?}"),
        }
    }
}

#[tokio::test]
async fn messages_pass_and_a_bad_packet_is_answered_before_the_close() {
    let site = Site::start(2, |_| {});
    let (_sub_conn, mut sub, _) = site.client(&hello("s")).await;
    sub.send(&subscribe("t/#", QoS::AtLeastOnce)).await;
    assert_eq!(sub.next().await, Seen::Suback);
    let (pub_conn, mut publisher, _) = site.client(&hello("p")).await;
    publisher.send(&publish("t/1", b"one", 5)).await;
    assert_eq!(publisher.next().await, Seen::Puback(5));
    assert_eq!(sub.next().await, Seen::Publish { payload: b"one".to_vec(), id: 1, dup: false });
    publisher.send(&[0x36, 0x05, 0, 1, b'a', 0, 1]).await;
    assert_eq!(publisher.next().await, Seen::Disconnect(ReasonCode::MalformedPacket));
    timeout(PATIENCE, pub_conn.closed()).await.unwrap();
    sub.send(&puback(1)).await;
}

#[tokio::test]
async fn large_and_many_messages_come_whole_and_in_order() {
    let site = Site::start(2, |_| {});
    let (_sub_conn, mut sub, _) = site.client(&hello("s")).await;
    sub.send(&subscribe("t", QoS::AtMostOnce)).await;
    sub.next().await;
    let (_pub_conn, mut publisher, _) = site.client(&hello("p")).await;
    let large: Vec<u8> = (0..200 * 1024).map(|i| (i % 251) as u8).collect();
    publisher.send(&publish("t", &large, 0)).await;
    assert_eq!(sub.payload().await, large);
    let burst: Vec<u8> = (0..2000u32).flat_map(|i| publish("t", &i.to_be_bytes(), 0)).collect();
    publisher.send(&burst).await;
    for i in 0..2000u32 {
        assert_eq!(sub.payload().await, i.to_be_bytes());
    }
}

#[tokio::test]
async fn data_streams_carry_their_own_acknowledgements_and_deliveries() {
    let site = Site::start(2, |_| {});
    let connection = site.dial(&site.client_config()).await;
    let mut control = Pipe::open(&connection).await;
    // Opened and used before CONNECT: waits for it.
    let mut data = Pipe::open(&connection).await;
    data.send(&subscribe("d", QoS::AtLeastOnce)).await;
    control.send(&hello("c").bytes()).await;
    assert_eq!(control.next().await, Seen::Connack(false));
    assert_eq!(data.next().await, Seen::Suback);
    let mut third = Pipe::open(&connection).await;
    third.send(&publish("d", b"x", 9)).await;
    assert_eq!(third.next().await, Seen::Puback(9));
    assert_eq!(data.payload().await, b"x");
}

#[tokio::test]
async fn a_named_flow_survives_its_connection() {
    let site = Site::start(2, |_| {});
    let lasting = Hello { id: "c", lasting: true };
    let flags = FlowFlags(FlowFlags::PERSISTENT_QOS | FlowFlags::PERSISTENT_SUBSCRIPTIONS);
    let mut header = Vec::new();
    let flow = DataFlow { id: 4, expiry_s: 600, flags };
    flow::encode(&FlowHeader::ClientData(flow), &mut header);

    let (connection, _control, present) = site.client(&lasting).await;
    assert!(!present);
    let mut data = Pipe::open(&connection).await;
    data.send(&[&header[..], &subscribe("f", QoS::AtLeastOnce)].concat()).await;
    assert_eq!(data.next().await, Seen::Suback);
    let (_pub_conn, mut publisher, _) = site.client(&hello("p")).await;
    publisher.send(&publish("f", b"1", 1)).await;
    assert_eq!(data.next().await, Seen::Publish { payload: b"1".to_vec(), id: 1, dup: false });
    connection.close(0u32.into(), b"gone");
    site.eventually("the first connection to go", |site| site.connections() == 1).await;
    publisher.send(&publish("f", b"2", 2)).await;

    let (connection, _control, present) = site.client(&lasting).await;
    assert!(present);
    let mut data = Pipe::open(&connection).await;
    data.send(&header).await;
    assert_eq!(data.next().await, Seen::Publish { payload: b"1".to_vec(), id: 1, dup: true });
    assert_eq!(data.next().await, Seen::Publish { payload: b"2".to_vec(), id: 2, dup: false });
}

#[tokio::test]
async fn a_returning_client_publishes_in_its_first_flight() {
    let site = Site::start(2, |_| {});
    let (_sub_conn, mut sub, _) = site.client(&hello("s")).await;
    sub.send(&subscribe("early", QoS::AtMostOnce)).await;
    sub.next().await;
    let config = site.client_config();
    let first = site.dial(&config).await;
    let mut control = Pipe::open(&first).await;
    control.send(&hello("e").bytes()).await;
    control.next().await;
    first.close(0u32.into(), b"");
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let connecting = endpoint.connect_with(config, site.address(), "localhost").unwrap();
    let Ok((connection, accepted)) = connecting.into_0rtt() else { panic!("no ticket kept") };
    let mut control = Pipe::open(&connection).await;
    control.send(&[hello("e").bytes(), publish("early", b"!", 0)].concat()).await;
    assert!(timeout(PATIENCE, accepted).await.unwrap(), "early data was refused");
    assert_eq!(control.next().await, Seen::Connack(false));
    assert_eq!(sub.payload().await, b"!");
}

#[tokio::test]
async fn a_client_whose_address_changes_keeps_its_session() {
    let site = Site::start(2, |_| {});
    let (_sub_conn, mut sub, _) = site.client(&hello("s")).await;
    sub.send(&subscribe("t", QoS::AtMostOnce)).await;
    sub.next().await;
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let config = site.client_config();
    let connecting = endpoint.connect_with(config, site.address(), "localhost").unwrap();
    let connection = connecting.await.unwrap();
    let mut control = Pipe::open(&connection).await;
    control.send(&hello("m").bytes()).await;
    control.next().await;
    for i in 1..=100u16 {
        if i % 10 == 0 {
            endpoint.rebind(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        }
        control.send(&publish("t", &i.to_be_bytes(), i)).await;
        assert_eq!(control.next().await, Seen::Puback(i));
        assert_eq!(sub.payload().await, i.to_be_bytes());
    }
    drop(connection);
    site.eventually("the migrations to be counted", |site| {
        site.broker.metrics().sum(|shard| &shard.quic_migrations) >= 5
    })
    .await;
}

#[tokio::test]
async fn a_vanished_client_is_forgotten_after_the_idle_timeout() {
    let site = Site::start(2, |quic| quic.idle_timeout = Duration::from_secs(1));
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let config = site.client_config();
    let connecting = endpoint.connect_with(config, site.address(), "localhost").unwrap();
    let connection = connecting.await.unwrap();
    let mut control = Pipe::open(&connection).await;
    control.send(&hello("v").bytes()).await;
    control.next().await;
    assert_eq!(site.connections(), 1);
    // The client moves to a socket that reaches nobody, and so falls silent without a word.
    let nowhere = UdpSocket::bind("127.0.0.1:0").unwrap();
    nowhere.connect("127.0.0.1:9").unwrap();
    endpoint.rebind(nowhere).unwrap();
    site.eventually("the vanished client to be forgotten", |site| {
        site.connections() == 0 && site.broker.sessions() == 0
    })
    .await;
}

#[tokio::test]
async fn idlers_and_garbage_disturb_nobody() {
    let site = Site::start(2, |quic| {
        quic.handshake_timeout = Duration::from_secs(1);
        quic.retry = RetryPolicy::Always;
    });
    let idler = site.dial(&site.client_config()).await;
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for seed in 0..2000u32 {
        let mut state = seed.wrapping_mul(2_654_435_761) | 1;
        let bytes: Vec<u8> = (0..seed % 1300)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .collect();
        socket.send_to(&bytes, site.address()).unwrap();
    }
    let (_connection, mut control, _) = site.client(&hello("c")).await;
    control.send(&subscribe("t", QoS::AtMostOnce)).await;
    assert_eq!(control.next().await, Seen::Suback);
    control.send(&publish("t", b"x", 0)).await;
    assert_eq!(control.payload().await, b"x");
    timeout(PATIENCE, idler.closed()).await.expect("the idler is closed");
}
