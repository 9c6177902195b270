//! Further QUIC streams of a connection, each carrying one flow (see [`crate::flows`]).

use fulmar_mqtt::ReasonCode;
use fulmar_mqtt::flow::{self, FlowHeader, StreamError};

use super::{Connection, State, Stream, StreamAction, StreamEnd};
use crate::flows;
use crate::lifecycle::Departure;
use crate::peer::StreamKey;
use crate::shard::Shard;
use crate::storage::FlowId;

impl Connection {
    /// The peer has opened a further stream.
    pub fn stream_opened(&mut self, _shard: &mut Shard, stream: StreamKey) {
        if self.streams.iter().all(|open| open.key != stream) {
            self.streams.push(Stream::new(stream, None));
        }
    }

    /// The peer has ended a stream. The control stream's end is the connection's. A data stream that was finished, not
    /// reset, still gets the answers to its packets: a client may send one PUBLISH and a FIN, and wait for the PUBACK.
    pub fn stream_ended(&mut self, shard: &mut Shard, stream: StreamKey, end: StreamEnd) {
        if stream == StreamKey::CONTROL {
            let departure = Departure { discard_will: false, expiry_interval_s: None };
            self.leave(shard, departure, "control stream ended");
            self.end(shard, "control stream ended", 0);
            self.announce_output(shard);
            return;
        }
        self.unblock(shard, stream);
        if stream.is_unidirectional() {
            self.streams.retain(|open| open.key != stream);
            return;
        }
        self.lose_flow(shard, stream);
        if let (StreamEnd::Finished, Some(open)) =
            (end, self.streams.iter_mut().find(|open| open.key == stream))
        {
            open.finished = true;
            self.finish_answered();
        } else {
            self.streams.retain(|open| open.key != stream);
        }
        self.announce_output(shard);
    }

    /// Finishes the streams that the peer has finished and that have no answers outstanding.
    pub(super) fn finish_answered(&mut self) {
        let Connection { streams, waiting, actions, .. } = self;
        streams.retain(|open| {
            let owed = || waiting.iter().any(|ack| ack.stream == open.key);
            let over = open.finished && open.out.is_empty() && !owed();
            if over {
                actions.push(StreamAction::Finish(open.key));
            }
            !over
        });
    }

    /// Handles what is due of the session's flows while its client is there.
    pub(super) fn expire_flows(&mut self, shard: &mut Shard) {
        if let State::Connected(session) = &self.state {
            let mut state = session.lock();
            if state.is_attached(self.at) {
                state.last_turn = shard.turn.awaitable_stamp();
                flows::expire(&mut state, session, &mut shard.turn);
                shard.broker().schedule(session, &mut state);
            }
        }
    }

    /// Takes a stream's flow from it.
    fn lose_flow(&mut self, shard: &mut Shard, stream: StreamKey) {
        if let State::Connected(session) = &self.state {
            let mut state = session.lock();
            if state.is_attached(self.at) {
                flows::lose_stream(&mut state, session, &mut shard.turn, stream);
            }
        }
    }

    /// Reads how a data stream begins: with a flow header, or straight with a packet. Returns the
    /// bytes used; `None` when more are needed.
    pub(super) fn begin_data_stream(
        &mut self,
        shard: &mut Shard,
        stream_index: usize,
        data: &[u8],
    ) -> Option<usize> {
        let first = *data.first()?;
        let key = self.streams[stream_index].key;
        if key.is_unidirectional() {
            return self.begin_unidirectional(shard, stream_index, data);
        }
        if !flow::is_flow_header(first) {
            let opened = self.with_session(shard, |state, session, shard| {
                flows::open_unnamed(state, session, &shard.turn, key)
            });
            self.finish_begin(shard, stream_index, opened);
            return Some(0);
        }
        match flow::decode(data) {
            Ok(None) => None,
            Ok(Some((FlowHeader::ClientData(header), used))) => {
                let opened = self.with_session(shard, |state, session, shard| {
                    flows::open_named(state, session, &mut shard.turn, key, header)
                });
                let opened = opened.map(|(id, displaced)| {
                    if let Some(old) = displaced.filter(|old| *old != key) {
                        self.displace(shard, old);
                    }
                    id
                });
                // Displacing may have moved this stream's place.
                let stream_index = self.streams.iter().position(|open| open.key == key)?;
                self.finish_begin(shard, stream_index, opened);
                Some(used)
            }
            Ok(Some(_)) => {
                self.finish_begin(shard, stream_index, Err(StreamError::StreamType));
                Some(data.len())
            }
            Err(error) => {
                tracing::info!(peer = %self.peer.address, "bad flow header: {error}");
                self.finish_begin(shard, stream_index, Err(error.stream_error()));
                Some(data.len())
            }
        }
    }

    /// The same for a stream on which nothing can be answered. Whatever its flow is called, it is a way
    /// of the control flow's packets: identifiers, subscriptions and QoS state are that one's, and the
    /// answers come on the control stream.
    fn begin_unidirectional(
        &mut self,
        shard: &mut Shard,
        stream_index: usize,
        data: &[u8],
    ) -> Option<usize> {
        let opened = match data.first().is_some_and(|first| flow::is_flow_header(*first)) {
            false => Ok(0),
            true => match flow::decode(data) {
                Ok(None) => return None,
                Ok(Some((FlowHeader::ClientData(_), used))) => Ok(used),
                Ok(Some(_)) => Err(StreamError::StreamType),
                Err(error) => Err(error.stream_error()),
            },
        };
        let used = opened.unwrap_or(data.len());
        self.finish_begin(shard, stream_index, opened.map(|_| FlowId::CONTROL));
        Some(used)
    }

    fn with_session<R>(
        &self,
        shard: &mut Shard,
        act: impl FnOnce(
            &mut crate::session::SessionState,
            &std::sync::Arc<crate::session::Session>,
            &mut Shard,
        ) -> Result<R, StreamError>,
    ) -> Result<R, StreamError> {
        let State::Connected(session) = &self.state else {
            return Err(StreamError::FlowRefused);
        };
        let mut state = session.lock();
        if !state.is_attached(self.at) {
            return Err(StreamError::FlowRefused);
        }
        act(&mut state, session, shard)
    }

    fn finish_begin(
        &mut self,
        shard: &mut Shard,
        stream_index: usize,
        opened: Result<FlowId, StreamError>,
    ) {
        let key = self.streams[stream_index].key;
        match opened {
            Ok(id) => self.streams[stream_index].flow = Some(id),
            Err(error) => {
                shard.metrics().protocol_errors.add(1);
                tracing::info!(peer = %self.peer.address, client = self.client_id(), ?error,
                    "data stream refused");
                self.streams.remove(stream_index);
                self.actions.push(StreamAction::Abort(key, error as u64));
            }
        }
    }

    /// A newer stream has taken over a flow (draft section 9.14): the old one is aborted.
    fn displace(&mut self, shard: &mut Shard, old: StreamKey) {
        self.unblock(shard, old);
        self.streams.retain(|open| open.key != old);
        let code = u64::from(ReasonCode::Success.as_u8());
        self.actions.push(StreamAction::Abort(old, code));
    }
}
