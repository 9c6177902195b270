//! Back pressure: clients wait while the gateway or the platform is behind with what the broker has queued for its
//! internal session.
//!
//! A queue that overflows would drop messages that were acknowledged, so publishers are delayed before that. Above half
//! of what the limits allow, clients that publish to the session wait, so that no other client waits for a database that
//! is not available; above three quarters all clients wait. The clients of internal sessions never do: they empty the
//! queues. `connection/waiting.rs` asks before each packet. Due wills for a session above half wait, too
//! ([`crate::housekeeping`]).
//!
//! The program names its internal sessions ([`crate::BrokerConfig`]). Another session of its user delays nobody: it may be
//! left from an earlier configuration, and nothing empties its queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use fulmar_auth::User;
use fulmar_auth::access::Subject;
use parking_lot::Mutex;
use rustc_hash::FxHashSet;

use crate::limits::Limits;
use crate::mailbox::Mailboxes;
use crate::storage::SessionKey;

/// No client waits.
const NO_DELAY: u8 = 0;
/// Clients that publish to the session wait.
const DELAY_PUBLISHERS: u8 = 1;
/// All clients wait.
const DELAY_ALL: u8 = 2;
/// Messages that may be queued for an internal session per worker, whatever the limits: each worker may be in the middle
/// of a publication when clients begin to wait, which is at three quarters.
const ALWAYS_QUEUED_PER_WORKER: usize = 4;

/// Publishers that are remembered by name; when there are more, all clients wait. A client may have any number of names.
const MAX_PUBLISHERS: usize = 20_000;

/// What a session has queued, not counting what is in flight.
#[derive(Debug, Default)]
pub(crate) struct Queued {
    messages: usize,
    bytes: usize,
    /// Of an internal session.
    mark: Option<Box<HighWaterMark>>,
}

/// When the queue of an internal session delays clients.
#[derive(Debug)]
pub(crate) struct HighWaterMark {
    back_pressure: Arc<BackPressure>,
    session: SessionKey,
    most: usize,
    most_bytes: usize,
    /// Messages that are queued whatever the limits.
    always: usize,
    /// One of the levels above.
    level: u8,
}

impl Queued {
    /// The session is internal: a long queue delays clients from now on.
    pub(crate) fn set_mark(&mut self, mark: HighWaterMark) {
        self.mark = Some(Box::new(mark));
        self.measure();
    }

    /// Whether it is an internal session's.
    pub(crate) fn is_internal(&self) -> bool {
        self.mark.is_some()
    }

    pub(crate) fn messages(&self) -> usize {
        self.messages
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a message of this size may be queued. Limits that are too small to delay clients in time, such as 0, do
    /// not apply to an internal session: what it cannot queue was acknowledged.
    pub(crate) fn has_room(&self, size: usize, limits: &Limits) -> bool {
        let always = self.mark.as_ref().map_or(0, |mark| mark.always);
        self.messages < always
            || self.messages < limits.max_queued_messages
                && self.bytes + size <= limits.max_queued_bytes
    }

    /// A message of this size was queued.
    pub(crate) fn add(&mut self, size: usize) {
        self.messages += 1;
        self.bytes += size;
        self.measure();
    }

    /// A message of this size has left the queue.
    pub(crate) fn remove(&mut self, size: usize) {
        self.messages = self.messages.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(size);
        self.measure();
    }

    /// The session has ended.
    pub(crate) fn clear(&mut self) {
        (self.messages, self.bytes) = (0, 0);
        self.measure();
    }

    fn measure(&mut self) {
        if let Some(mark) = &mut self.mark {
            mark.measure(self.messages, self.bytes);
        }
    }
}

impl HighWaterMark {
    fn measure(&mut self, messages: usize, bytes: usize) {
        let is_over = |quarters: usize| {
            messages > self.most / 4 * quarters || bytes > self.most_bytes / 4 * quarters
        };
        let level = match () {
            () if is_over(3) => DELAY_ALL,
            () if is_over(2) => DELAY_PUBLISHERS,
            () => NO_DELAY,
        };
        if level != self.level {
            self.level = level;
            self.back_pressure.set(self.session, level);
        }
    }
}

/// Which clients wait; all workers share it.
#[derive(Debug)]
pub(crate) struct BackPressure {
    /// The level of the session that is furthest behind.
    level: AtomicU8,
    /// How often that has fallen.
    falls: AtomicU64,
    behind: Mutex<Behind>,
    /// Client identifiers of the internal sessions.
    internal: Box<[Box<str>]>,
    /// Of the workers, which are woken when clients may go on.
    mailboxes: Mailboxes,
}

#[derive(Debug, Default)]
struct Behind {
    /// Internal sessions that are behind, and their levels.
    sessions: Vec<(SessionKey, u8)>,
    /// Clients that have published to one of them since, up to [`MAX_PUBLISHERS`].
    publishers: FxHashSet<Box<str>>,
}

impl BackPressure {
    pub(crate) fn new(
        internal: impl IntoIterator<Item = Box<str>>,
        mailboxes: Mailboxes,
    ) -> Arc<BackPressure> {
        Arc::new(BackPressure {
            level: AtomicU8::new(NO_DELAY),
            falls: AtomicU64::new(0),
            behind: Mutex::default(),
            internal: internal.into_iter().collect(),
            mailboxes,
        })
    }

