//! What the broker sends to one client, checked packet by packet against what the client has said.

use std::collections::BTreeSet;

use fulmar_broker::StreamKey;
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::codec::{decode, peek_frame};
use fulmar_mqtt::packet::{Connect, Publish};
use fulmar_mqtt::{Packet, PacketId, Property, Version};

/// Both directions of one stream.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    /// Bytes the broker has not used.
    pub(crate) unread: Vec<u8>,
    /// What the client has said and we have not looked at.
    said: Vec<u8>,
    /// Bytes for the client nobody has looked at.
    pub(crate) inbox: Vec<u8>,
    /// Messages sent to it on this stream and not acknowledged.
    unacknowledged: Vec<PacketId>,
    /// It has acknowledged what it was never sent; what it gets then is its own doing.
    confused: bool,
    /// It has said something that is no packet.
    garbled: bool,
    started: bool,
    /// Topic aliases that the broker has set.
    aliases: BTreeSet<u16>,
}

impl Wire {
    /// What is acknowledged elsewhere is of this stream's flow too.
    pub(crate) fn confuse(&mut self) {
        self.confused = true;
    }

    pub(crate) fn say(&mut self, bytes: &[u8]) {
        self.unread.extend_from_slice(bytes);
        if !self.garbled {
            self.said.extend_from_slice(bytes);
        }
    }
}

/// A client's terms, from its CONNECT.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    version: Version,
    receive_maximum: usize,
    max_packet_bytes: usize,
    alias_maximum: u16,
    /// A first packet has come; later ones change nothing.
    settled: bool,
}

impl Default for Terms {
    fn default() -> Terms {
        Terms {
            version: Version::V5,
            receive_maximum: usize::from(u16::MAX),
            max_packet_bytes: usize::MAX,
            alias_maximum: 0,
            settled: false,
        }
    }
}

impl Terms {
    fn learn(&mut self, connect: &Connect<'_>) {
        self.version = connect.version;
        for property in connect.properties.iter() {
            match property {
                Property::ReceiveMaximum(most) => self.receive_maximum = usize::from(most),
                Property::MaximumPacketSize(most) => self.max_packet_bytes = most as usize,
                Property::TopicAliasMaximum(most) => self.alias_maximum = most,
                _ => {}
            }
        }
    }

    /// Looks at what the client has said on a stream: its CONNECT, and what it acknowledges.
    pub(crate) fn listen(&mut self, key: StreamKey, wire: &mut Wire) {
        let said = std::mem::take(&mut wire.said);
        let mut rest = &said[..];
        // A data stream may begin with a header; after that we do not know where packets begin.
        if key != StreamKey::CONTROL {
            wire.confused = true;
            return;
        }
        loop {
            let frame = match peek_frame(rest, usize::MAX) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(_) => {
                    wire.garbled = true;
                    return;
                }
            };
            rest = &rest[frame.len..];
            match decode(&frame, self.version) {
                Ok(Packet::Connect(connect)) if !self.settled => self.learn(&connect),
                Ok(Packet::Ack(kind, ack)) if kind != AckKind::Pubrel => {
                    let over = kind != AckKind::Pubrec || ack.reason.is_error();
                    match wire.unacknowledged.iter().position(|id| *id == ack.packet_id) {
                        Some(at) if over => drop(wire.unacknowledged.remove(at)),
                        Some(_) => {}
                        None => wire.confused = true,
                    }
                }
                _ => {}
            }
            self.settled = true;
        }
        wire.said = rest.to_vec();
    }

    /// Section 3.3.2.3.4: an alias is set on its stream before it stands alone, and not above the maximum.
    fn check_alias(&self, wire: &mut Wire, publish: &Publish<'_>) {
        let alias = fulmar_mqtt::find_property!(publish.properties, TopicAlias);
        let Some(alias) = alias else {
            assert!(!publish.topic.is_empty(), "neither topic nor alias");
            return;
        };
        assert!((1..=self.alias_maximum).contains(&alias), "alias {alias}");
        if publish.topic.is_empty() {
            assert!(wire.aliases.contains(&alias), "alias {alias} was not set");
        } else {
            wire.aliases.insert(alias);
        }
    }

    /// Checks what the broker has sent on a stream, and hands the packets on.
    pub(crate) fn check(&self, key: StreamKey, wire: &mut Wire, mut each: impl FnMut(&Packet<'_>)) {
        let inbox = std::mem::take(&mut wire.inbox);
        let mut rest = &inbox[..];
        while !rest.is_empty() {
            let Ok(Some(frame)) = peek_frame(rest, usize::MAX) else {
                panic!("the broker sent half a packet: {rest:?}")
            };
            rest = &rest[frame.len..];
            // To a client of a version it does not know the broker speaks the oldest.
            let packet = match decode(&frame, self.version) {
                Err(_) if !wire.started => decode(&frame, Version::V311),
                decoded => decoded,
            };
            let packet =
                packet.unwrap_or_else(|error| panic!("the broker sent {frame:?}: {error}"));
            let first = key == StreamKey::CONTROL && !wire.started;
            assert_eq!(matches!(packet, Packet::Connack(_)), first, "{packet:?}");
            wire.started = true;
            // [MQTT-3.1.2-24], of whatever packet.
            assert!(frame.len <= self.max_packet_bytes, "{frame:?}");
            match &packet {
                Packet::Publish(publish) => {
                    self.check_alias(wire, publish);
                    if let Some(id) = publish.packet_id {
                        let room = wire.unacknowledged.len() < self.receive_maximum;
                        assert!(room || wire.confused, "more than the client takes");
                        assert!(wire.confused || !wire.unacknowledged.contains(&id));
                        wire.unacknowledged.push(id);
                    }
                }
                Packet::Connack(_)
                | Packet::Ack(..)
                | Packet::Suback(_)
                | Packet::Unsuback(_)
                | Packet::Pingresp
                | Packet::Disconnect(_) => {}
                other => panic!("a server does not send {}", other.name()),
            }
            each(&packet);
        }
    }
}
