//! A client's further streams, and the flows on them.

use std::collections::BTreeSet;

use fulmar_broker::StreamKey;
use fulmar_mqtt::flow::{self, DataFlow, FlowFlags, FlowHeader};

use super::{Client, EXPIRY_S, Refusal, Stream, StreamBytes};
use crate::broker::ledger::{Lane, Ledger};
use crate::broker::schedule::FlowChoice;

impl Client {
    /// The lane of the client's nth stream, the control stream being the first.
    pub(crate) fn lane(&self, nth: usize) -> (StreamKey, Lane) {
        match self.streams.get(nth % (self.streams.len() + 1)) {
            Some(stream) => (stream.key, stream.lane),
            None => (StreamKey::CONTROL, Lane::Control),
        }
    }

    pub(crate) fn has_stream_of(&self, lane: Lane) -> bool {
        lane == Lane::Control || self.streams.iter().any(|stream| stream.lane == lane)
    }

    pub(super) fn lane_of(&self, key: StreamKey) -> Option<Lane> {
        if key == StreamKey::CONTROL {
            return Some(Lane::Control);
        }
        self.streams.iter().find(|stream| stream.key == key).map(|stream| stream.lane)
    }

    /// A stream is gone; its lane goes with it or waits.
    pub(super) fn lose_lane(&mut self, stream: Stream, ledger: &mut Ledger) {
        self.unacknowledged.retain(|(key, ..)| *key != stream.key);
        self.doubt_unanswered(stream.lane, ledger);
        // Unacknowledged messages are given up.
        self.outbound.remove(&stream.lane);
        // A flow outlives its stream also where the session ends with the connection.
        if stream.keep {
            self.drop_qos1(stream.lane);
            ledger.lane_waits(self.index, stream.lane);
        } else {
            self.end_lane(stream.lane, ledger);
        }
    }

    /// A lane is no more: what it brought and was not finished may come again elsewhere.
    fn end_lane(&mut self, lane: Lane, ledger: &mut Ledger) {
        for got in self.receiving.remove(&lane).unwrap_or_default().into_values() {
            ledger.may_come_again(self.index, got.message);
        }
        ledger.lane_ends(self.index, lane);
    }

    /// A flow is to be emptied, with its subscriptions. The broker does not report that to the client, and a crash
    /// may undo it.
    fn empty_lane(&mut self, lane: Lane, ledger: &mut Ledger) {
        for got in self.receiving.remove(&lane).unwrap_or_default().into_values() {
            ledger.may_come_again(self.index, got.message);
        }
        self.doubted.extend(self.asking.keys());
        let unanswered: BTreeSet<usize> =
            self.asking.values().map(|asking| asking.filter).collect();
        ledger.lane_is_emptied(self.index, lane, &unanswered);
    }

    /// Whether none of what it is owed can wait for a stream.
    pub(crate) fn has_all_streams(&self) -> bool {
        self.kept.iter().all(|name| self.has_stream_of(Lane::Named(*name)))
    }

    /// The broker has refused one of its streams.
    pub(crate) fn refused(&mut self, key: StreamKey, ledger: &mut Ledger) -> Result<(), String> {
        let Some(at) = self.streams.iter().position(|stream| stream.key == key) else {
            return Ok(());
        };
        let mut stream = self.streams.remove(at);
        if !matches!(stream.refusal, Some(Refusal::Must | Refusal::May)) {
            return Err(format!("the broker refused {stream:?} of client {}", self.index));
        }
        stream.keep = false;
        self.lose_lane(stream, ledger);
        Ok(())
    }

    /// Whether it has a stream that the broker had to refuse.
    pub(crate) fn has_false_stream(&self) -> bool {
        self.streams.iter().any(|stream| stream.refusal == Some(Refusal::Must))
    }

    /// Lanes without a stream may be over.
    pub(super) fn end_waiting_lanes(&mut self, ledger: &mut Ledger) {
        let lanes = self.receiving.keys().copied();
        let waiting: Vec<Lane> = lanes.filter(|lane| !self.has_stream_of(*lane)).collect();
        for lane in waiting {
            self.end_lane(lane, ledger);
            ledger.lane_waits(self.index, lane);
        }
        for lane in ledger.lanes(self.index).into_iter().filter(|lane| !self.has_stream_of(*lane)) {
            ledger.lane_ends(self.index, lane);
        }
    }

    /// Opens a stream; what it says there first.
    pub(crate) fn open_stream(
        &mut self,
        name: Option<u64>,
        keep: bool,
        wanted: FlowChoice,
        ledger: &mut Ledger,
    ) -> Option<StreamBytes> {
        self.next_stream += 4;
        let key = StreamKey(self.next_stream);
        let Some(id) = name else {
            let lane = Lane::Unnamed(key.0);
            self.streams.push(Stream { key, lane, keep: false, is_between: false, refusal: None });
            return None;
        };
        let lane = Lane::Named(id);
        self.named.push((key, id));
        if let Some(at) = self.streams.iter().position(|stream| stream.lane == lane) {
            let old = self.streams.remove(at);
            self.lose_lane(old, ledger);
        }
        if wanted == FlowChoice::Clean {
            self.empty_lane(lane, ledger);
        }
        let refusal = (wanted == FlowChoice::AsLeft).then(|| {
            match (self.asked_for.contains(&id), self.answered.contains(&id)) {
                (false, _) => Refusal::Must,
                (true, false) => Refusal::May,
                (true, true) => Refusal::MustNot,
            }
        });
        let is_between = !self.asked_for.insert(id);
        self.streams.push(Stream { key, lane, keep, is_between, refusal });
        if keep {
            self.kept.insert(id);
        } else {
            self.answered.remove(&id);
        }
        let state = match wanted {
            FlowChoice::Any => 0,
            FlowChoice::AsLeft => FlowFlags::ABORT_IF_NO_STATE,
            FlowChoice::Clean => FlowFlags::CLEAN,
        };
        let keeps = FlowFlags::PERSISTENT_QOS | FlowFlags::PERSISTENT_SUBSCRIPTIONS | state;
        let expiry_s = if keep { u64::from(EXPIRY_S) } else { 0 };
        let mut header = Vec::new();
        let flow = DataFlow { id, expiry_s, flags: FlowFlags(keeps) };
        flow::encode(&FlowHeader::ClientData(flow), &mut header);
        Some((key, header))
    }

    /// Earlier streams of this connection that have named this flow.
    pub(crate) fn streams_of(&self, name: u64) -> Vec<StreamKey> {
        self.named.iter().filter(|(_, id)| *id == name).map(|(key, _)| *key).collect()
    }

    /// Ends its nth further stream. Which that was.
    pub(crate) fn end_stream(&mut self, nth: usize, ledger: &mut Ledger) -> Option<StreamKey> {
        if self.streams.is_empty() {
            return None;
        }
        let stream = self.streams.remove(nth % self.streams.len());
        self.lose_lane(stream, ledger);
        Some(stream.key)
    }
}
