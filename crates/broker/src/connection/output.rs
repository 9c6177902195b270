//! What a connection sends: its own answers, then what the session has for each stream. The transport
//! pulls it when it has written what it took before.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Connection, Output, State, StreamAction};
use crate::peer::StreamKey;
use crate::session::{Attachment, Session};
use crate::shard::Shard;

impl Connection {
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
        if let (State::Connected(session), true) = (&self.state, self.greeted) {
            take_from_session(shard, session, self.at, key, &mut output);
        }
        shard.metrics().bytes_sent.add(output.bytes.len() as u64);
        output
    }

    /// What is to be done to QUIC streams. Output taken before goes out before a
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
    let outbox = flow.outbox.take();
    output.more = flow.can_refill();
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
