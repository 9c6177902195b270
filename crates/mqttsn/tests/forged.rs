//! What an address is sent that somebody else may have named: little, until it has answered. A device that is there
//! gets everything all the same.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use bytes::Bytes;
use fulmar_mqtt::{PacketId, QoS, ReasonCode};
use fulmar_mqttsn::{
    BrokerEvent, Event, Message, Publication, Request, ReturnCode, Server, Settings, TopicName,
    Trust,
};

const DEVICE: u8 = 1;
/// Octets of IPv4's and UDP's headers.
const HEADERS: usize = 28;

/// A device that may be forged, and a broker with one message for every subscriber.
struct World {
    now: Instant,
    server: Server<u8>,
    /// The topic of that message.
    topic: String,
    came: usize,
    went: usize,
    sent: Vec<Vec<u8>>,
}

impl World {
    fn new(topic: &str) -> World {
        let now = Instant::now();
        let server = Server::new(Settings::default(), 1, now);
        World { now, server, topic: topic.to_owned(), came: 0, went: 0, sent: Vec::new() }
    }

    fn say(&mut self, message: &Message<'_>) {
        let datagram = message.encode().unwrap();
        self.came += datagram.len() + HEADERS;
        self.server.receive(self.now, DEVICE, Trust::Claimed, &datagram).unwrap();
        self.settle();
    }

    fn settle(&mut self) {
        while let Some(event) = self.server.poll_event() {
            let Event::Request { handle, request, .. } = event else { continue };
            match request {
                Request::Open(_) => {
                    self.server.on_broker_event(
                        self.now,
                        handle,
                        BrokerEvent::Opened { in_flight: 8 },
                    );
                }
                Request::Subscribe(packet_id, ..) => {
                    let message = Publication {
                        topic: self.topic.as_str().into(),
                        payload: Bytes::from_static(b"21.5"),
                        qos: QoS::AtLeastOnce,
                        retain: true,
                        dup: false,
                        packet_id: Some(PacketId::FIRST),
                    };
                    self.server.on_broker_event(
                        self.now,
                        handle,
                        BrokerEvent::Subscribed(packet_id, ReasonCode::Success),
                    );
                    self.server.on_broker_event(self.now, handle, BrokerEvent::Message(message));
                }
                Request::Probe => {
                    self.server.on_broker_event(self.now, handle, BrokerEvent::Probed)
                }
                _ => {}
            }
        }
        while let Some((_, datagram)) = self.server.poll_transmit() {
            self.went += datagram.len() + HEADERS;
            self.sent.push(datagram);
        }
    }

    fn wait(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now += Duration::from_secs(1);
            self.server.on_deadline(self.now);
            self.settle();
        }
    }

    fn connect(&mut self, will: bool) {
        let client_id = "device";
        self.say(&Message::Connect { will, clean: false, keep_alive_s: 60, client_id });
    }

    fn subscribe(&mut self) {
        let topic = TopicName::Name("#");
        self.say(&Message::Subscribe { dup: false, qos: QoS::AtLeastOnce, msg_id: 1, topic });
    }

    /// Identifiers of the last REGISTER that was sent since this was last asked.
    fn registered(&mut self) -> Option<(u16, u16)> {
        let sent = std::mem::take(&mut self.sent);
        sent.iter().rev().find_map(|datagram| match Message::decode(datagram).unwrap() {
            Message::Register { topic_id, msg_id, .. } => Some((topic_id, msg_id)),
            _ => None,
        })
    }

    fn expect_little(&self, what: &str) {
        let (came, went) = (self.came, self.went);
        assert!(went <= 3 * came, "{what}: {went} bytes for {came}");
    }
}

#[test]
fn a_forged_address_is_sent_three_times_what_came_at_most() {
    for length in [10, 100, 1000, 7000] {
        let mut world = World::new(&"t".repeat(length));
        world.say(&Message::SearchGw { radius: 0 });
        world.expect_little("somebody looks for a gateway");
        world.connect(true);
        world.wait(3600);
        world.expect_little("a device is asked for its will");
        let mut world = World::new(&"t".repeat(length));
        world.connect(false);
        world.subscribe();
        world.expect_little("a device is told of a topic");
        world.wait(3600);
        world.expect_little("it is told again");
        // Each PINGREQ of a device that sleeps asks for what it was sent last.
        world.connect(false);
        world.say(&Message::Disconnect { duration_s: Some(60) });
        world.subscribe();
        for _ in 0..20 {
            world.say(&Message::Pingreq(Some("device")));
            world.expect_little("a device that wakes up");
        }
        world.wait(3600);
        world.expect_little("and sleeps");
    }
}

#[test]
fn a_device_that_is_there_gets_its_messages_although_datagrams_are_lost() {
    for length in [10, 30, 130, 1000] {
        let mut world = World::new(&"t".repeat(length));
        world.connect(false);
        world.subscribe();
        // Where topics are long, the device's signs of life make room for REGISTER. The first of them is lost.
        let (mut told, mut lost) = (None, false);
        for _ in 0..100 {
            world.say(&Message::Pingreq(None));
            told = world.registered();
            if told.is_some() && std::mem::replace(&mut lost, true) {
                break;
            }
            world.wait(30);
        }
        let (topic_id, msg_id) = told.expect("it is told again");
        world.say(&Message::Regack { topic_id, msg_id, code: ReturnCode::Accepted });
        let published =
            |datagram: &Vec<u8>| matches!(Message::decode(datagram), Ok(Message::Publish(_)));
        assert!(world.sent.iter().any(published), "topics of {length} bytes");
    }
}
