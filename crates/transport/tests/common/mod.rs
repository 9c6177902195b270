//! A broker on loopback and the smallest client that can talk to it: packets as bytes, blocking
//! sockets with a time limit. It deliberately shares no code with what it tests.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmar_broker::auth::AccessControl;
use fulmar_broker::storage::{NoStorage, Restored};
use fulmar_broker::{Broker, BrokerConfig, ClientStatistics, Limits, ListenerPolicy};
use fulmar_transport::{Carrier, Clock, ListenerConfig, Server, ServerConfig, TransportLimits};

/// Longest time anything here may take.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct TestServer {
    pub broker: Arc<Broker>,
    pub server: Server,
}

impl TestServer {
    pub fn start(workers: usize, carriers: Vec<Carrier>) -> TestServer {
        TestServer::with_limits(workers, carriers, TransportLimits::default(), true)
    }

    pub fn with_limits(
        workers: usize,
        carriers: Vec<Carrier>,
        limits: TransportLimits,
        allow_anonymous: bool,
    ) -> TestServer {
        let clock = Clock::start();
        let config = BrokerConfig {
            workers,
            limits: Limits::default(),
            access_control: AccessControl::default(),
            sys_interval_s: 0,
            client_statistics: ClientStatistics::Rules,
            internal_sessions: Vec::new(),
        };
        let broker = Broker::new(config, Arc::new(NoStorage), Restored::default(), clock.now());
        let policy = Arc::new(ListenerPolicy { name: "test".into(), allow_anonymous });
        let listeners = carriers
            .into_iter()
            .map(|carrier| ListenerConfig {
                address: "127.0.0.1:0".parse().unwrap(),
                carrier,
                policy: Arc::clone(&policy),
                proxies: None,
            })
            .collect();
        let config = ServerConfig {
            workers,
            coalesce: Duration::from_micros(100),
            listeners,
            quic: Vec::new(),
            origins: Default::default(),
            limits,
        };
        let server = Server::start(&broker, config, clock).unwrap();
        TestServer { broker, server }
    }

    pub fn address(&self, listener: usize) -> SocketAddr {
        self.server.bound()[listener]
    }

    /// A plain TCP connection to a listener.
    pub fn dial(&self, listener: usize) -> TcpStream {
        let stream = TcpStream::connect(self.address(listener)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// A connected MQTT 5.0 client over plain TCP.
    pub fn client(&self, id: &str) -> Client<TcpStream> {
        let mut client = Client(self.dial(0));
        client.connect(id);
        client
    }

    pub fn connections(&self) -> u64 {
        self.broker.metrics().connections()
    }
}

/// Polls until `done`; panics when it takes too long.
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "waited too long for: {what}");
        std::thread::yield_now();
    }
}

fn field(bytes: &[u8]) -> Vec<u8> {
    let mut out = (bytes.len() as u16).to_be_bytes().to_vec();
    out.extend(bytes);
    out
}

pub fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    let mut rest = body.len();
    loop {
        let digit = (rest % 128) as u8;
        rest /= 128;
        out.push(if rest > 0 { digit | 0x80 } else { digit });
        if rest == 0 {
            break;
        }
    }
    out.extend(body);
    out
}

pub fn connect(id: &str) -> Vec<u8> {
    packet(0x10, &[field(b"MQTT"), vec![5, 2, 0, 0, 0], field(id.as_bytes())].concat())
}

pub fn subscribe(filter: &str) -> Vec<u8> {
    packet(0x82, &[vec![0, 1, 0], field(filter.as_bytes()), vec![0]].concat())
}

pub fn publish(topic: &str, payload: &[u8]) -> Vec<u8> {
    packet(0x30, &[&field(topic.as_bytes())[..], &[0], payload].concat())
}

pub const PINGREQ: [u8; 2] = [0xc0, 0];
pub const PINGRESP: u8 = 0xd0;

/// A client over any blocking stream.
pub struct Client<S>(pub S);

impl<S: Read + Write> Client<S> {
    pub fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
        self.0.flush().unwrap();
    }

    /// First byte and body of the next packet.
    pub fn next(&mut self) -> (u8, Vec<u8>) {
        let first = self.byte();
        let mut len = 0;
        for shift in [0, 7, 14, 21] {
            let digit = self.byte();
            len |= usize::from(digit & 0x7f) << shift;
            if digit & 0x80 == 0 {
                break;
            }
        }
        let mut body = vec![0; len];
        self.0.read_exact(&mut body).unwrap();
        (first, body)
    }

    fn byte(&mut self) -> u8 {
        let mut byte = [0];
        self.0.read_exact(&mut byte).unwrap();
        byte[0]
    }

    /// Sends CONNECT and gives CONNACK's reason code.
    pub fn try_connect(&mut self, id: &str) -> u8 {
        self.send(&connect(id));
        let (first, body) = self.next();
        assert_eq!(first, 0x20);
        body[1]
    }

    pub fn connect(&mut self, id: &str) {
        assert_eq!(self.try_connect(id), 0, "{id}");
    }

    pub fn subscribe(&mut self, filter: &str) {
        self.send(&subscribe(filter));
        assert_eq!(self.next(), (0x90, vec![0, 1, 0, 0]));
    }

    /// Payload of the next packet, which is to be a PUBLISH on `topic`.
    pub fn receive(&mut self, topic: &str) -> Vec<u8> {
        let (first, body) = self.next();
        assert_eq!(first & 0xf0, 0x30, "not a PUBLISH: {first:#x} {body:?}");
        let head = [&field(topic.as_bytes())[..], &[0]].concat();
        assert_eq!(&body[..head.len()], &head[..]);
        body[head.len()..].to_vec()
    }

    /// Asserts an orderly end of the stream: no byte and no reset.
    pub fn expect_end(&mut self) {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty(), "{rest:?}");
    }
}
