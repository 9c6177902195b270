//! Decides whether the client's next packet is read now, and for which cause it waits otherwise ([`crate::waiting`]).

use std::sync::Arc;

use fulmar_mqtt::Packet;
use fulmar_mqtt::codec::{Frame, decode};

use super::connect::may_come_early;
use super::{Connection, State};
use crate::fan_out::is_much;
use crate::peer::StreamKey;
use crate::session::Session;
use crate::shard::Shard;
use crate::waiting::{LONG_WAIT_S, WaitCause};

/// Packet types (section 2.1.2).
const PUBLISH: u8 = 3;
const SUBSCRIBE: u8 = 8;
const UNSUBSCRIBE: u8 = 10;

impl Connection {
    /// The cause for which no packet of a stream may be read now.
    pub(super) fn cause_to_wait(&self, shard: &Shard, stream_index: usize) -> Option<WaitCause> {
        match &self.state {
            State::Authenticating(pending) if pending.gives_way.is_some() => {
                Some(WaitCause::FanOut)
            }
            State::Authenticating(_) => Some(WaitCause::Login),
            // Data streams wait for the control stream's CONNECT.
            State::New | State::Challenged(_) => (stream_index != 0).then_some(WaitCause::Login),
            State::Ended => None,
            State::Connected(session) => {
                let open = usize::from(shard.broker().limits().receive_maximum);
                let back_pressure = &shard.broker().back_pressure;
                if self.throttled_until().is_some() {
                    Some(WaitCause::Rate)
                } else if self.waiting.len() >= open || self.has_unread_answers(stream_index) {
                    Some(WaitCause::Window)
                } else if shard.turn.waits_for_storage() {
                    Some(WaitCause::Storage)
                } else if back_pressure.is_on()
                    && back_pressure.delays(session.client_id())
                    && !session.lock().queued.is_internal()
                {
                    Some(WaitCause::InternalSession)
                } else {
                    None
                }
            }
        }
    }

    /// The cause for which this packet of a stream waits. Publications are asked about the fan-out last, because one whose
    /// turn it is does not get another.
    pub(super) fn cause_to_leave(
        &mut self,
        shard: &mut Shard,
        stream_index: usize,
        frame: &Frame<'_>,
    ) -> Option<WaitCause> {
        if self.early && !may_come_early(frame.packet_type()) {
            return Some(WaitCause::Login);
        }
        if shard.turn.is_stalled() && self.is_held_by_stall(shard, stream_index, frame) {
            return Some(WaitCause::Stall);
        }
        if !self.is_connected() {
            return None;
        }
        match frame.packet_type() {
            PUBLISH => self.cause_to_leave_publication(shard, stream_index, frame),
            SUBSCRIBE | UNSUBSCRIBE => {
                let (token, fan_out) = (self.at.token, &mut shard.turn.fan_out);
                if fan_out.must_wait(token) && fan_out.are_many_filters(token, frame.len) {
                    fan_out.wait(token);
                    return Some(WaitCause::FanOut);
                }
                fan_out.spend_on_filters(token, frame.len);
                None
            }
            _ => None,
        }
    }

    fn cause_to_leave_publication(
        &self,
        shard: &mut Shard,
        stream_index: usize,
        frame: &Frame<'_>,
    ) -> Option<WaitCause> {
        let token = self.at.token;
        let gives_way = shard.turn.fan_out.must_wait(token);
        let is_large = frame.len >= shard.turn.limits().large_message_bytes;
        let may_be_delayed = is_large && shard.turn.sends.may_delay();
        if !gives_way && !may_be_delayed {
            return None;
        }
        if may_be_delayed && shard.turn.sends.go_on(token) {
            return None;
        }
        let (visits, copies) = self.receivers(shard, stream_index, frame);
        let bytes = copies.saturating_mul(frame.len);
        if gives_way && is_much(visits, bytes) {
            shard.turn.fan_out.wait(token);
            return Some(WaitCause::FanOut);
        }
        let waits = may_be_delayed
            && copies > 1
            && bytes > shard.turn.limits().much_for_all()
            && shard.turn.sends.must_wait(token);
        waits.then_some(WaitCause::LargeMessages)
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

    /// The client publishes: it waits from its next packet on if an internal session that is behind gets this message.
    pub(super) fn note_publisher(shard: &mut Shard, session: &Session, topic: &str) {
        if !shard.broker().back_pressure.is_on() {
            return;
        }
        let broker = Arc::clone(shard.broker());
        let route = shard.routes.find(&broker, topic, &mut shard.turn.fan_out);
        let receivers = route.targets.iter().map(|target| target.session.key());
        broker.back_pressure.note(session.client_id(), receivers);
    }

    /// Sets the cause for which a stream waits.
    pub(super) fn set_wait(
        &mut self,
        shard: &mut Shard,
        stream: StreamKey,
        cause: Option<WaitCause>,
    ) {
        if cause.is_none() && self.waits.is_empty() {
            return;
        }
        if let Some(open) = self.streams.iter_mut().find(|open| open.key == stream) {
            open.waits_for = cause;
        }
        self.list_waits(shard);
    }

    /// The connection waits for nothing any more.
    pub(super) fn end_waits(&mut self, shard: &mut Shard) {
        if self.waits.is_empty() {
            return;
        }
        self.streams.iter_mut().for_each(|open| open.waits_for = None);
        self.list_waits(shard);
    }

    /// Brings the worker's table up to date with the streams.
    fn list_waits(&mut self, shard: &mut Shard) {
        let waits = self.streams.iter().filter_map(|open| open.waits_for).collect();
        let before = std::mem::replace(&mut self.waits, waits);
        if before != waits {
            shard.turn.set_waits(self.at.token, before, waits);
        }
    }

    /// Logs that the client has waited for long; the table asks for it once per wait.
    pub(super) fn log_wait(&self, cause: WaitCause) {
        if self.waits.contains(cause) {
            tracing::warn!(peer = %self.peer.address, client = self.client_id(), cause = cause.name(),
                "nothing was read from the client for {LONG_WAIT_S} s: it waits");
        }
    }
}
