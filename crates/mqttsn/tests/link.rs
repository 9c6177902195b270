//! A device, the server and a broker, in simulated time over a link that loses, doubles and reorders: what is
//! acknowledged has arrived, at QoS 2 once.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::{PacketId, QoS, ReasonCode};
use fulmar_mqttsn::{
    Answer, BrokerEvent, Event, Handle, Message, Publication, Publish, Request, ReturnCode, Server,
    Settings, TopicName, TopicRef, Trust,
};
use proptest::prelude::*;

const DEVICE: u8 = 1;
const REPEAT: Duration = Duration::from_secs(3);
/// Of the broker's, as the shell asks for.
const WINDOW: usize = 8;

#[derive(Clone, Copy, Debug)]
struct Link {
    seed: u64,
    /// Of 1000.
    loss: u32,
    doubled: u32,
    /// Datagrams take up to so long, so that they overtake each other.
    delay_ms: u64,
}

/// What the device does next, one after the other.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Connect,
    Register,
    Subscribe,
    Publish(u16),
    Release(u16),
    Sleep,
    Wake,
    Done,
}

struct World {
    now: Instant,
    rng: fastrand::Rng,
    link: Link,
    /// Datagrams on the link: when they arrive, in which order they were sent, whether to the server.
    air: BTreeMap<(Instant, u64), (bool, Vec<u8>)>,
    sent: u64,
    server: Server<u8>,
    broker: Broker,
    device: Device,
}

#[derive(Default)]
struct Broker {
    handle: Option<Handle>,
    published: Vec<(QoS, Vec<u8>)>,
    held: BTreeSet<PacketId>,
    waiting: VecDeque<Publication>,
    under_way: BTreeMap<PacketId, QoS>,
}

struct Device {
    step: Step,
    again_at: Instant,
    sent: u32,
    topic_id: u16,
    messages: u16,
    heard: Vec<(u16, Vec<u8>)>,
    seen: BTreeSet<u16>,
    sleeps: bool,
}

impl World {
    fn new(link: Link, messages: u16, commands: u16, sleeps: bool) -> World {
        let now = Instant::now();
        let settings = Settings { retries: 16, ..Settings::default() };
        let delivery = |number: u16| Publication {
            topic: if number.is_multiple_of(3) { "command/valve".into() } else { "command".into() },
            payload: number.to_be_bytes().to_vec().into(),
            qos: if number.is_multiple_of(2) { QoS::ExactlyOnce } else { QoS::AtLeastOnce },
            retain: false,
            dup: false,
            packet_id: PacketId::new(number),
        };
        let waiting = (1..=commands).map(delivery).collect();
        World {
            now,
            rng: fastrand::Rng::with_seed(link.seed),
            link,
            air: BTreeMap::new(),
            sent: 0,
            server: Server::new(settings, link.seed, now),
            broker: Broker { waiting, ..Broker::default() },
            device: Device {
                step: Step::Connect,
                again_at: now,
                sent: 0,
                topic_id: 0,
                messages,
                heard: Vec::new(),
                seen: BTreeSet::new(),
                sleeps,
            },
        }
    }

    fn throw(&mut self, up: bool, datagram: Vec<u8>) {
        // A copy of CONNECT that comes late begins the session anew, as the specification has it.
        let once = matches!(Message::decode(&datagram), Ok(Message::Connect { .. }));
        let copies = if !once && self.rng.u32(..1000) < self.link.doubled { 2 } else { 1 };
        for _ in 0..copies {
            if self.rng.u32(..1000) >= self.link.loss {
                let delay = Duration::from_millis(self.rng.u64(1..=self.link.delay_ms));
                self.sent += 1;
                self.air.insert((self.now + delay, self.sent), (up, datagram.clone()));
            }
        }
    }

    /// Runs until the device is done and the broker has been answered, for at most a simulated day.
    fn run(&mut self, commands: usize) {
        let end = self.now + Duration::from_secs(24 * 3600);
        while self.now < end && !self.is_done(commands) {
            let next = [self.air.keys().next().map(|(at, _)| *at), self.server.deadline()];
            let next = next.into_iter().flatten().chain([self.device.again_at]).min().unwrap();
            self.now = self.now.max(next);
            if let Some(entry) = self.air.first_entry().filter(|entry| entry.key().0 <= self.now) {
                match entry.remove() {
                    (true, datagram) => {
                        self.server.receive(self.now, DEVICE, Trust::Claimed, &datagram).unwrap();
                    }
                    (false, datagram) => self.device_hears(&datagram),
                }
            }
            if self.device.again_at <= self.now {
                self.device_says();
            }
            self.server.on_deadline(self.now);
            self.settle();
        }
        assert!(self.is_done(commands), "a day was not enough: {:?}", self.device.step);
    }

