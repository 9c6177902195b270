//! Delays publications with many receivers while the worker has others to serve ([`crate::fan_out`]). The packet is
//! left unread, so that order, acknowledgements and storage are as if it had arrived later.

use fulmar_mqtt::codec::{Frame, decode};
use fulmar_mqtt::{Packet, Property};

use super::{Connection, State};
use crate::shard::Shard;

/// PUBLISH (section 2.1.2).
const PUBLISH: u8 = 3;

impl Connection {
    /// Whether this packet has to wait for a later turn. Its connection then gets an event when it may continue.
    pub(super) fn waits_for_fan_out(
        &self,
        shard: &mut Shard,
        stream_index: usize,
        frame: &Frame<'_>,
    ) -> bool {
        let waits = frame.packet_type() == PUBLISH
            && matches!(self.state, State::Connected(_))
            && shard.turn.fan_out.must_wait(self.at.token)
            && self.reaches_many(shard, stream_index, frame);
        if waits {
            shard.turn.fan_out.wait(self.at.token);
        }
        waits
    }

    fn reaches_many(&self, shard: &mut Shard, stream_index: usize, frame: &Frame<'_>) -> bool {
        // What is wrong with a packet is found where it is handled.
        let Ok(Packet::Publish(publish)) = decode(frame, self.version) else { return false };
        if !publish.topic.is_empty() {
            return shard.reaches_many(publish.topic);
        }
        let alias = publish.properties.iter().find_map(|property| match property {
            Property::TopicAlias(alias) => Some(alias),
            _ => None,
        });
        let table = self.streams[stream_index].aliases.as_ref();
        let topic = table.zip(alias).and_then(|(table, alias)| table.get(alias));
        topic.is_some_and(|topic| shard.reaches_many(topic))
    }
}
