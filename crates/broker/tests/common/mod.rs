//! A broker in simulated time, with workers that are turned by hand and clients that are bytes.
#![allow(dead_code, clippy::unwrap_used, clippy::missing_panics_doc, missing_docs, unreachable_pub)]

mod interleaving;
pub mod log;
pub mod storage;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use fulmar_broker::auth::AccessControl;
use fulmar_broker::storage::{NoStorage, Restored, Storage};
use fulmar_broker::{
    Broker, BrokerConfig, ClientStatistics, Connection, Limits, ListenerPolicy, LostCause, Output,
    Peer, ReadState, Shard, StreamEnd, StreamKey, Timestamp, Token, TransportKind, User,
};
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::codec::{decode, peek_frame};
use fulmar_mqtt::packet::{Ack, Connect, FilterList, Publish, Subscribe, SubscribeOptions};
use fulmar_mqtt::{Packet, PacketId, Properties, Property, PropertyBuf, QoS, ReasonCode, Version};
use smallvec::SmallVec;

use storage::SimStorage;

/// Turns in which everything must have come to rest.
const MAX_TURNS: usize = 100_000;

/// A connection of the simulated world, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Conn(pub u64);

struct Line {
    shard: usize,
    connection: Connection,
    version: Version,
    aliases: Aliases,
    /// Bytes the broker has not consumed.
    unread: Vec<u8>,
    /// Bytes the client has not looked at.
    inbox: Vec<u8>,
    /// Whether the client reads; if not, the transport asks for nothing more.
    reading: bool,
    open: bool,
}

pub struct World {
    pub broker: Arc<Broker>,
    shards: Vec<Shard>,
    lines: HashMap<u64, Line>,
    /// Connections that had an event. What they left unread is offered to them again, as transports do, and only then.
    notified: HashSet<u64>,
    now: Timestamp,
    next: u64,
}

/// What a client sees, owned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Connack { present: bool, reason: ReasonCode, assigned: Option<String> },
    Publish(Got),
    Ack(AckKind, u16, ReasonCode),
    Suback(Vec<u8>),
    Unsuback(Vec<u8>),
    Pingresp,
    Disconnect(ReasonCode),
    Auth(ReasonCode),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Got {
    /// As the client understands it.
    pub topic: String,
    /// Whether the packet names it.
    pub in_full: bool,
    pub alias: Option<u16>,
    pub payload: Vec<u8>,
    pub qos: QoS,
    pub retain: bool,
    pub dup: bool,
    pub id: u16,
    pub subscription_ids: Vec<u32>,
    pub expiry: Option<u32>,
}

impl Got {
    pub fn text(&self) -> String {
        format!("{} {}", self.topic, String::from_utf8_lossy(&self.payload))
    }
}

pub struct Setup {
    pub workers: usize,
    pub limits: Limits,
    pub access_control: AccessControl,
    pub storage: Arc<dyn Storage>,
    pub restored: Restored,
    pub now: Timestamp,
    /// Seconds between two tellings of `$SYS`; 0 for none.
    pub sys_interval_s: u32,
    pub internal_sessions: Vec<Box<str>>,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            workers: 2,
            limits: Limits::default(),
            access_control: AccessControl::default(),
            storage: Arc::new(NoStorage),
            restored: Restored::default(),
            now: Timestamp(1_000_000),
            sys_interval_s: 0,
            internal_sessions: Vec::new(),
        }
    }
}

/// How a client connects.
#[derive(Clone, Debug)]
pub struct Hello {
    pub id: &'static str,
    pub version: Version,
    pub bridge: bool,
    pub clean: bool,
    pub expiry: Option<u32>,
    pub keep_alive: u16,
    pub receive_maximum: Option<u16>,
    pub max_packet: Option<u32>,
    pub alias_maximum: Option<u16>,
    pub will: Option<(&'static str, u32)>,
    pub will_qos: QoS,
    pub will_retain: bool,
}

pub fn hello(id: &'static str) -> Hello {
    Hello {
        id,
        version: Version::V5,
        bridge: false,
        clean: true,
        expiry: None,
        keep_alive: 0,
        receive_maximum: None,
        max_packet: None,
        alias_maximum: None,
        will: None,
        will_qos: QoS::AtMostOnce,
        will_retain: false,
    }
}

/// One that comes back to the session it left.
pub fn lasting(id: &'static str) -> Hello {
    Hello { clean: false, expiry: Some(1000), ..hello(id) }
}

/// A subscriber that comes back, with a window so small that messages queue behind it.
pub fn narrow(id: &'static str) -> Hello {
    Hello { receive_maximum: Some(3), ..lasting(id) }
}

impl World {
    pub fn new() -> World {
        World::with(Setup::default())
    }