    fn is_done(&self, commands: usize) -> bool {
        let told = self.broker.waiting.is_empty() && self.broker.under_way.is_empty();
        self.device.step == Step::Done && told && self.device.heard.len() >= commands
    }

    fn settle(&mut self) {
        loop {
            while let Some(event) = self.server.poll_event() {
                match event {
                    Event::Request { handle, request, .. } => self.broker_does(handle, request),
                    Event::Ended { why, .. } => panic!("the session ended: {why}"),
                    other => panic!("{other:?}"),
                }
            }
            let Some((_, datagram)) = self.server.poll_transmit() else { return };
            self.throw(false, datagram);
        }
    }

    fn broker_does(&mut self, handle: Handle, request: Request) {
        let now = self.now;
        let broker = &mut self.broker;
        let event = match request {
            Request::Open(_) => {
                broker.handle = Some(handle);
                BrokerEvent::Opened { in_flight: 100 }
            }
            Request::Publish(message) => {
                let id = message.packet_id.unwrap();
                let new = message.qos == QoS::AtLeastOnce || broker.held.insert(id);
                if new {
                    broker.published.push((message.qos, message.payload.to_vec()));
                }
                let answer = match message.qos {
                    QoS::ExactlyOnce => Answer::Pubrec,
                    _ => Answer::Puback,
                };
                BrokerEvent::Answer(answer, id, ReasonCode::Success)
            }
            Request::Release(id) => {
                broker.held.remove(&id);
                BrokerEvent::Answer(Answer::Pubcomp, id, ReasonCode::Success)
            }
            Request::Subscribe(id, ..) => {
                self.server.on_broker_event(
                    now,
                    handle,
                    BrokerEvent::Subscribed(id, ReasonCode::GrantedQos2),
                );
                return self.broker_sends();
            }
            Request::Acknowledge(AckKind::Pubrec, id, reason) => {
                assert_eq!(reason, ReasonCode::Success);
                BrokerEvent::Release(id)
            }
            Request::Acknowledge(_, id, reason) => {
                assert_eq!(reason, ReasonCode::Success);
                assert!(broker.under_way.remove(&id).is_some(), "{id} was acknowledged twice");
                return self.broker_sends();
            }
            Request::Probe => BrokerEvent::Probed,
            other => panic!("{other:?}"),
        };
        self.server.on_broker_event(now, handle, event);
    }

    fn broker_sends(&mut self) {
        let Some(handle) = self.broker.handle else { return };
        while self.broker.under_way.len() < WINDOW
            && let Some(message) = self.broker.waiting.pop_front()
        {
            self.broker.under_way.insert(message.packet_id.unwrap(), message.qos);
            self.server.on_broker_event(self.now, handle, BrokerEvent::Message(message));
        }
    }

    fn next(&mut self, step: Step) {
        (self.device.step, self.device.again_at, self.device.sent) = (step, self.now, 0);
    }

    /// What comes after a message.
    fn next_message(&mut self, number: u16) {
        let step = match number + 1 {
            next if next > self.device.messages => Step::Done,
            _ if self.device.sleeps && number.is_multiple_of(5) => Step::Sleep,
            next => Step::Publish(next),
        };
        self.next(step);
    }

