//! Which messages the gateway still knows when they are done: copies that come late are none of them anew.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use fulmar_mqtt::{PacketId, QoS, ReasonCode};
use fulmar_mqttsn::{
    Answer, Event, Message, Publish, Request, Server, Settings, TopicRef, Trust, Word,
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
}

impl World {
    fn new() -> World {
        let now = Instant::now();
        let server = Server::new(Settings::default(), 1, now);
        let mut world = World { now, server, published: Vec::new(), released: 0 };
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
            let word = match request {
                Request::Open(_) => Word::Welcome { in_flight: 8 },
                Request::Publish(message) => {
                    let id = message.packet_id.unwrap();
                    self.published.push(id);
                    let answer = match message.qos {
                        QoS::ExactlyOnce => Answer::Pubrec,
                        _ => Answer::Puback,
                    };
                    Word::Answer(answer, id, ReasonCode::Success)
                }
                Request::Release(id) => {
                    self.released += 1;
                    Word::Answer(Answer::Pubcomp, id, ReasonCode::Success)
                }
                other => panic!("{other:?}"),
            };
            self.server.hear(self.now, handle, word);
        }
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
