//! Publishers wait while a part of the program is behind with what the broker has queued for it.
//!
//! The gateway and the platform take what devices publish out of durable sessions. A queue that
//! overflows would drop what was acknowledged, so publishers are held back before: at half of what the
//! broker's limits allow those who publish what that part takes, so that nobody else waits for a database
//! that is away; at three quarters all. How far behind a part is, is counted from what the broker stores for
//! it: that is exact after a restart too.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use fulmar_broker::storage::{FlowId, Op, Position, Restored, Seq, SessionKey, Storage};
use fulmar_broker::{Arrival, Entry, Limits};
use fulmar_mqtt::topic::matches;
use fulmar_mqtt::{Property, PropertyBuf};
use parking_lot::Mutex;

use super::platform::Platform;
use super::upstream::Marks;

/// Name of the user property with who published a frame, as the platform vouches for it.
pub(super) const PUBLISHER: &str = "fulmar-publisher";

/// Where publications enter the broker.
pub(super) struct Door {
    pub(super) marks: Option<Marks>,
    pub(super) hold: Arc<Hold>,
    pub(super) platform: Option<Platform>,
}

impl Entry for Door {
    fn mark(&self, arrival: &Arrival<'_>) -> Option<Vec<u8>> {
        self.hold.note(arrival.client_id, arrival.topic);
        let marks = self.marks.as_ref().and_then(|marks| marks.mark(arrival));
        // Last, so that what a client says of itself is not what is found.
        match (marks, self.vouch(arrival)) {
            (Some(marks), Some(voucher)) => Some([marks, voucher].concat()),
            (marks, voucher) => marks.or(voucher),
        }
    }

    fn holds(&self, client_id: &str) -> bool {
        self.hold.holds(client_id)
    }
}

impl Door {
    /// The property that tells the platform who published, where it wants to know.
    fn vouch(&self, arrival: &Arrival<'_>) -> Option<Vec<u8>> {
        let user = arrival.guest.filter(|user| !user.is_empty())?;
        let voucher = self.platform.as_ref()?.vouch(user, arrival.topic, arrival.payload)?;
        let mut property = PropertyBuf::new();
        property.push(Property::UserProperty(PUBLISHER, &voucher));
        Some(property.as_properties().raw().to_vec())
    }
}

/// What the broker has queued for the program's own sessions.
#[derive(Default)]
pub(super) struct Hold {
    queues: Mutex<Vec<Queue>>,
    /// How long the longest is: one of the levels below.
    level: AtomicU8,
    /// Who has published for a part that is behind, since it is.
    noted: Mutex<HashSet<Box<str>>>,
}

/// Nobody waits.
const ROOM: u8 = 0;
/// Who publishes for the part waits.
const BEHIND: u8 = 1;
/// Everybody waits.
const BRIMFUL: u8 = 2;

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

impl Hold {
    /// Counts for this session, which takes what these filters match, too, from what was restored.
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

    /// Whether this client is to wait. The program's own clients never do: they make room.
    pub(super) fn holds(&self, client_id: &str) -> bool {
        match self.level.load(Ordering::Relaxed) {
            ROOM => false,
            BEHIND => self.noted.lock().contains(client_id),
            _ => self.queues.lock().iter().all(|queue| queue.client_id != client_id),
        }
    }

    /// A client publishes.
    fn note(&self, client_id: &str, topic: &str) {
        if self.level.load(Ordering::Relaxed) == ROOM {
            return;
        }
        let queues = self.queues.lock();
        let own = queues.iter().any(|queue| queue.client_id == client_id);
        let behind = |queue: &Queue| queue.level() > ROOM && queue.takes(topic);
        if !own && queues.iter().any(behind) {
            self.noted.lock().insert(client_id.into());
        }
    }

    fn measure(&self, queues: &[Queue]) {
        let level = queues.iter().map(Queue::level).max().unwrap_or(ROOM);
        if self.level.swap(level, Ordering::Relaxed) != ROOM && level == ROOM {
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
            () if is_over(3) => BRIMFUL,
            () if is_over(2) => BEHIND,
            () => ROOM,
        }
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

    fn dequeue(position: u64) -> Op {
        let (session, flow) = (SessionKey(7), FlowId::CONTROL);
        Op::Dequeue { session, flow, position: Position(position) }
    }

    /// The part is session 7, takes `a/#`, and is behind with more than 4 of 8 messages.
    fn watched() -> (Arc<Hold>, Watched) {
        let hold = Arc::new(Hold::default());
        let limits = Limits { max_queued_messages: 8, ..Limits::default() };
        hold.watch("part", &["a/#"], &Restored::default(), &limits);
        let storage = Watched { inner: Arc::new(NoStorage), hold: Arc::clone(&hold) };
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
        (hold, storage)
    }

    #[test]
    fn who_publishes_for_a_part_that_is_behind_waits_and_others_do_not() {
        let (hold, storage) = watched();
        storage.submit(&mut (1..=4).map(|position| enqueue(7, position)).collect());
        storage.submit(&mut (1..=9).map(|position| enqueue(8, position)).collect());
        hold.note("device", "a/b");
        assert!(!hold.holds("device"), "another session's queue counts");
        storage.submit(&mut vec![enqueue(7, 5)]);
        assert!(!hold.holds("device"), "what it published before is in the queue already");
        hold.note("device", "a/b");
        hold.note("stranger", "b");
        hold.note("part", "a/b");
        assert!(hold.holds("device") && !hold.holds("stranger") && !hold.holds("part"));
        storage.submit(&mut vec![dequeue(1)]);
        assert!(!hold.holds("device"));
        storage.submit(&mut vec![dequeue(1), enqueue(7, 6)]);
        assert!(!hold.holds("device"), "it was forgotten when there was room");
        hold.note("device", "a/b");
        assert!(hold.holds("device"), "an end counted twice");
        storage.submit(&mut vec![Op::SessionRemove(SessionKey(7))]);
        assert!(!hold.holds("device"));
    }

    #[test]
    fn everybody_but_the_part_waits_before_its_queue_overflows() {
        let (hold, storage) = watched();
        storage.submit(&mut (1..=6).map(|position| enqueue(7, position)).collect());
        assert!(!hold.holds("stranger"));
        storage.submit(&mut vec![enqueue(7, 7)]);
        assert!(hold.holds("stranger") && !hold.holds("part"));
        storage.submit(&mut vec![dequeue(1)]);
        assert!(!hold.holds("stranger"));
    }
}
