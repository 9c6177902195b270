//! A server that sends anything at any time, honest answers included, while the application publishes and subscribes
//! and the connection breaks. What is checked: the client writes whole packets that a server may expect, never more
//! unacknowledged ones than the server allows; every publication and request has one outcome; and memory stays in
//! proportion to the input.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmar_mqtt::ack::{self, AckKind};
use fulmar_mqtt::codec::{decode, peek_frame};
use fulmar_mqtt::packet::{Connack, Suback, SubscribeOptions, Unsuback};
use fulmar_mqtt::{Packet, PacketId, Properties, Property, PropertyBuf, QoS, ReasonCode, Version};
use fulmar_mqtt_fuzz::heap;
use fulmar_mqtt_fuzz::support::script::Script;

use crate::error::Error;
use crate::machine::{CONTROL, Machine, Outcome};
use crate::message::Message;
use crate::options::Options;

/// Heap in bytes that a client may use beyond a multiple of the script's length.
const MAX_HEAP_BYTES: usize = 1 << 20;

/// First bytes of a server's packets; the rest comes from the script.
const FIRST_BYTES: [u8; 16] = [
    0x20, 0x30, 0x32, 0x34, 0x3A, 0x3C, 0x31, 0x33, 0x40, 0x50, 0x62, 0x70, 0x90, 0xB0, 0xD0, 0xE0,
];

struct Scene {
    machine: Machine<usize, usize>,
    now: Instant,
    version: Version,
    connected: bool,
    /// Bytes from the server that the client has not read.
    unread: Vec<u8>,
    /// Bytes from the client that the server has not parsed.
    wire: Vec<u8>,
    /// Packets the server has seen on this connection.
    packets: usize,
    /// QoS 1 and 2 publications of this connection that are not acknowledged, and how many may be.
    unacknowledged: Vec<PacketId>,
    window: usize,
    /// The server has acknowledged packets that were not sent: the client's window may then be exceeded.
    confused: bool,
    publications: Vec<usize>,
    requests: Vec<usize>,
    done: bool,
}

/// The application's options, then the events.
pub fn server(data: &[u8]) {
    let ((), used) = heap::measure(|| play(Script(data)));
    assert!(used.peak_bytes <= MAX_HEAP_BYTES + 64 * data.len(), "{used:?}");
}

fn play(mut script: Script<'_>) {
    let Some(mut scene) = Scene::new(&mut script) else { return };
    scene.connect(false);
    while !script.is_over() && !scene.done {
        scene.step(&mut script);
        scene.settle();
    }
    scene.machine.abandon(&Error::Closed);
    scene.take_outcomes();
    assert!(scene.publications.iter().all(|outcomes| *outcomes == 1), "{:?}", scene.publications);
    assert!(scene.requests.iter().all(|outcomes| *outcomes == 1), "{:?}", scene.requests);
}

impl Scene {
    fn new(script: &mut Script<'_>) -> Option<Scene> {
        let mut options = Options::new("mqtt://h").ok()?;
        let flags = script.byte();
        options.version = if flags & 1 == 0 { Version::V5 } else { Version::V311 };
        options.clean_start = flags & 2 == 0;
        options.session_expiry_s = if flags & 4 == 0 { 100 } else { 0 };
        options.keep_alive_s = u16::from(flags >> 4);
        options.receive_maximum = u16::from(script.byte() % 8) + 1;
        options.max_packet_bytes = 1024;
        options.client_id = "c".to_owned();
        let version = options.version;
        let now = Instant::now();
        Some(Scene {
            machine: Machine::new(Arc::new(options), now),
            now,
            version,
            connected: false,
            unread: Vec::new(),
            wire: Vec::new(),
            packets: 0,
            unacknowledged: Vec::new(),
            window: usize::from(u16::MAX),
            confused: false,
            publications: Vec::new(),
            requests: Vec::new(),
            done: false,
        })
    }

