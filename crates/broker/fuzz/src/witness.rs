//! An honest publisher and an honest subscriber, both with lasting sessions, beside the hostile clients:
//! their connections stay, everything acknowledged to them is durable, and messages arrive once and in order.

use fulmar_broker::StreamKey;
use fulmar_mqtt::ack::{self, AckKind};
use fulmar_mqtt::packet::{Connect, FilterList, Publish, Subscribe, SubscribeOptions};
use fulmar_mqtt::session::{Inbound, InboundQos2, Outbound, Replay};
use fulmar_mqtt::{Packet, PacketId, Properties, Property, PropertyBuf, QoS, ReasonCode, Version};

use crate::disk::Promise;
use crate::rig::{Conn, Rig};

/// Client identifiers that hostile clients must not use, since any client can take over a session by its identifier.
pub(crate) const IDENTIFIERS: &str = "witness-";

const SUBSCRIBER: &str = "witness-subscriber";
const PUBLISHER: &str = "witness-publisher";
const FILTER: &str = "witness/+";
const TOPIC: &str = "witness/t";
const WINDOW: u16 = 4;

/// Rounds in which everything must have arrived.
const MAX_ROUNDS: usize = 200;

/// One of the two.
struct Side {
    conn: Conn,
    /// Came with CONNACK.
    unanswered: Vec<Heard>,
}

impl Side {
    fn hear(&mut self, rig: &mut Rig) -> Vec<Heard> {
        let mut heard = std::mem::take(&mut self.unanswered);
        heard.extend(hear(rig, self.conn));
        heard
    }
}

pub(crate) struct Witness {
    publisher: Side,
    subscriber: Side,
    outbound: Outbound<usize>,
    inbound: Inbound,
    /// Every message's quality of service.
    sent: Vec<QoS>,
    /// How often each has arrived, and the newest of each quality of service.
    arrived: Vec<usize>,
    newest: [Option<usize>; 3],
}

enum Heard {
    Connack(bool, ReasonCode),
    Message(QoS, Option<PacketId>, Vec<u8>),
    Ack(AckKind, PacketId, ReasonCode),
    Suback(Vec<u8>),
    Other(&'static str),
}

impl Witness {
    pub(crate) fn new(rig: &mut Rig) -> Witness {
        let mut witness = Witness {
            publisher: connect(rig, PUBLISHER, false),
            subscriber: connect(rig, SUBSCRIBER, false),
            outbound: Outbound::new(WINDOW),
            inbound: Inbound::new(),
            sent: Vec::new(),
            arrived: Vec::new(),
            newest: [None; 3],
        };
        let options = SubscribeOptions { qos: QoS::ExactlyOnce, ..SubscribeOptions::default() };
        let mut filters = Vec::new();
        FilterList::encode_one(&mut filters, FILTER, Some(options));
        let Ok(filters) = FilterList::from_encoded(&filters, true, Version::V5) else {
            panic!("{FILTER} is a filter")
        };
        let packet_id = PacketId::FIRST;
        let subscribe = Subscribe { packet_id, properties: Properties::NONE, filters };
        say(rig, witness.subscriber.conn, &Packet::Subscribe(subscribe));
        rig.settle();
        rig.disk.commit();
        rig.settle();
        witness.read(rig);
        witness
    }

    pub(crate) fn publish(&mut self, rig: &mut Rig, qos: QoS) {
        let message = self.sent.len();
        if let Some(id) = self.outbound.push(qos, message) {
            self.sent.push(qos);
            self.arrived.push(0);
            self.send(rig, id, qos, message, false);
        }
    }

    fn send(&self, rig: &mut Rig, id: PacketId, qos: QoS, message: usize, dup: bool) {
        let payload = message.to_string();
        let publish = Publish {
            dup,
            qos,
            retain: false,
            topic: TOPIC,
            packet_id: Some(id),
            properties: Properties::NONE,
            payload: payload.as_bytes(),
        };
        say(rig, self.publisher.conn, &Packet::Publish(publish));
    }

    /// Both come back, after a crash or a cut, to the sessions they were promised.
    pub(crate) fn come_back(&mut self, rig: &mut Rig) {
        self.publisher = connect(rig, PUBLISHER, true);
        self.subscriber = connect(rig, SUBSCRIBER, true);
        let replay: Vec<_> = self
            .outbound
            .replay()
            .map(|replay| match replay {
                Replay::Publish { packet_id, qos, message } => (packet_id, Some((qos, *message))),
                Replay::Pubrel { packet_id } => (packet_id, None),
            })
            .collect();
        for (id, publish) in replay {
            match publish {
                Some((qos, message)) => self.send(rig, id, qos, message, true),
                None => acknowledge(rig, self.publisher.conn, AckKind::Pubrel, id),
            }
        }
    }

    pub(crate) fn cut(&mut self, rig: &mut Rig) {
        rig.cut(self.publisher.conn);
        rig.cut(self.subscriber.conn);
        self.come_back(rig);
    }

