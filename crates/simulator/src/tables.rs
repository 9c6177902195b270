//! The meaning of an [`Op`]: the durable state as plain tables. The simulated storage, the broker's crash tests and
//! the model tests of `fulmar-store` share this one definition.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fulmar_broker::Timestamp;
use fulmar_broker::message::{Message, MessageId, MessageParts};
use fulmar_broker::storage::{
    FlowId, Op, Position, Progress, QueuedRecord, Restored, RowKey, SessionKey, SessionRecord,
    SubscriptionRecord,
};
use fulmar_mqtt::PacketId;

pub(crate) type FlowKey = (SessionKey, FlowId);

/// Rows of other parts of the server.
pub(crate) type Rows = BTreeMap<RowKey, Arc<[u8]>>;

/// The durable state after some whole number of batches.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    /// Sessions by key.
    pub sessions: BTreeMap<SessionKey, SessionRecord>,
    /// Flags and expiry in seconds of persistent flows.
    pub flows: BTreeMap<FlowKey, (u8, u64)>,
    /// Subscriptions by session and filter.
    pub subscriptions: BTreeMap<(SessionKey, Box<str>), SubscriptionRecord>,
    /// Outgoing queues.
    pub queued: BTreeMap<(SessionKey, FlowId, Position), QueuedRecord>,
    /// QoS 2 identifiers received and not yet released.
    pub inbound: BTreeSet<(SessionKey, FlowId, u16)>,
    /// Retained messages by topic.
    pub retained: BTreeMap<Box<str>, Arc<Message>>,
    /// Rows of other parts of the server, by database and key.
    pub rows: Rows,
    /// Largest message number ever stored.
    pub last_message_id: u64,
    /// Largest session key ever stored.
    pub last_session_key: u64,
}

