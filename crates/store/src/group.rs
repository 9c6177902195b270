//! The operations of one transaction, without those that cancel each other out.
//!
//! A message delivered faster than the disk writes never reaches the disk: its `Enqueue` and `Dequeue` are both removed
//! from the group. The remaining operations stay in order where order matters (sessions, flows, subscriptions, new
//! queue rows). Removals of rows of earlier transactions are written first, so that on a full disk a group frees the
//! space that it needs.
//!
//! This relies on two promises of the broker: a position is used once in the life of a session,
//! and a packet identifier is received again only after it was released.

use std::borrow::Cow;
use std::sync::Arc;

use fulmar_broker::message::Message;
use fulmar_broker::storage::{FlowId, Op, Position, Progress, RowKey, Seq, SessionKey};
use fulmar_mqtt::PacketId;
use rustc_hash::FxHashMap;

use crate::inbox::Chunk;
use crate::weight::weight;

/// Below this length, holes are not closed, and buffers are kept between groups.
const KEEP_OPS: usize = 32_768;

/// One place in one outgoing queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QueueSlot {
    pub(crate) session: SessionKey,
    pub(crate) flow: FlowId,
    pub(crate) position: Position,
}

/// One packet identifier received on one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct InboundSlot {
    pub(crate) session: SessionKey,
    pub(crate) flow: FlowId,
    pub(crate) packet_id: PacketId,
}

/// The operations that one transaction writes.
#[derive(Default)]
pub(crate) struct Group {
    /// Number of the last batch in it.
    pub(crate) last: Seq,
    pub(crate) batches: u64,
    /// Operations handed over for it.
    pub(crate) ops: u64,
    /// Share of the backlog.
    pub(crate) weight: usize,
    /// Rows of earlier transactions to remove from queues.
    pub(crate) dequeued: Vec<QueueSlot>,
    /// Identifiers of earlier transactions to forget.
    pub(crate) released: Vec<InboundSlot>,
    /// New progress of rows of earlier transactions.
    pub(crate) advanced: FxHashMap<QueueSlot, Progress>,
    /// New retained message by topic; `None` clears it.
    pub(crate) retained: FxHashMap<Box<str>, Option<Arc<Message>>>,
    /// New contents of other parts' rows by database and key; `None` removes one.
    pub(crate) rows: FxHashMap<RowKey, Option<Arc<[u8]>>>,
    ordered: Vec<Option<Op>>,
    holes: usize,
    enqueued: FxHashMap<QueueSlot, usize>,
    received: FxHashMap<InboundSlot, usize>,
}

impl Group {
    /// Adds a chunk, and empties its buffer.
    pub(crate) fn absorb(&mut self, chunk: &mut Chunk) {
        self.last = chunk.last;
        self.batches += chunk.batches;
        self.weight += chunk.weight;
        self.ops += chunk.ops.len() as u64;
        for op in chunk.ops.drain(..) {
            self.add(op);
        }
        if self.holes > KEEP_OPS && self.holes > self.ordered.len() / 2 {
            self.close_holes();
        }
    }

    /// Adds what another group has left, in the order in which it would be written.
    pub(crate) fn merge(&mut self, other: &Group) {
        self.weight += other.weight;
        for op in other.to_ops() {
            self.add(op.into_owned());
        }
        if self.holes > KEEP_OPS && self.holes > self.ordered.len() / 2 {
            self.close_holes();
        }
    }

    /// Whether it has much to write, towards `limit`. What has cancelled out does not count: it needs neither memory nor
    /// a transaction. Asked often, this counts again only when half of the limit has been added.
    pub(crate) fn is_heavy(&mut self, limit: usize) -> bool {
        if self.weight < limit {
            return false;
        }
        self.weight = weight(self.to_ops());
        self.weight >= limit / 2
    }

    /// Adds operations that no batch counts.
    pub(crate) fn add_all(&mut self, ops: Vec<Op>, weight: usize) {
        self.weight += weight;
        ops.into_iter().for_each(|op| self.add(op));
    }

