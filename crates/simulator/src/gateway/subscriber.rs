//! A client inside the process, as `local_client.rs` and its users have it: a durable session that acknowledges by hand.

use fulmar_broker::StreamKey;
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::packet::{
    Connack, Connect, Disconnect, Publish, RetainHandling, SubscribeOptions,
};
use fulmar_mqtt::{Packet, PacketId, Property, PropertyBuf, QoS, ReasonCode, Version};

use crate::packets::{acknowledgement, decoded, encoded, subscription};
use crate::world::World;

const VERSION: Version = Version::V5;

/// Why the broker may end the connection: an older one, which it has read later, has taken the session back, or its
/// storage stands still.
pub(crate) const MAY_END: [ReasonCode; 3] = [
    ReasonCode::SessionTakenOver,
    ReasonCode::ServerUnavailable,
    ReasonCode::ImplementationSpecificError,
];

/// The session.
pub(crate) struct Subscriber {
    client_id: String,
    filters: Vec<String>,
    no_local: bool,
    pub(crate) line: Option<usize>,
    /// The connection on which publications were received that are not acknowledged, and their identifiers. Nothing is
    /// read, and no connection is opened, before they are.
    received: Option<(usize, Vec<PacketId>)>,
}

impl Subscriber {
    pub(crate) fn new(client_id: &str, filters: &[&str], no_local: bool) -> Subscriber {
        let filters = filters.iter().map(|filter| (*filter).to_owned()).collect();
        let client_id = client_id.to_owned();
        Subscriber { client_id, filters, no_local, line: None, received: None }
    }

    /// CONNECT and SUBSCRIBE on a new connection, when it has acknowledged what it received before.
    pub(crate) fn connect(&mut self, world: &mut World, worker: usize) {
        if self.received.is_some() {
            return;
        }
        self.cut(world, true);
        let Some(line) = world.open(worker, false, usize::MAX) else { return };
        self.line = Some(line);
        let mut properties = PropertyBuf::new();
        properties.push(Property::SessionExpiryInterval(u32::MAX));
        let properties = properties.as_properties();
        let usual = Connect::new(VERSION, &self.client_id);
        let connect = Connect { clean_start: false, properties, ..usual };
        let options = SubscribeOptions {
            qos: QoS::AtLeastOnce,
            no_local: self.no_local,
            retain_as_published: self.no_local,
            retain_handling: RetainHandling::Never,
        };
        let filters = self.filters.iter().map(String::as_str);
        let subscribe = subscription(PacketId::FIRST, filters, Some(options), VERSION);
        world.say(line, StreamKey::CONTROL, encoded(&Packet::Connect(connect), VERSION));
        world.say(line, StreamKey::CONTROL, subscribe);
    }

    /// Reads up to `most` packets, and shows those that are publications to `see`; returns how many packets it read.
    ///
    /// # Errors
    /// The broker refused the session or a subscription.
    pub(crate) fn read(
        &mut self,
        world: &mut World,
        most: usize,
        mut see: impl FnMut(&Publish<'_>),
    ) -> Result<usize, String> {
        let Some(line) = self.line.filter(|_| self.received.is_none()) else { return Ok(0) };
        let mut count = 0;
        while count < most {
            let Some(packet) = world.receive(line, StreamKey::CONTROL) else { break };
            match decoded(&packet, VERSION)? {
                Packet::Publish(publish) => {
                    let (_, received) = self.received.get_or_insert((line, Vec::new()));
                    received.extend(publish.packet_id);
                    see(&publish);
                }
                Packet::Suback(suback) if suback.codes.iter().any(|code| *code >= 0x80) => {
                    return Err(format!("{}: a subscription was refused", self.client_id));
                }
                Packet::Connack(Connack { reason, .. })
                | Packet::Disconnect(Disconnect { reason, .. })
                    if reason.is_error() =>
                {
                    if !MAY_END.contains(&reason) {
                        return Err(format!("{}: {reason}", self.client_id));
                    }
                    self.cut(world, true);
                    return Ok(count + 1);
                }
                _ => {}
            }
            count += 1;
        }
        if count == 0 && !world.is_open(line) {
            self.line = None;
        }
        Ok(count)
    }

    /// Whether it has received publications and not acknowledged them.
    pub(crate) fn has_received(&self) -> bool {
        self.received.is_some()
    }

    /// Acknowledges what was received, if that connection is still there. Returns whether there was something.
    pub(crate) fn acknowledge(&mut self, world: &mut World) -> bool {
        let Some((line, ids)) = self.received.take() else { return false };
        for id in ids.into_iter().filter(|_| self.line == Some(line)) {
            world.say(line, StreamKey::CONTROL, acknowledgement(AckKind::Puback, id, VERSION));
        }
        true
    }

    /// The connection breaks, with what was sent last if `lossy`.
    pub(crate) fn cut(&mut self, world: &mut World, lossy: bool) {
        if let Some(line) = self.line.take() {
            world.cut(line, lossy);
        }
    }
}
