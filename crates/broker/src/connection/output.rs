//! What a connection sends: its own answers, then what the session has for each stream. The transport
//! pulls it when it has written what it took before.

use std::collections::VecDeque;
use std::sync::Arc;

use fulmar_mqtt::ack::{self, AckKind};
use smallvec::SmallVec;

use super::{Connection, Output, State, StreamAction, Waiting, WaitingAck};
use crate::event::BrokerEvent;
use crate::mailbox::Attachment;
use crate::peer::StreamKey;
use crate::session::Session;
use crate::shard::Shard;
use crate::turn::Waiter;

/// Answers of one stream that may wait for the transport to take them. A client that does not read them is not read from:
/// a PINGREQ takes two bytes, and so does its answer.
const MAX_UNREAD_ANSWER_BYTES: usize = 4 * 1024;

impl Connection {
    /// Whether the transport has not taken the answers to what came on a stream, because the client does not read.
    pub(super) fn has_unread_answers(&self, stream_index: usize) -> bool {
        // A client's unidirectional stream has no way back: answers go out on the control stream.
        let key = self.streams[stream_index].key;
        let stream_index = if key.is_unidirectional() { 0 } else { stream_index };
        self.streams[stream_index].out.len() >= MAX_UNREAD_ANSWER_BYTES
    }

    pub(super) fn release_waiting(&mut self, shard: &mut Shard) {
        let durable = shard.turn.durable();
        while self.waiting.front().is_some_and(|ack| ack.turn <= durable) {
            let Some(ack) = self.waiting.pop_front() else { break };
            let Some(stream) = self.streams.iter_mut().find(|open| open.key == ack.stream) else {
                continue;
            };
            match ack.what {
                Waiting::Ack(kind, id, reason) => {
                    ack::encode(&mut stream.out, self.version, kind, id, reason);
                }
                Waiting::Packet(bytes) => stream.out.extend_from_slice(&bytes),
            }
            // CONNACK is the first answer of all.
            self.greeted = true;
        }
        if self.waiting.is_empty() {
            self.waiting = VecDeque::new();
        }
    }

    /// Answers on a stream, never before an earlier answer ([MQTT-4.6.0-2]). With `wait_for_storage`, the answer waits
    /// until everything stored in this turn is durable; every answer waits until storage allows acknowledgements.
    pub(super) fn answer(
        &mut self,
        shard: &mut Shard,
        stream_index: usize,
        wait_for_storage: bool,
        what: Waiting,
    ) {
        // A client's unidirectional stream has no way back.
        let stream_index =
            if self.streams[stream_index].key.is_unidirectional() { 0 } else { stream_index };
        let wait = wait_for_storage || !shard.turn.may_acknowledge();
        if wait || self.must_follow(shard) {
            let turn = match self.waiting.back() {
                Some(last) if !wait => last.turn,
                _ => shard.turn.when_durable(Waiter::Acknowledge(self.at.token)),
            };
            let stream = self.streams[stream_index].key;
            self.waiting.push_back(WaitingAck { turn, stream, what });
            return;
        }
        self.answer_now(shard, stream_index, what);
    }

    /// Whether an answer has to wait for earlier ones.
    fn must_follow(&self, shard: &Shard) -> bool {
        let is_pubrel = |ack: &WaitingAck| matches!(ack.what, Waiting::Ack(AckKind::Pubrel, ..));
        let alone = shard.turn.is_stalled() && self.waiting.iter().all(is_pubrel);
        !self.waiting.is_empty() && !alone
    }

    pub(super) fn answer_now(&mut self, shard: &mut Shard, stream_index: usize, what: Waiting) {
        let out = &mut self.streams[stream_index].out;
        if out.capacity() == 0 {
            *out = shard.turn.buffer();
        }
        match what {
            Waiting::Ack(kind, id, reason) => ack::encode(out, self.version, kind, id, reason),
            Waiting::Packet(bytes) => out.extend_from_slice(&bytes),
        }
    }

    /// Announces to the transport, once, that this connection itself has output.
    pub(super) fn announce_output(&mut self, shard: &mut Shard) {
        let has = !self.actions.is_empty()
            || self.closing.is_some()
            || self.streams.iter().any(|stream| !stream.out.is_empty());
        if has && !self.announced {
            self.announced = true;
            shard.turn.ready(self.at);
        }
    }

    /// Streams that may have output.
    pub fn ready_streams(&self, out: &mut SmallVec<[StreamKey; 4]>) {
        if self.streams.len() == 1 {
            out.push(StreamKey::CONTROL);
            return;
        }
        let flows: SmallVec<[StreamKey; 8]> = match &self.state {
            State::Connected(session) => {
                let state = session.lock();
                let own = state.is_attached(self.at);
                let ready = state.flows.iter().filter(|flow| own && flow.ready);
                ready.filter_map(|flow| flow.stream).collect()
            }
            _ => SmallVec::new(),
        };
        let open = self.streams.iter();
        let ready = open.filter(|stream| !stream.out.is_empty() || flows.contains(&stream.key));
        out.extend(ready.map(|stream| stream.key));
    }

    /// Takes what a stream has to send. Call it only when what it gave before is written: what is
    /// not taken stays in the session's bounded queue, where the limits for slow receivers apply.
    pub fn output(&mut self, shard: &mut Shard, key: StreamKey) -> Output {
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.key == key) else {
            return Output::default();
        };
        let mut output = Output { bytes: std::mem::take(&mut stream.out), more: false };
        if output.bytes.len() >= MAX_UNREAD_ANSWER_BYTES && !self.waits.is_empty() {
            // What waited for that may be read.
            shard.turn.notify_own(self.at.token, BrokerEvent::Ready);
        }
        if let (State::Connected(session), true) = (&self.state, self.greeted) {
            take_from_session(shard, session, self.at, key, &mut output);
        }
        shard.metrics().bytes_sent.add(output.bytes.len() as u64);
        output
    }

    /// Requests about QUIC streams. Output taken before goes out before a
    /// [`StreamAction::Finish`].
    pub fn stream_actions(&mut self) -> Vec<StreamAction> {
        self.finish_answered();
        std::mem::take(&mut self.actions)
    }
}

/// Adds what a session has for a stream to its own output.
fn take_from_session(
    shard: &mut Shard,
    session: &Arc<Session>,
    at: Attachment,
    key: StreamKey,
    output: &mut Output,
) {
    let mut state = session.lock();
    if !state.is_attached(at) {
        return;
    }
    let Some(index) = state.flows.iter().position(|flow| flow.stream == Some(key)) else { return };
    if state.flows[index].outbox.is_empty() && state.flows[index].has_more() {
        state.refill(session, &mut shard.turn, index);
    }
    let flow = &mut state.flows[index];
    let is_large = flow.outbox.has_large();
    if is_large && !shard.turn.sends.may_send(at.token, key) {
        flow.ready = true;
        return;
    }
    let outbox = flow.outbox.next_packets();
    if is_large {
        shard.turn.sends.copy(at.token, key, outbox.len());
    }
    output.more = !flow.outbox.is_empty() || flow.can_refill();
    let waits = flow.waits_for_worker();
    flow.ready = output.more || waits;
    drop(state);
    if output.bytes.is_empty() {
        output.bytes = outbox;
    } else {
        output.bytes.extend_from_slice(&outbox);
        shard.recycle(outbox);
    }
    // There is no event when another worker's turn ends, or for a search that has found nothing yet: the next turn
    // checks again. Those turns are short.
    if waits || (output.more && output.bytes.is_empty()) {
        shard.turn.ready(at);
    }
}
