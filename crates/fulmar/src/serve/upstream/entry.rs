//! The gateway's hand in the broker: marks publications that will go up, and holds publishers back
//! while the session that takes them up is behind.
//!
//! How far behind it is, is counted from what the broker stores for it, so that the count is exact
//! after a restart too. Without it a queue that overflows would drop what was acknowledged.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fulmar_broker::storage::{FlowId, Op, Position, Restored, Seq, SessionKey, Storage};
use fulmar_broker::{Arrival, Entry, Limits};
use fulmar_gateway::stamp::{Passport, Sent};
use fulmar_mqtt::Properties;
use parking_lot::Mutex;

use super::{Shared, now_ms};

/// What the broker has queued for the gateway's session.
#[derive(Default)]
pub(super) struct Hold {
    queue: Mutex<Queue>,
    /// Whether it is too much.
    full: AtomicBool,
}

#[derive(Default)]
struct Queue {
    client_id: String,
    session: Option<SessionKey>,
    sizes: BTreeMap<(FlowId, Position), usize>,
    bytes: usize,
    most: usize,
    most_bytes: usize,
}

impl Hold {
    /// Counts from what was restored. Half of what the broker's limits allow is enough to hold
    /// publishers back, so that those that are in the midst of it find room.
    pub(super) fn begin(&self, client_id: &str, restored: &Restored, limits: &Limits) {
        let mut queue = self.queue.lock();
        client_id.clone_into(&mut queue.client_id);
        queue.most = limits.max_queued_messages / 2;
        queue.most_bytes = limits.max_queued_bytes / 2;
        let own = restored.sessions.iter().find(|session| *session.client_id == *client_id);
        let own = own.map(|session| session.key);
        queue.session = own;
        for record in restored.queued.iter().filter(|record| Some(record.session) == own) {
            queue.add((record.flow, record.position), record.message.size());
        }
        self.full.store(queue.is_full(), Ordering::Relaxed);
    }

    fn see(&self, batch: &[Op]) {
        let mut queue = self.queue.lock();
        for op in batch {
            queue.see(op);
        }
        self.full.store(queue.is_full(), Ordering::Relaxed);
    }
}

impl Queue {
    fn see(&mut self, op: &Op) {
        match op {
            Op::SessionPut(record) if *record.client_id == *self.client_id => {
                self.session = Some(record.key);
            }
            Op::SessionRemove(key) if Some(*key) == self.session => {
                self.session = None;
                self.sizes.clear();
                self.bytes = 0;
            }
            Op::Enqueue { session, flow, position, message, .. }
                if Some(*session) == self.session =>
            {
                self.add((*flow, *position), message.size());
            }
            Op::Dequeue { session, flow, position } if Some(*session) == self.session => {
                self.bytes -= self.sizes.remove(&(*flow, *position)).unwrap_or(0);
            }
            _ => {}
        }
    }

    fn add(&mut self, place: (FlowId, Position), size: usize) {
        let before = self.sizes.insert(place, size).unwrap_or(0);
        self.bytes = self.bytes + size - before;
    }

    fn is_full(&self) -> bool {
        self.sizes.len() > self.most || self.bytes > self.most_bytes
    }
}

/// Storage that is looked at on its way.
pub(super) struct Watched {
    pub(super) inner: Arc<dyn Storage>,
    pub(super) hold: Arc<Hold>,
}

impl Storage for Watched {
    fn submit(&self, batch: &mut Vec<Op>) -> Seq {
        // Before the commit that wakes whoever is held.
        self.hold.see(batch);
        self.inner.submit(batch)
    }

    fn committed(&self) -> Seq {
        self.inner.committed()
    }

    fn backlog(&self) -> usize {
        self.inner.backlog()
    }

    fn failure(&self) -> Option<String> {
        self.inner.failure()
    }
}

/// Where publications enter.
pub(super) struct Doorway {
    pub(super) shared: Arc<Shared>,
    pub(super) hold: Arc<Hold>,
}

impl Entry for Doorway {
    fn mark(&self, arrival: &Arrival<'_>) -> Option<Vec<u8>> {
        let shared = &self.shared;
        if !shared.up.takes(arrival.topic) || arrival.client_id == shared.client_id {
            return None;
        }
        let properties = Properties::from_forwardable(arrival.properties);
        let sent = Sent {
            client_id: arrival.client_id,
            packet_id: arrival.packet_id.map(fulmar_mqtt::PacketId::get),
            dup: arrival.dup,
            topic: arrival.topic,
            payload: arrival.payload,
        };
        let added = shared.stamper.mark(&Passport::read(properties), &sent, now_ms());
        Some(added.as_properties().raw().to_vec())
    }

    fn holds(&self, client_id: &str) -> bool {
        self.hold.full.load(Ordering::Relaxed) && client_id != self.shared.client_id
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use fulmar_broker::message::{Message, MessageId, MessageParts};
    use fulmar_broker::storage::{Delivery, NoStorage, Progress, SessionRecord};
    use fulmar_mqtt::QoS;

    fn enqueue(session: u64, position: u64) -> Op {
        let parts = MessageParts {
            topic: "t",
            properties: &[],
            payload: &[],
            qos: QoS::AtLeastOnce,
            retain: false,
            expires_at: None,
            publisher: 1,
        };
        Op::Enqueue {
            session: SessionKey(session),
            flow: FlowId::CONTROL,
            position: Position(position),
            message: Message::new(MessageId(position), &parts),
            delivery: Delivery { qos: QoS::AtLeastOnce, retain: false, identifiers: [].into() },
            progress: Progress::Queued,
        }
    }

    #[test]
    fn publishers_are_held_while_the_gateways_own_queue_is_long() {
        let hold = Arc::new(Hold::default());
        let limits = Limits { max_queued_messages: 4, ..Limits::default() };
        hold.begin("gateway", &Restored::default(), &limits);
        let storage = Watched { inner: Arc::new(NoStorage), hold: Arc::clone(&hold) };
        let is_full = |ops: Vec<Op>| {
            storage.submit(&mut ops.clone());
            hold.full.load(Ordering::Relaxed)
        };
        let session = Op::SessionPut(SessionRecord {
            key: SessionKey(7),
            client_id: "gateway".into(),
            username: None,
            expiry_interval_s: 1,
            expires_at: None,
            will: None,
            will_at: None,
        });
        assert!(!is_full(vec![session, enqueue(7, 1), enqueue(7, 2), enqueue(8, 1)]));
        assert!(!is_full(vec![enqueue(8, 2), enqueue(8, 3)]), "another session's queue");
        assert!(is_full(vec![enqueue(7, 3)]));
        let dequeue = |position| Op::Dequeue {
            session: SessionKey(7),
            flow: FlowId::CONTROL,
            position: Position(position),
        };
        assert!(!is_full(vec![dequeue(1)]));
        assert!(is_full(vec![dequeue(1), enqueue(7, 4)]), "an end counts once");
        assert!(!is_full(vec![Op::SessionRemove(SessionKey(7))]));
    }
}