    fn device_says(&mut self) {
        let dup = self.device.sent > 0;
        let payload;
        let message = match self.device.step {
            Step::Connect => {
                Message::Connect { will: false, clean: true, keep_alive_s: 0, client_id: "device" }
            }
            Step::Register => Message::Register { topic_id: 0, msg_id: 1000, topic: "up/here" },
            Step::Subscribe => {
                let topic = TopicName::Name("command/#");
                Message::Subscribe { dup, qos: QoS::ExactlyOnce, msg_id: 1001, topic }
            }
            Step::Publish(number) => {
                payload = number.to_be_bytes();
                let qos =
                    if number.is_multiple_of(2) { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
                let topic = TopicRef::Normal(self.device.topic_id);
                let (retain, qos, msg_id) = (false, Some(qos), number);
                Message::Publish(Publish { dup, qos, retain, topic, msg_id, payload: &payload })
            }
            Step::Release(number) => Message::Pubrel(number),
            Step::Sleep => Message::Disconnect { duration_s: Some(60_000) },
            Step::Wake => Message::Pingreq(Some("device")),
            Step::Done => {
                self.device.again_at = self.now + REPEAT;
                return;
            }
        };
        let datagram = message.encode().unwrap();
        self.device.sent += 1;
        self.device.again_at = self.now + REPEAT;
        self.throw(true, datagram);
    }

    fn device_hears(&mut self, datagram: &[u8]) {
        let step = self.device.step.clone();
        match (Message::decode(datagram).unwrap(), step) {
            (Message::Connack(ReturnCode::Accepted), Step::Connect) => self.next(Step::Register),
            (Message::Regack { topic_id, code, .. }, Step::Register) => {
                assert_eq!(code, ReturnCode::Accepted);
                self.device.topic_id = topic_id;
                self.next(Step::Subscribe);
            }
            (Message::Suback { code, .. }, Step::Subscribe) => {
                assert_eq!(code, ReturnCode::Accepted);
                self.next(Step::Publish(1));
            }
            (Message::Puback { msg_id, code, .. }, Step::Publish(number)) if msg_id == number => {
                assert_eq!(code, ReturnCode::Accepted);
                self.next_message(number);
            }
            (Message::Pubrec(id), Step::Publish(number)) if id == number => {
                self.next(Step::Release(number));
            }
            (Message::Pubcomp(id), Step::Release(number)) if id == number => {
                self.next_message(number);
            }
            (Message::Disconnect { .. }, Step::Sleep) => self.next(Step::Wake),
            // It needs no number: the next message after one that is a multiple of five.
            (Message::Pingresp, Step::Wake) => {
                // A late copy of an earlier one at QoS 1 may be the last that came.
                let numbers = self.broker.published.iter().map(|(_, p)| [p[0], p[1]]);
                let last = numbers.map(u16::from_be_bytes).max().unwrap();
                self.next(Step::Publish(last + 1));
            }
            (Message::Register { topic_id, msg_id, .. }, _) => {
                let code = ReturnCode::Accepted;
                self.throw(true, Message::Regack { topic_id, msg_id, code }.encode().unwrap());
            }
            (Message::Publish(publish), _) => {
                let (id, topic_id) = (publish.msg_id, publish.topic.number());
                if self.device.seen.insert(id) {
                    self.device.heard.push((id, publish.payload.to_vec()));
                }
                let answer = match publish.qos {
                    Some(QoS::ExactlyOnce) => Message::Pubrec(id),
                    _ => Message::Puback { topic_id, msg_id: id, code: ReturnCode::Accepted },
                };
                self.throw(true, answer.encode().unwrap());
            }
            (Message::Pubrel(id), _) => self.throw(true, Message::Pubcomp(id).encode().unwrap()),
            _ => {}
        }
    }
}

fn check(link: Link, messages: u16, commands: u16, sleeps: bool) {
    let mut world = World::new(link, messages, commands, sleeps);
    world.run(commands.into());
    for number in 1..=messages {
        let times = world.broker.published.iter().filter(|(_, p)| **p == number.to_be_bytes());
        match (number % 2, times.count()) {
            (0, 1) => {}
            (1, 1..) => {}
            (_, times) => panic!("message {number} was published {times} times: {link:?}"),
        }
    }
    let heard: Vec<u16> = world.device.heard.iter().map(|(id, _)| *id).collect();
    assert_eq!(heard, (1..=commands).collect::<Vec<u16>>(), "in order, each once: {link:?}");
}

#[test]
fn nothing_is_lost_on_a_good_link() {
    let link = Link { seed: 1, loss: 0, doubled: 0, delay_ms: 10 };
    check(link, 12, 20, false);
    check(link, 12, 20, true);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_acknowledged_has_arrived(
        seed: u64,
        loss in 0u32..250,
        doubled in 0u32..400,
        delay_ms in 1u64..1500,
        sleeps: bool,
    ) {
        check(Link { seed, loss, doubled, delay_ms }, 11, 15, sleeps);
    }
}