    fn step(&mut self, script: &mut Script<'_>) {
        match script.byte() % 16 {
            0..4 => {
                let first = script.byte();
                let first = FIRST_BYTES.get(usize::from(first)).copied().unwrap_or(first);
                let body = script.bytes();
                // Up to 255 bytes: two length bytes are correct for more than 127.
                self.unread.push(first);
                match body.len() {
                    len @ 0..128 => self.unread.push(len as u8),
                    len => self.unread.extend([(len & 0x7F) as u8 | 0x80, (len >> 7) as u8]),
                }
                self.unread.extend_from_slice(body);
                self.read();
            }
            4 => {
                self.unread.extend_from_slice(script.bytes());
                self.read();
            }
            5..8 => self.answer(script.byte()),
            8..10 => self.publish(script),
            10 => self.subscribe(script),
            11 => self.unsubscribe(script),
            12 => {
                self.machine.disconnected();
                self.connect(script.byte() & 1 == 1);
            }
            13 => {
                self.machine.early_data_rejected();
                self.connect(false);
            }
            14 => self.wait(script.byte()),
            _ => match script.byte() {
                0..16 => self.machine.close(),
                16..20 => self.machine.close_now(),
                _ => self.acknowledge_any(script),
            },
        }
    }

    fn connect(&mut self, early: bool) {
        if self.machine.is_done() {
            self.done = true;
            return;
        }
        assert!(self.wire.is_empty(), "the client wrote half a packet");
        self.machine.connect(self.now, early, false);
        self.connected = true;
        self.packets = 0;
        self.unread.clear();
        self.unacknowledged.clear();
        // Until CONNACK says otherwise (section 3.2.2.3.3).
        self.window = usize::from(u16::MAX);
        self.confused = false;
    }

    fn publish(&mut self, script: &mut Script<'_>) {
        let qos = QoS::try_from(script.byte() % 3).unwrap_or_default();
        let mut message = Message::new("t", script.bytes().to_vec()).qos(qos);
        message.retain = self.publications.len() % 5 == 4;
        let token = self.publications.len();
        self.publications.push(0);
        self.machine.publish(message, token);
    }

    fn subscribe(&mut self, script: &mut Script<'_>) {
        let count = usize::from(script.byte() % 4) + 1;
        let filters = (0..count).map(|i| (format!("f/{i}"), SubscribeOptions::default()));
        let token = self.requests.len();
        self.requests.push(0);
        self.machine.subscribe(filters.collect(), token);
    }

    fn unsubscribe(&mut self, script: &mut Script<'_>) {
        let token = self.requests.len();
        self.requests.push(0);
        self.machine.unsubscribe(vec![format!("f/{}", script.byte() % 4)], token);
    }

    fn wait(&mut self, seconds: u8) {
        self.now += Duration::from_secs(u64::from(seconds));
        match self.machine.on_deadline(self.now, true) {
            Ok(()) => assert!(self.machine.deadline().is_none_or(|at| at > self.now)),
            Err(_) => self.lose(),
        }
    }

    fn lose(&mut self) {
        self.take_output();
        self.machine.disconnected();
        self.connected = false;
    }

    /// Lets the client read the available bytes.
    fn read(&mut self) {
        if !self.connected {
            return self.unread.clear();
        }
        self.take_output();
        self.hear();
        match self.machine.receive(self.now, CONTROL, &self.unread) {
            Ok(used) => drop(self.unread.drain(..used)),
            Err(_) => self.lose(),
        }
    }

