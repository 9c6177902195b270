//! The gateway recognises messages for a while after they are complete: late copies are not new messages. A message
//! that the broker refuses is not complete, and its device gets the reason.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use fulmar_mqtt::{PacketId, QoS, ReasonCode};
use fulmar_mqttsn::{
    Answer, BrokerEvent, Event, Message, Publish, Request, ReturnCode, Server, Settings, TopicRef,
    Trust,
};

const DEVICE: u8 = 1;
/// Two octets that are a topic's name.
const TOPIC: TopicRef = TopicRef::Short(*b"up");

/// A device that is connected, and a broker that answers at once.
struct World {
    now: Instant,
    server: Server<u8>,
    /// What the broker was given to publish.
    published: Vec<PacketId>,
    released: usize,
    /// What the broker says to publications.
    reason: ReasonCode,
}

impl World {
    fn new() -> World {
        let now = Instant::now();
        let server = Server::new(Settings::default(), 1, now);
        let mut world =
            World { now, server, published: Vec::new(), released: 0, reason: ReasonCode::Success };
        world.say(&Message::Connect {
            will: false,
            clean: true,
            keep_alive_s: 0,
            client_id: "device",
        });
        world
    }

    fn say(&mut self, message: &Message<'_>) {
        let datagram = message.encode().unwrap();
        self.server.receive(self.now, DEVICE, Trust::Claimed, &datagram).unwrap();
        while let Some(event) = self.server.poll_event() {
            let Event::Request { handle, request, .. } = event else { panic!("{event:?}") };
            let event = match request {
                Request::Open(_) => BrokerEvent::Opened { in_flight: 8 },
                Request::Publish(message) => {
                    let id = message.packet_id.unwrap();
                    self.published.push(id);
                    let answer = match message.qos {
                        QoS::ExactlyOnce => Answer::Pubrec,
                        _ => Answer::Puback,
                    };
                    BrokerEvent::Answer(answer, id, self.reason)
                }
                Request::Release(id) => {
                    self.released += 1;
                    BrokerEvent::Answer(Answer::Pubcomp, id, ReasonCode::Success)
                }
                other => panic!("{other:?}"),
            };
            self.server.on_broker_event(self.now, handle, event);
        }
    }

    /// What the device was sent since this was last asked.
    fn heard(&mut self) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.server.poll_transmit()).map(|(_, datagram)| datagram).collect()
    }

    fn publish(&mut self, msg_id: u16, qos: QoS, dup: bool) {
        let payload = &msg_id.to_be_bytes();
        let (qos, retain, topic) = (Some(qos), false, TOPIC);
        self.say(&Message::Publish(Publish { dup, qos, retain, topic, msg_id, payload }));
    }
}

#[test]
fn repeated_pubrels_do_not_make_a_message_forgotten() {
    let mut world = World::new();
    world.publish(1, QoS::AtLeastOnce, false);
    world.publish(2, QoS::ExactlyOnce, false);
    // Its PUBCOMP is lost again and again, so the device asks for it again and again.
    for _ in 0..20 {
        world.say(&Message::Pubrel(2));
        world.now += Duration::from_millis(100);
    }
    assert_eq!(world.released, 20, "the broker answers each");
    // Copies that the network had kept.
    world.publish(1, QoS::AtLeastOnce, true);
    world.publish(2, QoS::ExactlyOnce, false);
    let published: Vec<u16> = world.published.iter().map(|id| id.get()).collect();
    assert_eq!(published, [1, 2], "each once");
}

#[test]
fn a_refusal_reaches_the_device_and_the_message_may_be_tried_again() {
    let puback = |msg_id, code| {
        Message::Puback { topic_id: u16::from_be_bytes(*b"up"), msg_id, code }.encode().unwrap()
    };
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        for (reason, code) in [
            (ReasonCode::NotAuthorized, ReturnCode::NotSupported),
            (ReasonCode::QuotaExceeded, ReturnCode::Congestion),
        ] {
            let mut world = World::new();
            world.heard();
            world.reason = reason;
            world.publish(7, qos, false);
            // Section 5.4.13: PUBACK says why at every quality of service.
            assert_eq!(world.heard(), [puback(7, code)], "{qos:?} {reason}");
            // Somebody has seen to it: the same message is a new one to the broker, and is taken.
            world.reason = ReasonCode::Success;
            world.publish(7, qos, true);
            assert_eq!(world.published.len(), 2, "{qos:?} {reason}");
            let taken = match qos {
                QoS::ExactlyOnce => Message::Pubrec(7).encode().unwrap(),
                _ => puback(7, ReturnCode::Accepted),
            };
            assert_eq!(world.heard(), [taken], "{qos:?} {reason}");
        }
    }
}
