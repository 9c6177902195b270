//! Hostile clients at a broker with sessions, storage and a clock: any bytes in any pieces on any stream,
//! connections that break, clients that do not read, crashes. Held to: no panic, no endless turn; every
//! client is sent whole packets within its terms (see `line`); an honest pair notices nothing and gets no
//! acknowledgement of anything that is not durable (see `witness`); memory stays within the limits and is given back.

use std::time::Duration;

use fulmar_broker::{DropPolicy, StreamEnd, StreamKey};
use fulmar_mqtt::packet::{Connect, FilterList, LastWill, Publish, Subscribe, SubscribeOptions};
use fulmar_mqtt::{Packet, PacketId, Properties, Property, PropertyBuf, QoS, Version};
use fulmar_mqtt_fuzz::heap;
use fulmar_mqtt_fuzz::support::script::Script;

use crate::rig::{Conn, Rig, limits};
use crate::witness::{IDENTIFIERS, Witness};

/// Heap a broker with these limits may take, in bytes: 16 sessions of 3 flows with an outbox each of 64
/// KiB while it is refilled, their queues, and buffers kept for reuse.
const MAX_HEAP_BYTES: usize = 8 << 20;

/// What may stay after a run, in bytes: what libraries keep a thread for the next time.
const MAX_LEFT_BYTES: isize = 16 * 1024;

/// Hostile connections at once.
const MAX_HOSTILE: usize = 6;

/// Times the witness comes back in one run: each time it sends again what is not acknowledged, and at
/// QoS 1 that would fill its subscriber's queue, whose overflow is dropped by design.
const MAX_RETURNS: usize = 8;

/// First bytes of a client's packets; anything else comes out of the script.
const FIRST_BYTES: [u8; 16] = [
    0x10, 0x30, 0x31, 0x32, 0x34, 0x3C, 0x33, 0x40, 0x50, 0x62, 0x70, 0x82, 0xA2, 0xC0, 0xE0, 0xF0,
];

const TOPICS: [&str; 6] = ["a", "a/b", "b/c", "$SYS/x", "witness/t", "a/"];
const FILTERS: [&str; 8] =
    ["#", "a", "+/b", "a/#", "$share/g/#", "$share/h/a", "witness/+", "$SYS/#"];

/// What becomes of full queues, then what happens.
pub fn connection(data: &[u8]) {
    let ((), used) = heap::measure(|| play(Script(data)));
    assert!(used.peak_bytes <= MAX_HEAP_BYTES, "{used:?}");
    assert!(used.left_bytes <= MAX_LEFT_BYTES, "{used:?}");
}

fn play(mut script: Script<'_>) {
    let policies = [DropPolicy::Newest, DropPolicy::Oldest, DropPolicy::Disconnect];
    let setup = script.byte();
    let mut limits = limits(policies[usize::from(setup % 3)]);
    if setup >= 128 {
        (limits.large_message_bytes, limits.large_bytes_per_turn) = (4, 64);
    }
    let mut rig = Rig::new(limits);
    let witness = Witness::new(&mut rig);
    let mut scene =
        Scene { rig, witness, hostile: Vec::new(), said: Vec::new(), used_ids: 0, returns: 0 };
    scene.open(0);
    while !script.is_over() {
        scene.step(&mut script);
        scene.rig.settle();
        for conn in scene.rig.conns() {
            if scene.hostile.contains(&conn) {
                scene.rig.look(conn, |_| {});
            }
        }
        if scene.is_mistaken() {
            return;
        }
    }
    scene.finish();
}

struct Scene {
    rig: Rig,
    witness: Witness,
    hostile: Vec<Conn>,
    /// All that hostile clients have said.
    said: Vec<u8>,
    used_ids: u16,
    returns: usize,
}

impl Scene {
    /// A hostile client that takes the witness's name takes its session, as it may without passwords.
    fn is_mistaken(&mut self) -> bool {
        let mistaken =
            self.said.windows(IDENTIFIERS.len()).any(|piece| piece == IDENTIFIERS.as_bytes());
        self.said.drain(..self.said.len().saturating_sub(IDENTIFIERS.len()));
        mistaken
    }