    pub fn with(setup: Setup) -> World {
        let config = BrokerConfig {
            workers: setup.workers,
            limits: setup.limits,
            access_control: setup.access_control,
            sys_interval_s: setup.sys_interval_s,
            client_statistics: ClientStatistics::Rules,
            internal_sessions: setup.internal_sessions,
        };
        let broker = Broker::new(config, setup.storage, setup.restored, setup.now);
        let shard = |index| Shard::new(Arc::clone(&broker), index, setup.now, Arc::new(|| {}));
        let shards = (0..setup.workers).map(shard).collect();
        World {
            broker,
            shards,
            lines: HashMap::new(),
            notified: HashSet::new(),
            now: setup.now,
            next: 0,
        }
    }

    /// A broker that crashes now and starts again with what `storage` has committed.
    pub fn after_crash(&self, storage: &mut Arc<SimStorage>) -> World {
        let (next, restored) = storage.crash();
        *storage = next;
        let now = self.now;
        World::with(Setup { storage: Arc::clone(storage) as _, restored, now, ..Setup::default() })
    }

    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Lets time pass; fires what is due.
    pub fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
        for shard in &mut self.shards {
            shard.set_now(self.now);
            if shard.deadline().is_some_and(|at| at <= self.now) {
                shard.on_deadline();
            }
        }
        let numbers: Vec<u64> = self.lines.keys().copied().collect();
        for number in numbers {
            let line = self.lines.get_mut(&number).unwrap();
            let shard = &mut self.shards[line.shard];
            if line.open && line.connection.deadline(shard) <= self.now {
                line.connection.on_deadline(shard);
            }
        }
        self.settle();
    }

    /// Time passes, and the first worker keeps house in a turn that goes on.
    pub fn wait_within_turn(&mut self, time: Duration) {
        self.now = self.now + time;
        self.shards.iter_mut().for_each(|shard| shard.set_now(self.now));
        self.shards[0].on_deadline();
    }

    /// A network connection to one of the workers.
    pub fn open(&mut self, shard: usize) -> Conn {
        self.open_over(shard, TransportKind::Tcp)
    }

    pub fn open_over(&mut self, shard: usize, transport: TransportKind) -> Conn {
        self.open_peer(shard, transport, None, [127, 0, 0, 1], true)
    }

    /// Whether the broker refuses a network connection to the first worker.
    pub fn refuses_connection(&mut self) -> bool {
        let peer = Peer {
            address: ([127, 0, 0, 1], 1000).into(),
            transport: TransportKind::Tcp,
            identity: None,
            listener: Arc::new(ListenerPolicy { name: "test".into(), allow_anonymous: true }),
        };
        Connection::new(&mut self.shards[0], Token(u64::MAX), peer).is_err()
    }

    /// One through a listener that does or does not let in clients without credentials.
    pub fn open_as(&mut self, shard: usize, allow_anonymous: bool) -> Conn {
        self.open_peer(shard, TransportKind::Tcp, None, [127, 0, 0, 1], allow_anonymous)
    }

    /// A connection whose transport has verified who its client is.
    pub fn open_user(
        &mut self,
        shard: usize,
        transport: TransportKind,
        user: Option<&str>,
    ) -> Conn {
        self.open_peer(shard, transport, user, [127, 0, 0, 1], true)
    }

    /// A connection from this address.
    pub fn open_from(&mut self, shard: usize, address: [u8; 4]) -> Conn {
        self.open_peer(shard, TransportKind::Tcp, None, address, true)
    }

    fn open_peer(
        &mut self,
        shard: usize,
        transport: TransportKind,
        user: Option<&str>,
        address: [u8; 4],
        allow_anonymous: bool,
    ) -> Conn {
        let number = self.next;
        self.next += 1;
        let peer = Peer {
            address: (address, 1000).into(),
            transport,
            identity: user.map(|user| User::from_text(user).into()),
            listener: Arc::new(ListenerPolicy { name: "test".into(), allow_anonymous }),
        };
        let connection = Connection::new(&mut self.shards[shard], Token(number), peer).unwrap();
        let line = Line {
            shard,
            connection,
            version: Version::V5,
            aliases: Aliases::default(),
            unread: Vec::new(),
            inbox: Vec::new(),
            reading: true,
            open: true,
        };
        self.lines.insert(number, line);
        Conn(number)
    }