impl Tables {
    /// Applies one operation.
    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::SessionPut(record) => {
                self.last_session_key = self.last_session_key.max(record.key.0);
                self.sessions.insert(record.key, record.clone());
            }
            Op::SessionRemove(key) => self.remove_session(*key),
            Op::FlowPut { session, flow, flags, expiry_s } => {
                self.flows.insert((*session, *flow), (*flags, *expiry_s));
            }
            Op::FlowRemove { session, flow } => self.remove_flow((*session, *flow)),
            Op::SubscriptionPut(record) => {
                let at = (record.session, record.filter.clone());
                self.subscriptions.insert(at, record.clone());
            }
            Op::SubscriptionRemove { session, filter } => {
                self.subscriptions.remove(&(*session, filter.clone()));
            }
            Op::Enqueue { session, flow, position, message, delivery, progress } => {
                self.last_message_id = self.last_message_id.max(message.id().0);
                let (session, flow, position, progress) = (*session, *flow, *position, *progress);
                let (message, delivery) = (Arc::clone(message), delivery.clone());
                let record = QueuedRecord { session, flow, position, message, delivery, progress };
                self.queued.insert((session, flow, position), record);
            }
            Op::Advance { session, flow, position, progress } => {
                if let Some(queued) = self.queued.get_mut(&(*session, *flow, *position)) {
                    queued.progress = *progress;
                }
            }
            Op::Dequeue { session, flow, position } => {
                self.queued.remove(&(*session, *flow, *position));
            }
            Op::InboundReceived { session, flow, packet_id } => {
                self.inbound.insert((*session, *flow, packet_id.get()));
            }
            Op::InboundReleased { session, flow, packet_id } => {
                self.inbound.remove(&(*session, *flow, packet_id.get()));
            }
            Op::RetainedPut(message) => {
                self.last_message_id = self.last_message_id.max(message.id().0);
                self.retained.insert(message.topic().into(), Arc::clone(message));
            }
            Op::RetainedRemove(topic) => drop(self.retained.remove(topic)),
            Op::Row { database, key, value } => {
                let at = (*database, key.clone());
                match value {
                    Some(value) => drop(self.rows.insert(at, Arc::clone(value))),
                    None => drop(self.rows.remove(&at)),
                }
            }
        }
    }

    fn remove_session(&mut self, key: SessionKey) {
        self.sessions.remove(&key);
        self.flows.retain(|at, _| at.0 != key);
        self.subscriptions.retain(|at, _| at.0 != key);
        self.queued.retain(|at, _| at.0 != key);
        self.inbound.retain(|at| at.0 != key);
    }

    fn remove_flow(&mut self, place: FlowKey) {
        self.flows.remove(&place);
        self.subscriptions.retain(|_, record| (record.session, record.flow) != place);
        self.inbound.retain(|at| (at.0, at.1) != place);
    }

    /// The same with all moments moved by a number of milliseconds.
    #[must_use]
    pub fn moved(mut self, by: i64) -> Tables {
        let moved = |at: &mut Timestamp| {
            if by != 0 && *at != Timestamp::NEVER {
                *at = Timestamp(at.0.saturating_add_signed(by));
            }
        };
        for session in self.sessions.values_mut() {
            session.expires_at.iter_mut().chain(&mut session.will_at).for_each(moved);
        }
        let queued = self.queued.values_mut().map(|queued| &mut queued.message);
        for message in queued.chain(self.retained.values_mut()) {
            if let Some(mut at) = message.expires_at() {
                moved(&mut at);
                let parts = MessageParts { expires_at: Some(at), ..message.parts() };
                *message = Message::new(message.id(), &parts);
            }
        }
        self
    }

    /// Two messages of one flow that are in flight with the same packet identifier; no batch may leave that.
    pub fn contradiction(&self) -> Option<String> {
        let mut under_way = BTreeMap::new();
        let mut in_flight = self.queued.values().filter_map(|queued| match queued.progress {
            Progress::Sent(id) | Progress::Released(id) => Some((queued, id)),
            Progress::Queued | Progress::Offered => None,
        });
        in_flight.find_map(|(queued, id)| {
            let at = (queued.session, queued.flow, id.get());
            let before = under_way.insert(at, queued.position)?;
            Some(format!("{before:?} and {:?} are both in flight as {at:?}", queued.position))
        })
    }

    /// The state that a broker reads at its start.
    pub fn restored(&self) -> Restored {
        let inbound = |(session, flow, id): &(SessionKey, FlowId, u16)| {
            Some((*session, *flow, PacketId::new(*id)?))
        };
        // As read from a disk: nothing of the former process is left.
        let mut read: BTreeMap<MessageId, Arc<Message>> = BTreeMap::new();
        let mut message = |stored: &Arc<Message>| {
            let id = stored.id();
            Arc::clone(read.entry(id).or_insert_with(|| Message::new(id, &stored.parts())))
        };
        let mut queued: Vec<QueuedRecord> = self.queued.values().cloned().collect();
        queued.iter_mut().for_each(|record| record.message = message(&record.message));
        let retained = self.retained.values().map(message).collect();
        Restored {
            last_message_id: self.last_message_id,
            last_session_key: self.last_session_key,
            sessions: self.sessions.values().cloned().collect(),
            flows: self.flows.iter().map(|(at, terms)| (at.0, at.1, terms.0, terms.1)).collect(),
            subscriptions: self.subscriptions.values().cloned().collect(),
            queued,
            inbound: self.inbound.iter().filter_map(inbound).collect(),
            retained,
        }
    }
}

impl From<&Restored> for Tables {
    /// The tables of the state that storage returned.
    fn from(restored: &Restored) -> Tables {
        let subscription =
            |record: &SubscriptionRecord| ((record.session, record.filter.clone()), record.clone());
        let queued = |record: &QueuedRecord| {
            ((record.session, record.flow, record.position), record.clone())
        };
        let retained = |message: &Arc<Message>| (message.topic().into(), Arc::clone(message));
        Tables {
            sessions: restored.sessions.iter().map(|record| (record.key, record.clone())).collect(),
            flows: restored.flows.iter().map(|flow| ((flow.0, flow.1), (flow.2, flow.3))).collect(),
            subscriptions: restored.subscriptions.iter().map(subscription).collect(),
            queued: restored.queued.iter().map(queued).collect(),
            inbound: restored.inbound.iter().map(|at| (at.0, at.1, at.2.get())).collect(),
            retained: restored.retained.iter().map(retained).collect(),
            // No part of what the broker restores.
            rows: BTreeMap::new(),
            last_message_id: restored.last_message_id,
            last_session_key: restored.last_session_key,
        }
    }
}
