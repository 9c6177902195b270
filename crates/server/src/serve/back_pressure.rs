//! Back pressure: publishers wait while the gateway or the platform is behind with the messages that the broker has
//! queued for its internal session.
//!
//! A queue that overflows would drop messages that were acknowledged, so publishers are delayed before that. Above half
//! of what the broker's limits allow, clients that publish to the topics of the queue wait, so that no other client
//! waits for a database that is not available; above three quarters all clients wait. The length of a queue is counted
//! from what the broker stores for it, which is exact after a restart too.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use fulmar_broker::storage::{FlowId, Op, Position, Restored, Seq, SessionKey, Storage};
use fulmar_broker::{Arrival, Limits, PublishHook};
use fulmar_mqtt::topic::matches;
use fulmar_mqtt::{Property, PropertyBuf};
use parking_lot::Mutex;

use super::gateway::Stamps;
use super::platform::Platform;

/// Name of the user property with the user who published a frame, which the platform can rely on.
pub(super) const PUBLISHER: &str = "fulmar-publisher";

/// The program's hook where clients' publications enter the broker.
pub(super) struct IncomingHook {
    pub(super) stamps: Option<Stamps>,
    pub(super) back_pressure: Arc<BackPressure>,
    pub(super) platform: Option<Platform>,
}

impl PublishHook for IncomingHook {
    fn stamp(&self, arrival: &Arrival<'_>) -> Option<Vec<u8>> {
        self.back_pressure.note(arrival.client_id, arrival.topic);
        let stamp = self.stamps.as_ref().and_then(|stamps| stamps.stamp(arrival));
        // Last, so that a property that the client has sent itself is not the one found.
        match (stamp, self.vouch(arrival)) {
            (Some(stamp), Some(voucher)) => Some([stamp, voucher].concat()),
            (stamp, voucher) => stamp.or(voucher),
        }
    }

    fn delays(&self, client_id: &str) -> bool {
        self.back_pressure.delays(client_id)
    }
}

impl IncomingHook {
    /// The property that names the publisher to the platform, on topics where the platform requires it.
    fn vouch(&self, arrival: &Arrival<'_>) -> Option<Vec<u8>> {
        let user = arrival.external_user.filter(|user| !user.is_empty())?;
        let voucher = self.platform.as_ref()?.vouch(user, arrival.topic, arrival.payload)?;
        let mut property = PropertyBuf::new();
        property.push(Property::UserProperty(PUBLISHER, &voucher));
        Some(property.as_properties().raw().to_vec())
    }
}

/// Counts what the broker has queued for internal sessions, and delays publishers.
#[derive(Default)]
pub(super) struct BackPressure {
    queues: Mutex<Vec<Queue>>,
    /// The level of the longest queue: one of those below.
    level: AtomicU8,
    /// Clients that have published to a queue since it has been behind.
    noted: Mutex<HashSet<Box<str>>>,
}

/// No client waits.
const NO_DELAY: u8 = 0;
/// Clients that publish to the queue wait.
const DELAY_PUBLISHERS: u8 = 1;
/// All clients wait.
const DELAY_ALL: u8 = 2;

#[derive(Default)]
struct Queue {
    client_id: String,
    filters: Vec<String>,
    session: Option<SessionKey>,
    sizes: BTreeMap<(FlowId, Position), usize>,
    bytes: usize,
    most: usize,
    most_bytes: usize,
}

impl BackPressure {
    /// Begins to count the queue of this session, which subscribes to `filters`, with what was restored.
    pub(super) fn watch(
        &self,
        client_id: &str,
        filters: &[&str],
        restored: &Restored,
        limits: &Limits,
    ) {
        let own = restored.sessions.iter().find(|session| *session.client_id == *client_id);
        let session = own.map(|session| session.key);
        let mut queue = Queue {
            client_id: client_id.to_owned(),
            filters: filters.iter().map(|filter| (*filter).to_owned()).collect(),
            session,
            most: limits.max_queued_messages,
            most_bytes: limits.max_queued_bytes,
            ..Queue::default()
        };
        for record in restored.queued.iter().filter(|record| Some(record.session) == session) {
            queue.add((record.flow, record.position), record.message.size());
        }
        let mut queues = self.queues.lock();
        queues.push(queue);
        self.measure(&queues);
    }

    /// Whether this client has to wait. The clients of internal sessions never do: they empty the queues.
    pub(super) fn delays(&self, client_id: &str) -> bool {
        match self.level.load(Ordering::Relaxed) {
            NO_DELAY => false,
            DELAY_PUBLISHERS => self.noted.lock().contains(client_id),
            _ => self.queues.lock().iter().all(|queue| queue.client_id != client_id),
        }
    }