    /// Opens, sends CONNECT, and expects to be let in. Returns whether a session was present.
    pub fn connect(&mut self, shard: usize, hello: &Hello) -> (Conn, bool) {
        let conn = self.open(shard);
        self.say_hello(conn, hello);
        match self.seen(conn).first() {
            Some(Seen::Connack { present, reason: ReasonCode::Success, .. }) => (conn, *present),
            other => panic!("expected to be let in, saw {other:?}"),
        }
    }

    pub fn say_hello(&mut self, conn: Conn, hello: &Hello) {
        self.say_hello_within_turn(conn, hello);
        self.settle();
    }

    /// Worker reads CONNECT, and its turn goes on.
    pub fn say_hello_within_turn(&mut self, conn: Conn, hello: &Hello) {
        let line = self.line(conn);
        line.version = hello.version;
        line.aliases.maximum = hello.alias_maximum.unwrap_or(0);
        let mut properties = PropertyBuf::new();
        let mut will_properties = PropertyBuf::new();
        if let Some(seconds) = hello.expiry {
            properties.push(Property::SessionExpiryInterval(seconds));
        }
        if let Some(most) = hello.receive_maximum {
            properties.push(Property::ReceiveMaximum(most));
        }
        if let Some(most) = hello.max_packet {
            properties.push(Property::MaximumPacketSize(most));
        }
        if let Some(most) = hello.alias_maximum {
            properties.push(Property::TopicAliasMaximum(most));
        }
        let will = hello.will.map(|(topic, delay)| {
            if delay > 0 {
                will_properties.push(Property::WillDelayInterval(delay));
            }
            topic
        });
        let will = will.map(|topic| fulmar_mqtt::packet::LastWill {
            topic,
            payload: b"will",
            qos: hello.will_qos,
            retain: hello.will_retain,
            properties: will_properties.as_properties(),
        });
        self.send_within_turn(
            conn,
            &Packet::Connect(Connect {
                version: hello.version,
                bridge: hello.bridge,
                clean_start: hello.clean,
                keep_alive_s: hello.keep_alive,
                client_id: hello.id,
                properties: properties.as_properties(),
                will,
                username: None,
                password: None,
            }),
        );
    }

    pub fn send(&mut self, conn: Conn, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        packet.encode(self.line(conn).version, &mut bytes);
        self.send_bytes(conn, &bytes);
    }

    pub fn send_bytes(&mut self, conn: Conn, bytes: &[u8]) {
        self.send_bytes_within_turn(conn, bytes);
        self.settle();
    }

    /// The worker is shown bytes, and its turn goes on.
    pub fn send_bytes_within_turn(&mut self, conn: Conn, bytes: &[u8]) {
        self.line(conn).unread.extend_from_slice(bytes);
        self.offer(conn.0);
    }

    /// Worker reads a packet, and its turn goes on.
    pub fn send_within_turn(&mut self, conn: Conn, packet: &Packet<'_>) {
        let line = self.lines.get_mut(&conn.0).unwrap();
        packet.encode(line.version, &mut line.unread);
        self.offer(conn.0);
    }

    /// The client closes its side, while the worker does not read from it.
    pub fn half_close(&mut self, conn: Conn) {
        let line = self.lines.get_mut(&conn.0).unwrap();
        line.connection.peer_closed(&self.shards[line.shard]);
    }

    /// One worker sends what it has and ends its turn, while the others' go on.
    pub fn end_turn(&mut self, shard: usize) {
        let mut events = Vec::new();
        self.shards[shard].take_events(&mut events);
        for (token, event) in events {
            let line = self.lines.get_mut(&token.0).unwrap();
            line.connection.on_event(&mut self.shards[shard], event);
            self.notified.insert(token.0);
            self.drain(token.0);
        }
        self.shards[shard].end_turn();
    }

    /// Whether a worker would sleep now.
    pub fn may_sleep(&mut self, shard: usize) -> bool {
        let may = self.shards[shard].before_sleep();
        self.shards[shard].after_sleep();
        may
    }

    pub fn publish(&mut self, conn: Conn, topic: &str, payload: &str, qos: QoS, id: u16) {
        self.publish_with(conn, topic, payload, qos, id, false, Properties::NONE);
    }

