//! Fuzz targets of `fulmar-mqttsn`: for any input, output decodes, the client limit holds, and
//! deadlines advance.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use fulmar_mqtt::{PacketId, QoS, ReasonCode};
use fulmar_mqttsn::{
    Answer, BrokerEvent, Event, Handle, Message, Publication, Request, Server, Settings, Trust,
};

const MAX_CLIENTS: usize = 3;
const TOPICS: [&str; 4] = ["a/b", "hi", "meters/7", "another/topic"];

/// A datagram: what is read is written the same way, or shorter where the long length was not needed.
pub fn message(datagram: &[u8]) {
    let Ok(message) = Message::decode(datagram) else { return };
    let written = message.encode().expect("what was read fits a datagram");
    assert_eq!(Message::decode(&written), Ok(message));
    assert!(written.len() <= datagram.len());
}

struct Harness {
    server: Server<u8>,
    open: BTreeSet<Handle>,
    /// What the broker has been asked that it has not answered.
    asked: Vec<(Handle, Request)>,
    now: Instant,
}

impl Harness {
    fn new() -> Harness {
        let settings = Settings {
            predefined: [(7, "meters/7".into())].into(),
            retries: 2,
            max_clients: MAX_CLIENTS,
            max_topics: 3,
            max_queued: 4,
            max_queued_bytes: 1024,
            max_message_bytes: 300,
            ..Settings::default()
        };
        let now = Instant::now();
        let server = Server::new(settings, 7, now);
        Harness { server, open: BTreeSet::new(), asked: Vec::new(), now }
    }

    fn settle(&mut self) {
        while let Some(event) = self.server.poll_event() {
            match event {
                Event::Request { handle, request, .. } => {
                    match request {
                        Request::Open(_) => drop(self.open.insert(handle)),
                        Request::Close { .. } => drop(self.open.remove(&handle)),
                        _ => assert!(
                            self.open.contains(&handle),
                            "a request needs an open connection"
                        ),
                    }
                    self.asked.push((handle, request));
                }
                Event::Ended { handle, .. } => {
                    self.asked.retain(|(other, _)| *other != handle);
                }
                Event::Unconnected { message, .. } => {
                    assert_eq!((message.qos, message.packet_id), (QoS::AtMostOnce, None));
                }
                Event::Refused { .. } => {}
            }
        }
        while let Some((_, datagram)) = self.server.poll_transmit() {
            Message::decode(&datagram).expect("what is sent can be read");
        }
        assert!(self.server.clients() <= MAX_CLIENTS);
    }

    /// The broker answers what it was asked first.
    fn answer(&mut self, reason: ReasonCode) {
        if self.asked.is_empty() {
            return;
        }
        let (handle, request) = self.asked.remove(0);
        let event = match request {
            Request::Open(_) if reason.is_error() => BrokerEvent::Closed(reason),
            Request::Open(_) => BrokerEvent::Opened { in_flight: 4 },
            Request::Publish(message) => match (message.packet_id, message.qos) {
                (Some(id), QoS::ExactlyOnce) => BrokerEvent::Answer(Answer::Pubrec, id, reason),
                (Some(id), _) => BrokerEvent::Answer(Answer::Puback, id, reason),
                (None, _) => return,
            },
            Request::Release(id) => BrokerEvent::Answer(Answer::Pubcomp, id, reason),
            Request::Subscribe(id, ..) => BrokerEvent::Subscribed(id, reason),
            Request::Unsubscribe(id, _) => BrokerEvent::Unsubscribed(id),
            Request::Acknowledge(_, id, _) => BrokerEvent::Release(id),
            Request::Probe => BrokerEvent::Probed,
            Request::Close { .. } => return,
        };
        self.server.on_broker_event(self.now, handle, event);
    }

    /// The broker has a message for a device.
    fn deliver(&mut self, choice: u8) {
        let Some(&handle) = self.open.iter().nth(usize::from(choice) % 4) else { return };
        let qos = QoS::try_from(choice >> 2 & 3).unwrap_or_default();
        let packet_id = PacketId::new(u16::from(choice) + 1).filter(|_| qos != QoS::AtMostOnce);
        let delivery = Publication {
            topic: TOPICS[usize::from(choice >> 4) % 4].into(),
            payload: vec![b'x'; usize::from(choice)].into(),
            qos,
            retain: false,
            dup: choice & 1 == 1,
            packet_id,
        };
        self.server.on_broker_event(self.now, handle, BrokerEvent::Message(delivery));
    }
}

/// A script: a byte that chooses what happens, one for its parameter; a datagram's bytes follow.
pub fn server(mut data: &[u8]) {
    let mut harness = Harness::new();
    while let [choice, size, rest @ ..] = data {
        data = rest;
        match choice % 8 {
            0 => harness.now += Duration::from_millis(u64::from(*size) * 500),
            1 => harness.deliver(*size),
            2 | 3 => {
                let reason = ReasonCode::from_u8(*size).unwrap_or(ReasonCode::Success);
                harness.answer(reason);
            }
            _ => {
                let (datagram, rest) = data.split_at(data.len().min(usize::from(*size)));
                data = rest;
                let trust = if choice & 8 == 0 { Trust::Proven } else { Trust::Claimed };
                let _ = harness.server.receive(harness.now, choice / 16, trust, datagram);
            }
        }
        harness.settle();
        harness.server.on_deadline(harness.now);
        harness.settle();
        assert!(
            harness.server.deadline().is_none_or(|at| at > harness.now),
            "a deadline is in the past"
        );
    }
    // Without input, all accepted devices time out.
    while !harness.asked.is_empty() {
        harness.answer(ReasonCode::Success);
        harness.settle();
    }
    while let Some(at) = harness.server.deadline() {
        harness.now = harness.now.max(at);
        harness.server.on_deadline(harness.now);
        harness.settle();
        while !harness.asked.is_empty() {
            harness.answer(ReasonCode::Success);
            harness.settle();
        }
    }
    assert_eq!(harness.server.clients(), 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use fulmar_mqtt_fuzz::replay;

    const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/seeds/");

    #[test]
    fn seeds_pass() {
        replay(SEEDS.to_owned() + "mqttsn-server", server);
        replay(SEEDS.to_owned() + "mqttsn-message", message);
    }
}
