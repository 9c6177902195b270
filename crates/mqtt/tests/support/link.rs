//! A sender and a receiver joined by a link that is cut now and then, with both ends restarted from
//! what they would have stored (section 4.4).

use std::collections::VecDeque;

use fulmar_mqtt::session::{Inbound, InboundQos2, Outbound, Replay};
use fulmar_mqtt::{PacketId, QoS};

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

struct Link {
    outbound: Outbound<u32>,
    inbound: Inbound,
    down: VecDeque<ToReceiver>,
    up: VecDeque<ToSender>,
    delivered: Vec<u32>,
}

impl Link {
    fn receive(&mut self) {
        match self.down.pop_front() {
            Some(ToReceiver::Publish(id, QoS::ExactlyOnce, message)) => {
                match self.inbound.publish(id, WINDOW) {
                    InboundQos2::New => self.delivered.push(message),
                    InboundQos2::Duplicate => {}
                    InboundQos2::TooMany => panic!("sender exceeded its window"),
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

    /// Both ends lose their memory and come back from storage.
    fn restart(&mut self) {
        let mut outbound = Outbound::new(WINDOW);
        for replay in self.outbound.replay() {
            match replay {
                Replay::Publish { packet_id, qos, message } => {
                    outbound.restore(packet_id, qos, false, *message);
                }
                // What was released needs no message any more.
                Replay::Pubrel { packet_id } => {
                    outbound.restore(packet_id, QoS::ExactlyOnce, true, u32::MAX);
                }
            }
        }
        let mut inbound = Inbound::new();
        self.inbound.iter().for_each(|id| inbound.restore(id));
        (self.outbound, self.inbound) = (outbound, inbound);
        self.reconnect();
    }
}

/// Sends at `qos`, one step a byte of `script`, then lets everything arrive. Gives the number of
/// messages sent, numbered from 0, and what the receiver handed on.
pub fn run(qos: QoS, script: &[u8]) -> (u32, Vec<u32>) {
    let mut link = Link {
        outbound: Outbound::new(WINDOW),
        inbound: Inbound::new(),
        down: VecDeque::new(),
        up: VecDeque::new(),
        delivered: Vec::new(),
    };
    let mut sent = 0;
    for byte in script {
        match byte % 20 {
            0..6 => {
                if let Some(id) = link.outbound.push(qos, sent) {
                    link.down.push_back(ToReceiver::Publish(id, qos, sent));
                    sent += 1;
                }
            }
            6..12 => link.receive(),
            12..18 => link.acknowledge(),
            18 => link.reconnect(),
            _ => link.restart(),
        }
    }
    link.reconnect();
    while link.outbound.in_flight() > 0 {
        link.receive();
        link.acknowledge();
    }
    assert!(link.inbound.is_empty(), "the receiver remembers what is over");
    (sent, link.delivered)
}

/// QoS 2: every message once and in order ([MQTT-4.3.3-1] and following, [MQTT-4.6.0-1]).
pub fn exactly_once(script: &[u8]) {
    let (sent, delivered) = run(QoS::ExactlyOnce, script);
    assert_eq!(delivered, (0..sent).collect::<Vec<_>>());
}

/// QoS 1: every message at least once, first arrivals in order.
pub fn at_least_once(script: &[u8]) {
    let (sent, delivered) = run(QoS::AtLeastOnce, script);
    let mut next = 0;
    for message in delivered {
        assert!(message <= next, "message {next} was overtaken");
        next = next.max(message + 1);
    }
    assert_eq!(next, sent);
}