    /// Operations with the effect of this group, in the order in which they are written. Added to an empty group, they
    /// make the same group.
    pub(crate) fn to_ops(&self) -> impl Iterator<Item = Cow<'_, Op>> {
        let dequeued = self.dequeued.iter().map(|slot| Op::Dequeue {
            session: slot.session,
            flow: slot.flow,
            position: slot.position,
        });
        let released = self.released.iter().map(|slot| Op::InboundReleased {
            session: slot.session,
            flow: slot.flow,
            packet_id: slot.packet_id,
        });
        let advanced = self.advanced.iter().map(|(slot, progress)| Op::Advance {
            session: slot.session,
            flow: slot.flow,
            position: slot.position,
            progress: *progress,
        });
        let retained = self.retained.iter().map(|(topic, message)| match message {
            Some(message) => Op::RetainedPut(Arc::clone(message)),
            None => Op::RetainedRemove(topic.clone()),
        });
        let ordered = self.ordered().map(Cow::Borrowed);
        let rows = self.rows.iter().map(|((database, key), value)| Op::Row {
            database: *database,
            key: key.clone(),
            value: value.clone(),
        });
        let before = dequeued.chain(released).chain(advanced).map(Cow::Owned);
        before.chain(ordered).chain(retained.chain(rows).map(Cow::Owned))
    }

    /// Operations left that keep their order.
    pub(crate) fn ordered(&self) -> impl Iterator<Item = &Op> {
        self.ordered.iter().flatten()
    }

    /// Operations that will be written.
    pub(crate) fn live(&self) -> usize {
        self.dequeued.len()
            + self.released.len()
            + self.advanced.len()
            + self.retained.len()
            + self.rows.len()
            + (self.ordered.len() - self.holes)
    }

    /// Empties it for the next transaction; frees unusually large buffers.
    pub(crate) fn clear(&mut self) {
        if self.ordered.capacity() > KEEP_OPS || self.dequeued.capacity() > KEEP_OPS {
            *self = Group::default();
            return;
        }
        self.batches = 0;
        self.ops = 0;
        self.weight = 0;
        self.holes = 0;
        self.dequeued.clear();
        self.released.clear();
        self.advanced.clear();
        self.retained.clear();
        self.rows.clear();
        self.ordered.clear();
        self.enqueued.clear();
        self.received.clear();
    }

    fn add(&mut self, op: Op) {
        match op {
            Op::Enqueue { session, flow, position, .. } => {
                let slot = QueueSlot { session, flow, position };
                self.enqueued.insert(slot, self.ordered.len());
                self.ordered.push(Some(op));
            }
            Op::Advance { session, flow, position, progress } => {
                self.advance(QueueSlot { session, flow, position }, progress);
            }
            Op::Dequeue { session, flow, position } => {
                self.dequeue(QueueSlot { session, flow, position });
            }
            Op::InboundReceived { session, flow, packet_id } => {
                let slot = InboundSlot { session, flow, packet_id };
                self.received.insert(slot, self.ordered.len());
                self.ordered.push(Some(op));
            }
            Op::InboundReleased { session, flow, packet_id } => {
                let slot = InboundSlot { session, flow, packet_id };
                match self.received.remove(&slot) {
                    Some(index) => self.remove(index),
                    None => self.released.push(slot),
                }
            }
            Op::RetainedPut(message) => {
                self.retained.insert(message.topic().into(), Some(message));
            }
            Op::RetainedRemove(topic) => {
                self.retained.insert(topic, None);
            }
            Op::Row { database, key, value } => {
                self.rows.insert((database, key), value);
            }
            Op::SessionPut(_)
            | Op::SessionRemove(_)
            | Op::FlowPut { .. }
            | Op::FlowRemove { .. }
            | Op::SubscriptionPut(_)
            | Op::SubscriptionRemove { .. } => self.ordered.push(Some(op)),
        }
    }

    fn advance(&mut self, slot: QueueSlot, to: Progress) {
        let Some(&index) = self.enqueued.get(&slot) else {
            self.advanced.insert(slot, to);
            return;
        };
        if let Some(Some(Op::Enqueue { progress, .. })) = self.ordered.get_mut(index) {
            *progress = to;
        }
    }

    fn dequeue(&mut self, slot: QueueSlot) {
        if let Some(index) = self.enqueued.remove(&slot) {
            self.remove(index);
        } else {
            self.advanced.remove(&slot);
            self.dequeued.push(slot);
        }
    }

    fn remove(&mut self, index: usize) {
        if let Some(op) = self.ordered.get_mut(index) {
            *op = None;
            self.holes += 1;
        }
    }

    /// Operations that cancel out must not accumulate holes while a group waits for a full disk.
    fn close_holes(&mut self) {
        self.ordered.retain(Option::is_some);
        self.holes = 0;
        self.enqueued.clear();
        self.received.clear();
        for (index, op) in self.ordered.iter().enumerate() {
            match *op {
                Some(Op::Enqueue { session, flow, position, .. }) => {
                    self.enqueued.insert(QueueSlot { session, flow, position }, index);
                }
                Some(Op::InboundReceived { session, flow, packet_id }) => {
                    self.received.insert(InboundSlot { session, flow, packet_id }, index);
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use fulmar_broker::message::{MessageId, MessageParts};
    use fulmar_broker::storage::Delivery;
    use fulmar_mqtt::QoS;

    const SESSION: SessionKey = SessionKey(1);
    const FLOW: FlowId = FlowId::CONTROL;

    fn message(id: u64) -> Arc<Message> {
        let parts = MessageParts {
            topic: "t",
            properties: &[],
            payload: &[],
            qos: QoS::AtLeastOnce,
            retain: false,
            expires_at: None,
            publisher: 0,
        };
        Message::new(MessageId(id), &parts)
    }

    fn enqueue(position: u64) -> Op {
        Op::Enqueue {
            session: SESSION,
            flow: FLOW,
            position: Position(position),
            message: message(position),
            delivery: Delivery {
                qos: QoS::AtLeastOnce,
                retain: false,
                identifiers: Box::default(),
                share: 0,
            },
            progress: Progress::Queued,
        }
    }

    fn advance(position: u64, progress: Progress) -> Op {
        Op::Advance { session: SESSION, flow: FLOW, position: Position(position), progress }
    }

    fn dequeue(position: u64) -> Op {
        Op::Dequeue { session: SESSION, flow: FLOW, position: Position(position) }
    }

    fn group(ops: Vec<Op>) -> Group {
        let mut group = Group::default();
        group.absorb(&mut Chunk { ops, last: Seq(1), batches: 1, weight: 0 });
        group
    }

    #[test]
    fn enqueue_and_dequeue_in_one_group_vanish() {
        let id = PacketId::new(7).unwrap();
        let group = group(vec![enqueue(1), advance(1, Progress::Sent(id)), dequeue(1)]);
        assert_eq!(group.live(), 0);
        assert_eq!(group.ops, 3);
    }

    #[test]
    fn dequeue_of_a_stored_row_replaces_its_advance() {
        let id = PacketId::new(7).unwrap();
        let group = group(vec![advance(1, Progress::Sent(id)), dequeue(1)]);
        assert_eq!(group.dequeued.len(), 1);
        assert_eq!(group.live(), 1);
    }

    #[test]
    fn advance_of_a_new_row_is_written_with_it() {
        let id = PacketId::new(7).unwrap();
        let group = group(vec![enqueue(1), advance(1, Progress::Released(id))]);
        let ops: Vec<&Op> = group.ordered().collect();
        assert!(
            matches!(ops[..], [Op::Enqueue { progress: Progress::Released(got), .. }] if *got == id)
        );
    }

    #[test]
    fn an_identifier_released_and_used_again_is_kept() {
        let packet_id = PacketId::new(3).unwrap();
        let received = Op::InboundReceived { session: SESSION, flow: FLOW, packet_id };
        let released = Op::InboundReleased { session: SESSION, flow: FLOW, packet_id };
        let group = group(vec![released.clone(), received.clone(), released, received]);
        assert_eq!(group.released.len(), 1);
        assert_eq!(group.ordered().count(), 1);
    }

    #[test]
    fn only_the_last_retained_message_of_a_topic_is_written() {
        let group = group(vec![Op::RetainedPut(message(1)), Op::RetainedPut(message(2))]);
        assert_eq!(group.live(), 1);
        assert_eq!(group.retained["t"].as_ref().unwrap().id(), MessageId(2));
    }

    #[test]
    fn traffic_that_cancels_out_leaves_no_memory_behind() {
        let mut group = Group::default();
        for round in 0..4u64 {
            let first = round * 40_000 + 1;
            let kept = first + 39_999;
            let mut ops: Vec<Op> = (first..=kept).map(enqueue).collect();
            ops.extend((first..kept).map(dequeue));
            group.absorb(&mut Chunk { ops, last: Seq(round), batches: 1, weight: 0 });
        }
        assert_eq!(group.live(), 4);
        assert_eq!(group.ordered.len(), 4);
        group.absorb(&mut Chunk { ops: vec![dequeue(40_000)], ..Chunk::default() });
        assert_eq!(group.live(), 3);
        assert!(group.dequeued.is_empty());
    }
}