    /// Reads and answers what has come.
    pub(crate) fn read(&mut self, rig: &mut Rig) {
        assert!(
            rig.is_open(self.publisher.conn) && rig.is_open(self.subscriber.conn),
            "a witness was closed"
        );
        for heard in self.publisher.hear(rig) {
            match heard {
                Heard::Ack(AckKind::Puback, id, reason) => {
                    assert!(!reason.is_error(), "{reason}");
                    let message = self.outbound.puback(id);
                    self.check_durable(rig, message.ok());
                }
                Heard::Ack(AckKind::Pubrec, id, reason) => {
                    assert!(!reason.is_error(), "{reason}");
                    let message = self.outbound.pubrec(id).copied();
                    self.check_durable(rig, message.ok());
                    acknowledge(rig, self.publisher.conn, AckKind::Pubrel, id);
                }
                Heard::Ack(AckKind::Pubcomp, id, _) => {
                    assert!(self.outbound.pubcomp(id).is_ok(), "PUBCOMP of nothing");
                }
                other => panic!("the publisher heard {}", other.name()),
            }
        }
        for heard in self.subscriber.hear(rig) {
            match heard {
                Heard::Message(qos, Some(id), payload) => self.take(rig, qos, id, &payload),
                Heard::Ack(AckKind::Pubrel, id, _) => {
                    self.inbound.release(id);
                    acknowledge(rig, self.subscriber.conn, AckKind::Pubcomp, id);
                }
                Heard::Suback(codes) => {
                    assert_eq!(codes, [2]);
                    assert!(rig.disk.holds(&Promise::Subscribed(FILTER.into())));
                }
                other => panic!("the subscriber heard {}", other.name()),
            }
        }
    }

    fn check_durable(&self, rig: &Rig, message: Option<usize>) {
        let Some(message) = message else { panic!("an acknowledgement of nothing") };
        let payload = message.to_string().into_bytes().into();
        assert!(
            rig.disk.holds(&Promise::Queued(payload)),
            "{message} is acknowledged, not durable"
        );
    }

    fn take(&mut self, rig: &mut Rig, qos: QoS, id: PacketId, payload: &[u8]) {
        let number = std::str::from_utf8(payload).ok().and_then(|text| text.parse::<usize>().ok());
        let Some(message) = number.filter(|number| self.sent.get(*number) == Some(&qos)) else {
            panic!("not from the witness: {payload:?} at {qos:?}")
        };
        let kind = match qos {
            QoS::ExactlyOnce => AckKind::Pubrec,
            _ => AckKind::Puback,
        };
        let new = qos != QoS::ExactlyOnce || self.inbound.publish(id, u16::MAX) == InboundQos2::New;
        if new {
            self.arrived[message] += 1;
            let newest = &mut self.newest[qos as usize];
            let first = self.arrived[message] == 1;
            assert!(!first || newest.is_none_or(|newest| newest < message), "overtaken");
            *newest = (*newest).max(Some(message));
        }
        acknowledge(rig, self.subscriber.conn, kind, id);
    }

    /// Lets everything arrive, and checks that it has.
    pub(crate) fn finish(&mut self, rig: &mut Rig) {
        for _ in 0..MAX_ROUNDS {
            rig.disk.commit();
            rig.settle();
            self.read(rig);
            let done = self.outbound.in_flight() == 0 && self.inbound.is_empty();
            if done && self.arrived.iter().all(|arrived| *arrived > 0) {
                break;
            }
        }
        assert!(self.outbound.in_flight() == 0 && self.inbound.is_empty(), "waits for ever");
        for (message, (qos, arrived)) in self.sent.iter().zip(&self.arrived).enumerate() {
            let enough = *arrived == 1 || (*qos == QoS::AtLeastOnce && *arrived > 1);
            assert!(enough, "message {message} at {qos:?} arrived {arrived} times");
        }
    }
}

impl Heard {
    fn name(&self) -> &'static str {
        match self {
            Heard::Connack(..) => "CONNACK",
            Heard::Message(..) => "a message at QoS 0",
            Heard::Ack(..) => "an acknowledgement that is the other's",
            Heard::Suback(_) => "SUBACK",
            Heard::Other(name) => name,
        }
    }
}

fn connect(rig: &mut Rig, client_id: &str, present: bool) -> Side {
    let Some(conn) = rig.open(usize::from(client_id == PUBLISHER), false) else {
        panic!("no room for the witness")
    };
    let mut properties = PropertyBuf::new();
    properties.push(Property::SessionExpiryInterval(u32::MAX)).push(Property::TopicAliasMaximum(1));
    let connect = Connect {
        version: Version::V5,
        bridge: false,
        clean_start: false,
        keep_alive_s: 0,
        client_id,
        properties: properties.as_properties(),
        will: None,
        username: None,
        password: None,
    };
    say(rig, conn, &Packet::Connect(connect));
    rig.settle();
    assert!(hear(rig, conn).is_empty(), "CONNACK before the session is durable");
    rig.disk.commit();
    rig.settle();
    let mut heard = hear(rig, conn).into_iter();
    let Some(Heard::Connack(resumed, ReasonCode::Success)) = heard.next() else {
        panic!("the witness was not let in")
    };
    assert_eq!(resumed, present);
    assert!(rig.disk.holds(&Promise::Session(client_id.into())));
    Side { conn, unanswered: heard.collect() }
}

fn say(rig: &mut Rig, conn: Conn, packet: &Packet<'_>) {
    let mut bytes = Vec::new();
    packet.encode(Version::V5, &mut bytes);
    rig.say(conn, StreamKey::CONTROL, &bytes);
}

fn acknowledge(rig: &mut Rig, conn: Conn, kind: AckKind, id: PacketId) {
    let mut bytes = Vec::new();
    ack::encode(&mut bytes, Version::V5, kind, id, ReasonCode::Success);
    rig.say(conn, StreamKey::CONTROL, &bytes);
}

fn hear(rig: &mut Rig, conn: Conn) -> Vec<Heard> {
    let mut heard = Vec::new();
    rig.look(conn, |packet| {
        heard.push(match packet {
            Packet::Connack(connack) => Heard::Connack(connack.session_present, connack.reason),
            Packet::Publish(publish) => {
                Heard::Message(publish.qos, publish.packet_id, publish.payload.to_vec())
            }
            Packet::Ack(kind, ack) => Heard::Ack(*kind, ack.packet_id, ack.reason),
            Packet::Suback(suback) => Heard::Suback(suback.codes.to_vec()),
            other => Heard::Other(other.name()),
        });
    });
    heard
}