    /// A client publishes.
    fn note(&self, client_id: &str, topic: &str) {
        if self.level.load(Ordering::Relaxed) == NO_DELAY {
            return;
        }
        let queues = self.queues.lock();
        let own = queues.iter().any(|queue| queue.client_id == client_id);
        let behind = |queue: &Queue| queue.level() > NO_DELAY && queue.takes(topic);
        if !own && queues.iter().any(behind) {
            self.noted.lock().insert(client_id.into());
        }
    }

    fn measure(&self, queues: &[Queue]) {
        let level = queues.iter().map(Queue::level).max().unwrap_or(NO_DELAY);
        if self.level.swap(level, Ordering::Relaxed) != NO_DELAY && level == NO_DELAY {
            *self.noted.lock() = HashSet::new();
        }
    }

    fn see(&self, batch: &[Op]) {
        let mut queues = self.queues.lock();
        for queue in queues.iter_mut() {
            batch.iter().for_each(|op| queue.see(op));
        }
        self.measure(&queues);
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

    fn takes(&self, topic: &str) -> bool {
        self.filters.iter().any(|filter| matches(filter, topic))
    }

    fn level(&self) -> u8 {
        let is_over = |quarters: usize| {
            self.sizes.len() > self.most / 4 * quarters
                || self.bytes > self.most_bytes / 4 * quarters
        };
        match () {
            () if is_over(3) => DELAY_ALL,
            () if is_over(2) => DELAY_PUBLISHERS,
            () => NO_DELAY,
        }
    }
}

/// Counts the operations that it passes on to the storage.
pub(super) struct Watched {
    pub(super) inner: Arc<dyn Storage>,
    pub(super) back_pressure: Arc<BackPressure>,
}

impl Storage for Watched {
    fn submit(&self, batch: &mut Vec<Op>) -> Seq {
        // Before the commit, which wakes clients that wait.
        self.back_pressure.see(batch);
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

    fn dequeue(position: u64) -> Op {
        let (session, flow) = (SessionKey(7), FlowId::CONTROL);
        Op::Dequeue { session, flow, position: Position(position) }
    }

    /// The internal session is number 7, subscribes to `a/#`, and is behind with more than 4 of 8 messages.
    fn watched() -> (Arc<BackPressure>, Watched) {
        let back_pressure = Arc::new(BackPressure::default());
        let limits = Limits { max_queued_messages: 8, ..Limits::default() };
        back_pressure.watch("part", &["a/#"], &Restored::default(), &limits);
        let storage =
            Watched { inner: Arc::new(NoStorage), back_pressure: Arc::clone(&back_pressure) };
        let session = Op::SessionPut(SessionRecord {
            key: SessionKey(7),
            client_id: "part".into(),
            username: None,
            mqtt_sn: Some(false),
            expiry_interval_s: 1,
            expires_at: None,
            will: None,
            will_at: None,
        });
        storage.submit(&mut vec![session]);
        (back_pressure, storage)
    }

    #[test]
    fn clients_that_publish_to_a_session_that_is_behind_wait_and_others_do_not() {
        let (back_pressure, storage) = watched();
        storage.submit(&mut (1..=4).map(|position| enqueue(7, position)).collect());
        storage.submit(&mut (1..=9).map(|position| enqueue(8, position)).collect());
        back_pressure.note("device", "a/b");
        assert!(!back_pressure.delays("device"), "another session's queue counts");
        storage.submit(&mut vec![enqueue(7, 5)]);
        assert!(
            !back_pressure.delays("device"),
            "what it published before is in the queue already"
        );
        back_pressure.note("device", "a/b");
        back_pressure.note("stranger", "b");
        back_pressure.note("part", "a/b");
        assert!(
            back_pressure.delays("device")
                && !back_pressure.delays("stranger")
                && !back_pressure.delays("part")
        );
        storage.submit(&mut vec![dequeue(1)]);
        assert!(!back_pressure.delays("device"));
        storage.submit(&mut vec![dequeue(1), enqueue(7, 6)]);
        assert!(!back_pressure.delays("device"), "it was forgotten when there was room");
        back_pressure.note("device", "a/b");
        assert!(back_pressure.delays("device"), "an end counted twice");
        storage.submit(&mut vec![Op::SessionRemove(SessionKey(7))]);
        assert!(!back_pressure.delays("device"));
    }

    #[test]
    fn all_other_clients_wait_before_the_queue_overflows() {
        let (back_pressure, storage) = watched();
        storage.submit(&mut (1..=6).map(|position| enqueue(7, position)).collect());
        assert!(!back_pressure.delays("stranger"));
        storage.submit(&mut vec![enqueue(7, 7)]);
        assert!(back_pressure.delays("stranger") && !back_pressure.delays("part"));
        storage.submit(&mut vec![dequeue(1)]);
        assert!(!back_pressure.delays("stranger"));
    }
}
