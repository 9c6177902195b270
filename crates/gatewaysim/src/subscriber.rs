//! A client inside the process, as `local_client.rs` and its users have it: a durable session that acknowledges by hand.

use fulmar_broker::StreamKey;
use fulmar_mqtt::ack::{self, AckKind};
use fulmar_mqtt::codec::{decode, peek_frame};
use fulmar_mqtt::packet::{
    Connack, Connect, Disconnect, FilterList, Publish, RetainHandling, Subscribe, SubscribeOptions,
};
use fulmar_mqtt::{Packet, PacketId, Properties, Property, PropertyBuf, QoS, ReasonCode, Version};
use fulmar_simulator::{Input, World};

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
}

impl Subscriber {
    pub(crate) fn new(client_id: &str, filters: &[&str], no_local: bool) -> Subscriber {
        let filters = filters.iter().map(|filter| (*filter).to_owned()).collect();
        Subscriber { client_id: client_id.to_owned(), filters, no_local, line: None }
    }

    /// CONNECT and SUBSCRIBE on a new connection.
    pub(crate) fn connect(&mut self, world: &mut World, worker: usize) {
        self.cut(world, true);
        self.line = world.open(worker, false, usize::MAX);
        let mut properties = PropertyBuf::new();
        properties.push(Property::SessionExpiryInterval(u32::MAX));
        let properties = properties.as_properties();
        let usual = Connect::new(VERSION, &self.client_id);
        let connect = Connect { clean_start: false, properties, ..usual };
        self.say(world, &Packet::Connect(connect));
        let mut list = Vec::new();
        for filter in &self.filters {
            let options = SubscribeOptions {
                qos: QoS::AtLeastOnce,
                no_local: self.no_local,
                retain_as_published: self.no_local,
                retain_handling: RetainHandling::Never,
            };
            FilterList::encode_one(&mut list, filter, Some(options));
        }
        if let Ok(filters) = FilterList::from_encoded(&list, true, VERSION) {
            let (packet_id, properties) = (PacketId::FIRST, Properties::NONE);
            self.say(world, &Packet::Subscribe(Subscribe { packet_id, properties, filters }));
        }
    }

    fn say(&self, world: &mut World, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        packet.encode(VERSION, &mut bytes);
        if let Some(line) = self.line {
            world.say(line, StreamKey::CONTROL, Input::Bytes(bytes));
        }
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
        let Some(line) = self.line else { return Ok(0) };
        let mut count = 0;
        while count < most {
            let Some(packet) = world.receive(line, StreamKey::CONTROL) else { break };
            let frame = peek_frame(&packet, usize::MAX).ok().flatten().ok_or("half a packet")?;
            match decode(&frame, VERSION).map_err(|error| error.to_string())? {
                Packet::Publish(publish) => see(&publish),
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

    /// Acknowledges publications that were received on `line`, if that is still the connection.
    pub(crate) fn acknowledge(&self, world: &mut World, line: Option<usize>, ids: &[PacketId]) {
        let Some(line) = self.line.filter(|own| Some(*own) == line) else { return };
        for id in ids {
            let mut bytes = Vec::new();
            ack::encode(&mut bytes, VERSION, AckKind::Puback, *id, ReasonCode::Success);
            world.say(line, StreamKey::CONTROL, Input::Bytes(bytes));
        }
    }

    /// The connection breaks, with what was sent last if `lossy`.
    pub(crate) fn cut(&mut self, world: &mut World, lossy: bool) {
        if let Some(line) = self.line.take() {
            world.cut(line, lossy);
        }
    }
}