    /// The mark of this client's session, if it is an internal session.
    pub(crate) fn mark(
        self: &Arc<Self>,
        client: Subject<'_>,
        session: SessionKey,
        limits: &Limits,
    ) -> Option<HighWaterMark> {
        // By its user too: anybody may choose a client identifier.
        let is_internal = User::is_program(client.user)
            && self.internal.iter().any(|internal| **internal == *client.client_id);
        let always = ALWAYS_QUEUED_PER_WORKER * self.mailboxes.len();
        is_internal.then(|| HighWaterMark {
            back_pressure: Arc::clone(self),
            session,
            most: limits.max_queued_messages.max(always),
            most_bytes: limits.max_queued_bytes,
            always,
            level: NO_DELAY,
        })
    }

    /// Whether an internal session is behind.
    pub(crate) fn is_on(&self) -> bool {
        self.level.load(Ordering::Relaxed) != NO_DELAY
    }

    /// A number that changes when clients may go on.
    pub(crate) fn falls(&self) -> u64 {
        self.falls.load(Ordering::SeqCst)
    }

    /// Whether this client has to wait, if its session is not internal.
    pub(crate) fn delays(&self, client_id: &str) -> bool {
        match self.level.load(Ordering::Relaxed) {
            NO_DELAY => false,
            DELAY_PUBLISHERS => {
                let publishers = &self.behind.lock().publishers;
                publishers.len() >= MAX_PUBLISHERS || publishers.contains(client_id)
            }
            _ => true,
        }
    }

    /// A client publishes to these sessions: it has to wait with its next packet if one of them is behind.
    pub(crate) fn note(&self, client_id: &str, mut receivers: impl Iterator<Item = SessionKey>) {
        let mut behind = self.behind.lock();
        let Behind { sessions, publishers } = &mut *behind;
        if publishers.len() < MAX_PUBLISHERS
            && receivers.any(|receiver| sessions.iter().any(|(session, _)| *session == receiver))
        {
            publishers.insert(client_id.into());
        }
    }

    /// Whether one of these sessions is behind.
    pub(crate) fn is_behind(&self, mut receivers: impl Iterator<Item = SessionKey>) -> bool {
        let behind = self.behind.lock();
        receivers.any(|receiver| behind.sessions.iter().any(|(session, _)| *session == receiver))
    }

    fn set(&self, session: SessionKey, level: u8) {
        let mut behind = self.behind.lock();
        behind.sessions.retain(|(other, _)| *other != session);
        if level > NO_DELAY {
            behind.sessions.push((session, level));
        }
        let highest = behind.sessions.iter().map(|(_, level)| *level).max().unwrap_or(NO_DELAY);
        if highest == NO_DELAY {
            behind.publishers = FxHashSet::default();
        }
        let fell = self.level.swap(highest, Ordering::Relaxed) > highest;
        drop(behind);
        if fell {
            self.falls.fetch_add(1, Ordering::SeqCst);
            self.mailboxes.wake_all();
        }
    }
}
