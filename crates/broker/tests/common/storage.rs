//! Storage whose commits the test decides on: what is not committed is lost in a crash.

use std::collections::BTreeMap;
use std::sync::Arc;

use fulmar_broker::message::Message;
use fulmar_broker::storage::{
    FlowId, Op, QueuedRecord, Restored, Seq, SessionKey, SessionRecord, Storage, SubscriptionRecord,
};
use fulmar_mqtt::PacketId;
use parking_lot::Mutex;

/// Batches handed over, of which a prefix is committed.
#[derive(Debug, Default)]
pub struct SimStorage {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    batches: Vec<Vec<Op>>,
    committed: usize,
}

impl SimStorage {
    /// Makes everything handed over so far durable.
    pub fn commit(&self) {
        let mut state = self.state.lock();
        state.committed = state.batches.len();
    }

    /// What a broker finds that starts after a crash now.
    pub fn crash(&self) -> (Arc<SimStorage>, Restored) {
        let state = self.state.lock();
        let survived = state.batches[..state.committed].to_vec();
        let mut tables = Tables::default();
        survived.iter().flatten().for_each(|op| tables.apply(op));
        let restored = tables.restored(&survived);
        let committed = survived.len();
        let state = Mutex::new(State { batches: survived, committed });
        (Arc::new(SimStorage { state }), restored)
    }
}

impl Storage for SimStorage {
    fn submit(&self, batch: &mut Vec<Op>) -> Seq {
        let mut state = self.state.lock();
        if !batch.is_empty() {
            state.batches.push(std::mem::take(batch));
        }
        Seq(state.batches.len() as u64)
    }

    fn committed(&self) -> Seq {
        Seq(self.state.lock().committed as u64)
    }

    fn backlog(&self) -> usize {
        0
    }

    fn failure(&self) -> Option<String> {
        None
    }
}

type Place = (SessionKey, FlowId);

/// The durable state as plain tables, for comparison and for restoring.
#[derive(Default)]
struct Tables {
    sessions: BTreeMap<u64, SessionRecord>,
    flows: BTreeMap<(u64, u64), (u8, u64)>,
    subscriptions: BTreeMap<(u64, Box<str>), SubscriptionRecord>,
    queued: BTreeMap<(u64, u64, u64), QueuedRecord>,
    inbound: Vec<(Place, PacketId)>,
    retained: BTreeMap<Box<str>, Arc<Message>>,
}

impl Tables {
    fn apply(&mut self, op: &Op) {
        match op.clone() {
            Op::SessionPut(record) => drop(self.sessions.insert(record.key.0, record)),
            Op::SessionRemove(key) => {
                self.sessions.remove(&key.0);
                self.flows.retain(|at, _| at.0 != key.0);
                self.subscriptions.retain(|at, _| at.0 != key.0);
                self.queued.retain(|at, _| at.0 != key.0);
                self.inbound.retain(|((session, _), _)| *session != key);
            }
            Op::FlowPut { session, flow, flags, expiry_s } => {
                self.flows.insert((session.0, flow.0), (flags, expiry_s));
            }
            Op::FlowRemove { session, flow } => {
                self.flows.remove(&(session.0, flow.0));
                let of_session = |record: &SubscriptionRecord| record.session == session;
                self.subscriptions.retain(|_, r| !(of_session(r) && r.flow == flow));
                let of_flow = |place: Place| place == (session, flow);
                self.queued.retain(|_, queued| !of_flow((queued.session, queued.flow)));
                self.inbound.retain(|(place, _)| !of_flow(*place));
            }
            Op::SubscriptionPut(record) => {
                let at = (record.session.0, record.filter.clone());
                self.subscriptions.insert(at, record);
            }
            Op::SubscriptionRemove { session, filter } => {
                self.subscriptions.remove(&(session.0, filter));
            }
            Op::Enqueue { session, flow, position, message, delivery, progress } => {
                let record = QueuedRecord { session, flow, position, message, delivery, progress };
                self.queued.insert((session.0, flow.0, position.0), record);
            }
            Op::Advance { session, flow, position, progress } => {
                let at = (session.0, flow.0, position.0);
                if let Some(queued) = self.queued.get_mut(&at) {
                    queued.progress = progress;
                }
            }
            Op::Dequeue { session, flow, position } => {
                self.queued.remove(&(session.0, flow.0, position.0));
            }
            Op::InboundReceived { session, flow, packet_id } => {
                self.inbound.push(((session, flow), packet_id));
            }
            Op::InboundReleased { session, flow, packet_id } => {
                self.inbound.retain(|entry| *entry != ((session, flow), packet_id));
            }
            Op::RetainedPut(message) => {
                self.retained.insert(message.topic().into(), message);
            }
            Op::RetainedRemove(topic) => drop(self.retained.remove(&topic)),
        }
    }

    fn restored(self, batches: &[Vec<Op>]) -> Restored {
        let ids = batches.iter().flatten().filter_map(|op| match op {
            Op::Enqueue { message, .. } | Op::RetainedPut(message) => Some(message.id().0),
            _ => None,
        });
        let keys = batches.iter().flatten().filter_map(|op| match op {
            Op::SessionPut(record) => Some(record.key.0),
            _ => None,
        });
        let flow = |((session, flow), (flags, expiry_s)): ((u64, u64), (u8, u64))| {
            (SessionKey(session), FlowId(flow), flags, expiry_s)
        };
        Restored {
            last_message_id: ids.max().unwrap_or(0),
            last_session_key: keys.max().unwrap_or(0),
            sessions: self.sessions.into_values().collect(),
            flows: self.flows.into_iter().map(flow).collect(),
            subscriptions: self.subscriptions.into_values().collect(),
            queued: self.queued.into_values().collect(),
            inbound: self.inbound.into_iter().map(|((s, f), id)| (s, f, id)).collect(),
            retained: self.retained.into_values().collect(),
        }
    }
}