    fn step(&mut self, script: &mut Script<'_>) {
        match script.byte() % 16 {
            0..4 => self.say_frame(script),
            4 => {
                let (conn, key) = self.somewhere(script);
                self.say(conn, key, script.bytes());
            }
            5 => self.say_connect(script),
            6 => self.open(script.byte()),
            7 => self.disturb(script),
            8 => {
                let (conn, _) = self.somewhere(script);
                self.rig.set_reading(conn, script.byte() & 1 == 1);
            }
            9 => self.rig.disk.commit(),
            10 => self.rig.wait(Duration::from_millis(1 << (script.byte() % 19))),
            11 => {
                let exactly_once = script.byte() & 1 == 1;
                let qos = if exactly_once { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
                self.witness.publish(&mut self.rig, qos);
            }
            12 => self.witness.read(&mut self.rig),
            13 if self.returns == MAX_RETURNS => {}
            13 if script.byte() & 1 == 1 => {
                self.returns += 1;
                self.witness.cut(&mut self.rig);
            }
            13 => {
                self.returns += 1;
                self.rig.crash();
                self.hostile.clear();
                self.witness.come_back(&mut self.rig);
                self.open(0);
            }
            14 => self.say_publish(script),
            _ => self.say_subscribe(script),
        }
    }

    fn open(&mut self, how: u8) {
        self.hostile.retain(|conn| self.rig.is_open(*conn));
        if self.hostile.len() < MAX_HOSTILE {
            self.hostile.extend(self.rig.open(usize::from(how), how & 2 != 0));
        }
    }

    /// One of the hostile connections and of its streams.
    fn somewhere(&mut self, script: &mut Script<'_>) -> (Conn, StreamKey) {
        if self.hostile.is_empty() {
            self.open(0);
        }
        let choice = usize::from(script.byte());
        let Some(conn) = self.hostile.get(choice % self.hostile.len().max(1)).copied() else {
            panic!("no room for a hostile connection")
        };
        let streams = self.rig.streams(conn);
        let key = streams.get(choice / 16 % streams.len().max(1)).copied();
        (conn, key.unwrap_or(StreamKey::CONTROL))
    }

    fn say(&mut self, conn: Conn, key: StreamKey, bytes: &[u8]) {
        self.said.extend_from_slice(bytes);
        self.rig.say(conn, key, bytes);
    }

    fn say_packet(&mut self, conn: Conn, key: StreamKey, version: Version, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        packet.encode(version, &mut bytes);
        self.say(conn, key, &bytes);
    }

    /// Any packet with a length that is right.
    fn say_frame(&mut self, script: &mut Script<'_>) {
        let (conn, key) = self.somewhere(script);
        let first = script.byte();
        let first = FIRST_BYTES.get(usize::from(first)).copied().unwrap_or(first);
        let body = script.bytes();
        let mut bytes = vec![first];
        match body.len() {
            len @ 0..128 => bytes.push(len as u8),
            len => bytes.extend([(len & 0x7F) as u8 | 0x80, (len >> 7) as u8]),
        }
        bytes.extend_from_slice(body);
        self.say(conn, key, &bytes);
    }

    fn say_connect(&mut self, script: &mut Script<'_>) {
        let (conn, key) = self.somewhere(script);
        let (flags, who, most) = (script.byte(), script.byte(), script.byte());
        let version = if flags & 1 == 0 { Version::V5 } else { Version::V311 };
        let mut properties = PropertyBuf::new();
        let mut will_properties = PropertyBuf::new();
        if version == Version::V5 {
            if flags & 2 != 0 {
                properties.push(Property::SessionExpiryInterval(u32::from(who) * 10));
            }
            if most & 1 != 0 {
                properties.push(Property::ReceiveMaximum(u16::from(most >> 5) + 1));
            }
            if most & 2 != 0 {
                properties.push(Property::MaximumPacketSize(u32::from(most) + 4));
            }
            will_properties.push(Property::WillDelayInterval(u32::from(most >> 2)));
        }
        let will = (flags & 8 != 0).then(|| LastWill {
            topic: TOPICS[usize::from(most) % TOPICS.len()],
            payload: b"will",
            qos: QoS::try_from(flags >> 6).unwrap_or_default(),
            retain: flags & 16 != 0,
            properties: will_properties.as_properties(),
        });
        let connect = Connect {
            version,
            bridge: flags & 8 != 0 && version == Version::V311,
            clean_start: flags & 4 != 0,
            keep_alive_s: u16::from(flags >> 5),
            client_id: ["one", "two", "three", "four"][usize::from(who % 4)],
            properties: properties.as_properties(),
            will,
            username: None,
            password: None,
        };
        self.say_packet(conn, key, version, &Packet::Connect(connect));
    }

    fn say_publish(&mut self, script: &mut Script<'_>) {
        let (conn, key) = self.somewhere(script);
        let (flags, topic) = (script.byte(), usize::from(script.byte()));
        let qos = QoS::try_from(flags % 3).unwrap_or_default();
        self.used_ids = self.used_ids % 9 + 1;
        let mut properties = PropertyBuf::new();
        if flags & 32 != 0 {
            properties.push(Property::MessageExpiryInterval(u32::from(flags)));
        }
        let publish = Publish {
            dup: false,
            qos,
            retain: flags & 64 != 0,
            topic: TOPICS[topic % TOPICS.len()],
            packet_id: PacketId::new(self.used_ids).filter(|_| qos > QoS::AtMostOnce),
            properties: properties.as_properties(),
            payload: script.bytes(),
        };
        let version = if flags & 128 == 0 { Version::V5 } else { Version::V311 };
        self.say_packet(conn, key, version, &Packet::Publish(publish));
    }

    fn say_subscribe(&mut self, script: &mut Script<'_>) {
        let (conn, key) = self.somewhere(script);
        let (flags, choice) = (script.byte(), usize::from(script.byte()));
        let version = if flags & 128 == 0 { Version::V5 } else { Version::V311 };
        let options = SubscribeOptions::from_byte(flags & 0x2F, version).unwrap_or_default();
        let mut filters = Vec::new();
        FilterList::encode_one(&mut filters, FILTERS[choice % FILTERS.len()], Some(options));
        let Ok(filters) = FilterList::from_encoded(&filters, true, version) else { return };
        let packet_id = PacketId::FIRST;
        let subscribe = Subscribe { packet_id, properties: Properties::NONE, filters };
        self.say_packet(conn, key, version, &Packet::Subscribe(subscribe));
    }

    /// What happens to connections rather than on them.
    fn disturb(&mut self, script: &mut Script<'_>) {
        let (conn, key) = self.somewhere(script);
        match script.byte() % 8 {
            0..4 => {
                let which = u64::from(script.byte());
                let unidirectional = which / 8 % 2 * 2;
                self.rig.open_stream(conn, StreamKey(which % 8 * 4 + unidirectional));
            }
            4 => self.rig.end_stream(conn, key, StreamEnd::Finished),
            5 => self.rig.end_stream(conn, key, StreamEnd::Reset(u64::from(script.byte()))),
            6 => self.rig.confirm_handshake(conn),
            _ => self.rig.cut(conn),
        }
    }

    /// Hostile clients go, their sessions expire, and the witness misses nothing.
    fn finish(mut self) {
        for conn in std::mem::take(&mut self.hostile) {
            self.rig.cut(conn);
        }
        self.witness.finish(&mut self.rig);
        self.rig.wait(Duration::from_secs(8 * 24 * 3600));
        self.rig.settle();
        assert_eq!((self.rig.sessions(), self.rig.subscriptions()), (2, 1), "sessions stay");
        self.witness.finish(&mut self.rig);
    }
}