    #[allow(clippy::too_many_arguments)]
    pub fn publish_with(
        &mut self,
        conn: Conn,
        topic: &str,
        payload: &str,
        qos: QoS,
        id: u16,
        retain: bool,
        properties: Properties<'_>,
    ) {
        let packet_id = PacketId::new(id).filter(|_| qos > QoS::AtMostOnce);
        let payload = payload.as_bytes();
        let publish = Publish { dup: false, qos, retain, topic, packet_id, properties, payload };
        self.send(conn, &Packet::Publish(publish));
    }

    pub fn ack(&mut self, conn: Conn, kind: AckKind, id: u16) {
        let packet_id = PacketId::new(id).unwrap();
        let (reason, properties) = (ReasonCode::Success, Properties::NONE);
        self.send(conn, &Packet::Ack(kind, Ack { packet_id, reason, properties }));
    }

    pub fn subscribe(&mut self, conn: Conn, filter: &str, qos: QoS) -> Vec<u8> {
        let options = SubscribeOptions { qos, ..SubscribeOptions::default() };
        self.subscribe_with(conn, filter, options, None);
        let seen = self.peek(conn);
        let suback = seen.iter().find_map(|seen| match seen {
            Seen::Suback(codes) => Some(codes.clone()),
            _ => None,
        });
        suback.unwrap_or_default()
    }

    pub fn subscribe_with(
        &mut self,
        conn: Conn,
        filter: &str,
        options: SubscribeOptions,
        id: Option<u32>,
    ) {
        let version = self.line(conn).version;
        let mut list = Vec::new();
        FilterList::encode_one(&mut list, filter, Some(options));
        let mut properties = PropertyBuf::new();
        if let Some(id) = id {
            properties.push(Property::SubscriptionIdentifier(id));
        }
        let subscribe = Subscribe {
            packet_id: PacketId::new(9999).unwrap(),
            properties: properties.as_properties(),
            filters: FilterList::from_encoded(&list, true, version).unwrap(),
        };
        self.send(conn, &Packet::Subscribe(subscribe));
    }

    /// Says something on a further stream of a QUIC client, opened if it is new. What the client is
    /// sent there stays unread until [`World::read_stream`].
    pub fn send_on(&mut self, conn: Conn, stream: StreamKey, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        packet.encode(self.line(conn).version, &mut bytes);
        self.send_bytes_on(conn, stream, &bytes);
    }

    pub fn send_bytes_on(&mut self, conn: Conn, stream: StreamKey, bytes: &[u8]) {
        let line = self.lines.get_mut(&conn.0).unwrap();
        let shard = &mut self.shards[line.shard];
        line.connection.stream_opened(shard, stream);
        let received = line.connection.receive(shard, stream, bytes);
        let is_refused = received.state == ReadState::Closed;
        assert!(is_refused || received.consumed == bytes.len());
        self.settle();
    }

    /// Bytes waiting for a further stream, which are taken.
    pub fn read_stream(&mut self, conn: Conn, stream: StreamKey) -> usize {
        let line = self.lines.get_mut(&conn.0).unwrap();
        let shard = &mut self.shards[line.shard];
        line.connection.output(shard, stream).bytes.len()
    }

    /// Streams for which the transport got an event that there is output.
    pub fn ready_streams(&mut self, conn: Conn) -> Vec<StreamKey> {
        let mut ready = SmallVec::new();
        self.line(conn).connection.ready_streams(&mut ready);
        ready.into_vec()
    }

    /// What the client has been sent on a further stream since it looked last.
    pub fn seen_on(&mut self, conn: Conn, stream: StreamKey) -> Vec<Seen> {
        let line = self.lines.get_mut(&conn.0).unwrap();
        let shard = &mut self.shards[line.shard];
        let mut bytes = Vec::new();
        loop {
            let output = line.connection.output(shard, stream);
            bytes.extend_from_slice(&output.bytes);
            if !output.more {
                break;
            }
        }
        let seen = see_all(&bytes, line.version, stream, &mut line.aliases);
        self.settle();
        seen
    }

    /// The client ends a further stream.
    pub fn end_stream(&mut self, conn: Conn, stream: StreamKey) {
        self.end_stream_within_turn(conn, stream);
        self.settle();
    }

