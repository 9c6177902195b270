//! Two session machines over a link that loses connections: QoS 1 arrives at least once, QoS 2
//! exactly once, both in order.
#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;

use fulmar_mqtt::session::{AckError, Inbound, Outbound, Received, Replay};
use fulmar_mqtt::{PacketId, QoS};
use proptest::prelude::*;

const WINDOW: u16 = 4;

#[derive(Clone, Copy, Debug)]
enum ToReceiver {
    Publish(PacketId, QoS, u32),
    Pubrel(PacketId),
}

#[derive(Clone, Copy, Debug)]
enum ToSender {
    Puback(PacketId),
    Pubrec(PacketId),
    Pubcomp(PacketId),
}

#[derive(Debug)]
struct Pair {
    outbound: Outbound<u32>,
    inbound: Inbound,
    down: VecDeque<ToReceiver>,
    up: VecDeque<ToSender>,
    delivered: Vec<u32>,
}

impl Pair {
    fn new() -> Pair {
        Pair {
            outbound: Outbound::new(WINDOW),
            inbound: Inbound::new(),
            down: VecDeque::new(),
            up: VecDeque::new(),
            delivered: Vec::new(),
        }
    }

    fn receive(&mut self) {
        match self.down.pop_front() {
            Some(ToReceiver::Publish(id, QoS::ExactlyOnce, message)) => {
                match self.inbound.publish(id, WINDOW) {
                    Received::New => self.delivered.push(message),
                    Received::Duplicate => {}
                    Received::TooMany => panic!("sender exceeded its window"),
                }
                self.up.push_back(ToSender::Pubrec(id));
            }
            Some(ToReceiver::Publish(id, _, message)) => {
                self.delivered.push(message);
                self.up.push_back(ToSender::Puback(id));
            }
            Some(ToReceiver::Pubrel(id)) => {
                self.inbound.release(id);
                self.up.push_back(ToSender::Pubcomp(id));
            }
            None => {}
        }
    }

    fn acknowledge(&mut self) {
        match self.up.pop_front() {
            Some(ToSender::Puback(id)) => drop(self.outbound.puback(id).unwrap()),
            Some(ToSender::Pubrec(id)) => {
                self.outbound.pubrec(id).unwrap();
                self.down.push_back(ToReceiver::Pubrel(id));
            }
            Some(ToSender::Pubcomp(id)) => drop(self.outbound.pubcomp(id).unwrap()),
            None => {}
        }
    }

    /// Everything under way is lost, and the sender starts over with what is in flight.
    fn reconnect(&mut self) {
        self.down.clear();
        self.up.clear();
        for replay in self.outbound.replay() {
            self.down.push_back(match replay {
                Replay::Publish { packet_id, qos, message } => {
                    ToReceiver::Publish(packet_id, qos, *message)
                }
                Replay::Pubrel { packet_id } => ToReceiver::Pubrel(packet_id),
            });
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Send,
    Receive,
    Acknowledge,
    Reconnect,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => Just(Step::Send),
        6 => Just(Step::Receive),
        6 => Just(Step::Acknowledge),
        1 => Just(Step::Reconnect),
    ];
    proptest::collection::vec(step, 0..400)
}

fn run(qos: QoS, steps: &[Step]) -> (u32, Vec<u32>) {
    let mut pair = Pair::new();
    let mut sent = 0;
    for step in steps {
        match step {
            Step::Send => {
                if let Some(id) = pair.outbound.push(qos, sent) {
                    pair.down.push_back(ToReceiver::Publish(id, qos, sent));
                    sent += 1;
                }
            }
            Step::Receive => pair.receive(),
            Step::Acknowledge => pair.acknowledge(),
            Step::Reconnect => pair.reconnect(),
        }
    }
    pair.reconnect();
    while pair.outbound.in_flight() > 0 {
        pair.receive();
        pair.acknowledge();
    }
    assert!(pair.inbound.is_empty());
    (sent, pair.delivered)
}

proptest! {
    #[test]
    fn qos2_arrives_once_and_in_order(steps in steps()) {
        let (sent, delivered) = run(QoS::ExactlyOnce, &steps);
        prop_assert_eq!(delivered, (0..sent).collect::<Vec<_>>());
    }

    #[test]
    fn qos1_loses_nothing_and_keeps_the_order_of_first_arrivals(steps in steps()) {
        let (sent, delivered) = run(QoS::AtLeastOnce, &steps);
        let mut first: Vec<u32> = Vec::new();
        for message in delivered {
            if !first.contains(&message) {
                first.push(message);
            }
        }
        prop_assert_eq!(first, (0..sent).collect::<Vec<_>>());
    }

}

proptest! {
    // One case walks through all identifiers and back to the first.
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// However long some messages stay in flight, no identifier is given out twice.
    #[test]
    fn identifiers_in_flight_are_distinct(held in proptest::collection::btree_set(0usize..70_000, 0..20)) {
        let mut outbound = Outbound::new(u16::MAX);
        let mut in_flight = std::collections::BTreeSet::new();
        for i in 0..70_000 {
            let id = outbound.push(QoS::AtLeastOnce, i).unwrap();
            prop_assert!(in_flight.insert(id), "{} is in flight twice", id);
            if !held.contains(&i) {
                outbound.puback(id).unwrap();
                in_flight.remove(&id);
            }
        }
    }
}

#[test]
fn acknowledgements_of_nothing_are_errors() {
    let mut outbound = Outbound::new(WINDOW);
    let id = PacketId::FIRST;
    assert_eq!(outbound.puback(id), Err(AckError::Unknown(id)));
    let id = outbound.push(QoS::ExactlyOnce, 1).unwrap();
    assert_eq!(outbound.puback(id), Err(AckError::WrongStep(id)));
    assert_eq!(outbound.pubcomp(id), Err(AckError::WrongStep(id)));
    assert_eq!(outbound.pubrec(id), Ok(&1));
    assert_eq!(outbound.pubrec(id), Ok(&1), "a repeated PUBREC is answered again");
    assert_eq!(outbound.pubcomp(id), Ok(1));
}

#[test]
fn the_window_bounds_what_is_in_flight() {
    let mut outbound = Outbound::new(2);
    let first = outbound.push(QoS::AtLeastOnce, 1).unwrap();
    outbound.push(QoS::AtLeastOnce, 2).unwrap();
    assert_eq!(outbound.push(QoS::AtLeastOnce, 3), None);
    outbound.puback(first).unwrap();
    assert!(outbound.push(QoS::AtLeastOnce, 3).is_some());
}

#[test]
fn all_identifiers_in_use_is_none_not_a_loop() {
    let mut outbound = Outbound::new(u16::MAX);
    for i in 0..65_535 {
        assert!(outbound.push(QoS::AtLeastOnce, i).is_some());
    }
    assert_eq!(outbound.reserve(), None);
}
