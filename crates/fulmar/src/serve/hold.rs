//! Publishers wait while a part of the program is behind with what the broker has queued for it.
//!
//! The gateway and the platform take what devices publish out of durable sessions. A queue that
//! overflows would drop what was acknowledged, so whoever publishes is held back before. How far behind a
//! part is, is counted from what the broker stores for it: that is exact after a restart too.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fulmar_broker::storage::{FlowId, Op, Position, Restored, Seq, SessionKey, Storage};
use fulmar_broker::{Arrival, Entry, Limits};
use parking_lot::Mutex;

use super::upstream::Marks;

/// Where publications enter the broker.
pub(super) struct Door {
    pub(super) marks: Option<Marks>,
    pub(super) hold: Arc<Hold>,
}

impl Entry for Door {
    fn mark(&self, arrival: &Arrival<'_>) -> Option<Vec<u8>> {
        self.marks.as_ref()?.mark(arrival)
    }

    fn holds(&self, client_id: &str) -> bool {
        self.hold.holds(client_id)
    }
}

/// What the broker has queued for the program's own sessions.
#[derive(Default)]
pub(super) struct Hold {
    queues: Mutex<Vec<Queue>>,
    /// Whether one of them is too long.
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
    /// Counts for this session, too, from what was restored. Half of what the broker's limits allow is
    /// enough to hold publishers back, so that those that are in the midst of it find room.
    pub(super) fn watch(&self, client_id: &str, restored: &Restored, limits: &Limits) {
        let own = restored.sessions.iter().find(|session| *session.client_id == *client_id);
        let session = own.map(|session| session.key);
        let mut queue = Queue {
            client_id: client_id.to_owned(),
            session,
            most: limits.max_queued_messages / 2,
            most_bytes: limits.max_queued_bytes / 2,
            ..Queue::default()
        };
        for record in restored.queued.iter().filter(|record| Some(record.session) == session) {
            queue.add((record.flow, record.position), record.message.size());
        }
        let mut queues = self.queues.lock();
        queues.push(queue);
        self.full.store(queues.iter().any(Queue::is_full), Ordering::Relaxed);
    }

    /// Whether this client is to wait. The program's own clients never do: they make room.
    pub(super) fn holds(&self, client_id: &str) -> bool {
        self.full.load(Ordering::Relaxed)
            && self.queues.lock().iter().all(|queue| queue.client_id != client_id)
    }

    fn see(&self, batch: &[Op]) {
        let mut queues = self.queues.lock();
        for queue in queues.iter_mut() {
            batch.iter().for_each(|op| queue.see(op));
        }
        self.full.store(queues.iter().any(Queue::is_full), Ordering::Relaxed);
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
    fn publishers_are_held_while_the_queue_of_a_part_is_long() {
        let hold = Arc::new(Hold::default());
        let limits = Limits { max_queued_messages: 4, ..Limits::default() };
        hold.watch("part", &Restored::default(), &limits);
        let storage = Watched { inner: Arc::new(NoStorage), hold: Arc::clone(&hold) };
        let is_full = |ops: Vec<Op>| {
            storage.submit(&mut ops.clone());
            hold.holds("device")
        };
        let session = Op::SessionPut(SessionRecord {
            key: SessionKey(7),
            client_id: "part".into(),
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
        assert!(!hold.holds("part"), "it makes room itself");
        assert!(!is_full(vec![dequeue(1)]));
        assert!(is_full(vec![dequeue(1), enqueue(7, 4)]), "an end counts once");
        assert!(!is_full(vec![Op::SessionRemove(SessionKey(7))]));
    }
}