    /// The same within a turn of its worker.
    pub fn end_stream_within_turn(&mut self, conn: Conn, stream: StreamKey) {
        let line = self.lines.get_mut(&conn.0).unwrap();
        let shard = &mut self.shards[line.shard];
        line.connection.stream_ended(shard, stream, StreamEnd::Reset(0));
    }

    /// What a connection gives its transport at one request.
    pub fn output(&mut self, conn: Conn) -> Output {
        let line = self.lines.get_mut(&conn.0).unwrap();
        line.connection.output(&mut self.shards[line.shard], StreamKey::CONTROL)
    }

    /// A figure over all workers.
    pub fn total(&self, name: &str) -> u64 {
        let totals = self.shards[0].broker().metrics().totals();
        totals.into_iter().find(|total| total.0 == name).unwrap().2
    }

    /// The client stops reading, or goes on.
    pub fn set_reading(&mut self, conn: Conn, reading: bool) {
        self.line(conn).reading = reading;
        self.settle();
    }

    /// The network connection breaks.
    pub fn cut(&mut self, conn: Conn) {
        self.cut_within_turn(conn);
        self.settle();
    }

    /// The network connection breaks, and its worker's turn goes on.
    pub fn cut_within_turn(&mut self, conn: Conn) {
        let line = self.lines.get_mut(&conn.0).unwrap();
        line.open = false;
        line.connection.lost(&mut self.shards[line.shard], LostCause::Failed);
    }

    /// As its transport asks when the client is connected.
    pub fn input_window(&mut self, conn: Conn, wanted: usize) -> usize {
        self.line(conn).connection.input_window(wanted)
    }

    /// The bytes the client has received since it looked last.
    pub fn bytes(&mut self, conn: Conn) -> Vec<u8> {
        std::mem::take(&mut self.line(conn).inbox)
    }

    /// Whether the broker has closed the connection.
    pub fn is_closed(&mut self, conn: Conn) -> bool {
        self.line(conn).connection.closing().is_some()
    }

    fn line(&mut self, conn: Conn) -> &mut Line {
        self.lines.get_mut(&conn.0).unwrap()
    }

    /// The worker looks again at what a connection has sent and it has not read.
    pub fn read_again(&mut self, conn: Conn) {
        self.offer(conn.0);
    }

    fn offer(&mut self, number: u64) {
        let line = self.lines.get_mut(&number).unwrap();
        if !line.open {
            return;
        }
        let shard = &mut self.shards[line.shard];
        let received = line.connection.receive(shard, StreamKey::CONTROL, &line.unread);
        line.unread.drain(..received.consumed);
        if received.state == ReadState::Closed {
            line.unread.clear();
        }
    }

    /// Turns the workers until nothing moves.
    pub fn settle(&mut self) {
        for _ in 0..MAX_TURNS {
            let mut moved = false;
            for at in 0..self.shards.len() {
                let mut events = Vec::new();
                self.shards[at].take_events(&mut events);
                for (token, event) in events {
                    moved = true;
                    self.notified.insert(token.0);
                    let Some(line) = self.lines.get_mut(&token.0) else { continue };
                    if line.open {
                        line.connection.on_event(&mut self.shards[at], event);
                    }
                }
                self.shards[at].end_turn();
                moved |= !self.shards[at].before_sleep();
                self.shards[at].after_sleep();
            }
            let notified = std::mem::take(&mut self.notified);
            let numbers: Vec<u64> = self.lines.keys().copied().collect();
            for number in numbers {
                if notified.contains(&number) && !self.lines[&number].unread.is_empty() {
                    let before = self.lines[&number].unread.len();
                    self.offer(number);
                    moved |= self.lines[&number].unread.len() != before;
                }
                moved |= self.drain(number);
            }
            if !moved {
                return;
            }
        }
        panic!("the broker does not come to rest");
    }

    fn drain(&mut self, number: u64) -> bool {
        let line = self.lines.get_mut(&number).unwrap();
        let shard = &mut self.shards[line.shard];
        let mut moved = false;
        if !line.open || !line.reading {
            return false;
        }
        let mut keys = SmallVec::new();
        line.connection.ready_streams(&mut keys);
        loop {
            let output = line.connection.output(shard, StreamKey::CONTROL);
            moved |= !output.bytes.is_empty();
            line.inbox.extend_from_slice(&output.bytes);
            if !output.more {
                return moved;
            }
        }
    }

    /// What the client has received and not looked at; stays.
    pub fn peek(&mut self, conn: Conn) -> Vec<Seen> {
        let line = self.line(conn);
        see_all(&line.inbox, line.version, StreamKey::CONTROL, &mut line.aliases.clone())
    }