    /// Records the server's window and acknowledgements, as far as the client can have parsed them: an error ends the
    /// connection.
    fn hear(&mut self) {
        let mut rest = &self.unread[..];
        while let Ok(Some(frame)) = peek_frame(rest, 1024) {
            match decode(&frame, self.version) {
                Ok(Packet::Connack(connack)) if !self.machine.is_up() => {
                    for property in connack.properties.iter() {
                        if let Property::ReceiveMaximum(most) = property {
                            self.window = usize::from(most);
                        }
                    }
                }
                Ok(Packet::Ack(kind, ack)) if kind != AckKind::Pubrel => {
                    let known = self.unacknowledged.iter().position(|id| *id == ack.packet_id);
                    let over = kind != AckKind::Pubrec || ack.reason.is_error();
                    match known {
                        Some(at) if over => drop(self.unacknowledged.remove(at)),
                        Some(_) => {}
                        None => self.confused = true,
                    }
                }
                _ => {}
            }
            rest = &rest[frame.len..];
        }
    }

    /// Takes the client's output and checks it.
    fn take_output(&mut self) {
        loop {
            let out = self.machine.output(CONTROL);
            if out.is_empty() {
                break;
            }
            self.wire.extend_from_slice(out);
            let bytes = out.len();
            self.machine.sent(CONTROL, bytes, self.now);
        }
        let wire = std::mem::take(&mut self.wire);
        let mut rest = &wire[..];
        while !rest.is_empty() {
            let Ok(Some(frame)) = peek_frame(rest, usize::MAX) else {
                panic!("the client wrote half a packet")
            };
            match decode(&frame, self.version) {
                Ok(packet) => self.check(&packet),
                Err(error) => panic!("the client wrote {:?}: {error}", frame),
            }
            self.packets += 1;
            rest = &rest[frame.len..];
        }
    }

    fn check(&mut self, packet: &Packet<'_>) {
        assert_eq!(matches!(packet, Packet::Connect(_)), self.packets == 0);
        if let Packet::Publish(publish) = packet
            && let Some(id) = publish.packet_id
        {
            assert!(!self.unacknowledged.contains(&id), "{id} is in flight");
            let room = self.unacknowledged.len() < self.window;
            assert!(room || self.confused, "more in flight than the server takes");
            self.unacknowledged.push(id);
        }
    }

    /// Answers the newest packets honestly, or as `choice` says.
    fn answer(&mut self, choice: u8) {
        self.take_output();
        if !self.connected {
            return;
        }
        let up = self.machine.is_up();
        let mut out = Vec::new();
        if !up {
            let mut properties = PropertyBuf::new();
            if choice & 2 != 0 && self.version == Version::V5 {
                properties.push(Property::ReceiveMaximum(u16::from(choice >> 4) + 1));
            }
            Connack {
                session_present: choice & 1 == 1,
                reason: ReasonCode::Success,
                properties: properties.as_properties(),
            }
            .encode(self.version, &mut out);
        }
        for id in &self.unacknowledged {
            let kind =
                [AckKind::Puback, AckKind::Pubrec, AckKind::Pubcomp][usize::from(choice % 3)];
            ack::encode(&mut out, self.version, kind, *id, ReasonCode::Success);
        }
        self.unread.extend_from_slice(&out);
        self.read();
    }

    fn acknowledge_any(&mut self, script: &mut Script<'_>) {
        let (packet_id, properties) = (script.any_id(), Properties::NONE);
        let codes = script.bytes();
        let mut out = Vec::new();
        if codes.first().is_some_and(|code| code & 1 == 0) {
            Suback { packet_id, properties, codes }.encode(self.version, &mut out);
        } else {
            Unsuback { packet_id, properties, codes }.encode(self.version, &mut out);
        }
        self.unread.extend_from_slice(&out);
        self.read();
    }

    fn settle(&mut self) {
        if self.connected {
            self.take_output();
        }
        self.take_outcomes();
        self.done |= self.machine.is_done();
    }

    fn take_outcomes(&mut self) {
        while let Some(outcome) = self.machine.poll_event() {
            match outcome {
                Outcome::Published(token, _) => self.publications[token] += 1,
                Outcome::Answered(token, _) => self.requests[token] += 1,
                Outcome::Connected { .. } | Outcome::Message(_) | Outcome::MayRepeat { .. } => {}
            }
        }
    }
}
