//! Delays publications with many receivers, and subscriptions to many filters, while the worker has others to serve
//! ([`crate::fan_out`]), and publications of large messages while earlier ones are still to be sent
//! ([`crate::send_line`]). The packet is left unread, so that order, acknowledgements and storage are as if it had
//! arrived later.

use fulmar_mqtt::Packet;
use fulmar_mqtt::codec::{Frame, decode};

use super::{Connection, State};
use crate::fan_out::is_much;
use crate::shard::Shard;

/// Packet types (section 2.1.2).
const PUBLISH: u8 = 3;
const SUBSCRIBE: u8 = 8;
const UNSUBSCRIBE: u8 = 10;

impl Connection {
    /// Whether this packet has to wait for a later turn, or for receivers of earlier ones. Its connection then gets an event
    /// when it may continue.
    pub(super) fn waits_for_fan_out(
        &self,
        shard: &mut Shard,
        stream_index: usize,
        frame: &Frame<'_>,
    ) -> bool {
        if !matches!(self.state, State::Connected(_)) {
            return false;
        }
        match frame.packet_type() {
            PUBLISH => self.waits_with_publication(shard, stream_index, frame),
            SUBSCRIBE | UNSUBSCRIBE => self.waits_with_filters(shard, frame.len),
            _ => false,
        }
    }

    fn waits_with_filters(&self, shard: &mut Shard, bytes: usize) -> bool {
        let (token, fan_out) = (self.at.token, &mut shard.turn.fan_out);
        if fan_out.must_wait(token) && fan_out.are_many_filters(token, bytes) {
            fan_out.wait(token);
            return true;
        }
        fan_out.spend_on_filters(token, bytes);
        false
    }

    fn waits_with_publication(
        &self,
        shard: &mut Shard,
        stream_index: usize,
        frame: &Frame<'_>,
    ) -> bool {
        let token = self.at.token;
        let gives_way = shard.turn.fan_out.must_wait(token);
        let is_large = frame.len >= shard.turn.limits().large_message_bytes;
        let may_be_delayed = is_large && shard.turn.sends.may_delay();
        if !gives_way && !may_be_delayed {
            return false;
        }
        if may_be_delayed && shard.turn.sends.go_on(token) {
            return false;
        }
        let (visits, copies) = self.receivers(shard, stream_index, frame);
        let bytes = copies.saturating_mul(frame.len);
        if gives_way && is_much(visits, bytes) {
            shard.turn.fan_out.wait(token);
            return true;
        }
        may_be_delayed
            && copies > 1
            && bytes > shard.turn.limits().much_for_all()
            && shard.turn.sends.must_wait(token)
    }

    fn receivers(
        &self,
        shard: &mut Shard,
        stream_index: usize,
        frame: &Frame<'_>,
    ) -> (usize, usize) {
        // What is wrong with a packet is found where it is handled.
        let Ok(Packet::Publish(publish)) = decode(frame, self.version) else {
            return (0, 0);
        };
        if !publish.topic.is_empty() {
            return shard.receivers(publish.topic);
        }
        let alias = fulmar_mqtt::find_property!(publish.properties, TopicAlias);
        let table = self.streams[stream_index].aliases.as_ref();
        let topic = table.zip(alias).and_then(|(table, alias)| table.get(alias));
        topic.map_or((0, 0), |topic| shard.receivers(topic))
    }
}