    /// What the client has received since it looked last.
    pub fn seen(&mut self, conn: Conn) -> Vec<Seen> {
        let line = self.line(conn);
        let inbox = std::mem::take(&mut line.inbox);
        see_all(&inbox, line.version, StreamKey::CONTROL, &mut line.aliases)
    }

    /// The publications among [`World::seen`].
    pub fn got(&mut self, conn: Conn) -> Vec<Got> {
        let publishes = self.seen(conn).into_iter().filter_map(|seen| match seen {
            Seen::Publish(got) => Some(got),
            _ => None,
        });
        publishes.collect()
    }

    /// [`World::got`] as `topic payload`.
    pub fn texts(&mut self, conn: Conn) -> Vec<String> {
        self.got(conn).iter().map(Got::text).collect()
    }
}

fn see_all(
    mut rest: &[u8],
    version: Version,
    stream: StreamKey,
    aliases: &mut Aliases,
) -> Vec<Seen> {
    let mut seen = Vec::new();
    while let Some(frame) = peek_frame(rest, usize::MAX).unwrap() {
        let packet = decode(&frame, version).unwrap();
        let topic = match &packet {
            Packet::Publish(publish) => aliases.resolve(stream, publish),
            _ => String::new(),
        };
        seen.push(see(packet, topic));
        rest = &rest[frame.len..];
    }
    assert!(rest.is_empty(), "the broker sent half a packet");
    seen
}

fn see(packet: Packet<'_>, topic: String) -> Seen {
    match packet {
        Packet::Connack(connack) => Seen::Connack {
            present: connack.session_present,
            reason: connack.reason,
            assigned: fulmar_mqtt::find_property!(connack.properties, AssignedClientIdentifier)
                .map(|id| id.to_owned()),
        },
        Packet::Publish(publish) => {
            let properties = publish.properties;
            Seen::Publish(Got {
                topic,
                in_full: !publish.topic.is_empty(),
                alias: alias_of(&publish),
                payload: publish.payload.to_vec(),
                qos: publish.qos,
                retain: publish.retain,
                dup: publish.dup,
                id: publish.packet_id.map_or(0, PacketId::get),
                subscription_ids: properties
                    .iter()
                    .filter_map(|property| match property {
                        Property::SubscriptionIdentifier(id) => Some(id),
                        _ => None,
                    })
                    .collect(),
                expiry: fulmar_mqtt::find_property!(properties, MessageExpiryInterval),
            })
        }
        Packet::Ack(kind, ack) => Seen::Ack(kind, ack.packet_id.get(), ack.reason),
        Packet::Suback(suback) => Seen::Suback(suback.codes.to_vec()),
        Packet::Unsuback(unsuback) => Seen::Unsuback(unsuback.codes.to_vec()),
        Packet::Pingresp => Seen::Pingresp,
        Packet::Disconnect(disconnect) => Seen::Disconnect(disconnect.reason),
        Packet::Auth(auth) => Seen::Auth(auth.reason),
        other => panic!("a server does not send {}", other.name()),
    }
}

/// What the aliases on a client's streams stand for. It panics at one that the client does not allow or know.
#[derive(Clone, Debug, Default)]
struct Aliases {
    maximum: u16,
    topics: HashMap<(StreamKey, u16), String>,
}

impl Aliases {
    fn resolve(&mut self, stream: StreamKey, publish: &Publish<'_>) -> String {
        let topic = publish.topic.to_owned();
        let Some(alias) = alias_of(publish) else {
            assert!(!topic.is_empty(), "a message without topic and alias");
            return topic;
        };
        let maximum = self.maximum;
        assert!((1..=maximum).contains(&alias), "alias {alias}; the client allows {maximum}");
        if topic.is_empty() {
            let known = self.topics.get(&(stream, alias));
            return known.unwrap_or_else(|| panic!("alias {alias} is not set here")).clone();
        }
        self.topics.insert((stream, alias), topic.clone());
        topic
    }
}

fn alias_of(publish: &Publish<'_>) -> Option<u16> {
    fulmar_mqtt::find_property!(publish.properties, TopicAlias)
}

impl World {
    /// Looks at a connection's bytes as of another version.
    pub fn line_version(&mut self, conn: Conn, version: Version) {
        self.line(conn).version = version;
    }
}
